"""Rules of other schedulers and papers, on the same telemetry.

One class per published rule, for M nodes at once, with its published default. `step` takes one timestep of all
nodes, `(M,)`, or several, `(T, M)`, and returns for each a score per node (higher is worse, in shares of the node's
CPUs) and which nodes refuse. A rule whose source only ranks nodes never refuses. The simulator takes single steps in
its loop; the evaluator replays many at once.

A value that is unknown (NaN), or of a node that is not present, changes nothing; until a node has a first value its
score is NaN and it does not refuse.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prontosched.subspace import Array

Mask = NDArray[np.bool_]
# Values that a window keeps of each node; a longer window is sampled.
MOST_KEPT = 900


class RuleAnswer(NamedTuple):
    """Scores and refusals of a rule, in the shape of what it was given."""

    score: Array
    refuse: Mask


class Competitor:
    """A published rule, over M nodes."""

    def step(
        self, ready: Array, utilisation: Array, demand: Array | None = None, present: Mask | None = None
    ) -> RuleAnswer:
        """Take in one timestep, `(M,)` each, or several, `(T, M)` each, and answer.

        `demand` are runnable tasks per CPU, running and waiting; by default utilisation and ready together. `present`
        says which nodes step now; all by default.
        """
        queue = (utilisation + ready) / 100.0 if demand is None else demand
        if present is not None and not present.all():
            given = (ready, utilisation, queue)
            ready, utilisation, queue = (np.where(present, values, np.nan) for values in given)
        return self._answer(ready, utilisation, queue)

    def _answer(self, ready: Array, busy: Array, queue: Array) -> RuleAnswer:
        raise NotImplementedError


class ReadyLimit(Competitor):
    """Refuse while CPU Ready is above 5 %: the one line that an operator would write.

    Source: VMware's guidance that 5 % CPU Ready per virtual CPU is worth a look.
    """

    def __init__(self, nodes: int, interval: float = 1.0) -> None:
        self._last = _Average(nodes, 0.0, interval)

    def _answer(self, ready: Array, busy: Array, queue: Array) -> RuleAnswer:
        return _above(self._last.add(ready) / 100.0, 0.05)


class PressureStall(Competitor):
    """Pressure stall averages of 10 and 60 seconds both at or above 50 %; open below it at 60.

    Source: Kubernetes KEP-5394 (from KEP-4205), the observation logic for node conditions. It leaves the threshold to
    be found by experiment: 50 % here. Where PSI itself is not at hand, the share of time in which some task waits is
    taken as the waiting tasks, at most 1. `cores` turns CPU Ready into waiting tasks.
    """

    LIMIT = 50.0

    def __init__(self, nodes: int, interval: float = 1.0, *, cores: float | Array = 1.0) -> None:
        self._cores = cores
        self._short = _Average(nodes, 10.0, interval)
        self._long = _Average(nodes, 60.0, interval)
        self._refusing = np.zeros(nodes, np.bool_)

    def _answer(self, ready: Array, busy: Array, queue: Array) -> RuleAnswer:
        some = np.minimum(ready * self._cores, 100.0)
        short, long = self._short.add(some), self._long.add(some)
        over = np.atleast_2d(long >= self.LIMIT)
        both = over & (short >= self.LIMIT)
        both[0] |= over[0] & self._refusing
        # Closed if the last step where both were over came after the last where the long one was not.
        steps = np.arange(1, len(over) + 1)[:, None]
        closed, opened = (np.maximum.accumulate(np.where(on, steps, 0)) for on in (both, ~over))
        refuse = closed > opened
        self._refusing = refuse[-1]
        return RuleAnswer(np.maximum(short, long) / 100.0, refuse.reshape(long.shape))


class Trimaran(Competitor):
    """Mean plus standard deviation of utilisation over 15 minutes, halved: a score, no veto.

    Source: Kubernetes scheduler-plugins, LoadVariationRiskBalancing: risk = (mean + margin
    times deviation) / 2, margin and sensitivity 1, from the load watcher's 15 minutes.
    """

    def __init__(self, nodes: int, interval: float = 1.0) -> None:
        self._past = _Window(nodes, 900.0, interval)

    def _answer(self, ready: Array, busy: Array, queue: Array) -> RuleAnswer:
        mean, deviation = self._past.add(busy / 100.0).moments()
        return _above((np.clip(mean, 0.0, 1.0) + np.clip(deviation, 0.0, 1.0)) / 2.0, math.inf)


class Koordinator(Competitor):
    """Refuse while the 95th percentile of utilisation over 5 minutes is above 65 %.

    Source: Koordinator's LoadAwareScheduling: default threshold 65 % CPU; with aggregation
    `p95`, over 5 minutes, the shortest of the durations that its node metrics report.
    """

    def __init__(self, nodes: int, interval: float = 1.0) -> None:
        self._past = _Window(nodes, 300.0, interval)

    def _answer(self, ready: Array, busy: Array, queue: Array) -> RuleAnswer:
        return _above(self._past.add(busy).percentile(95.0) / 100.0, 0.65)


class RunQueue(Competitor):
    """Refuse while the averaged run queue per CPU is above `loadSched`.

    Source: IBM LSF's load indices r15s and r1m, exponential averages of the effective run
    queue over 15 seconds and a minute, normalised for the number of CPUs. LSF sets no
    threshold by itself: 0.7, from its sample queue.
    """

    def __init__(self, nodes: int, interval: float = 1.0, *, seconds: float = 60.0) -> None:
        self._average = _Average(nodes, seconds, interval)

    def _answer(self, ready: Array, busy: Array, queue: Array) -> RuleAnswer:
        return _above(self._average.add(queue), 0.7)


class Volcano(Competitor):
    """Refuse while the mean utilisation of 10 minutes, read every 30 seconds, is above 80 %.

    Source: Volcano's `usage` plugin: thresholds cpu 80, the period 10m, metrics every 30 s.
    """

    def __init__(self, nodes: int, interval: float = 1.0) -> None:
        self._past = _Window(nodes, 600.0, interval)
        self._every = max(1, round(30.0 / interval))
        self._steps = 0
        self._mean = np.full(nodes, np.nan)

    def _answer(self, ready: Array, busy: Array, queue: Array) -> RuleAnswer:
        mean, _ = self._past.add(busy).moments()
        means = np.concatenate([self._mean[None], np.atleast_2d(mean)])
        steps = self._steps + np.arange(len(means) - 1)
        self._steps += len(steps)
        read = np.maximum.accumulate(np.where(steps % self._every == 0, 1 + np.arange(len(steps)), 0))
        self._mean = means[read[-1]]
        return _above(means[read].reshape(busy.shape) / 100.0, 0.8)


class Peak(Competitor):
    """Refuse while the predicted peak of the CPUs in use reaches the node's capacity.

    Source: Bashir et al., "Take it to the Limit: Peak Prediction-driven Resource Overcommitment in Datacenters"
    (EuroSys 2021): mean plus 5 standard deviations (N-sigma), the 99th percentile of the past (after Resource
    Central), and their maximum, over 2 hours. There they predict from the usage of single tasks; here from the
    node's. `by` names the predictors.
    """

    def __init__(
        self, nodes: int, interval: float = 1.0, *, by: tuple[str, ...] = ("sigma", "percentile")
    ) -> None:
        self._by = by
        self._past = _Window(nodes, 7200.0, interval)

    def _answer(self, ready: Array, busy: Array, queue: Array) -> RuleAnswer:
        past = self._past.add(busy)
        peaks = []
        if "sigma" in self._by:
            mean, deviation = past.moments()
            peaks.append(mean + 5.0 * deviation)
        if "percentile" in self._by:
            peaks.append(past.percentile(99.0))
        peak = np.maximum.reduce(peaks)
        # A saturated machine shows 100 % but for rounding.
        return RuleAnswer(peak / 100.0, np.nan_to_num(peak, nan=0.0) >= 100.0 - 1e-9)


COMPETITORS: dict[str, Callable[..., Competitor]] = {
    "ready": ReadyLimit,
    "psi": PressureStall,
    "trimaran": Trimaran,
    "koordinator": Koordinator,
    "r15s": lambda nodes, interval=1.0: RunQueue(nodes, interval, seconds=15.0),
    "r1m": RunQueue,
    "volcano": Volcano,
    "n-sigma": lambda nodes, interval=1.0: Peak(nodes, interval, by=("sigma",)),
    "peak-percentile": lambda nodes, interval=1.0: Peak(nodes, interval, by=("percentile",)),
    "peak-max": Peak,
}
SOURCES: dict[str, str] = {
    "ready": "one line: CPU Ready above 5 %",
    "psi": "Kubernetes KEP-5394: PSI avg10 and avg60 at 50 %",
    "trimaran": "Trimaran: mean + deviation of 15 min (score only)",
    "koordinator": "Koordinator: p95 of 5 min above 65 %",
    "r15s": "LSF r15s: run queue per CPU above 0.7",
    "r1m": "LSF r1m: run queue per CPU above 0.7",
    "volcano": "Volcano: mean of 10 min above 80 %",
    "n-sigma": "Take it to the Limit: mean + 5 deviations of 2 h",
    "peak-percentile": "Take it to the Limit: p99 of 2 h",
    "peak-max": "Take it to the Limit: the greater of both",
}


class _Average:
    """Exponential average over a time constant, as the kernel's load and pressure averages are."""

    def __init__(self, nodes: int, seconds: float, interval: float) -> None:
        self._weight = 1.0 - math.exp(-interval / seconds) if seconds else 1.0
        self._value = np.full(nodes, np.nan)

    def add(self, values: Array) -> Array:
        """Take in the values of one timestep or several, NaN where unknown; return the averages after each."""
        if values.ndim == 1:
            before = np.where(np.isnan(self._value), values, self._value)
            moved = before + self._weight * (values - before)
            self._value = np.where(np.isnan(values), self._value, moved)
            return self._value.copy()
        averages = running_mean(values, self._value, self._weight)
        self._value = averages[-1].copy()
        return averages


