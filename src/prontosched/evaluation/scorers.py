"""What a method must do to be evaluated, and the plain rules every signal has to beat.

Covers: rules a user would write in five lines, those that other schedulers publish, and those that look at
nothing at all. Learned references that need other libraries are in `references`; the registry is `methods`.
Methods score some rows at a time, each from its past and itself alone.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from prontosched.competitors import Competitor
from prontosched.decision import FleetSignal, Signal
from prontosched.evaluation.windows import Mask
from prontosched.signals.inputs import weight
from prontosched.subspace import Array

GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
# Rules that compare CPU Ready itself, or what it stands for, with a published limit.
ON_READY = ("psi", "r15s", "r1m")


class Said(NamedTuple):
    """What a method says of some rows, `(steps, nodes)` each.

    Attributes
    ----------
    score
        NaN says nothing.
    raised
        Its own decisions; None for a score without a threshold of its own, which is then raised in the
        highest tenth of its own past.
    probability
        Chance of a spike; None where the method knows none.
    """

    score: Array
    raised: Mask | None
    probability: Array | None = None


@dataclass(slots=True)
class Rows:
    """The next rows of all nodes of a chunk, side by side: `(steps, nodes)`, vectors `(steps, nodes, metrics)`.

    Attributes
    ----------
    timestep
        Position in each node's own stream.
    threshold
        CPU Ready from which there is contention.
    present
        The node has such a row.
    t_squared, spe, scaled
        As seen through the embedding, for methods that look through one: Hotelling's T², the squared
        prediction error, and the scaled vectors.
    """

    ready: Array
    utilisation: Array
    time: Array
    present: Mask
    timestep: NDArray[np.int64]
    threshold: Array
    vectors: Array
    t_squared: Array
    spe: Array
    scaled: Array


class Scorer(Protocol):
    """A method under evaluation, for a chunk of nodes at once; it never sees the future."""

    def score(self, rows: Rows) -> Said:
        """Score the next rows; each from its past and itself alone."""
        ...


class Signals(NamedTuple):
    """A registered signal, to be made for one node or for many at once."""

    one: Callable[[], Signal]
    fleet: Callable[[int], FleetSignal]


class CurrentReady:
    """Refuse while CPU Ready is at or over the threshold."""

    def score(self, rows: Rows) -> Said:
        """Score by the present value."""
        return Said(rows.ready, _reaches(rows.ready, rows.threshold))


class PublishedRule:
    """A rule of another scheduler, from `prontosched.competitors`.

    Utilisation is taken as a share of 1 on a node where it never was above 1. CPU Ready in a unit of its own
    still ranks moments; the rule's published limit then means nothing.
    """

    def __init__(self, rule: Competitor, ready_unit: str, interval_seconds: float) -> None:
        self.rule = rule
        self._to_percent = 0.1 / interval_seconds if ready_unit == "ms" and interval_seconds > 0 else 1.0
        self._demand = ready_unit == "other"
        self._most: Array | None = None

    def score(self, rows: Rows) -> Said:
        """Let the rule decide, row by row."""
        busy = rows.utilisation
        first = np.full(busy.shape[1:], -np.inf) if self._most is None else self._most
        most = np.fmax.accumulate(np.concatenate([first[None], busy]), axis=0)[1:]
        self._most = most[-1]
        percent = np.where(most <= 1.0, 100.0 * busy, busy)
        ready = rows.ready * self._to_percent
        return Said(*self.rule.run(ready, percent, ready if self._demand else None, rows.present))


class SmoothedReady:
    """An exponentially weighted mean of CPU Ready.

    Notes
    -----
    Memory: one float per node.
    """

    def __init__(self, nodes: int, weight: float = 0.3) -> None:
        self.weight = weight
        self._mean = np.full(nodes, np.nan)

    def score(self, rows: Rows) -> Said:
        """Score by the mean, the present included."""
        score = np.empty_like(rows.ready)
        for step, ready in enumerate(rows.ready):
            score[step] = self._mean = _blend(self._mean, ready, self.weight)
        return Said(score, _reaches(score, rows.threshold))


class ReadyZScore:
    """How many deviations CPU Ready lies above its own recent mean.

    Notes
    -----
    Memory: two floats per node.
    """

    def __init__(self, nodes: int, half_life: float = 600.0, limit: float = 3.0) -> None:
        self.limit = limit
        self._weight = weight(half_life)
        self._mean = np.full(nodes, np.nan)
        self._variance = np.full(nodes, np.nan)
        self._seen = np.zeros(nodes)

    def score(self, rows: Rows) -> Said:
        """Score against the mean and deviation of the past."""
        score = np.stack([self._step(ready) for ready in rows.ready])
        return Said(score, _reaches(score, self.limit))

    def _step(self, ready: Array) -> Array:
        off = ready - self._mean
        score: Array = off / np.sqrt(np.maximum(self._variance, 1e-18))
        # A mean of the first values, then an exponential one.
        recent = np.maximum(1.0 / (self._seen + 2.0), self._weight)
        self._mean = _blend(self._mean, ready, recent)
        self._variance = _blend(self._variance, np.where(np.isfinite(off), off * off, 0.0), recent)
        self._seen += np.isfinite(ready)
        score[self._seen < 20] = np.nan
        return score


class Utilisation:
    """CPU utilisation, raised in its own highest tenth."""

    def score(self, rows: Rows) -> Said:
        """Score by utilisation now."""
        return Said(rows.utilisation, None)


class DistanceMeans:
    """T² and SPE of some nodes, each relative to its own recent mean, so that they can be added.

    Notes
    -----
    Memory: two floats per node.
    """

    def __init__(self, nodes: int, half_life: float = 600.0) -> None:
        self._weight = weight(half_life)
        self._means = np.full((2, nodes), np.nan)
        self._rows: Rows | None = None
        self._relative: Array = np.zeros((0, 2, nodes))

    def relative(self, rows: Rows) -> Array:
        """Return both, `(steps, 2, nodes)`, worked out once for the same rows."""
        if rows is not self._rows:
            both = np.stack([rows.t_squared, rows.spe], axis=1)
            self._relative = np.stack([self._step(now) for now in both])
            self._rows = rows
        return self._relative

    def _step(self, both: Array) -> Array:
        means = self._means
        relative: Array = both / np.maximum(means, 1e-12)
        # One absurd vector must not silence the rest of the day; an unknown one moves nothing.
        bounded = np.where(np.isnan(both), np.nan, np.fmin(both, 100.0 * means + 1e-9))
        self._means = _blend(means, bounded, self._weight)
        return relative


class SubspaceDistance:
    """Hotelling's T², the squared prediction error, or both, of the node's own subspace.

    T² says how unusual a vector is within the subspace, SPE how far it lies outside.
    """

    def __init__(self, means: DistanceMeans, *, inside: bool, outside: bool) -> None:
        self._used = [place for place, used in enumerate((inside, outside)) if used]
        self._means = means

    def score(self, rows: Rows) -> Said:
        """Score by the distance from what is usual."""
        return Said(self._means.relative(rows)[:, self._used].sum(axis=1), None)


class Coin:
    """Refuse at random: what any method must beat at equal downtime."""

    def __init__(self, nodes: tuple[str, ...], downtime: float, seed: int) -> None:
        self.downtime = downtime
        self._generators = [np.random.default_rng([seed, 11, zlib.crc32(node.encode())]) for node in nodes]

    def score(self, rows: Rows) -> Said:
        """Score at random."""
        steps = rows.ready.shape[0]
        score = np.stack([generator.random(steps) for generator in self._generators], axis=1)
        return Said(score, score > 1.0 - self.downtime)


class Clock:
    """Refuse at every tenth timestep, looking at nothing.

    Its score runs through evenly spread values, so that at any budget it is raised at even distances.
    """

    def __init__(self, period: int = 10) -> None:
        self.period = period

    def score(self, rows: Rows) -> Said:
        """Score by the number of the timestep."""
        score = np.asarray((rows.timestep * GOLDEN) % 1.0, np.float64)
        return Said(score, rows.timestep % self.period == 0)


class AlwaysAccept:
    """Never refuse."""

    def score(self, rows: Rows) -> Said:
        """Say nothing, accept everything."""
        return Said(np.full(rows.ready.shape, np.nan), np.zeros(rows.ready.shape, bool))


def _reaches(score: Array, threshold: Array | float) -> Mask:
    found: Mask = score >= threshold
    return found


def _blend(mean: Array, value: Array, weight: Array | float) -> Array:
    """Return the mean moved towards the value; an unknown value moves nothing, the first is the mean."""
    moved = np.where(np.isfinite(mean), mean + weight * (value - mean), value)
    return np.where(np.isfinite(value), moved, mean)
