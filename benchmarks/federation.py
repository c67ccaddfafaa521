"""How exact a federation is, and what it costs: a two-level tree as the fleet grows, in one process.

Every node encodes its summary, every aggregator checks, merges and passes on, and the
root publishes a global view: the same code that runs on machines, on a link without a
socket. Data are made outside the measured part, seeded.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator

import numpy as np

from benchmarks.row import Row
from prontosched.federation.aggregator import Aggregator
from prontosched.federation.link import LocalBus, LocalLink
from prontosched.federation.message import Summary
from prontosched.federation.pooling import pooled_scale, pooled_subspace
from prontosched.federation.publisher import Propagation, SummaryPublisher
from prontosched.federation.schema import SchemaCache
from prontosched.federation.service import AggregatorService
from prontosched.federation.tree import Tree
from prontosched.pipeline import FPCAEdge
from prontosched.subspace import Array, Subspace, distance, summarise

FEATURES = 134
RANK = 4
ERROR_NODES, ERROR_GROUPS, ERROR_SAMPLES, ERROR_BLOCK = 48, 6, 250, 10
SPARE = 1
FAN_OUT = 100
# Half as much again per node, at a hundred times the fleet, still counts as flat.
FLAT = 1.5


def federation_rows(largest: int = 10_000) -> Iterator[Row]:
    """Yield how exact a tree is, and what it costs as the fleet grows."""
    yield from error()
    yield from scale(largest)


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
            Row(f"{size} nodes: messages to a fresh view", found["messages"], "messages"),
            Row(f"{size} nodes: bytes to a fresh view", found["bytes"] / 1e6, "MB"),
            Row(f"{size} nodes: processor time", found["cpu"], "s"),
            Row(f"{size} nodes: processor time per node", found["cpu_per_node"] * 1e6, "us"),
            Row(f"{size} nodes: time to a fresh view", found["seconds"], "s"),
            Row(f"{size} nodes: view against the exact one", found["distance"], "projector distance", 0.05),
        ]
    growth = per_node[-1] / per_node[0]
    rows.append(Row(f"cost per node, {sizes[-1]} against {sizes[0]} nodes", growth, "times", FLAT))
    rows.append(Row("one summary", one_message(features), "bytes", 4_400.0))
    return rows


def one_view(nodes: int, *, features: int = FEATURES, seed: int = 7) -> dict[str, float]:
    """Return what it takes for a fleet that is new as a whole to come to a global view."""
    rng = np.random.default_rng(seed)
    metrics = tuple(f"metric_{i:03d}" for i in range(features))
    summaries = [summary_of(f"host-{i:05d}", metrics, rng) for i in range(nodes)]
    tree = Tree.balanced(nodes, fan_out=FAN_OUT)
    board = LocalBus(lambda: 1_000_000.0)
    link = LocalLink(board)
    names = tree.aggregators(summary.node for summary in summaries)
    services = [AggregatorService(LocalLink(board), Aggregator(n, fan_out=1024), tree=tree) for n in names]
    schemas = SchemaCache(link)
    publishers = [
        SummaryPublisher(link, s.node, tree=tree, schemas=schemas, rule=Propagation()) for s in summaries
    ]

    cpu, clock = time.process_time(), time.perf_counter()
    for publisher, summary in zip(publishers, summaries, strict=True):
        publisher.publish(summary)
    for service in services:
        service.turn()
    cpu, clock = time.process_time() - cpu, time.perf_counter() - clock

    root = services[-1]
    assert root.view is not None
    assert root.view.nodes == nodes
    speakers = [service.rule.sent_count for service in services[:-1]]
    received = sum(service.subscription.received_bytes for service in services)
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


def error(*, seed: int = 7) -> list[Row]:
    """Return how far the root's view lies from the SVD of all data, which no machine holds.

    Nodes see common factors and follow them block by block, as real ones do. On a shared
    scale the only error is truncation, at every block and every merge; on the pooled scale
    the nodes' deviations differ too.
    """
    rows: list[Row] = []
    for spare in (0, 1, 2, 4):
        value = one_error(None, spare=spare, seed=seed)
        rows.append(
            Row(
                f"shared scale, nodes keep {spare} spare: view against the SVD of all data",
                value,
                "distance",
                0.05,
            )
        )
    for ratio in (1.5, 4.0):
        for spare in (0, 1):
            value = one_error(ratio, spare=spare, seed=seed)
            rows.append(
                Row(
                    f"pooled scale, deviations {ratio:g} times apart, {spare} spare: the same",
                    value,
                    "distance",
                    0.05,
                )
            )
    return rows


def one_error(ratio: float | None, *, spare: int, seed: int = 7, nodes: int = ERROR_NODES) -> float:
    """Return the projector distance at the root of a two-level tree.

    Parameters
    ----------
    ratio
        How far apart the nodes' deviations lie; None for a shared scale of 1.
    spare
        Directions that nodes follow and send beyond those compared; aggregators always keep four.
    """
    rng = np.random.default_rng(seed)
    loading = np.linalg.qr(rng.standard_normal((FEATURES, 8)))[0] * (12.0 * 0.75 ** np.arange(8))
    blocks = []
    for _ in range(nodes):
        block = loading @ rng.standard_normal((8, ERROR_SAMPLES)) + rng.standard_normal(
            (FEATURES, ERROR_SAMPLES)
        )
        blocks.append(block if ratio is None else block * rng.uniform(1.0, ratio, (FEATURES, 1)))
    within = np.ones(FEATURES)
    if ratio is not None:
        within = np.sqrt(np.mean([block.var(axis=1) for block in blocks], axis=0))
    groups = [Aggregator(f"g{i}", rank=RANK) for i in range(ERROR_GROUPS)]
    for index, block in enumerate(blocks):
        groups[index % ERROR_GROUPS].receive(_summary(f"n{index}", block, ratio is not None, spare), now=0.0)
    root = Aggregator("", rank=RANK)
    for group in groups:
        merged = group.merged()
        assert merged is not None
        root.receive(_numbered(merged), now=0.0)
    found = root.merged()
    assert found is not None
    assert found.subspace is not None
    data = np.hstack(
        [(b - b.mean(axis=1, keepdims=True) * (ratio is not None)) / within[:, None] for b in blocks]
    )
    squares, vectors = np.linalg.eigh(data @ data.T)
    exact = Subspace(vectors[:, : -RANK - 1 : -1].copy(), np.sqrt(squares[: -RANK - 1 : -1]))
    return distance(found.subspace.cut(RANK), exact)


def _summary(name: str, block: Array, standardised: bool, spare: int) -> Summary:
    mean = block.mean(axis=1) if standardised else np.zeros(FEATURES)
    deviation = block.std(axis=1) if standardised else np.ones(FEATURES)
    metrics = tuple(f"m{i:03d}" for i in range(FEATURES))
    embedding = FPCAEdge(rank=RANK, block_size=ERROR_BLOCK, forgetting=1.0, spare=spare)
    for y in ((block - mean[:, None]) / deviation[:, None]).T:
        embedding.learn_one(y)
    return Summary(
        node=name,
        incarnation=1,
        sequence=1,
        metrics=metrics,
        subspace=embedding.kept,
        samples=float(ERROR_SAMPLES),
        mean=mean,
        deviation=deviation,
        spread=np.zeros(FEATURES),
        counts=np.full(FEATURES, float(ERROR_SAMPLES)),
    )


def _numbered(summary: Summary) -> Summary:
    return dataclasses.replace(summary, incarnation=1, sequence=1)