def running_mean(values: Array, start: Array, weight: float, *, most: float | None = None) -> Array:
    """Return the exponential means of `(T, M)` after each timestep, going on from `start`.

    An unknown value moves nothing; the first known one is the mean where `start` is NaN. A value counts as at most
    `most` times the mean. Plain floats, node by node: the means of a few nodes are no work for arrays.
    """
    found = np.empty(values.shape)
    for node, mean in enumerate(start.tolist()):
        means = []
        for value in values[:, node].tolist():
            if math.isfinite(value):
                counted = value if most is None else min(value, most * mean + 1e-9)
                mean = mean + weight * (counted - mean) if mean == mean else value
            means.append(mean)
        found[:, node] = means
    return found


class _Window:
    """The last values of every node, sampled where there are more than `MOST_KEPT`.

    `add` returns what `moments` and `percentile` are asked of: the window after one timestep, or after each of several.
    """

    def __init__(self, nodes: int, seconds: float, interval: float) -> None:
        steps = max(2, round(seconds / interval))
        self._stride = math.ceil(steps / MOST_KEPT)
        self._kept = np.full((nodes, math.ceil(steps / self._stride)), np.nan)
        self._steps = 0
        self._sum, self._squares, self._count = np.zeros((3, nodes))
        self._percentiles: dict[float, Array] = {}

    def add(self, values: Array) -> _Window | _WindowRun:
        """Keep the values of one timestep or several, NaN where unknown."""
        if values.ndim == 2:
            return self._extend(values)
        steps, self._steps = self._steps, self._steps + 1
        if steps % self._stride:
            return self
        at = (steps // self._stride) % self._kept.shape[1]
        for sign, changed in ((-1.0, self._kept[:, at]), (1.0, values)):
            there = np.isfinite(changed)
            held = np.where(there, changed, 0.0)
            self._sum += sign * held
            self._squares += sign * held * held
            self._count += sign * there
        self._kept[:, at] = values
        self._percentiles.clear()
        return self

    def _extend(self, values: Array) -> _WindowRun:
        first, size = self._steps, self._kept.shape[1]
        steps = first + np.arange(len(values))
        kept = steps % self._stride == 0
        new = values[kept]
        # The ring's next place holds its oldest value.
        place = -(-first // self._stride) % size
        line = np.concatenate([np.roll(self._kept, -place, axis=1).T, new])
        newest = line[len(line) - size :]
        self._kept = np.roll(newest.T, (place + len(new)) % size, axis=1).copy()
        self._steps = first + len(values)
        there = np.isfinite(self._kept)
        held = np.where(there, self._kept, 0.0)
        self._sum, self._squares = held.sum(axis=1), (held * held).sum(axis=1)
        self._count = there.sum(axis=1).astype(np.float64)
        self._percentiles.clear()
        return _WindowRun(line, size, np.cumsum(kept))

    def moments(self) -> tuple[Array, Array]:
        """Return mean and standard deviation."""
        return _moments(self._sum, self._squares, self._count)

    def percentile(self, level: float) -> Array:
        """Return a percentile: the nearest value that was seen."""
        if level not in self._percentiles:
            # NaN sorts last, so that a node's own values come first, in order.
            ordered = np.sort(self._kept, axis=1)
            place = _place(level, self._count)
            self._percentiles[level] = ordered[np.arange(len(ordered)), place]
        return self._percentiles[level]


class _WindowRun:
    """What a window was after each of several timesteps.

    `line` has the values kept before, then those kept since, `(size + n, M)`; `ends` says how many of those since were
    kept by each timestep.
    """

    def __init__(self, line: Array, size: int, ends: NDArray[np.intp]) -> None:
        self._line = line
        self._size = size
        self._ends = ends
        self._count = self._sums(np.isfinite(line).astype(np.float64))

    def _sums(self, values: Array) -> Array:
        """Return the sum over the window after each timestep."""
        total = np.concatenate([np.zeros((1, values.shape[1])), np.cumsum(values, axis=0)])
        return np.asarray(total[self._ends + self._size] - total[self._ends])

    def moments(self) -> tuple[Array, Array]:
        """As in `_Window`."""
        held = np.where(np.isfinite(self._line), self._line, 0.0)
        return _moments(self._sums(held), self._sums(held * held), self._count)

    def percentile(self, level: float) -> Array:
        """As in `_Window`."""
        moved, at = np.unique(self._ends, return_inverse=True)
        place = _place(level, self._count)
        found = np.empty(place.shape)
        for node in range(place.shape[1]):
            windows = np.lib.stride_tricks.sliding_window_view(self._line[:, node], self._size)[moved]
            ranks = np.unique(place[:, node])
            ordered = np.partition(windows, ranks, axis=1) if ranks.size < 8 else np.sort(windows, axis=1)
            found[:, node] = ordered[at, place[:, node]]
        return found


def _moments(total: Array, squares: Array, count: Array) -> tuple[Array, Array]:
    number = np.where(count > 0, count, np.nan)
    mean = total / number
    return mean, np.sqrt(np.maximum(squares / number - mean * mean, 0.0))


def _place(level: float, count: Array) -> NDArray[np.intp]:
    return np.rint(level / 100.0 * np.maximum(count - 1.0, 0.0)).astype(np.intp)


def _above(score: Array, limit: float) -> RuleAnswer:
    refuse: Mask = np.greater(score, limit, where=~np.isnan(score), out=np.zeros(score.shape, np.bool_))
    return RuleAnswer(score, refuse)
