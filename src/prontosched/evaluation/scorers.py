"""What a method must do to be evaluated, and the plain rules every signal has to beat.

Covers: rules a user would write in five lines, and those that look at nothing at all. Learned references
that need other libraries are in `references`; the registry is `methods`.
"""

from __future__ import annotations

import math
import zlib
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from prontosched.competitors import Competitor
from prontosched.decision import Evidence, FleetEvidence, FleetSignal, Signal
from prontosched.evaluation.windows import Mask
from prontosched.signals.arithmetic import Many
from prontosched.signals.budget import FIRST_SCORES
from prontosched.signals.history import weight
from prontosched.signals.quantiles import WHOLE_PAST, ManySamples
from prontosched.subspace import Array

GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0


class Said(NamedTuple):
    """What a method says of one timestep: `(nodes,)` each; NaN scores say nothing."""

    score: Array
    raised: Mask
    probability: Array


class Scorer(Protocol):
    """A method under evaluation, for a chunk of nodes at once.

    It is asked before the present enters what it has learned, and never sees the future.
    """

    def say(self, evidence: FleetEvidence, threshold: Array) -> Said:
        """Score one timestep; `threshold` is the CPU Ready from which there is contention."""
        ...


@runtime_checkable
class Prepared(Protocol):
    """A method that scores several steps at a time, each still from its past and itself alone."""

    def prepare(self, ready: Array, utilisation: Array, threshold: Array, time: Array) -> None:
        """Score the next steps, `(steps, nodes)`, to be said one by one."""
        ...


def said(score: Array, raised: Mask) -> Said:
    """Return what a method says that knows no probabilities."""
    return Said(score, raised, np.full(score.shape, np.nan))


class SignalScorer:
    """Any registered signal."""

    def __init__(self, signal: FleetSignal) -> None:
        self.signal = signal

    def say(self, evidence: FleetEvidence, threshold: Array) -> Said:
        """Let the signal decide."""
        decision = self.signal.decide(evidence)
        return Said(decision.score, decision.raised, decision.probability)


class SeparateSignals:
    """Any registered signal, one for each node: the same decisions, and faster for a handful of nodes."""

    def __init__(self, signals: list[Signal]) -> None:
        self.signals = signals

    def say_each(self, seen: list[Evidence | None], present: Mask) -> Said:
        """Let the signal of every present node decide from that node's own evidence."""
        nodes = len(self.signals)
        score, probability = np.full(nodes, np.nan), np.full(nodes, np.nan)
        raised = np.zeros(nodes, bool)
        for place in np.flatnonzero(present).tolist():
            evidence = seen[place]
            if evidence is not None:
                decision = self.signals[place].decide(evidence)
                score[place], raised[place] = decision.score, decision.raised
                probability[place] = decision.probability
        return Said(score, raised, probability)

    def say(self, evidence: FleetEvidence, threshold: Array) -> Said:
        """Decide from what needs no embedding: CPU Ready, utilisation and the time."""
        known = zip(evidence.timestep, evidence.ready, evidence.utilisation, evidence.time, strict=True)
        seen: list[Evidence | None] = [Evidence(int(t), float(r), float(u), float(c)) for t, r, u, c in known]
        return self.say_each(seen, evidence.present)


class CurrentReady:
    """Refuse while CPU Ready is at or over the threshold."""

    def say(self, evidence: FleetEvidence, threshold: Array) -> Said:
        """Score by the present value."""
        return said(evidence.ready, _reaches(evidence.ready, threshold))


# Rules that compare CPU Ready itself, or what it stands for, with a published limit.
ON_READY = ("psi", "r15s", "r1m")


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

    def say(self, evidence: FleetEvidence, threshold: Array) -> Said:
        """Let the rule decide."""
        busy = evidence.utilisation
        self._most = busy.copy() if self._most is None else np.fmax(self._most, busy)
        with np.errstate(invalid="ignore"):
            percent = np.where(self._most <= 1.0, 100.0 * busy, busy)
        ready = evidence.ready * self._to_percent
        verdict = self.rule.step(ready, percent, ready if self._demand else None, evidence.present)
        return said(verdict.score, verdict.refuse)


class SmoothedReady:
    """An exponentially weighted mean of CPU Ready.

    Notes
    -----
    Memory: one float per node.
    """

    def __init__(self, nodes: int, weight: float = 0.3) -> None:
        self.weight = weight
        self._mean = np.full(nodes, np.nan)

    def say(self, evidence: FleetEvidence, threshold: Array) -> Said:
        """Score by the mean, the present included."""
        self._mean = _blend(self._mean, evidence.ready, self.weight)
        return said(self._mean.copy(), _reaches(self._mean, threshold))


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

    def say(self, evidence: FleetEvidence, threshold: Array) -> Said:
        """Score against the mean and deviation of the past."""
        ready = evidence.ready
        off = ready - self._mean
        score = off / np.sqrt(np.maximum(self._variance, 1e-18))
        # A mean of the first values, then an exponential one.
        recent = np.maximum(1.0 / (self._seen + 2.0), self._weight)
        self._mean = _blend(self._mean, ready, recent)
        self._variance = _blend(self._variance, np.where(np.isfinite(off), off * off, 0.0), recent)
        self._seen += np.isfinite(ready)
        score[self._seen < 20] = np.nan
        return said(score, _reaches(score, self.limit))


