"""A part of nodes, streamed through all methods at once: predict, then learn.

The rows of all nodes are scaled once and pass each embedding once, and every method sees the same evidence.
`record` keeps what came of it; `evaluate` spreads parts over workers.
"""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from prontosched.errors import TelemetryError
from prontosched.evaluation.inputs import Feed, Part, Setting, ThresholdLearner, TracePart, Truth
from prontosched.evaluation.measures import Mask
from prontosched.evaluation.methods import Method, MethodContext, choose
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
    summarise_node,
)
from prontosched.evaluation.scorers import AlignedRows, MethodScores
from prontosched.signals.arithmetic import Many
from prontosched.signals.policy import DOWNTIME_WEIGHT, FIRST_SCORES, level_for
from prontosched.signals.quantiles import WHOLE_PAST, ManySamples
from prontosched.subspace import Array
from prontosched.telemetry.scaling import Scaling
from prontosched.telemetry.trace import TraceCounts
from prontosched.telemetry.trace.files import name_some

# Timesteps handled at once: as many as `NODE_ROWS` of all nodes together, within these.
FEWEST_ROWS, MOST_ROWS, NODE_ROWS = 256, 1024, 16_384
SHORT_SPAN = 12
Progress = Callable[[int], None]


class Runner:
    """Runs the methods that look through the same embedding, or through none."""

    def __init__(self, methods: list[Method], context: MethodContext) -> None:
        first = methods[0]
        options = "".join(f", {name} {value}" for name, value in first.options)
        seen = first.embedding + options or ("all stages" if first.needs_vectors else "no embedding")
        self.name = f"{seen}: {', '.join(method.name for method in methods)}"
        self.methods = methods
        self._scorers = [method.make(context) for method in methods]
        self._embedding = first.subspaces(context) if first.embedding else None

    def run(self, rows: AlignedRows) -> list[MethodScores]:
        """Return the scores of each method for the next rows."""
        if self._embedding is not None:
            rows = replace(rows, seen=self._embedding.run(rows.scaled, rows.present.sum(axis=0)))
        with np.errstate(invalid="ignore", divide="ignore"):
            return [scorer(rows) for scorer in self._scorers]


def make_runners(methods: list[Method], context: MethodContext) -> list[Runner]:
    """Group methods by what they look through, so that it is computed once; signals have nodes of their own."""
    groups: dict[tuple[object, ...], list[Method]] = {}
    for method in methods:
        key = (method.name,) if method.family == "learned" else (method.embedding, method.options)
        groups.setdefault(key, []).append(method)
    return [Runner(group, context) for group in groups.values()]


