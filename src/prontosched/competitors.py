"""What other schedulers and papers would decide from the same telemetry.

Covers: one class per published rule, for M nodes at once, with its published default.
`step` takes the present values of all nodes and returns a score per node (higher is
worse, in shares of the node's CPUs) and which nodes refuse. A rule whose source only
ranks nodes never refuses. The simulator runs them in its loop, the evaluator replays
traces through them.

`run` takes several timesteps at once, `(T, M)`, with the answers of as many steps.

A value that is unknown (NaN), or of a node that is not present, changes nothing; until
a node has a first value its score is NaN and it does not refuse.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from prontosched.subspace import Array

Mask = NDArray[np.bool_]
# Values that a window keeps of each node; a longer window is sampled.
MOST_KEPT = 900


class Verdict(NamedTuple):
    """The word of a rule on M nodes: scores and refusals, `(M,)` each."""

    score: Array
    refuse: Mask


class Competitor(Protocol):
    """A published rule, over M nodes."""

    def step(
        self,
        ready: Array,
        utilisation: Array,
        demand: Array | None = None,
        present: Mask | None = None,
    ) -> Verdict:
        """Take in one timestep and answer.

        Parameters
        ----------
        ready
            CPU Ready `(M,)`: waiting tasks in percent per CPU.
        utilisation
            CPU utilisation `(M,)` in percent.
        demand
            Runnable tasks per CPU `(M,)`, running and waiting; by default utilisation and
            ready together.
        present
            Which nodes step now, `(M,)`; all by default.
        """
        ...

    def run(
        self,
        ready: Array,
        utilisation: Array,
        demand: Array | None = None,
        present: Mask | None = None,
    ) -> Verdict:
        """Take in several timesteps, `(T, M)` each, and answer for every one."""
        ...


class Ready:
    """Refuse while CPU Ready is above 5 %: the one line that an operator would write.

    Source: VMware's guidance that 5 % CPU Ready per virtual CPU is worth a look.
    """

    def __init__(self, nodes: int, interval: float = 1.0, *, limit: float = 5.0) -> None:
        self.limit = limit
        self._last = np.full(nodes, np.nan)

    def step(
        self, ready: Array, utilisation: Array, demand: Array | None = None, present: Mask | None = None
    ) -> Verdict:
        """Compare the present value."""
        self._last = np.where(_known(ready, present), ready, self._last)
        return _verdict(self._last / 100.0, self.limit / 100.0)

    def run(
        self, ready: Array, utilisation: Array, demand: Array | None = None, present: Mask | None = None
    ) -> Verdict:
        """Compare the values one after the other."""
        return _one_by_one(self, ready, utilisation, demand, present)


class Pressure:
    """Pressure stall averages of 10 and 60 seconds both at or above a threshold; open below it at 60.

    Source: Kubernetes KEP-5394 (from KEP-4205), the observation logic for node conditions.
    It leaves the threshold to be found by experiment: 50 % here. Where PSI itself is not
    at hand, the share of time in which some task waits is taken as the waiting tasks, at
    most 1.

    Parameters
    ----------
    cores
        CPUs of a node: what turns CPU Ready into waiting tasks.
    """

    def __init__(self, nodes: int, interval: float = 1.0, *, cores: float = 1.0, limit: float = 50.0) -> None:
        self.cores = cores
        self.limit = limit
        self._short = _Average(nodes, 10.0, interval)
        self._long = _Average(nodes, 60.0, interval)
        self._refusing = np.zeros(nodes, np.bool_)

    def step(
        self, ready: Array, utilisation: Array, demand: Array | None = None, present: Mask | None = None
    ) -> Verdict:
        """Follow both averages."""
        known = _known(ready, present)
        some = np.minimum(ready * self.cores, 100.0)
        short, long = self._short.add(some, known), self._long.add(some, known)
        over = long >= self.limit
        self._refusing = over & (self._refusing | (short >= self.limit))
        return Verdict(np.maximum(short, long) / 100.0, self._refusing.copy())

    def run(
        self, ready: Array, utilisation: Array, demand: Array | None = None, present: Mask | None = None
    ) -> Verdict:
        """Follow both averages over several steps."""
        known = _known(ready, present)
        some = np.minimum(ready * self.cores, 100.0)
        short, long = self._short.run(some, known), self._long.run(some, known)
        over, both = long >= self.limit, (long >= self.limit) & (short >= self.limit)
        refuse = np.empty(over.shape, np.bool_)
        for step in range(len(over)):
            refuse[step] = self._refusing = over[step] & (self._refusing | both[step])
        return Verdict(np.maximum(short, long) / 100.0, refuse)


class Trimaran:
    """Mean plus standard deviation of utilisation over 15 minutes, halved: a score, no veto.

    Source: Kubernetes scheduler-plugins, LoadVariationRiskBalancing: risk = (mean + margin
    times deviation) / 2, margin and sensitivity 1, from the load watcher's 15 minutes.
    """

    def __init__(
        self, nodes: int, interval: float = 1.0, *, window: float = 900.0, margin: float = 1.0
    ) -> None:
        self.margin = margin
        self._past = _Window(nodes, window, interval)

    def step(
        self, ready: Array, utilisation: Array, demand: Array | None = None, present: Mask | None = None
    ) -> Verdict:
        """Return the risk."""
        self._past.add(utilisation / 100.0, _known(utilisation, present))
        return self._risk(*self._past.moments())

    def run(
        self, ready: Array, utilisation: Array, demand: Array | None = None, present: Mask | None = None
    ) -> Verdict:
        """Return the risk over several steps."""
        view = self._past.extend(utilisation / 100.0, _known(utilisation, present))
        return self._risk(*view.moments())

    def _risk(self, mean: Array, deviation: Array) -> Verdict:
        spread = self.margin * np.clip(deviation, 0.0, 1.0)
        return _verdict((np.clip(mean, 0.0, 1.0) + spread) / 2.0, math.inf)


class Koordinator:
    """Refuse while the 95th percentile of utilisation over 5 minutes is above 65 %.

    Source: Koordinator's LoadAwareScheduling: default threshold 65 % CPU; with aggregation
    `p95`, over 5 minutes, the shortest of the durations that its node metrics report.
    """

    def __init__(
        self,
        nodes: int,
        interval: float = 1.0,
        *,
        window: float = 300.0,
        percentile: float = 95.0,
        limit: float = 65.0,
    ) -> None:
        self.percentile = percentile
        self.limit = limit
        self._past = _Window(nodes, window, interval)

    def step(
        self, ready: Array, utilisation: Array, demand: Array | None = None, present: Mask | None = None
    ) -> Verdict:
        """Compare the percentile."""
        self._past.add(utilisation, _known(utilisation, present))
        return _verdict(self._past.percentile(self.percentile) / 100.0, self.limit / 100.0)

    def run(
        self, ready: Array, utilisation: Array, demand: Array | None = None, present: Mask | None = None
    ) -> Verdict:
        """Compare the percentile over several steps."""
        view = self._past.extend(utilisation, _known(utilisation, present))
        return _verdict(view.percentile(self.percentile) / 100.0, self.limit / 100.0)


class RunQueue:
    """Refuse while the averaged run queue per CPU is above `loadSched`.

    Source: IBM LSF's load indices r15s and r1m, exponential averages of the effective run
    queue over 15 seconds and a minute, normalised for the number of CPUs. LSF sets no
    threshold by itself: 0.7, from its sample queue.
    """

    def __init__(
        self, nodes: int, interval: float = 1.0, *, seconds: float = 60.0, limit: float = 0.7
    ) -> None:
        self.limit = limit
        self._average = _Average(nodes, seconds, interval)

    def step(
        self, ready: Array, utilisation: Array, demand: Array | None = None, present: Mask | None = None
    ) -> Verdict:
        """Follow the average."""
        queue = (utilisation + ready) / 100.0 if demand is None else demand
        return _verdict(self._average.add(queue, _known(queue, present)), self.limit)

    def run(
        self, ready: Array, utilisation: Array, demand: Array | None = None, present: Mask | None = None
    ) -> Verdict:
        """Follow the average over several steps."""
        queue = (utilisation + ready) / 100.0 if demand is None else demand
        return _verdict(self._average.run(queue, _known(queue, present)), self.limit)


class Volcano:
    """Refuse while the mean utilisation of 10 minutes, read every 30 seconds, is above 80 %.

    Source: Volcano's `usage` plugin: thresholds cpu 80, the period 10m, metrics every 30 s.
    """

    def __init__(
        self,
        nodes: int,
        interval: float = 1.0,
        *,
        window: float = 600.0,
        every: float = 30.0,
        limit: float = 80.0,
    ) -> None:
        self.limit = limit
        self._past = _Window(nodes, window, interval)
        self._every = max(1, round(every / interval))
        self._steps = 0
        self._mean = np.full(nodes, np.nan)

    def step(
        self, ready: Array, utilisation: Array, demand: Array | None = None, present: Mask | None = None
    ) -> Verdict:
        """Compare the mean as it was read last."""
        self._past.add(utilisation, _known(utilisation, present))
        if self._steps % self._every == 0:
            self._mean = self._past.moments()[0]
        self._steps += 1
        return _verdict(self._mean / 100.0, self.limit / 100.0)

    def run(
        self, ready: Array, utilisation: Array, demand: Array | None = None, present: Mask | None = None
    ) -> Verdict:
        """Compare the mean as it was read last, over several steps."""
        view = self._past.extend(utilisation, _known(utilisation, present))
        steps = self._steps + np.arange(len(utilisation))
        self._steps += len(utilisation)
        means = np.concatenate([self._mean[None], view.moments()[0]])
        read = np.maximum.accumulate(np.where(steps % self._every == 0, 1 + np.arange(len(steps)), 0))
        self._mean = means[read[-1]]
        return _verdict(means[read] / 100.0, self.limit / 100.0)


class Peak:
    """Refuse while the predicted peak of the CPUs in use reaches the node's capacity.

    Source: Bashir et al., "Take it to the Limit: Peak Prediction-driven Resource
    Overcommitment in Datacenters" (EuroSys 2021): mean plus 5 standard deviations
    (N-sigma), the 99th percentile of the past (after Resource Central), and their maximum,
    over 2 hours. There they predict from the usage of single tasks; here from the node's.

    Parameters
    ----------
    sigmas
        Standard deviations above the mean; None leaves that predictor out.
    percentile
        Percentile of the past; None leaves that predictor out.
    """

    def __init__(
        self,
        nodes: int,
        interval: float = 1.0,
        *,
        window: float = 7200.0,
        sigmas: float | None = 5.0,
        percentile: float | None = 99.0,
        limit: float = 100.0,
    ) -> None:
        if sigmas is None and percentile is None:
            raise ValueError("a peak predictor must have sigmas, a percentile or both, got neither")
        self.sigmas = sigmas
        self.percentile = percentile
        self.limit = limit
        self._past = _Window(nodes, window, interval)

    def step(
        self, ready: Array, utilisation: Array, demand: Array | None = None, present: Mask | None = None
    ) -> Verdict:
        """Compare the predicted peak."""
        self._past.add(utilisation, _known(utilisation, present))
        return self._compare(self._past)

    def run(
        self, ready: Array, utilisation: Array, demand: Array | None = None, present: Mask | None = None
    ) -> Verdict:
        """Compare the predicted peak over several steps."""
        return self._compare(self._past.extend(utilisation, _known(utilisation, present)))

    def _compare(self, past: _Window | _WindowRun) -> Verdict:
        peaks = []
        if self.sigmas is not None:
            mean, deviation = past.moments()
            peaks.append(mean + self.sigmas * deviation)
        if self.percentile is not None:
            peaks.append(past.percentile(self.percentile))
        peak = np.maximum.reduce(peaks)
        return Verdict(peak / 100.0, _at_least(peak, self.limit))


COMPETITORS: dict[str, Callable[..., Competitor]] = {
    "ready": Ready,
    "psi": Pressure,
    "trimaran": Trimaran,
    "koordinator": Koordinator,
    "r15s": lambda nodes, interval=1.0: RunQueue(nodes, interval, seconds=15.0),
    "r1m": RunQueue,
    "volcano": Volcano,
    "n-sigma": lambda nodes, interval=1.0: Peak(nodes, interval, percentile=None),
    "peak-percentile": lambda nodes, interval=1.0: Peak(nodes, interval, sigmas=None),
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
        self._weight = 1.0 - math.exp(-interval / seconds)
        self._value = np.full(nodes, np.nan)

    def add(self, value: Array, known: Mask) -> Array:
        """Take in the known values; return the averages."""
        before = np.where(np.isnan(self._value), value, self._value)
        self._value = np.where(known, before + self._weight * (value - before), self._value)
        return self._value

    def run(self, values: Array, known: Mask) -> Array:
        """Take in several timesteps, `(T, M)`; return the averages after each."""
        if not known.all() or np.isnan(self._value).any():
            return np.stack([self.add(value, there) for value, there in zip(values, known, strict=True)])
        ages = np.subtract.outer(np.arange(len(values)), np.arange(len(values)))
        kept = 1.0 - self._weight
        weights = np.where(ages >= 0, self._weight * kept ** np.maximum(ages, 0), 0.0)
        averages: Array = weights @ values + kept ** np.arange(1.0, len(values) + 1.0)[:, None] * self._value
        self._value = averages[-1].copy()
        return averages


class _Window:
    """The last values of every node, sampled where there are more than `MOST_KEPT`.

    Notes
    -----
    Memory: at most `nodes * MOST_KEPT` floats.
    """

    def __init__(self, nodes: int, seconds: float, interval: float) -> None:
        steps = max(2, round(seconds / interval))
        self._stride = math.ceil(steps / MOST_KEPT)
        self._kept = np.full((nodes, math.ceil(steps / self._stride)), np.nan)
        self._steps = 0
        self._sum = np.zeros(nodes)
        self._squares = np.zeros(nodes)
        self._count = np.zeros(nodes)
        self._percentiles: dict[float, Array] = {}

    def add(self, value: Array, known: Mask) -> None:
        """Keep the known values of this step, if it is one to keep."""
        steps, self._steps = self._steps, self._steps + 1
        if steps % self._stride:
            return
        at = (steps // self._stride) % self._kept.shape[1]
        new = np.where(known, value, np.nan)
        for sign, values in ((-1.0, self._kept[:, at]), (1.0, new)):
            there = np.isfinite(values)
            held = np.where(there, values, 0.0)
            self._sum += sign * held
            self._squares += sign * held * held
            self._count += sign * there
        self._kept[:, at] = new
        self._percentiles.clear()

    def extend(self, values: Array, known: Mask) -> _WindowRun:
        """Keep the known values of several timesteps, `(T, M)`; return what the window was after each."""
        first, size = self._steps, self._kept.shape[1]
        steps = first + np.arange(len(values))
        kept = steps % self._stride == 0
        new = np.where(known, values, np.nan)[kept]
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
        """Return mean and standard deviation of each node."""
        count = np.where(self._count > 0, self._count, np.nan)
        mean = self._sum / count
        return mean, np.sqrt(np.maximum(self._squares / count - mean * mean, 0.0))

    def percentile(self, level: float) -> Array:
        """Return a percentile of each node's values: the nearest that was seen."""
        if level not in self._percentiles:
            # NaN sorts last, so that a node's own values come first, in order.
            ordered = np.sort(self._kept, axis=1)
            last = np.maximum(self._count - 1.0, 0.0)
            place = np.rint(level / 100.0 * last).astype(np.intp)
            self._percentiles[level] = ordered[np.arange(len(ordered)), place]
        return self._percentiles[level]


