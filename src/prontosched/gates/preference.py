"""Preference between nodes: levels, the order of candidates, and jobs that telemetry does not show yet.

Pure: time arrives as a number. How often a node may change its level, and which nodes may
be closed, is `policy`.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from itertools import repeat
from typing import NamedTuple, TypeVar

import numpy as np

from prontosched.subspace import Array

# Chances of contention at which a node moves to the next level of preference; level 0 is calm.
LEVEL_EDGES = (0.1, 0.3, 0.5, 0.8)
LEVELS = len(LEVEL_EDGES) + 1
# How far below an edge the chance must fall before the level goes down again.
LEVEL_MARGIN = 0.35
# From here on another job is expected to meet contention: a node that refuses is not ranked below.
CONTENDED = LEVEL_EDGES[2]

# After so many seconds half of a placed job is taken to be seen by telemetry.
HALF_SECONDS = 10.0
# A job is known again for so long, to count once: then less than a twentieth of it is left.
LONGEST_SECONDS = 45.0
MOST_JOBS = 20_000
MOST_NAMES = 250_000
# Less than this of a CPU is nothing.
LEAST_CPUS = 1e-6

Chances = TypeVar("Chances", float, Array)


def level_of(probability: float, previous: int | None = None) -> int:
    """Return the level of preference of a node, 0 (calm, fill first) to `LEVELS - 1`.

    It rises at an edge at once, and falls below `previous`, the level so far, only once the
    chance is well below that edge: a chance that hovers about an edge changes nothing.

    Examples
    --------
    >>> level_of(0.02), level_of(0.6), level_of(0.45, previous=3), level_of(0.15, previous=3)
    (0, 3, 3, 1)
    """
    if math.isnan(probability):
        return previous or 0
    level = sum(probability >= edge for edge in LEVEL_EDGES)
    if previous is None or level >= previous:
        return level
    low = sum(probability >= edge * (1.0 - LEVEL_MARGIN) for edge in LEVEL_EDGES)
    return min(previous, low)


class Candidate(NamedTuple):
    """One node that a job could go to.

    `chance` counts jobs just placed there (`placed_cpus`); NaN where nothing is known. `state` is
    its own decision: `accepting`, `contended`, `refusing`, or `unknown`.
    """

    node: str
    chance: float
    state: str
    why: str
    placed_cpus: float = 0.0

    def as_json(self) -> dict[str, str | float | None]:
        """Return it as plain values, null where nothing is known."""
        return {**self._asdict(), "chance": None if math.isnan(self.chance) else self.chance}


def best_first(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return nodes in the order to prefer: those that refuse last, else the lower chance first.

    A node of which nothing is known stands between calm and contended ones.

    Examples
    --------
    >>> nodes = [Candidate("n1", 0.2, "accepting", ""), Candidate("n2", math.nan, "unknown", "")]
    >>> [one.node for one in best_first([*nodes, Candidate("n3", 0.6, "contended", "")])]
    ['n1', 'n2', 'n3']
    """

    def key(one: Candidate) -> tuple[bool, float, str]:
        return one.state == "refusing", CONTENDED if math.isnan(one.chance) else one.chance, one.node

    return sorted(candidates, key=key)


class _Placed(NamedTuple):
    nodes: Sequence[str]
    cpus: float
    at: float


class Placements:
    """Jobs sent to nodes of late, so that many jobs at once do not all go to the calmest node.

    What is left of all jobs halves in the same time, so their sum on a node is kept as one
    number, as large as it was at a common time in the past.

    Notes
    -----
    Memory: at most `MOST_JOBS` jobs with `MOST_NAMES` names of nodes in all.

    Examples
    --------
    >>> placements = Placements()
    >>> placements.add("job-1", ["n1"], cpus=2.0, now=0.0)
    >>> placements.on(["n1", "n2"], 10.0).tolist()
    [1.0, 0.0]
    """

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, _Placed] = OrderedDict()
        self._names = 0
        self._then: dict[str, float] = {}
        self._origin = self._latest = -math.inf

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: str, nodes: Sequence[str], cpus: float, now: float) -> None:
        """Count CPUs of `job` from now on, shared by `nodes`; a job that is placed again replaces itself."""
        if not nodes:
            return
        self._advance(now)
        while self._jobs:
            placed = next(iter(self._jobs.values()))
            full = len(self._jobs) >= MOST_JOBS or self._names + len(nodes) > MOST_NAMES
            if not full and now - placed.at <= LONGEST_SECONDS:
                break
            self._names -= len(self._jobs.popitem(last=False)[1].nodes)
        if (before := self._jobs.pop(job, None)) is not None:
            self._remove(before)
        self._jobs[job] = _Placed(nodes, cpus / len(nodes), now)
        self._names += len(nodes)
        then = self._then
        share = cpus / len(nodes) / _left(self._origin, now)
        for node in nodes:
            then[node] = then.get(node, 0.0) + share

    def on(self, nodes: Collection[str], now: float) -> Array:
        """Return the CPUs sent to each of the nodes that telemetry may not show yet."""
        if now - self._latest > LONGEST_SECONDS:
            return np.zeros(len(nodes))
        found = np.fromiter(map(self._then.get, nodes, repeat(0.0)), float, len(nodes))
        return np.maximum(found * _left(self._origin, max(now, self._latest)), 0.0)

    def _advance(self, now: float) -> None:
        """Move the common time along, for numbers that stay in range whatever the clock does."""
        if now < self._latest:  # the clock was set back: nothing becomes older or younger by that
            back = self._latest - now
            self._origin -= back
            self._jobs = OrderedDict((job, one._replace(at=one.at - back)) for job, one in self._jobs.items())
        elif now - self._origin > LONGEST_SECONDS:
            left = zip(self._then, self.on(self._then, now).tolist(), strict=True)
            self._then, self._origin = {node: cpus for node, cpus in left if cpus > LEAST_CPUS}, now
        self._latest = now

    def _remove(self, placed: _Placed) -> None:
        self._names -= len(placed.nodes)
        share = placed.cpus / _left(self._origin, placed.at)
        for node in placed.nodes:
            if node in self._then:
                self._then[node] -= share


def _left(at: float, now: float) -> float:
    """Return the share that telemetry does not show yet of what was placed at a time."""
    return float(2.0 ** ((at - now) / HALF_SECONDS))


def crowded_chance(chance: Chances, placed: Chances, cpus: Chances) -> Chances:
    """Return the chance of contention of a node, or of many, with CPUs on their way that telemetry does not show.

    Examples
    --------
    >>> float(crowded_chance(0.5, placed=4.0, cpus=8.0))
    0.75
    """
    crowded: Chances = chance + (1.0 - chance) * np.minimum(1.0, placed / cpus)
    return crowded
