"""Placers: which node a job goes to, among those that are open and have room.

A scheduler first filters, then ranks. Every placer here gets the nodes that are open and
have room, and what the rule prefers: a score of each node (in shares of its CPUs, lower is
better), and perhaps levels. Placers that rank nodes add the score to their own measure.
Those that draw at random draw among the nodes of the best level, as a scheduler does that
fills nodes by their weight; where there are no levels they take the better of two.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prontosched.gates.preference import LEVEL_EDGES
from prontosched.subspace import Array

Mask = NDArray[np.bool_]
STALE_SECONDS = 10
PACKER_TARGET = 0.6
# Those that draw at random, and so go by levels.
DRAWING = ("random", "two-choices", "two-choices-stale")


class View(NamedTuple):
    """What a placer may know of the nodes of its cluster, `(M,)` each."""

    cores: Array
    allocated: Array  # CPUs that jobs asked for
    load: Array
    stale: Array  # the load ten seconds ago


class Choice(NamedTuple):
    """A job's question."""

    width: float
    able: Mask  # which nodes are open and have room, at least one
    score: Array | None  # what the rule prefers, lower first; None where it prefers nothing
    levels: NDArray[np.intp] | None
    recent: Array  # CPUs of jobs placed in the last seconds, which telemetry does not show yet, in shares


Placer = Callable[[View, Choice, np.random.Generator], int]


PLACERS: dict[str, Placer] = {
    "random": lambda view, choice, rng: _drawn(choice, rng, None),
    "two-choices": lambda view, choice, rng: _drawn(choice, rng, view.load),
    "two-choices-stale": lambda view, choice, rng: _drawn(choice, rng, view.stale),
    "least-loaded": lambda view, choice, rng: _lowest(view.stale, choice),
    # The smallest share of CPUs given to jobs: it counts jobs by itself, at once.
    "least-allocated": lambda view, choice, rng: _lowest(
        view.allocated / view.cores + 1e-6 * rng.random(view.cores.size), choice, counts_jobs=True
    ),
    "packer": lambda view, choice, rng: _lowest(_beyond_target(view, choice), choice),
}


class Loads:
    """The load of all nodes, fresh and ten seconds old."""

    def __init__(self, nodes: int) -> None:
        self.fresh: Array = np.zeros(nodes)
        self._past: deque[Array] = deque([self.fresh], maxlen=STALE_SECONDS + 1)

    @property
    def stale(self) -> Array:
        """As it was ten seconds ago."""
        return self._past[0]

    def observe(self, load: Array) -> None:
        """Take in the load of this second."""
        self.fresh = load
        self._past.append(load)


def _beyond_target(view: View, choice: Choice) -> Array:
    """Return what a packer goes by: nodes are filled up to a target load, the emptiest of those beyond it last."""
    after = view.stale + choice.width / view.cores
    below = after <= PACKER_TARGET
    return np.where(below, 0.5 * (1.0 - after / PACKER_TARGET), 0.5 + (after - PACKER_TARGET))


def _drawn(choice: Choice, rng: np.random.Generator, measure: Array | None) -> int:
    able = np.flatnonzero(choice.able)
    parts = [] if measure is None else [measure]
    if choice.levels is not None and choice.score is not None:
        # A job just placed counts at once: a node that takes it moves up as if its chance had risen.
        with_recent = np.searchsorted(LEVEL_EDGES, choice.score[able] + choice.recent[able], "right")
        levels = np.maximum(choice.levels[able], with_recent)
        able = able[levels == levels.min()]
    elif choice.score is not None:
        parts.append(choice.score)
    if not parts:
        return int(able[int(rng.random() * able.size)])
    if choice.score is not None:
        parts.append(choice.recent)
    one, two = (able[(rng.random(2) * able.size).astype(np.intp)]).tolist()
    worse = sum(float(part[one]) - float(part[two]) for part in parts)
    return int(two if worse > 0.0 else one)


def _lowest(measure: Array, choice: Choice, *, counts_jobs: bool = False) -> int:
    values = measure
    if choice.score is not None:
        values = measure + choice.score if counts_jobs else measure + choice.score + choice.recent
    return int(np.argmin(np.where(choice.able, values, np.inf)))
