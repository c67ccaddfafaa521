"""Scorers: what every signal has to beat, and signals themselves, for a part of nodes at once.

Rules that a user would write in five lines, those that other schedulers publish (`competitors`), those that look at
nothing at all, the paper's signal and distances from the subspace, registered signals, and two learned references from
other libraries, which keep one model per node and are slow. A scorer scores some rows at a time, each from its past
and itself alone. `methods` names them.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prontosched.decision import Evidence, FleetEvidence
from prontosched.errors import SettingsError
from prontosched.evaluation.competitors import Competitor, running_mean
from prontosched.evaluation.measures import Mask, any_within
from prontosched.evaluation.subspaces import SubspaceRows
from prontosched.extras import missing_extra
from prontosched.pipeline.fleet import Fleet
from prontosched.pipeline.fpca import FPCAEdge
from prontosched.pipeline.node import Node
from prontosched.pipeline.presets import PRESETS
from prontosched.signals import SignalKind
from prontosched.signals.arithmetic import One
from prontosched.signals.inputs import OFFSET, History, Profiles, StepClock
from prontosched.signals.reject_job import TOLERANCE, Weights, weigh
from prontosched.subspace import Array
from prontosched.telemetry.scaling import weight_of

GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
CLOCK_PERIOD = 10
HALF_LIFE = 600.0
Z_LIMIT = 3.0
RETRAIN_EVERY = 4000
FIRST_TRAINING = 500
# A distance counts as at most so many times its mean: one absurd vector must not silence the rest of the day.
MOST_DISTANCE = 100.0
# Up to here arrays over nodes cost more than they save.
FEW = 8


class MethodScores(NamedTuple):
    """What a method says of some rows, `(steps, nodes)` each."""

    score: Array  # NaN says nothing
    raised: Mask | None  # its own decisions; None raises the highest tenth of the past
    probability: Array | None = None  # chance of a spike; None where the method knows none


@dataclass(slots=True)
class AlignedRows:
    """The next rows of all nodes of a part, side by side: `(steps, nodes)`."""

    ready: Array
    utilisation: Array
    time: Array
    present: Mask
    timestep: NDArray[np.int64]  # position in each node's own stream
    threshold: Array  # CPU Ready from which there is contention
    scaled: Array  # scaled vectors, `(steps, nodes, metrics)`; without metrics where no method looks at them
    seen: SubspaceRows | None = None  # what the embedding shows that a method looks through, if any


Scorer = Callable[[AlignedRows], MethodScores]


def current_ready(rows: AlignedRows) -> MethodScores:
    """Refuse while CPU Ready is at or over the threshold."""
    return MethodScores(rows.ready, rows.ready >= rows.threshold)


def utilisation(rows: AlignedRows) -> MethodScores:
    """Score by CPU utilisation, raised in its own highest tenth."""
    return MethodScores(rows.utilisation, None)


def clock(rows: AlignedRows) -> MethodScores:
    """Refuse at every tenth timestep, looking at nothing.

    The score runs through evenly spread values, so that at any budget it is raised at even distances.
    """
    score = np.asarray((rows.timestep * GOLDEN) % 1.0, np.float64)
    return MethodScores(score, rows.timestep % CLOCK_PERIOD == 0)


def always_accept(rows: AlignedRows) -> MethodScores:
    """Never refuse."""
    return MethodScores(np.full(rows.ready.shape, np.nan), np.zeros(rows.ready.shape, bool))


class CompetitorScorer:
    """A rule of another scheduler, from `competitors`.

    Utilisation is taken as a share of 1 on a node where it never was above 1. CPU Ready in a unit of its own
    still ranks moments; the rule's published limit then means nothing.
    """

    def __init__(self, rule: Competitor, ready_unit: str, interval_seconds: float) -> None:
        self._rule = rule
        self._to_percent = 0.1 / interval_seconds if ready_unit == "ms" and interval_seconds > 0 else 1.0
        self._demand = ready_unit == "other"
        self._most: Array | None = None

    def score(self, rows: AlignedRows) -> MethodScores:
        """Let the rule decide, row by row."""
        busy = rows.utilisation
        first = np.full(busy.shape[1:], -np.inf) if self._most is None else self._most
        most = np.fmax.accumulate(np.concatenate([first[None], busy]), axis=0)[1:]
        self._most = most[-1]
        percent = np.where(most <= 1.0, 100.0 * busy, busy)
        ready = rows.ready * self._to_percent
        return MethodScores(*self._rule.step(ready, percent, ready if self._demand else None, rows.present))


class SmoothedReady:
    """An exponentially weighted mean of CPU Ready; one float per node."""

    def __init__(self, nodes: int, weight: float = 0.3) -> None:
        self._weight = weight
        self._mean = np.full(nodes, np.nan)

    def score(self, rows: AlignedRows) -> MethodScores:
        """Score by the mean, the present included."""
        score = running_mean(rows.ready, self._mean, self._weight)
        self._mean = score[-1]
        return MethodScores(score, score >= rows.threshold)


class ReadyZScore:
    """How many deviations CPU Ready lies above its own recent mean; three floats per node."""

    def __init__(self, nodes: int) -> None:
        # Values seen, their mean, and the mean square of their distances from it.
        self._nodes = [(0, 0.0, 0.0)] * nodes

    def score(self, rows: AlignedRows) -> MethodScores:
        """Score against the mean and deviation of the past."""
        score = np.full(rows.ready.shape, np.nan)
        least = weight_of(HALF_LIFE)
        for node, (seen, mean, square) in enumerate(self._nodes):
            for step, ready in enumerate(rows.ready[:, node].tolist()):
                if not math.isfinite(ready):
                    continue
                off = ready - mean if seen else 0.0
                if seen >= 19:
                    score[step, node] = off / math.sqrt(max(square, 1e-18))
                # A mean of the first values, then an exponential one.
                weight = max(1.0 / (seen + 2.0), least) if seen else 1.0
                mean += weight * (ready - mean)
                square += weight * (off * off - square)
                seen += 1
            self._nodes[node] = seen, mean, square
        return MethodScores(score, score >= Z_LIMIT)


class DistanceMeans:
    """T² and SPE of some nodes, each relative to its own recent mean, so that they can be added.

    T² says how unusual a vector is within the subspace, SPE how far it lies outside. Memory: two floats per node.
    """

    def __init__(self, nodes: int) -> None:
        self._means = np.full((2, nodes), np.nan)
        self._rows: AlignedRows | None = None
        self._relative: list[Array] = []

    def scorer(self, *used: int) -> Scorer:
        """Return the scorer by T² (0), SPE (1) or the sum of both; they are worked out once for the same rows."""

        def score(rows: AlignedRows) -> MethodScores:
            if rows is not self._rows and rows.seen is not None:
                distances = (rows.seen.t_squared, rows.seen.spe)
                self._relative = [self._divide(k, distance) for k, distance in enumerate(distances)]
                self._rows = rows
            return MethodScores(sum((self._relative[k] for k in used), np.zeros(rows.ready.shape)), None)

        return score

    def _divide(self, k: int, distance: Array) -> Array:
        """Return a distance relative to its mean of the past."""
        means = running_mean(distance, self._means[k], weight_of(HALF_LIFE), most=MOST_DISTANCE)
        before = np.concatenate([self._means[k][None], means[:-1]])
        self._means[k] = means[-1]
        return np.asarray(distance / np.maximum(before, 1e-12))


class RejectJobScorer:
    """Reject-Job, the paper's signal (`signals.reject_job`), on spikes that were found for all rows at once."""

    def __init__(
        self, nodes: int, *, weights: Weights = "normalised", absolute: bool = False, hold: int = 0
    ) -> None:
        self._weights: Weights = weights
        self._absolute = absolute
        self._hold = hold
        self._holding = np.zeros(nodes, np.int64)

    def score(self, rows: AlignedRows) -> MethodScores:
        """Score by the weighted sum of spikes."""
        seen = rows.seen
        assert seen is not None
        spikes = np.abs(seen.spikes) if self._absolute else seen.spikes
        score = np.einsum("tmr,tmr->tm", weigh(seen.strengths, self._weights), spikes)
        raised: Mask = (score >= 1.0 - TOLERANCE) & seen.warm
        if self._hold:
            for step, now in enumerate(raised.copy()):
                held = ~now & (self._holding > 0) & seen.warm[step]
                self._holding = np.where(now, self._hold, self._holding - held)
                raised[step] |= held
        return MethodScores(score, raised)


