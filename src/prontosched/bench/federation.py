"""What a federation costs: a two-level tree as the fleet grows, in one process.

Every node encodes its summary, every aggregator checks, merges and passes on, and the
root publishes a global view: the same code that runs on machines, on a link without a
socket. Data are made outside the measured part, seeded.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from prontosched.federation.aggregator import Aggregator
from prontosched.federation.link import Board, LocalLink
from prontosched.federation.message import Summary
from prontosched.federation.pooling import pooled_scale, pooled_subspace
from prontosched.federation.propagation import Propagation
from prontosched.federation.schema_book import SchemaBook
from prontosched.federation.service import AggregatorService
from prontosched.federation.tree import Tree
from prontosched.federation.voice import Voice
from prontosched.subspace import Array, Subspace, distance, summarise

FEATURES = 134
RANK = 4
SPARE = 1
FAN_OUT = 100
# Half as much again per node, at a hundred times the fleet, still counts as flat.
FLAT = 1.5

Row = dict[str, Any]


def federation_rows() -> Iterator[Row]:
    """Yield how exact a tree is, and what it costs as the fleet grows."""
    from prontosched.bench.federation_error import error

    yield from error()
    yield from scale()


def scale(largest: int = 10_000, *, features: int = FEATURES, seed: int = 7) -> list[Row]:
    """Return the cost of one fresh global view for fleets from 100 nodes to `largest`."""
    sizes = [size for size in (100, 1_000, 10_000) if size < largest] + [largest]
    rows: list[Row] = []
    per_node: list[float] = []
    for size in sizes:
        # Small fleets are over in a moment: the median of several runs is what one of them costs.
        runs = [one_view(size, features=features, seed=seed + run) for run in range(max(1, 500 // size))]
        found = {name: float(np.median([run[name] for run in runs])) for name in runs[0]}
        per_node.append(found["cpu_per_node"])
        rows += [
            _row(f"{size} nodes: messages to a fresh view", found["messages"], "messages"),
            _row(f"{size} nodes: bytes to a fresh view", found["bytes"] / 1e6, "MB"),
            _row(f"{size} nodes: processor time", found["cpu"], "s"),
            _row(f"{size} nodes: processor time per node", found["cpu_per_node"] * 1e6, "us"),
            _row(f"{size} nodes: time to a fresh view", found["seconds"], "s"),
            _row(f"{size} nodes: view against the exact one", found["distance"], "projector distance", 0.05),
        ]
    growth = per_node[-1] / per_node[0]
    rows.append(_row(f"cost per node, {sizes[-1]} against {sizes[0]} nodes", growth, "times", FLAT))
    rows.append(_row("one summary", one_message(features), "bytes", 4_400.0))
    return rows


def one_view(nodes: int, *, features: int = FEATURES, seed: int = 7) -> dict[str, float]:
    """Return what it takes for a fleet that is new as a whole to come to a global view."""
    rng = np.random.default_rng(seed)
    metrics = tuple(f"metric_{i:03d}" for i in range(features))
    summaries = [summary_of(f"host-{i:05d}", metrics, rng) for i in range(nodes)]
    tree = Tree.balanced(nodes, fan_out=FAN_OUT)
    board = Board(lambda: 1_000_000.0)
    link = LocalLink(board)
    names = tree.aggregators(summary.node for summary in summaries)
    services = [AggregatorService(LocalLink(board), Aggregator(n, fan_out=1024), tree=tree) for n in names]
    book = SchemaBook(link)
    voices = [Voice(link, s.node, tree=tree, book=book, rule=Propagation()) for s in summaries]

    cpu, clock = time.process_time(), time.perf_counter()
    for voice, summary in zip(voices, summaries, strict=True):
        voice.offer(summary)
    for service in services:
        service.turn()
    cpu, clock = time.process_time() - cpu, time.perf_counter() - clock

    root = services[-1]
    assert root.view is not None
    assert root.view.nodes == nodes
    speakers = [service.rule.sent_count for service in services[:-1]]
    received = sum(service.heard_bytes for service in services)
    exact = pooled_subspace(summaries, metrics, pooled_scale(summaries, metrics).deviation, rank=RANK)
    return {
        "messages": float(nodes + sum(speakers) + 1),
        "bytes": float(received + root.bytes_published),
        "cpu": cpu,
        "cpu_per_node": cpu / nodes,
        "seconds": clock,
        "distance": distance(exact, root.view.subspace.cut(RANK) if root.view.subspace else None),
    }


def one_message(features: int = FEATURES) -> float:
    """Return the length of one node's summary in bytes."""
    metrics = tuple(f"metric_{i:03d}" for i in range(features))
    return float(len(summary_of("rack1/host-00001", metrics, np.random.default_rng(1)).to_bytes()))


def summary_of(name: str, metrics: tuple[str, ...], rng: np.random.Generator) -> Summary:
    """Return what a node of a fleet with common factors would send."""
    features = len(metrics)
    samples = 250.0
    subspace = _turned(_common(features), rng)
    return Summary(
        node=name,
        incarnation=1,
        sequence=1,
        metrics=metrics,
        subspace=Subspace(subspace.basis, subspace.singular_values * math.sqrt(samples)),
        samples=samples,
        mean=rng.normal(50.0, 10.0, features),
        deviation=np.exp(rng.normal(0.0, 0.3, features)),
        spread=np.zeros(features),
        counts=np.full(features, samples),
    )


def _common(features: int) -> Array:
    shared = np.random.default_rng(features).standard_normal((features, RANK + SPARE))
    strengths: Array = 4.0 * 0.7 ** np.arange(RANK + SPARE, dtype=np.float64)
    directions: Array = np.linalg.qr(shared)[0]
    return directions * strengths


def _turned(common: Array, rng: np.random.Generator) -> Subspace:
    found = summarise(common + 0.02 * rng.standard_normal(common.shape), rank=common.shape[1])
    assert found is not None
    return found


def _row(name: str, value: float, unit: str, goal: float | None = None) -> Row:
    return {
        "name": name,
        "value": value,
        "goal": goal,
        "unit": unit,
        "met": None if goal is None else value <= goal,
    }
