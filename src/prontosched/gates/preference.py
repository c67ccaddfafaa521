"""Preference between nodes: levels, the order of candidates, and jobs that telemetry does not show yet.

Pure: time arrives as a number. How often a node may change its level is `policy`; which
nodes may be closed is `floor`.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

# Chances of contention at which a node moves to the next level of preference; level 0 is calm.
LEVEL_EDGES = (0.1, 0.3, 0.5, 0.8)
LEVELS = len(LEVEL_EDGES) + 1
# How far below an edge the chance must fall before the level goes down again.
LEVEL_MARGIN = 0.35
# From here on another job is expected to meet contention: a node that refuses is not ranked below.
CONTENDED = LEVEL_EDGES[2]

# After so many seconds half of a placed job is taken to be seen by telemetry.
HALF_SECONDS = 10.0
# A job counts for so long at most: then less than a twentieth of it is left.
LONGEST_SECONDS = 45.0
MOST_JOBS = 20_000
# Less than this of a CPU is nothing.
LEAST_CPUS = 1e-6


def level_of(probability: float, previous: int | None = None) -> int:
    """Return the level of preference of a node, 0 (calm, fill first) to `LEVELS - 1`.

    It rises at an edge at once, and falls only once the chance is well below that edge,
    so that a chance that hovers about an edge changes nothing.

    Parameters
    ----------
    previous
        The level so far; None for a node that has none yet.

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

    Attributes
    ----------
    chance
        Chance of contention, jobs just placed there counted; NaN where nothing is known.
    state
        Its own decision: `accepting`, `contended`, `refusing`, or `unknown`.
    why
        One sentence.
    placed_cpus
        CPUs of jobs just placed there.
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
    nodes: Mapping[str, float]
    at: float


class Placements:
    """Jobs sent to nodes of late, so that many jobs at once do not all go to the calmest node.

    Notes
    -----
    Memory: at most `MOST_JOBS` jobs, each for at most `LONGEST_SECONDS`.

    Examples
    --------
    >>> placements = Placements()
    >>> placements.add("job-1", {"n1": 2.0}, now=0.0)
    >>> placements.cpus("n1", now=0.0), placements.cpus("n1", now=10.0), placements.cpus("n2", now=0.0)
    (2.0, 1.0, 0.0)
    """

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, _Placed] = OrderedDict()
        # Of each node the CPUs that were left at a time: one number, however many jobs it stands for.
        self._on: dict[str, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: str, nodes: Mapping[str, float], now: float) -> None:
        """Count CPUs of `job` on `nodes` from now on; a job that is placed again replaces itself."""
        self._remove(job, now)
        while self._jobs:
            oldest, placed = next(iter(self._jobs.items()))
            if len(self._jobs) < MOST_JOBS and now - placed.at <= LONGEST_SECONDS:
                break
            self._remove(oldest, now)
        self._jobs[job] = _Placed(dict(nodes), now)
        for node, cpus in nodes.items():
            self._on[node] = (self.cpus(node, now) + cpus, now)

    def cpus(self, node: str, now: float) -> float:
        """Return the CPUs sent to `node` that telemetry may not show yet."""
        found = self._on.get(node)
        if found is None or now - found[1] > LONGEST_SECONDS:
            return 0.0
        return found[0] * _left(found[1], now)

    def _remove(self, job: str, now: float) -> None:
        placed = self._jobs.pop(job, None)
        if placed is None:
            return
        for node, cpus in placed.nodes.items():
            total, at = self._on.pop(node, (0.0, now))
            rest = total * _left(at, now) - cpus * _left(placed.at, now)
            if rest > LEAST_CPUS:
                self._on[node] = (rest, now)


def _left(at: float, now: float) -> float:
    """Return the share that telemetry does not show yet of what was placed at a time."""
    # A clock that was set back makes nothing younger than new.
    return float(2.0 ** (-max(0.0, now - at) / HALF_SECONDS))


def crowded_chance(chance: float, placed: float, cpus: float) -> float:
    """Return a node's chance of contention with CPUs on their way that it does not show yet.

    Examples
    --------
    >>> crowded_chance(0.5, placed=0.0, cpus=8), crowded_chance(0.5, placed=4.0, cpus=8)
    (0.5, 0.75)
    """
    return chance + (1.0 - chance) * min(1.0, placed / cpus)
