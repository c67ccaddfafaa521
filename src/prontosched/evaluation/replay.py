"""A part of nodes, streamed through all methods at once: predict, then learn.

The rows of all nodes pass stages 1 to 4 once for each embedding, and every method sees the same evidence.
`record` keeps what came of it; `evaluate` spreads parts over workers.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from prontosched.decision import Decision, Evidence, FleetDecision, FleetEvidence
from prontosched.errors import TelemetryError
from prontosched.evaluation.inputs import Feed, Part, Setting, TracePart
from prontosched.evaluation.measures import Mask
from prontosched.evaluation.methods import Method, MethodContext, Signals, choose
from prontosched.evaluation.nulls import NullTotal
from prontosched.evaluation.record import (
    FEWEST_SCORED,
    HITS,
    OWN,
    QOS,
    SHIFTS,
    STATISTICS,
    NodeSummary,
    ReplayRecord,
    Shape,
    summarise_node,
)
from prontosched.evaluation.scorers import AlignedRows, MethodScores
from prontosched.evaluation.truth import ThresholdLearner, Truth
from prontosched.pipeline import EMBEDDINGS
from prontosched.pipeline.fleet import Fleet
from prontosched.pipeline.node import Node
from prontosched.pipeline.presets import PRESETS
from prontosched.pipeline.projection import Projector, SpikeDetector
from prontosched.signals.arithmetic import Many
from prontosched.signals.policy import DOWNTIME_WEIGHT, FIRST_SCORES, level_for
from prontosched.signals.quantiles import WHOLE_PAST, ManySamples
from prontosched.subspace import Array
from prontosched.telemetry.scaling import Scaling
from prontosched.telemetry.trace import TraceCounts
from prontosched.telemetry.trace.files import name_some

ROWS = 256
REASON = "accepting: only listening"
Columns = tuple[Array, Mask, Array]
Progress = Callable[[int], None]


class _NodeListener:
    """The signal of one node: asks several signals and keeps their decisions, and the evidence if asked to."""

    name = "listener"

    def __init__(self, signals: list[Any], *, distances: bool, vectors: bool) -> None:
        self.signals = signals
        self.distances = distances
        self.vectors = vectors
        self.decisions: list[list[tuple[float, bool, float]]] = [[] for _ in signals]
        self.seen: list[tuple[float, float]] = []
        self.scaled: list[Array] = []

    def decide(self, evidence: Evidence) -> Decision:
        for signal, kept in zip(self.signals, self.decisions, strict=True):
            decision = signal.decide(evidence)
            kept.append((decision.score, decision.raised, decision.probability))
        if self.distances:
            self.seen.append((evidence.t_squared, evidence.spe))
        if self.vectors and evidence.vector is not None:
            self.scaled.append(evidence.vector)
        return Decision(False, 0.0, 0.0, REASON)

    def settings(self) -> dict[str, Any]:
        return {}

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        pass

    def hand_over(self, rows: AlignedRows, node: int, present: Mask, found: list[Columns]) -> None:
        """Write what was kept into the columns of one node, and begin anew."""
        for kept, columns in zip(self.decisions, found, strict=True):
            for column, values in zip(columns, zip(*kept, strict=True), strict=True):
                column[present, node] = values
            kept.clear()
        if self.distances:
            rows.t_squared[present, node], rows.spe[present, node] = zip(*self.seen, strict=True)
            self.seen.clear()
        if self.vectors:
            rows.scaled[present, node] = self.scaled
            self.scaled.clear()


class _NodeTrack:
    """Signals on every node by itself: for few nodes, and for embeddings without a form for many."""

    def __init__(self, listeners: list[_NodeListener], make: Callable[[_NodeListener], Node] | None) -> None:
        self._listeners = listeners
        self._nodes = None if make is None else [make(listener) for listener in listeners]

    def run(self, rows: AlignedRows) -> list[MethodScores]:
        shape = rows.ready.shape
        found: list[Columns] = [
            (np.full(shape, np.nan), np.zeros(shape, bool), np.full(shape, np.nan))
            for _ in self._listeners[0].signals
        ]
        for node, listener in enumerate(self._listeners):
            present = rows.present[:, node]
            if not present.any():
                continue
            columns = (rows.ready, rows.utilisation, rows.time)
            values = zip(*(column[present, node].tolist() for column in columns), strict=True)
            if self._nodes is None:
                steps = rows.timestep[present, node].tolist()
                for step, (ready, busy, clock) in zip(steps, values, strict=True):
                    listener.decide(Evidence(step, ready, busy, clock))
            else:
                step_node = self._nodes[node].step
                for y, (ready, busy, clock) in zip(rows.vectors[present, node], values, strict=True):
                    step_node(y, ready=ready, utilisation=busy, time=clock)
            listener.hand_over(rows, node, present, found)
        return [MethodScores(*columns) for columns in found]


class _FleetTrack:
    """Signals on all nodes as arrays, step by step: the signal of its own fleet."""

    def __init__(self, signals: list[Any], *, distances: bool, vectors: bool) -> None:
        self.signals = signals
        self.distances = distances
        self.vectors = vectors
        self.fleet: Fleet | None = None
        self._step = 0
        self._rows: AlignedRows | None = None
        self._found: list[Columns] = []

    def decide(self, evidence: FleetEvidence) -> FleetDecision:
        step, rows = self._step, self._rows
        assert rows is not None
        for signal, (score, raised, probability) in zip(self.signals, self._found, strict=True):
            decision = signal.decide(evidence)
            score[step], raised[step] = decision.score, decision.raised
            probability[step] = decision.probability
        if self.distances:
            rows.t_squared[step], rows.spe[step] = _distances(evidence)
        if self.vectors:
            rows.scaled[step] = evidence.vectors
        self._step += 1
        nothing = np.zeros(evidence.ready.shape)
        return FleetDecision(nothing > 0, nothing, nothing, evidence.timestep, nothing, nothing, nothing > 0)

    def reason(self, node: int) -> str:
        return REASON

    def run(self, rows: AlignedRows) -> list[MethodScores]:
        shape = rows.ready.shape
        self._step, self._rows = 0, rows
        self._found = [(np.empty(shape), np.empty(shape, bool), np.empty(shape)) for _ in self.signals]
        columns = (rows.vectors, rows.ready, rows.utilisation, rows.time, rows.present, rows.timestep)
        for Y, ready, busy, clock, present, timestep in zip(*columns, strict=True):
            if self.fleet is not None:
                self.fleet.step(Y, ready=ready, utilisation=busy, time=clock, present=present)
            else:
                self.decide(_without_embedding(ready, busy, clock, present, timestep))
        there = rows.present
        return [
            MethodScores(np.where(there, score, np.nan), raised & there, np.where(there, probability, np.nan))
            for score, raised, probability in self._found
        ]


def _without_embedding(ready: Array, busy: Array, clock: Array, present: Mask, step: Any) -> FleetEvidence:
    nodes = present.shape[0]
    none, never = np.zeros((nodes, 0)), np.zeros(nodes, bool)
    return FleetEvidence(
        present=present, timestep=step, ready=ready, utilisation=busy, time=clock, vectors=none,
        projections=none, spikes=none.astype(np.int8), singular_values=none, basis=np.zeros((nodes, 0, 0)),
        embedded=never, warm=never, samples=np.zeros(nodes), metrics=None,
    )  # fmt: skip


def _distances(evidence: FleetEvidence) -> tuple[Array, Array]:
    """Return T² and SPE of every node, as `Evidence` does."""
    strengths, squares = evidence.singular_values, evidence.projections**2
    usable = evidence.embedded & (evidence.samples > 0)
    per_sample = np.maximum(evidence.samples, 1.0)[:, None]
    inside = np.where(strengths > 0, squares * per_sample / np.maximum(strengths, 1e-150) ** 2, 0.0).sum(1)
    outside = np.maximum(0.0, (evidence.vectors**2).sum(1) - squares.sum(1))
    return np.where(usable, inside, np.nan), np.where(evidence.embedded, outside, np.nan)


def _make_track(
    method: Method, context: MethodContext, metrics: tuple[str, ...], signals: list[Signals], **seen: bool
) -> _NodeTrack | _FleetTrack:
    """Return the stages that a method looks through, with signals at their end, for all nodes of a part."""
    nodes = len(context.nodes)
    preset, options = PRESETS[method.preset], dict(method.options)
    lag = int(options.pop("lag", preset.lag))
    settings: dict[str, Any] = {}
    if method.embedding:
        settings = {**preset.embedding[method.embedding], **options}
        settings["rank"] = min(int(settings["rank"]), context.features)
        if "block_size" in settings:
            settings["block_size"] = max(int(settings["block_size"]), settings["rank"])
    if not context.few and method.embedding in ("", "fpca"):
        track = _FleetTrack([signal.fleet(nodes) for signal in signals], **seen)
        if method.embedding:
            every = EMBEDDINGS["fpca"](**settings).settings()
            track.fleet = Fleet(
                nodes, context.features, track, lag=lag, scaling=Scaling(), metrics=metrics, **every
            )
        return track

    def make(listener: _NodeListener) -> Node:
        return Node(
            EMBEDDINGS[method.embedding](**settings), listener, scaling=Scaling(),
            projector=Projector(lag), detector=SpikeDetector(lag),
        )  # fmt: skip

    listeners = [_NodeListener([signal.one() for signal in signals], **seen) for _ in range(nodes)]
    return _NodeTrack(listeners, make if method.embedding else None)


class Runner:
    """Runs the methods that look through the same embedding."""

    def __init__(self, methods: list[Method], context: MethodContext, metrics: tuple[str, ...]) -> None:
        first = methods[0]
        seen = f"{first.embedding}, {first.preset} settings" if first.embedding else "no embedding"
        options = "".join(f", {name} {value}" for name, value in first.options)
        self.name = f"{seen}{options}: {', '.join(method.name for method in methods)}"
        self.methods = methods
        made = [method.make(context) for method in methods]
        self._scorers = [None if isinstance(scorer, Signals) else scorer for scorer in made]
        signals = [scorer for scorer in made if isinstance(scorer, Signals)]
        self._distances = any(method.sees == "distances" for method in methods)
        self._vectors = any(method.sees == "vectors" for method in methods)
        self._track = None
        if signals or first.embedding:
            self._track = _make_track(
                first, context, metrics, signals, distances=self._distances, vectors=self._vectors
            )

    def run(self, rows: AlignedRows) -> list[MethodScores]:
        """Return the scores of each method for the next rows."""
        # What is seen through this embedding belongs to the methods that look through it alone.
        if self._distances:
            shape = rows.ready.shape
            rows = replace(rows, t_squared=np.full(shape, np.nan), spe=np.full(shape, np.nan))
        if self._vectors:
            rows = replace(rows, scaled=np.zeros(rows.vectors.shape))
        signals = iter([] if self._track is None else self._track.run(rows))
        with np.errstate(invalid="ignore", divide="ignore"):
            return [next(signals) if scorer is None else scorer(rows) for scorer in self._scorers]


def make_runners(methods: list[Method], context: MethodContext, metrics: tuple[str, ...]) -> list[Runner]:
    """Group methods by what they look through, so that it is computed once."""
    groups: dict[tuple[Any, ...], list[Method]] = {}
    for method in methods:
        seen_through = (method.preset, method.embedding, method.options) if method.embedding else ()
        groups.setdefault(seen_through, []).append(method)
    return [Runner(group, context, metrics) for group in groups.values()]


@dataclass(slots=True)
class PartResult:
    """What a worker hands back: small, whatever the length of the traces.

    Attributes
    ----------
    paths
        Files read; a file of many nodes may be read for several parts.
    refused
        Files that could not be evaluated, with the reason.
    nulls
        What the shifted signals score, added up over the nodes.
    ready_levels
        Median and 95th percentile of CPU Ready over the nodes.
    node_steps, seconds
        Work done, and the processor time it took.
    spent
        Processor time by what it was spent on: groups of methods, reading, thresholds, measures.
    """

    nodes: list[NodeSummary] = field(default_factory=list)
    paths: tuple[str, ...] = ()
    counts: TraceCounts = field(default_factory=TraceCounts)
    refused: dict[str, str] = field(default_factory=dict)
    nulls: dict[str, NullTotal] = field(default_factory=dict)
    metrics: tuple[str, ...] = ()
    ready_column: str = ""
    ready_unit: str = "percent"
    qos_column: str | None = None
    ready_levels: tuple[float, float] = (float("nan"), float("nan"))
    interval_seconds: float = float("nan")
    thinning: int = 1
    stretch: int = 0
    node_steps: int = 0
    seconds: float = 0.0
    spent: dict[str, float] = field(default_factory=dict)


def evaluate_part(part: Part, setting: Setting, progress: Progress | None = None) -> PartResult:
    """Evaluate one part; a file that turns out to be no good is left out and named."""
    try:
        return _evaluate(part, setting, progress)
    except TelemetryError as error:
        if not isinstance(part, TracePart):
            raise
        bad = _unreadable(part) if len(part.paths) > 1 else None
        if bad is None:
            return PartResult(refused={path: str(error) for path in part.paths})
        path, reason = bad
        rest = replace(part, paths=tuple(other for other in part.paths if other != path))
        result = evaluate_part(rest, setting, progress)
        result.refused[path] = reason
        return result


def _unreadable(part: TracePart) -> tuple[str, str] | None:
    """Return the first file that cannot be read to its end, and why."""
    for path in part.paths:
        try:
            for _ in TracePart((path,), part.columns).open()[0].chunks():
                pass
        except TelemetryError as error:
            return path, str(error)
    return None


def _evaluate(part: Part, setting: Setting, progress: Progress | None) -> PartResult:
    began = time.process_time()
    feed, unit, qos = _open(part)
    try:
        nodes = feed.nodes if part.nodes is None else part.nodes
        truth, interval = Truth.parse(setting.truth), feed.interval_seconds
        learner = truth.learner(len(nodes), trace_unit=unit, interval_seconds=interval)
        tolerance = setting.tolerance or truth.tolerance(unit, interval_seconds=interval)
        extra = (feed.ready_column or "ready",) if setting.with_ready else ()
        metrics = (*(name for name in feed.metrics if name != qos), *extra)
        context = MethodContext(nodes, len(metrics), interval, tolerance, setting, unit)
        methods = choose(setting.methods, setting.sweeps)
        loop = _Loop(context, methods, make_runners(methods, context, metrics))
        levels = _Levels()
        for rows, gap, suffered in _side_by_side(feed, context, qos, learner):
            loop.run(rows, gap, suffered)
            levels.add(rows.ready)
            if progress is not None:
                progress(int(rows.present.sum()))
    finally:
        feed.close()
    record = loop.record
    record.finish()
    result = PartResult(
        paths=part.paths if isinstance(part, TracePart) else (),
        counts=feed.counts,
        metrics=metrics,
        ready_column=feed.ready_column or "",
        ready_unit=unit,
        qos_column=qos,
        ready_levels=levels.usual(),
        interval_seconds=interval,
        thinning=record.thinning,
        stretch=record.segment,
        node_steps=loop.steps,
        spent=record.spent,
    )
    if record.blocks:
        per_hour = max(1, round(3600.0 / interval)) if interval > 0 else 3600
        result.nodes = [
            summarise_node(record, place, name, setting, steps_per_hour=per_hour)
            for place, name in enumerate(nodes)
        ]
        _drop_meaningless(result.nodes, methods, unit)
        result.nulls = _total_nulls(result.nodes, len(methods))
    result.seconds = time.process_time() - began
    result.spent["reading and measures"] = result.seconds - sum(result.spent.values())
    return result


def _drop_meaningless(nodes: list[NodeSummary], methods: list[Method], unit: str) -> None:
    """Set the own figures of rules to NaN whose limit is in percent where CPU Ready is not."""
    if unit in ("percent", "ms"):
        return
    columns = [STATISTICS.index(statistic) for statistic in (*OWN, *HITS, *QOS)]
    for place, method in enumerate(methods):
        if method.percent_only:
            for node in nodes:
                node.statistics[place, columns] = np.nan
                node.draws[place, columns] = np.nan


def _total_nulls(nodes: list[NodeSummary], methods: int) -> dict[str, NullTotal]:
    """Add up the nulls of the nodes that count, and let go of each."""
    totals: dict[str, NullTotal] = {}
    for node in nodes:
        if node.scored >= FEWEST_SCORED:
            for name, shifted in node.nulls.items():
                totals.setdefault(name, NullTotal.empty(methods, SHIFTS)).add(shifted, node.seen[name])
        node.nulls = {}
    return totals


def _open(part: Part) -> tuple[Feed, str, str | None]:
    """Open a part; return also its unit of CPU Ready, and the column of what jobs suffer if it has one."""
    if not isinstance(part, TracePart):
        return (*part.open(), None)
    feed, unit = part.open(with_qos=True)
    if part.qos in feed.metrics:
        return feed, unit, part.qos
    if part.columns.qos is not None:
        known = name_some(feed.metrics, most=4)
        raise TelemetryError(
            f"{part.paths[0]}: no column '{part.qos}' among {known}: name another with --qos"
        )
    return feed, unit, None


class _Levels:
    """An even sample of CPU Ready, thinned by half whenever it is full."""

    def __init__(self, most: int = 4096) -> None:
        self._most = most
        self._every = 1
        self._kept: list[Array] = []

    def add(self, ready: Array) -> None:
        self._kept.append(ready[:: self._every])
        if sum(map(len, self._kept)) > self._most:
            self._kept = [np.concatenate(self._kept)[::2]]
            self._every *= 2

    def usual(self) -> tuple[float, float]:
        """Return median and 95th percentile."""
        known = np.concatenate([kept[np.isfinite(kept)] for kept in self._kept] or [np.zeros(0)])
        if not known.size:
            return float("nan"), float("nan")
        middle, high = np.quantile(known, [0.5, 0.95])
        return float(middle), float(high)


def _side_by_side(
    feed: Feed, context: MethodContext, qos_column: str | None, learner: ThresholdLearner
) -> Iterator[tuple[AlignedRows, Mask, Array]]:
    """Yield the next rows of all nodes, where time is missing before one, and what jobs suffered.

    Nodes that have ended are absent. What jobs suffer is kept apart from the metrics.
    """
    index = {name: k for k, name in enumerate(context.nodes)}
    qos_place = None if qos_column is None else feed.metrics.index(qos_column)
    nodes = len(index)
    last, done = np.full(nodes, np.nan), np.zeros(nodes, np.int64)
    for chunks in feed.aligned(ROWS, nodes=context.nodes):
        steps = max(len(chunk) for chunk in chunks)
        vectors = np.full((steps, nodes, context.features), np.nan)
        ready, utilisation, clock, threshold, qos = (np.full((steps, nodes), np.nan) for _ in range(5))
        present, gap = np.zeros((steps, nodes), bool), np.zeros((steps, nodes), bool)
        for chunk in chunks:
            node, size = index[chunk.node], len(chunk)
            metrics = chunk.vectors
            if qos_place is not None:
                qos[:size, node] = metrics[:, qos_place]
                metrics = np.delete(metrics, qos_place, axis=1)
            given = metrics.shape[1]
            vectors[:size, node, :given] = metrics
            if context.setting.with_ready:
                vectors[:size, node, given] = chunk.ready
            ready[:size, node] = chunk.ready
            utilisation[:size, node] = chunk.utilisation
            clock[:size, node] = chunk.timestamps
            present[:size, node] = True
            line = np.concatenate([[last[node]], chunk.timestamps])
            with np.errstate(invalid="ignore"):
                gap[:size, node] = np.diff(line) > 1.5 * context.interval_seconds
            last[node] = line[-1]
        for step, value in enumerate(ready):
            threshold[step] = learner.threshold()
            learner.learn(value)
        timestep = done + np.cumsum(present, axis=0) - present
        done = done + present.sum(axis=0)
        none = np.zeros((0, 0))
        yield (
            AlignedRows(ready, utilisation, clock, present, timestep, threshold, vectors, none, none, none),
            gap,
            qos,
        )


class BudgetThresholds:
    """Raise each stream of scores as often as a budget allows, knowing only the past.

    Many budgets on many streams at once, so that methods are compared at equal downtime. The rule is the learned
    signal's own (`signals.policy`), without its savings and its limit for an hour. Long memory matters here:
    thresholds that chase a budget quickly spend it on quiet times.

    Parameters
    ----------
    budgets
        Downtimes to aim at, one threshold each.

    Notes
    -----
    Memory: `streams * (2,048 + len(budgets))` floats.
    """

    def __init__(self, streams: int, budgets: tuple[float, ...]) -> None:
        if not budgets or min(budgets) <= 0 or max(budgets) >= 1:
            raise ValueError(f"budgets must lie between 0 and 1, got {budgets}")
        self.budgets = budgets
        self._ops = Many(streams)
        self._scores = ManySamples(self._ops)
        self._share = np.asarray(budgets)[None, :]
        self._downtime: Array = np.repeat(self._share, streams, axis=0)
        self._young = True

    def decide(self, scores: Array) -> Mask:
        """Return which budgets raise each stream now, `(streams, budgets)`, then learn the scores."""
        threshold = self._scores.quantiles(level_for(self._ops, self._downtime, self._share))
        raised: Mask = scores[:, None] > threshold  # NaN accepts
        if self._young:
            young = self._scores.seen < FIRST_SCORES
            raised[young] = False
            self._young = bool(young.any())
        self._downtime += DOWNTIME_WEIGHT * (raised - self._downtime)
        self._scores.add(scores)
        return raised


class PastPercentile:
    """Raise scores that are high for their own past: the highest tenth of each stream.

    Notes
    -----
    Memory: 2,048 floats per stream.
    """

    def __init__(self, streams: int, share: float = 0.9) -> None:
        self._past = ManySamples(Many(streams), longest_stride=WHOLE_PAST)
        self._share = np.array([[share]])

    def raises(self, scores: Array) -> Mask:
        """Return where each score lies above its percentile, then learn it."""
        level = self._past.quantiles(self._share)[:, 0]
        raised: Mask = (scores > level) & (self._past.seen >= FIRST_SCORES)
        self._past.add(scores)
        return raised


class _Loop:
    """What is carried from rows to rows."""

    def __init__(self, context: MethodContext, methods: list[Method], runners: list[Runner]) -> None:
        setting, nodes = context.setting, len(context.nodes)
        budgets = setting.budgets
        self._shape = (len(methods), nodes)
        shape = Shape(*self._shape, budgets, budgets.index(setting.budget), setting.horizon, setting.window)
        self.record = ReplayRecord(shape)
        self.steps = 0
        self._runners = runners
        place = {method.name: k for k, method in enumerate(methods)}
        self._order = [[place[method.name] for method in runner.methods] for runner in runners]
        self._thresholds = BudgetThresholds(len(methods) * nodes, budgets)
        self._percentiles: PastPercentile | None = None
        self._generator = np.random.default_rng([setting.seed, 5, zlib.crc32(context.nodes[0].encode())])

    def run(self, rows: AlignedRows, gap: Mask, qos: Array) -> None:
        """Let all methods score the next rows, and record them."""
        present = rows.present[:, None, :]
        steps, spent = rows.ready.shape[0], self.record.spent
        self.steps += int(rows.present.sum())
        score, probability = (np.full((steps, *self._shape), np.nan) for _ in range(2))
        own = np.zeros(score.shape, bool)
        without_own: list[int] = []
        for runner, order in zip(self._runners, self._order, strict=True):
            began = time.process_time()
            found = runner.run(rows)
            spent[runner.name] = spent.get(runner.name, 0.0) + time.process_time() - began
            for place, scores in zip(order, found, strict=True):
                score[:, place] = scores.score
                if scores.probability is not None:
                    probability[:, place] = scores.probability
                if scores.raised is None:
                    without_own.append(place)
                else:
                    own[:, place] = scores.raised
        score[~np.broadcast_to(present, score.shape)] = np.nan
        if without_own:
            own[:, without_own] = self._highest_tenth(score[:, without_own])
        # Equal scores are told apart by chance, or a rule that mostly says 0 could not be held to a budget.
        chance = self._generator.random(score.shape)
        apart = (score + (np.abs(score) * 1e-9 + 1e-12) * chance).reshape(steps, -1)
        began = time.process_time()
        at_budgets = np.stack([self._thresholds.decide(now) for now in apart])
        spent["thresholds"] = spent.get("thresholds", 0.0) + time.process_time() - began
        self.record.extend(
            ready=rows.ready,
            threshold=rows.threshold,
            known=rows.present & np.isfinite(rows.ready),
            gap=gap,
            qos=qos,
            score=score,
            probability=probability,
            own=own & present,
            at_budgets=at_budgets.reshape(*score.shape, -1),
        )

    def _highest_tenth(self, score: Array) -> Mask:
        streams = score.reshape(score.shape[0], -1)
        if self._percentiles is None:
            self._percentiles = PastPercentile(streams.shape[1])
        raised: Mask = np.stack([self._percentiles.raises(now) for now in streams]).reshape(score.shape)
        return raised