class _WindowRun:
    """What a window was after each of several timesteps.

    Parameters
    ----------
    line
        The values kept before, then those kept since, `(size + n, M)`.
    size
        Length of the window.
    ends
        How many of the values since were kept by each timestep.
    """

    def __init__(self, line: Array, size: int, ends: NDArray[np.intp]) -> None:
        self._line = line
        self._size = size
        self._ends = ends
        self._count = self._sums(np.isfinite(line).astype(np.float64))

    def _sums(self, values: Array) -> Array:
        """Return the sum over the window after each timestep."""
        total = np.concatenate([np.zeros((1, values.shape[1])), np.cumsum(values, axis=0)])
        sums: Array = total[self._ends + self._size] - total[self._ends]
        return sums

    def moments(self) -> tuple[Array, Array]:
        """Return mean and standard deviation, `(T, M)` each."""
        count = np.where(self._count > 0, self._count, np.nan)
        held = np.where(np.isfinite(self._line), self._line, 0.0)
        mean = self._sums(held) / count
        return mean, np.sqrt(np.maximum(self._sums(held * held) / count - mean * mean, 0.0))

    def percentile(self, level: float) -> Array:
        """Return a percentile, `(T, M)`: the nearest value that was seen."""
        moved, at = np.unique(self._ends, return_inverse=True)
        place = np.rint(level / 100.0 * np.maximum(self._count - 1.0, 0.0)).astype(np.intp)
        found = np.empty(place.shape)
        for node in range(place.shape[1]):
            windows = np.lib.stride_tricks.sliding_window_view(self._line[:, node], self._size)[moved]
            # NaN sorts last, so that a node's own values come first, in order.
            ranks = np.unique(place[:, node])
            ordered = np.partition(windows, ranks, axis=1) if ranks.size < 8 else np.sort(windows, axis=1)
            found[:, node] = ordered[at, place[:, node]]
        return found


def _one_by_one(
    rule: Competitor, ready: Array, utilisation: Array, demand: Array | None, present: Mask | None
) -> Verdict:
    """Let a rule take one step after the other."""
    answers = [
        rule.step(ready[t], utilisation[t], *(None if x is None else x[t] for x in (demand, present)))
        for t in range(len(ready))
    ]
    return Verdict(np.stack([a.score for a in answers]), np.stack([a.refuse for a in answers]))


def _known(values: Array, present: Mask | None) -> Mask:
    known: Mask = np.isfinite(values)
    return known if present is None else known & present


def _verdict(score: Array, limit: float) -> Verdict:
    refuse: Mask = np.greater(score, limit, where=~np.isnan(score), out=np.zeros(score.shape, np.bool_))
    return Verdict(score.copy(), refuse)


def _at_least(values: Array, limit: float) -> Mask:
    known: Mask = ~np.isnan(values)
    # A saturated machine shows 100 % but for rounding.
    return known & (np.where(known, values, 0.0) >= limit - 1e-9)
