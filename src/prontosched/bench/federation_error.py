"""How far the root's view lies from the SVD of all data, which no one ever holds.

Nodes see common factors through their own units and follow them block by block, as real
ones do. On a fixed shared scale the only error is truncation, at every block and at every
merge; on the pooled scale nodes also differ in how loud they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from prontosched.federation.aggregator import Aggregator
from prontosched.federation.message import Summary
from prontosched.pipeline import FPCAEdge
from prontosched.subspace import Array, Subspace, distance

NODES, GROUPS, FEATURES, SAMPLES = 48, 6, 134, 250
RANK, BLOCK = 4, 10

Row = dict[str, Any]


def error(*, seed: int = 7) -> list[Row]:
    """Return the distance to the exact view, for a shared scale and for pooled ones."""
    rows: list[Row] = []
    for spare in (0, 1, 2, 4):
        value = one_error(None, spare=spare, seed=seed)
        rows.append(_row(f"shared scale, nodes keep {spare} spare: view against the SVD of all data", value))
    for ratio in (1.5, 4.0):
        for spare in (0, 1):
            value = one_error(ratio, spare=spare, seed=seed)
            rows.append(
                _row(f"pooled scale, deviations {ratio:g} times apart, {spare} spare: the same", value)
            )
    return rows


def one_error(ratio: float | None, *, spare: int, seed: int = 7, nodes: int = NODES) -> float:
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
        block = loading @ rng.standard_normal((8, SAMPLES)) + rng.standard_normal((FEATURES, SAMPLES))
        blocks.append(block if ratio is None else block * rng.uniform(1.0, ratio, (FEATURES, 1)))
    within = np.ones(FEATURES)
    if ratio is not None:
        within = np.sqrt(np.mean([block.var(axis=1) for block in blocks], axis=0))
    groups = [Aggregator(f"g{i}", rank=RANK) for i in range(GROUPS)]
    for index, block in enumerate(blocks):
        groups[index % GROUPS].receive(_summary(f"n{index}", block, ratio is not None, spare), now=0.0)
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
    embedding = FPCAEdge(rank=RANK, block_size=BLOCK, forgetting=1.0, spare=spare)
    for y in ((block - mean[:, None]) / deviation[:, None]).T:
        embedding.learn_one(y)
    subspace = embedding.kept
    zeros, counts = np.zeros(FEATURES), np.full(FEATURES, float(SAMPLES))
    return Summary(name, 1, 1, metrics, subspace, float(SAMPLES), mean, deviation, zeros, counts)


def _numbered(summary: Summary) -> Summary:
    fields = {name: getattr(summary, name) for name in summary.__slots__}
    return Summary(**{**fields, "incarnation": 1, "sequence": 1})


def _row(name: str, value: float) -> Row:
    return {"name": name, "value": value, "goal": 0.05, "unit": "distance", "met": value <= 0.05}