class SignalScorer:
    """A registered signal at the end of a default node's stages, or without telemetry.

    Each node has a signal of its own where nodes are few; elsewhere all are handled as arrays.
    """

    def __init__(self, kind: SignalKind, options: dict[str, Any], nodes: int, features: int) -> None:
        self._fleet: Any = None
        self._nodes: list[Any] = []
        self._blind = not features
        few = nodes <= FEW
        signals = [kind.one(**options) for _ in range(nodes)] if few else []
        whole = None if few else kind.fleet(nodes, **options)
        if self._blind:
            self._nodes, self._fleet = signals, whole
            return
        settings: dict[str, Any] = {**PRESETS["default"].embedding["fpca"]}
        settings["rank"] = min(settings["rank"], features)
        settings["block_size"] = max(settings["block_size"], settings["rank"])
        self._nodes = [Node(FPCAEdge(**settings), signal, scaling=None) for signal in signals]
        if whole is not None:
            self._fleet = Fleet(nodes, features, whole, **FPCAEdge(**settings).settings())

    def score(self, rows: AlignedRows) -> MethodScores:
        """Let every node decide, row by row."""
        shape = rows.ready.shape
        found = (np.full(shape, np.nan), np.zeros(shape, bool), np.full(shape, np.nan))
        if self._fleet is not None:
            self._decide_all(rows, found)
        for place, node in enumerate(self._nodes):
            size = int(rows.present[:, place].sum())
            columns = (rows.timestep, rows.ready, rows.utilisation, rows.time)
            values = zip(*(column[:size, place].tolist() for column in columns), strict=True)
            if self._blind:
                decisions = [node.decide(Evidence(*value)) for value in values]
            else:
                decisions = [
                    node.step(y, ready=ready, utilisation=busy, time=clock)
                    for y, (_, ready, busy, clock) in zip(rows.scaled[:size, place], values, strict=True)
                ]
            for column, name in zip(found, ("score", "raised", "probability"), strict=True):
                column[:size, place] = [getattr(decision, name) for decision in decisions]
        return MethodScores(*found)

    def _decide_all(self, rows: AlignedRows, found: tuple[Array, Mask, Array]) -> None:
        columns = (rows.scaled, rows.ready, rows.utilisation, rows.time, rows.present, rows.timestep)
        for step, (Y, ready, busy, clock, present, timestep) in enumerate(zip(*columns, strict=True)):
            if self._blind:
                decision = self._fleet.decide(_without_embedding(ready, busy, clock, present, timestep))
            else:
                decision = self._fleet.step(Y, ready=ready, utilisation=busy, time=clock, present=present)
            for column, name in zip(found, ("score", "raised", "probability"), strict=True):
                column[step, present] = getattr(decision, name)[present]


