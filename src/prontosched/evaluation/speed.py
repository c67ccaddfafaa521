"""How fast and how large: the paper's performance table, and what its data set would take."""

from __future__ import annotations

import math
import time
import tracemalloc
from collections import Counter
from typing import Any

from prontosched.evaluation.inputs import FirstRows
from prontosched.evaluation.replay import PartResult
from prontosched.pipeline.presets import make_node

# 100 clusters, about 30,000 VMs, four weeks at 20 s.
PAPER_NODES = 30_000
PAPER_STEPS = 28 * 24 * 180
# What the paper's own table says, in milliseconds per vector and megabytes.
PAPER_TABLE = {
    "fpca": (15.0, 148.0),
    "power-method": (22.0, 155.0),
    "frequent-directions": (25.0, 151.0),
    "spirit": (9.0, 123.0),
}
TIMED_VECTORS = 1000
WORKERS = (8, 64, 512)


def paper_scale(node_steps: int, processor_seconds: float, elapsed: float, workers: int) -> dict[str, Any]:
    """Work out from this run's rate what the paper's data set would take.

    Processor time is added up over workers; `elapsed` is by the clock.
    """
    total = PAPER_NODES * PAPER_STEPS
    if not node_steps or not elapsed:
        return {"node_steps": total}
    each = processor_seconds / node_steps
    return {
        "node_steps": total,
        "microseconds_per_node_step": each * 1e6,
        "hours_here": total * elapsed / node_steps / 3600.0,
        "workers_here": workers,
        "hours_on_workers": {str(n): total * each / n / 3600.0 for n in WORKERS},
    }


def timing(results: list[PartResult], first: FirstRows) -> dict[str, Any]:
    """Return what a node-step of this study took, beside a bare step of a default node on the same vectors."""
    steps = max(1, sum(result.node_steps for result in results))
    each, bare = sum(result.seconds for result in results) / steps * 1e6, step_time(first)
    spent: Counter[str] = sum((Counter(result.spent) for result in results), Counter())
    return {
        "microseconds_per_node_step": each,
        "microseconds_of_a_bare_step": bare,
        "times_a_bare_step": each / bare,
        "microseconds_by_part": {name: seconds / steps * 1e6 for name, seconds in spent.most_common()},
    }


def step_time(first: FirstRows, preset: str = "default", **options: Any) -> float:
    """Return the processor time of one step of a node, in microseconds: the best of three passes."""
    vectors, values = first.vectors[:TIMED_VECTORS], first.ready[:TIMED_VECTORS].tolist()
    best = math.inf
    for _ in range(3):
        node = make_node(preset, **options)
        began = time.process_time()
        for place, (y, value) in enumerate(zip(vectors, values, strict=True)):
            node.step(y, ready=value, time=20.0 * place)
        best = min(best, time.process_time() - began)
    return best / len(values) * 1e6


def performance_table(first: FirstRows) -> list[dict[str, Any]]:
    """Time one node of each embedding, vector by vector, and measure what it allocates.

    The paper's figures include an interpreter and a profiler; ours are the node alone.
    """
    vectors, ready = first.vectors[:200], first.ready[:200].tolist()
    rows = []
    for embedding, (paper_ms, paper_mb) in PAPER_TABLE.items():
        tracemalloc.start()
        try:
            node = make_node("paper", embedding=embedding)
            for y, value in zip(vectors, ready, strict=True):
                node.step(y, ready=value)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        rows.append(
            {
                "embedding": embedding,
                "microseconds_per_vector": step_time(first, "paper", embedding=embedding),
                "kilobytes": peak / 1000.0,
                "state_kilobytes": len(node.to_bytes()) / 1000.0,
                "paper_milliseconds": paper_ms,
                "paper_megabytes": paper_mb,
            }
        )
    return rows