@dataclass(slots=True)
class PartResult:
    """What a worker hands back: small, whatever the length of the traces."""

    nodes: list[NodeSummary] = field(default_factory=list)
    paths: tuple[str, ...] = ()  # files read; a file of many nodes may be read for several parts
    counts: TraceCounts = field(default_factory=TraceCounts)
    refused: dict[str, str] = field(default_factory=dict)  # files that could not be evaluated, and why
    nulls: dict[str, NullTotal] = field(default_factory=dict)  # what shifted signals score, over the nodes
    metrics: tuple[str, ...] = ()
    ready_column: str = ""
    ready_unit: str = "percent"
    qos_column: str | None = None
    ready_levels: tuple[float, float] = (math.nan, math.nan)  # median and 95th percentile of CPU Ready
    repeated: tuple[int, int] = (0, 0)  # values of CPU Ready like the one before, of those above the lowest
    interval_seconds: float = math.nan
    thinning: int = 1
    stretch: int = 0
    node_steps: int = 0
    seconds: float = 0.0  # of processor time
    spent: dict[str, float] = field(default_factory=dict)  # the same by groups of methods and the rest


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
        loop = _Loop(context, methods, make_runners(methods, context))
        levels = _Levels(len(nodes))
        vectors = any(method.embedding or method.needs_vectors for method in methods)
        scales = [Scaling() for _ in nodes] if vectors else None
        for rows, gap, suffered in _side_by_side(feed, context, qos, learner, scales):
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
        repeated=levels.repeated,
        interval_seconds=interval,
        thinning=record.thinning,
        stretch=record.segment,
        node_steps=loop.steps,
        spent=record.spent,
    )
    if record.blocks:
        seconds = interval if interval > 0 else 1.0
        result.nodes = [
            summarise_node(record, place, name, began=began_at, interval_seconds=seconds)
            for place, (name, began_at) in enumerate(zip(nodes, loop.began, strict=True))
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
    counted = [node for node in nodes if node.scored >= FEWEST_SCORED]
    totals = {
        name: NullTotal.over([(node.nulls[name], node.seen[name]) for node in counted], methods, SHIFTS)
        for name in (counted[0].nulls if counted else ())
    }
    for node in nodes:
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
        what = f"no column '{part.qos}' among {known}"
        raise TelemetryError(f"{part.paths[0]}: {what}: name another with --qos")
    return feed, unit, None


class _Levels:
    """An even sample of CPU Ready, thinned by half whenever it is full, and how often a value is repeated."""

    def __init__(self, nodes: int, most: int = 4096) -> None:
        self._most = most
        self._every = 1
        self._kept: list[Array] = []
        self._last, self._lowest = np.full((1, nodes), np.nan), np.full((1, nodes), np.inf)
        self.repeated = (0, 0)

    def add(self, ready: Array) -> None:
        lowest = np.fmin.accumulate(np.concatenate([self._lowest, ready]), axis=0)[1:]
        line = np.concatenate([self._last, ready])
        above = (ready > lowest) & np.isfinite(line[:-1])
        again = above & (ready == line[:-1])
        self.repeated = self.repeated[0] + int(again.sum()), self.repeated[1] + int(above.sum())
        self._last, self._lowest = line[-1:], lowest[-1:]
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
    feed: Feed,
    context: MethodContext,
    qos_column: str | None,
    learner: ThresholdLearner,
    scales: list[Scaling] | None,
) -> Iterator[tuple[AlignedRows, Mask, Array]]:
    """Yield the next rows of all nodes, where time is missing before one, and what jobs suffered.

    Of a node that ends the first rows are present. What jobs suffer is kept apart from the metrics. Without `scales`
    nobody looks at the metrics.
    """
    index = {name: k for k, name in enumerate(context.nodes)}
    qos_place = None if qos_column is None else feed.metrics.index(qos_column)
    nodes = len(index)
    last, done = np.full(nodes, np.nan), np.zeros(nodes, np.int64)
    rows = max(FEWEST_ROWS, min(MOST_ROWS, NODE_ROWS // nodes))
    for chunks in feed.aligned(rows, nodes=context.nodes):
        steps = max(len(chunk) for chunk in chunks)
        scaled = np.zeros((steps, nodes, context.features if scales else 0))
        ready, utilisation, clock, qos = (np.full((steps, nodes), np.nan) for _ in range(4))
        present, gap = np.zeros((steps, nodes), bool), np.zeros((steps, nodes), bool)
        for chunk in chunks:
            node, size = index[chunk.node], len(chunk)
            metrics = chunk.vectors
            if qos_place is not None:
                qos[:size, node] = metrics[:, qos_place]
                metrics = np.delete(metrics, qos_place, axis=1)
            if scales is not None:
                metrics = np.column_stack([metrics, chunk.ready]) if context.setting.with_ready else metrics
                scaled[:size, node] = scales[node].scale_many(metrics)
            ready[:size, node] = chunk.ready
            utilisation[:size, node] = chunk.utilisation
            clock[:size, node] = chunk.timestamps
            present[:size, node] = True
            line = np.concatenate([[last[node]], chunk.timestamps])
            with np.errstate(invalid="ignore"):
                gap[:size, node] = np.diff(line) > 1.5 * context.interval_seconds
            last[node] = line[-1]
        timestep = done + np.cumsum(present, axis=0) - present
        done = done + present.sum(axis=0)
        threshold = learner.follow(ready)
        yield AlignedRows(ready, utilisation, clock, present, timestep, threshold, scaled), gap, qos


class BudgetThresholds:
    """Raise each stream of scores as often as a budget allows, knowing only the past.

    Many budgets on many streams at once, so that methods are compared at equal downtime. The rule is the learned
    signal's own (`signals.policy`), without its savings and its limit for an hour. Long memory matters here:
    thresholds that chase a budget quickly spend it on quiet times. Memory: `streams * (2,048 + len(budgets))` floats.
    """

    def __init__(self, streams: int, budgets: tuple[float, ...]) -> None:
        if not budgets or min(budgets) <= 0 or max(budgets) >= 1:
            raise ValueError(f"budgets must lie between 0 and 1, got {budgets}")
        self._scores = ManySamples(Many(streams))
        self._share = np.asarray(budgets)
        self._downtime: Array = np.repeat(self._share[None], streams, axis=0)

    def decide(self, scores: Array, present: Mask | None = None) -> Mask:
        """Return which budgets raise each stream at each step, `(steps, streams, budgets)`, and learn the scores.

        For a stream that is not `present`, no time passes.
        """
        raised = np.empty((*scores.shape, self._share.size), bool)
        downtime = self._downtime
        present = np.ones(scores.shape, bool) if present is None else present
        whole = np.all(present, axis=1)
        for span, seen in self._scores.spans(scores):
            # Limits for many steps at once pay where there are many; streams that are young change at every step.
            short = span.stop - span.start < SHORT_SPAN
            limits = None if short else self._limits(scores[span], seen)
            for step in range(span.start, span.stop):
                if limits is None:
                    level = level_for(self._scores.ops, downtime, self._share)
                    refused = np.less(self._scores.quantiles(level), scores[step, :, None], out=raised[step])
                    refused[seen[step - span.start] < FIRST_SCORES] = False
                else:
                    refused = np.less(downtime, limits[step - span.start], out=raised[step])
                there = True if whole[step] else present[step, :, None]
                np.multiply(downtime, 1.0 - DOWNTIME_WEIGHT, out=downtime, where=there)
                np.add(downtime, DOWNTIME_WEIGHT, out=downtime, where=refused)
        return raised

    def _limits(self, scores: Array, seen: Array) -> Array:
        """Return the downtime so far below which each score is raised, for each budget.

        `signals.policy.level_for` solved for the downtime: a score is raised while the share that it wants to refuse
        is larger than the share of past scores that are not below this one.
        """
        counts = self._scores.sorted_count
        rows = zip(self._scores.ordered, counts.tolist(), scores.T, strict=True)
        below = np.stack([ordered[:count].searchsorted(score) for ordered, count, score in rows], axis=1)
        below[np.isnan(scores) | (seen < FIRST_SCORES)] = 0
        share = self._share
        with np.errstate(divide="ignore"):
            above = np.log(1.0 - below / np.maximum(counts, 1))
        limits = share - 0.25 * share * (above[..., None] - np.log(share))
        # The share that is wanted is kept between a quarter of the budget and four times it.
        least, most = ((1.0 - np.minimum(share * k, 1.0)) * counts[:, None] for k in (0.25, 4.0))
        limits = np.where(below[..., None] > least.astype(np.int64), np.inf, limits)
        return np.where(below[..., None] > most.astype(np.int64), limits, -np.inf)


class PastPercentile:
    """Raise scores that are high for their own past: the highest tenth of each stream; 2,048 floats per stream."""

    def __init__(self, streams: int) -> None:
        self._past = ManySamples(Many(streams), longest_stride=WHOLE_PAST)

    def raises(self, scores: Array) -> Mask:
        """Return where each score, `(steps, streams)`, lies above its percentile, and learn them."""
        raised = np.empty(scores.shape, bool)
        for span, seen in self._past.spans(scores):
            raised[span] = (scores[span] > self._past.quantile(np.array([0.9]))) & (seen >= FIRST_SCORES)
        return raised


class _Loop:
    """What is carried from rows to rows."""

    def __init__(self, context: MethodContext, methods: list[Method], runners: list[Runner]) -> None:
        setting, nodes = context.setting, len(context.nodes)
        self._shape = (len(methods), nodes)
        self.record = ReplayRecord(setting, *self._shape)
        self.steps = 0
        # Time of each node's first row, 0 where the trace has none.
        self.began = [math.nan] * nodes
        self._runners = runners
        place = {method.name: k for k, method in enumerate(methods)}
        self._order = [[place[method.name] for method in runner.methods] for runner in runners]
        self._thresholds = BudgetThresholds(len(methods) * nodes, setting.budgets)
        self._percentiles: PastPercentile | None = None
        own = [zlib.crc32(name.encode()) for name in context.nodes]
        self._generators = [np.random.default_rng([setting.seed, 5, number]) for number in own]

    def run(self, rows: AlignedRows, gap: Mask, qos: Array) -> None:
        """Let all methods score the next rows, and record them."""
        present = rows.present[:, None, :]
        steps, spent = rows.ready.shape[0], self.record.spent
        self.steps += int(rows.present.sum())
        for node in np.flatnonzero(np.any(rows.present, axis=0)).tolist():
            if math.isnan(self.began[node]):
                self.began[node] = float(np.nan_to_num(rows.time[0, node]))
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
        chance = np.stack([generator.random(score.shape[:2]) for generator in self._generators], axis=2)
        apart = (score + (np.abs(score) * 1e-9 + 1e-12) * chance).reshape(steps, -1)
        began = time.process_time()
        each = np.broadcast_to(present, score.shape).reshape(steps, -1)
        at_budgets = self._thresholds.decide(apart, each)
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
        return self._percentiles.raises(streams).reshape(score.shape)