def _without_embedding(ready: Array, busy: Array, clock: Array, present: Mask, step: Any) -> FleetEvidence:
    nodes = present.shape[0]
    none, never = np.zeros((nodes, 0)), np.zeros(nodes, bool)
    return FleetEvidence(
        present=present, timestep=step, ready=ready, utilisation=busy, time=clock, vectors=none,
        projections=none, spikes=none.astype(np.int8), singular_values=none, basis=np.zeros((nodes, 0, 0)),
        embedded=never, warm=never, samples=np.zeros(nodes), metrics=None,
    )  # fmt: skip


class Coin:
    """Refuse at random: what any method must beat at equal downtime."""

    def __init__(self, nodes: tuple[str, ...], downtime: float, seed: int) -> None:
        self._downtime = downtime
        self._generators = [np.random.default_rng([seed, 11, zlib.crc32(node.encode())]) for node in nodes]

    def score(self, rows: AlignedRows) -> MethodScores:
        """Score at random."""
        steps = rows.ready.shape[0]
        score = np.stack([generator.random(steps) for generator in self._generators], axis=1)
        return MethodScores(score, score > 1.0 - self._downtime)


class HalfSpaceTrees:
    """river's HalfSpaceTrees over the scaled metrics, one forest of 10 trees of height 8 per node."""

    def __init__(self, nodes: tuple[str, ...], seed: int) -> None:
        try:
            from river.anomaly import HalfSpaceTrees as Forest
        except ImportError as error:
            raise SettingsError(missing_extra("method half-space-trees", "evaluation")) from error
        self._forests = [
            Forest(n_trees=10, height=8, window_size=250, seed=(seed + zlib.crc32(node.encode())) % 2**31)
            for node in nodes
        ]

    def score(self, rows: AlignedRows) -> MethodScores:
        """Score each vector, then learn it."""
        score = np.full(rows.ready.shape, np.nan)
        # The scaled metrics lie within ±8; the forest wants them between 0 and 1.
        unit = np.clip(rows.scaled / 16.0 + 0.5, 0.0, 1.0)
        for node, forest in enumerate(self._forests):
            for step in np.flatnonzero(rows.present[:, node]).tolist():
                inputs = dict(enumerate(unit[step, node].tolist()))
                score[step, node] = forest.score_one(inputs)
                forest.learn_one(inputs)
        return MethodScores(score, None)


