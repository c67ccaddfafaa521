"""Runs a signal over a stream and keeps what it said."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prontosched.decision import Evidence
from prontosched.pipeline.presets import make_node
from prontosched.signals.learned import LearnedSignal
from prontosched.subspace import Array


class Said(NamedTuple):
    """What a signal said, step by step."""

    raised: NDArray[np.bool_]
    score: Array
    probability: Array
    reasons: list[str]
    states: list[str]


def run(signal: LearnedSignal, ready: Array, *, interval: float | None = None, first: int = 0) -> Said:
    """Let a signal decide from CPU Ready alone."""
    said = []
    for t, value in enumerate(ready.tolist(), start=first):
        time = float("nan") if interval is None else 1.7e9 + interval * t
        said.append(signal.decide(Evidence(t, ready=value, time=time)))
    return _columns(said)


def run_node(vectors: Array, ready: Array, **options: object) -> tuple[Said, LearnedSignal]:
    """Let a whole node decide."""
    node = make_node("default", metrics=tuple(f"metric {i}" for i in range(vectors.shape[1])), **options)
    said = [node.step(y, ready=float(c)) for y, c in zip(vectors, ready, strict=True)]
    assert isinstance(node.signal, LearnedSignal)
    return _columns(said), node.signal


def _columns(said: list) -> Said:
    return Said(
        np.array([d.raised for d in said]),
        np.array([d.score for d in said]),
        np.array([d.probability for d in said]),
        [d.reason for d in said],
        [d.state for d in said],
    )