class PastPercentile:
    """Raise a score of its own when it is high for its own past: the highest tenth.

    Notes
    -----
    Memory: 2,048 floats per node.
    """

    def __init__(self, nodes: int, share: float = 0.9) -> None:
        self._past = ManySamples(Many(nodes), longest_stride=WHOLE_PAST)
        self._share = share

    def raises(self, score: Array) -> Mask:
        """Return where the score lies above its percentile, then learn it."""
        with np.errstate(invalid="ignore"):
            raised: Mask = (score > self._past.quantile(self._share)) & (self._past.seen >= FIRST_SCORES)
        self._past.add(score)
        return raised


class Utilisation:
    """CPU utilisation, raised in its own highest tenth."""

    def __init__(self, nodes: int) -> None:
        self._limit = PastPercentile(nodes)

    def say(self, evidence: FleetEvidence, threshold: Array) -> Said:
        """Score by utilisation now."""
        return said(evidence.utilisation, self._limit.raises(evidence.utilisation))


class SubspaceDistance:
    """Hotelling's T², the squared prediction error, or both, of the node's own subspace.

    T² says how unusual a vector is within the subspace, SPE how far it lies outside. Each is taken relative
    to its own recent mean, so that they can be added.

    Notes
    -----
    Memory: 2,050 floats per node.
    """

    def __init__(self, nodes: int, *, inside: bool, outside: bool, half_life: float = 600.0) -> None:
        self._inside, self._outside = inside, outside
        self._weight = weight(half_life)
        self._means = np.full((2, nodes), np.nan)
        self._limit = PastPercentile(nodes)

    def say(self, evidence: FleetEvidence, threshold: Array) -> Said:
        """Score by the distance from what is usual."""
        strengths = evidence.singular_values
        squares = evidence.projections**2
        per_sample = np.maximum(evidence.samples, 1.0)[:, None]
        t_squared = np.where(
            strengths > 0, squares * per_sample / np.maximum(strengths, 1e-150) ** 2, 0.0
        ).sum(1)
        spe = np.maximum(0.0, (evidence.vectors**2).sum(1) - squares.sum(1))
        both = np.where(evidence.embedded, np.stack([t_squared, spe]), np.nan)
        with np.errstate(invalid="ignore", divide="ignore"):
            relative = both / np.maximum(self._means, 1e-12)
        # One absurd vector must not silence the rest of the day.
        bounded = np.fmin(both, 100.0 * self._means + 1e-9)
        self._means = _blend(self._means, np.where(np.isfinite(both), bounded, np.nan), self._weight)
        score = np.where(self._inside, relative[0], 0.0) + np.where(self._outside, relative[1], 0.0)
        return said(score, self._limit.raises(score))


class Coin:
    """Refuse at random: what any method must beat at equal downtime."""

    def __init__(self, nodes: tuple[str, ...], downtime: float, seed: int) -> None:
        self.downtime = downtime
        self._generators = [np.random.default_rng([seed, 11, zlib.crc32(node.encode())]) for node in nodes]
        self._block = np.zeros((len(nodes), 0))
        self._at = 0

    def say(self, evidence: FleetEvidence, threshold: Array) -> Said:
        """Score at random."""
        if self._at == self._block.shape[1]:
            self._block = np.stack([generator.random(1024) for generator in self._generators])
            self._at = 0
        score = self._block[:, self._at].copy()
        self._at += 1
        return said(score, score > 1.0 - self.downtime)


class Clock:
    """Refuse at every tenth timestep, looking at nothing.

    Its score runs through evenly spread values, so that at any budget it is raised at even distances.
    """

    def __init__(self, period: int = 10) -> None:
        self.period = period

    def say(self, evidence: FleetEvidence, threshold: Array) -> Said:
        """Score by the number of the timestep."""
        step = evidence.timestep
        return said(np.asarray((step * GOLDEN) % 1.0, np.float64), step % self.period == 0)


class AlwaysAccept:
    """Never refuse."""

    def say(self, evidence: FleetEvidence, threshold: Array) -> Said:
        """Say nothing, accept everything."""
        nodes = evidence.ready.shape
        return said(np.full(nodes, np.nan), np.zeros(nodes, bool))


def _reaches(score: Array, threshold: Array | float) -> Mask:
    with np.errstate(invalid="ignore"):
        found: Mask = score >= threshold
    return found


def _blend(mean: Array, value: Array, weight: Array | float) -> Array:
    """Return the mean moved towards the value; an unknown value moves nothing, the first is the mean."""
    moved = np.where(np.isfinite(mean), mean + weight * (value - mean), value)
    return np.where(np.isfinite(value), moved, mean)