class Boosting:
    """Histogram gradient boosting on the inputs of the learned signal's heads, trained again on all the past.

    It sees what the heads see and keeps everything, so that what it gains over them is what linear heads and forgetting
    cost. Only labels whose horizon has passed are used. Memory grows with the trace: it stands for what could be had at
    any price.
    """

    def __init__(self, nodes: int, horizon: int, seed: int) -> None:
        try:
            import sklearn.ensemble  # noqa: F401
        except ImportError as error:
            raise SettingsError(missing_extra("method boosting", "evaluation")) from error
        self._nodes = [_Boosted(horizon, seed) for _ in range(nodes)]

    def score(self, rows: AlignedRows) -> MethodScores:
        """Score the next rows: each from the past and itself, by the model of now."""
        columns = zip(rows.ready.T, rows.utilisation.T, rows.threshold.T, rows.time.T, strict=True)
        found = [node.scores(*column) for node, column in zip(self._nodes, columns, strict=True)]
        score = np.where(rows.present, np.stack(found, axis=1), np.nan)
        return MethodScores(score, score > 0.5, np.where(score >= 0.0, score, np.nan))


class _Boosted:
    """One node's model; until there is one it says the present value, squeezed below every probability."""

    def __init__(self, horizon: int, seed: int) -> None:
        self._horizon, self._seed = horizon, seed
        ops = One()
        self._clock, self._history, self._profiles = StepClock(ops), History(ops), Profiles(ops, horizon)
        self._rows: list[list[float]] = []
        self._spikes: list[bool] = []
        self._model: Any = None
        self._due = FIRST_TRAINING

    def scores(self, ready: Array, utilisation: Array, threshold: Array, time: Array) -> Array:
        if len(self._rows) >= self._due:
            self._due = min(2 * len(self._rows), len(self._rows) + RETRAIN_EVERY)
            self._train()
        with np.errstate(invalid="ignore", divide="ignore"):
            relative = np.nan_to_num(np.where(threshold > 0, ready / threshold, 0.0))
        values = np.log(OFFSET + np.clip(relative, 0.0, 1e6))
        spikes = (relative >= 1.0).tolist()
        columns = zip(values.tolist(), spikes, utilisation.tolist(), time.tolist(), strict=True)
        rows = [self._inputs(*column) for column in columns]
        self._rows += rows
        self._spikes += spikes
        score: Array = values - 20.0
        return score if self._model is None else np.asarray(self._model.predict_proba(np.array(rows))[:, 1])

    def _inputs(self, value: float, spike: bool, busy: float, time: float) -> list[float]:
        self._clock.advance(time)
        self._history.learn(value, spike, busy)
        apart = value - self._history.levels[-1]
        return self._history.inputs() + self._profiles.learn(self._clock, apart, spike)

    def _train(self) -> None:
        from sklearn.ensemble import HistGradientBoostingClassifier

        spikes = np.array(self._spikes)
        labels = any_within(spikes, first=1, last=self._horizon)[: spikes.size - self._horizon]
        if labels.min(initial=True) == labels.max(initial=False):
            return
        # Small trees: neighbouring labels overlap, and larger ones learn them by heart.
        self._model = HistGradientBoostingClassifier(
            max_iter=100, learning_rate=0.05, max_leaf_nodes=4, min_samples_leaf=min(200, labels.size // 20),
            l2_regularization=10.0, early_stopping=False, random_state=self._seed,
        ).fit(np.array(self._rows[: labels.size]), labels)  # fmt: skip
