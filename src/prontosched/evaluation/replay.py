"""A part of nodes, streamed through all methods at once: predict, then learn.

The rows of all nodes pass stages 1 to 4 once for each embedding, and every method sees the same evidence.
`record` keeps what came of it; `evaluate` spreads parts over workers.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from prontosched.decision import Decision, Evidence, FleetDecision, FleetEvidence
from prontosched.errors import TelemetryError
from prontosched.evaluation.budget import BudgetThresholds, PastPercentile
from prontosched.evaluation.inputs import Feed, Part, Setting, TracePart
from prontosched.evaluation.measures import Mask
from prontosched.evaluation.methods import (
    Chunked,
    Method,
    Rows,
    Said,
    Scorer,
    Signals,
    SubspaceDistance,
    choose,
)
from prontosched.evaluation.nulls import NullTotal
from prontosched.evaluation.record import (
    FEWEST_SCORED,
    HITS,
    OWN,
    QOS,
    SHIFTS,
    STATISTICS,
    NodeSummary,
    Record,
    Shape,
    summarise_node,
)
from prontosched.evaluation.references import HalfSpaceTrees
from prontosched.evaluation.truth import Learner, Truth
from prontosched.pipeline import EMBEDDINGS
from prontosched.pipeline.fleet import Fleet
from prontosched.pipeline.node import Node
from prontosched.pipeline.presets import PRESETS
from prontosched.pipeline.projection import Projector
from prontosched.pipeline.spikes import SpikeDetector
from prontosched.subspace import Array
from prontosched.telemetry.scaling import Scaling
from prontosched.telemetry.trace import Chunk, TraceCounts
from prontosched.telemetry.trace_files import name_some

ACCEPTING = Decision(False, 0.0, 0.0, "accepting: only listening")


class Track(Protocol):
    """The signals of some methods, for all nodes of a chunk, with the stages they look through."""

    def run(self, rows: Rows) -> list[Said]:
        """Let every signal decide on the next rows, and fill in what the embedding shows of them."""
        ...


class NodeListener:
    """The signal of one node: asks several signals and keeps what each said, and what there was to see."""

    name = "listener"

    def __init__(self, signals: list[Any], *, distances: bool, vectors: bool) -> None:
        self.signals = signals
        self.distances = distances
        self.vectors = vectors
        self.said: list[list[tuple[float, bool, float]]] = [[] for _ in signals]
        self.seen: list[tuple[float, float]] = []
        self.scaled: list[Array] = []

    def decide(self, evidence: Evidence) -> Decision:
        """Ask all; accept."""
        for signal, said in zip(self.signals, self.said, strict=True):
            decision = signal.decide(evidence)
            said.append((decision.score, decision.raised, decision.probability))
        if self.distances:
            self.seen.append((evidence.t_squared, evidence.spe))
        if self.vectors and evidence.vector is not None:
            self.scaled.append(evidence.vector)
        return ACCEPTING

    def settings(self) -> dict[str, Any]:
        """Return no settings."""
        return {}

    def state(self) -> dict[str, Any]:
        """Return no state."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over no state."""

    def put(self, rows: Rows, place: int, present: Mask, said: list[tuple[Array, Mask, Array]]) -> None:
        """Hand over what was kept of one node, and begin anew."""
        for kept, (score, raised, probability) in zip(self.said, said, strict=True):
            score[present, place], raised[present, place], probability[present, place] = zip(
                *kept, strict=True
            )
            kept.clear()
        if self.distances:
            rows.t_squared[present, place], rows.spe[present, place] = zip(*self.seen, strict=True)
            self.seen.clear()
        if self.vectors:
            rows.scaled[present, place] = self.scaled
            self.scaled.clear()


class SeparateNodes:
    """Every node on its own: for few nodes, and for embeddings without a form for many."""

    def __init__(self, nodes: list[Node] | None, listeners: list[NodeListener]) -> None:
        self._nodes = nodes
        self._listeners = listeners

    def run(self, rows: Rows) -> list[Said]:
        """Carry every node through its rows, one after the other."""
        shape = rows.ready.shape
        said = [
            (np.full(shape, np.nan), np.zeros(shape, bool), np.full(shape, np.nan))
            for _ in self._listeners[0].signals
        ]
        for place, listener in enumerate(self._listeners):
            present = rows.present[:, place]
            if not present.any():
                continue
            columns = (rows.ready, rows.utilisation, rows.time)
            values = zip(*(column[present, place].tolist() for column in columns), strict=True)
            if self._nodes is None:
                steps = rows.timestep[present, place].tolist()
                for step, (ready, busy, clock) in zip(steps, values, strict=True):
                    listener.decide(Evidence(step, ready, busy, clock))
            else:
                step_on = self._nodes[place].step
                for y, (ready, busy, clock) in zip(rows.vectors[present, place], values, strict=True):
                    step_on(y, ready=ready, utilisation=busy, time=clock)
            listener.put(rows, place, present, said)
        return [Said(*columns) for columns in said]


class FleetListener:
    """The signal of a fleet: asks several signals and keeps what each said, and what there was to see."""

    def __init__(self, signals: list[Any], *, distances: bool, vectors: bool) -> None:
        self.signals = signals
        self.distances = distances
        self.vectors = vectors
        self.step = 0
        self.rows: Rows | None = None
        self.said: list[tuple[Array, Mask, Array]] = []

    def begin(self, rows: Rows) -> None:
        """Begin with the next rows."""
        shape = rows.ready.shape
        self.step, self.rows = 0, rows
        self.said = [(np.empty(shape), np.empty(shape, bool), np.empty(shape)) for _ in self.signals]

    def decide(self, evidence: FleetEvidence) -> FleetDecision:
        """Ask all; accept."""
        step, rows = self.step, self.rows
        assert rows is not None
        for signal, (score, raised, probability) in zip(self.signals, self.said, strict=True):
            decision = signal.decide(evidence)
            score[step], raised[step], probability[step] = (
                decision.score,
                decision.raised,
                decision.probability,
            )
        if self.distances:
            rows.t_squared[step], rows.spe[step] = _distances(evidence)
        if self.vectors:
            rows.scaled[step] = evidence.vectors
        self.step += 1
        nothing = np.zeros(evidence.ready.shape)
        return FleetDecision(nothing > 0, nothing, nothing, evidence.timestep, nothing, nothing, nothing > 0)

    def reason(self, node: int) -> str:
        """Say why; a listener has no reason of its own."""
        return ACCEPTING.reason


class ManyNodes:
    """All nodes as arrays, step by step."""

    def __init__(self, fleet: Fleet | None, listener: FleetListener) -> None:
        self._fleet = fleet
        self._listener = listener

    def run(self, rows: Rows) -> list[Said]:
        """Carry all nodes through the next rows."""
        self._listener.begin(rows)
        columns = (rows.vectors, rows.ready, rows.utilisation, rows.time, rows.present, rows.timestep)
        for Y, ready, utilisation, clock, present, timestep in zip(*columns, strict=True):
            if self._fleet is not None:
                self._fleet.step(Y, ready=ready, utilisation=utilisation, time=clock, present=present)
            else:
                self._listener.decide(_unseen(ready, utilisation, clock, present, timestep))
        present = rows.present
        return [
            Said(np.where(present, score, np.nan), raised & present, np.where(present, probability, np.nan))
            for score, raised, probability in self._listener.said
        ]


def _unseen(ready: Array, utilisation: Array, time: Array, present: Mask, timestep: Any) -> FleetEvidence:
    """Return the evidence of a step that no embedding has looked at."""
    nodes = present.shape[0]
    none, never = np.zeros((nodes, 0)), np.zeros(nodes, bool)
    return FleetEvidence(
        present=present, timestep=timestep, ready=ready, utilisation=utilisation, time=time, vectors=none,
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


def make_track(
    method: Method, chunk: Chunked, metrics: tuple[str, ...], signals: list[Signals], **seen: bool
) -> Track:
    """Return the stages a method looks through, with signals at their end, for all nodes of a chunk."""
    nodes = len(chunk.nodes)
    arrays = not chunk.few and (not method.embedding or method.embedding == "fpca")
    if arrays:
        listener = FleetListener([signal.fleet(nodes) for signal in signals], **seen)
    else:
        listeners = [NodeListener([signal.one() for signal in signals], **seen) for _ in range(nodes)]
    if not method.embedding:
        return ManyNodes(None, listener) if arrays else SeparateNodes(None, listeners)
    preset = PRESETS[method.preset]
    options = dict(method.options)
    lag = int(options.pop("lag", preset.lag))
    settings = {**preset.embedding[method.embedding], **options}
    settings["rank"] = min(int(settings["rank"]), chunk.features)
    if "block_size" in settings:
        settings["block_size"] = max(int(settings["block_size"]), settings["rank"])
    kind = EMBEDDINGS[method.embedding]
    if arrays:
        every = kind(**settings).settings()
        fleet = Fleet(nodes, chunk.features, listener, lag=lag, scaling=Scaling(), metrics=metrics, **every)
        return ManyNodes(fleet, listener)
    made = [
        Node(kind(**settings), listener, scaling=Scaling(), projector=Projector(lag), detector=SpikeDetector(lag))
        for listener in listeners
    ]  # fmt: skip
    return SeparateNodes(made, listeners)


class Runner:
    """Runs the methods that look through the same embedding."""

    def __init__(self, methods: list[Method], chunk: Chunked, metrics: tuple[str, ...]) -> None:
        self.methods = methods
        self.name = _name(methods)
        made: list[Scorer | Signals] = [method.make(chunk) for method in methods]
        self._scorers = [scorer if not isinstance(scorer, Signals) else None for scorer in made]
        signals = [scorer for scorer in made if isinstance(scorer, Signals)]
        self._track: Track | None = None
        self._distances = any(isinstance(scorer, SubspaceDistance) for scorer in made)
        self._vectors = any(isinstance(scorer, HalfSpaceTrees) for scorer in made)
        if signals or methods[0].embedding:
            self._track = make_track(
                methods[0], chunk, metrics, signals, distances=self._distances, vectors=self._vectors
            )

    def run(self, rows: Rows) -> list[Said]:
        """Return what each method says of the next rows."""
        # What is seen through this embedding belongs to the methods that look through it alone.
        if self._distances:
            rows = replace(
                rows, t_squared=np.full(rows.ready.shape, np.nan), spe=np.full(rows.ready.shape, np.nan)
            )
        if self._vectors:
            rows = replace(rows, scaled=np.zeros(rows.vectors.shape))
        signals = iter([] if self._track is None else self._track.run(rows))
        with np.errstate(invalid="ignore", divide="ignore"):
            return [next(signals) if scorer is None else scorer.score(rows) for scorer in self._scorers]


def _name(methods: list[Method]) -> str:
    """Say what the methods look through, and how many they are."""
    first = methods[0]
    seen = f"{first.embedding}, {first.preset} settings" if first.embedding else "no embedding"
    options = "".join(f", {name} {value}" for name, value in first.options)
    return f"{seen}{options}: {', '.join(method.name for method in methods)}"


def make_runners(methods: list[Method], chunk: Chunked, metrics: tuple[str, ...]) -> list[Runner]:
    """Group methods by what they look through, so that it is computed once."""
    groups: dict[tuple[Any, ...], list[Method]] = {}
    for method in methods:
        seen_through = (method.preset, method.embedding, method.options) if method.embedding else ()
        groups.setdefault(seen_through, []).append(method)
    return [Runner(group, chunk, metrics) for group in groups.values()]


ROWS = 256
Progress = Callable[[int], None]


@dataclass(slots=True)
class PartResult:
    """What a worker hands back: small, whatever the length of the traces.

    Attributes
    ----------
    nodes
        Results node by node.
    paths
        Files read; a file of many nodes may be read for several parts.
    counts
        Rows read and dropped, with causes.
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
    """Evaluate one chunk of nodes; a file that turns out to be no good is left out and named."""
    try:
        return _evaluate(part, setting, progress)
    except TelemetryError as error:
        if not isinstance(part, TracePart):
            raise
        bad = _culprit(part)
        if bad is None or len(part.paths) == 1:
            return PartResult(refused={path: str(error) for path in part.paths})
        result = evaluate_part(part.without(bad[0]), setting, progress)
        result.refused[bad[0]] = bad[1]
        return result


def _culprit(part: TracePart) -> tuple[str, str] | None:
    for path in part.paths:
        try:
            source, _ = TracePart((path,), part.columns).open()
            for _ in source.chunks():
                pass
        except TelemetryError as error:
            return path, str(error)
    return None


def _evaluate(part: Part, setting: Setting, progress: Progress | None) -> PartResult:
    began = time.process_time()
    feed, unit, qos = _open(part)
    try:
        nodes = part.nodes if isinstance(part, TracePart) and part.nodes is not None else feed.nodes
        truth = Truth.parse(setting.truth)
        interval = feed.interval_seconds
        learner = truth.learner(len(nodes), trace_unit=unit, interval_seconds=interval)
        tolerance = setting.tolerance or _tolerance(truth, unit, interval)
        extra = (feed.ready_column or "ready",) if setting.with_ready else ()
        metrics = (*(name for name in feed.metrics if name != qos), *extra)
        chunk = Chunked(nodes, len(metrics), interval, tolerance, setting, unit)
        methods = choose(setting.methods, setting.sweeps)
        record, steps, usual = _stream(feed, metrics, chunk, methods, learner, progress, qos)
    finally:
        feed.close()
    record.finish()
    result = PartResult(
        paths=part.paths if isinstance(part, TracePart) else (),
        counts=feed.counts,
        metrics=metrics,
        ready_column=feed.ready_column or "",
        ready_unit=unit,
        qos_column=qos,
        ready_levels=usual,
        interval_seconds=interval,
        thinning=record.thinning,
        stretch=record.segment,
        node_steps=steps,
        spent=record.spent,
    )
    if record.blocks:
        result.nodes = [
            summarise_node(
                record,
                place,
                name,
                targets=setting.targets,
                seed=setting.seed,
                steps_per_hour=max(1, round(3600.0 / interval)) if interval > 0 else 3600,
                hourly_limit=setting.hourly_limit,
            )
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


def _tolerance(truth: Truth, unit: str, interval: float) -> str:
    """Return the truth as a signal's tolerance: a percentile, or a value in the trace's unit."""
    if truth.kind == "fixed":
        return repr(truth.in_unit_of(unit, interval_seconds=interval))
    return {"percentile": f"p{truth.value:g}", "median": "p50"}.get(truth.kind, "p95")


def _stream(
    feed: Feed,
    metrics: tuple[str, ...],
    chunk: Chunked,
    methods: list[Method],
    learner: Learner,
    progress: Progress | None,
    qos: str | None,
) -> tuple[Record, int, tuple[float, float]]:
    loop = _Loop(chunk, methods, make_runners(methods, chunk, metrics))
    levels = _Levels()
    layout = _Layout(chunk, None if qos is None else feed.metrics.index(qos))
    for chunks in feed.aligned(ROWS, nodes=chunk.nodes):
        rows, gap, suffered = layout.rows(chunks)
        for step, ready in enumerate(rows.ready):
            rows.threshold[step] = learner.threshold()
            learner.learn(ready)
        loop.run(rows, gap, suffered)
        levels.add(rows.ready)
        if progress is not None:
            progress(int(rows.present.sum()))
    return loop.record, int(layout.timestep.sum()), levels.usual()


class _Levels:
    """An even sample of CPU Ready, thinned by half whenever it is full."""

    def __init__(self, most: int = 4096) -> None:
        self._most = most
        self._every = 1
        self._kept: list[Array] = []

    def add(self, ready: Array) -> None:
        """Take in the next rows."""
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


class _Layout:
    """Puts the next rows of all nodes side by side; nodes that have ended are absent.

    Parameters
    ----------
    qos
        Which of the columns says what jobs suffer: it is kept apart from the metrics.
    """

    def __init__(self, chunk: Chunked, qos: int | None) -> None:
        self._index = {name: k for k, name in enumerate(chunk.nodes)}
        self._features = chunk.features
        self._interval = chunk.interval_seconds
        self._with_ready = chunk.setting.with_ready
        self._qos = qos
        self._last = np.full(len(chunk.nodes), np.nan)
        self.timestep = np.zeros(len(chunk.nodes), np.int64)

    def rows(self, chunks: list[Chunk]) -> tuple[Rows, Mask, Array]:
        """Return the rows, where time is missing before one, and what jobs suffered."""
        steps, nodes = max(len(chunk) for chunk in chunks), len(self._index)
        vectors = np.full((steps, nodes, self._features), np.nan)
        ready, utilisation, clock, threshold, qos = (np.full((steps, nodes), np.nan) for _ in range(5))
        present, gap = np.zeros((steps, nodes), bool), np.zeros((steps, nodes), bool)
        for chunk in chunks:
            node, size = self._index[chunk.node], len(chunk)
            metrics = chunk.vectors
            if self._qos is not None:
                qos[:size, node] = metrics[:, self._qos]
                metrics = np.delete(metrics, self._qos, axis=1)
            given = metrics.shape[1]
            vectors[:size, node, :given] = metrics
            if self._with_ready:
                vectors[:size, node, given] = chunk.ready
            ready[:size, node] = chunk.ready
            utilisation[:size, node] = chunk.utilisation
            clock[:size, node] = chunk.timestamps
            present[:size, node] = True
            line = np.concatenate([[self._last[node]], chunk.timestamps])
            with np.errstate(invalid="ignore"):
                gap[:size, node] = np.diff(line) > 1.5 * self._interval
            self._last[node] = line[-1]
        timestep = self.timestep + np.cumsum(present, axis=0) - present
        self.timestep = self.timestep + present.sum(axis=0)
        unseen = np.zeros((0, 0))
        rows = Rows(ready, utilisation, clock, present, timestep, threshold, vectors, unseen, unseen, unseen)
        return rows, gap, qos


class _Loop:
    """What is carried from rows to rows."""

    def __init__(self, chunk: Chunked, methods: list[Method], runners: list[Runner]) -> None:
        setting, nodes = chunk.setting, len(chunk.nodes)
        budgets = setting.budgets
        self._shape = (len(methods), nodes)
        shape = Shape(*self._shape, budgets, budgets.index(setting.budget), setting.horizon, setting.window)
        self.record = Record(shape)
        self._runners = runners
        place = {method.name: k for k, method in enumerate(methods)}
        self._order = [[place[method.name] for method in runner.methods] for runner in runners]
        self._thresholds = BudgetThresholds(len(methods) * nodes, budgets)
        self._percentiles: PastPercentile | None = None
        self._generator = np.random.default_rng([setting.seed, 5, zlib.crc32(chunk.nodes[0].encode())])

    def run(self, rows: Rows, gap: Mask, qos: Array) -> None:
        """Let all methods speak of the next rows, and record them."""
        present = rows.present[:, None, :]
        steps = rows.ready.shape[0]
        score, probability = (np.full((steps, *self._shape), np.nan) for _ in range(2))
        own = np.zeros(score.shape, bool)
        without_own: list[int] = []
        for runner, order in zip(self._runners, self._order, strict=True):
            began = time.process_time()
            heard = runner.run(rows)
            self.record.spent[runner.name] = (
                self.record.spent.get(runner.name, 0.0) + time.process_time() - began
            )
            for place, said in zip(order, heard, strict=True):
                score[:, place] = said.score
                if said.probability is not None:
                    probability[:, place] = said.probability
                if said.raised is None:
                    without_own.append(place)
                else:
                    own[:, place] = said.raised
        score[~np.broadcast_to(present, score.shape)] = np.nan
        if without_own:
            own[:, without_own] = self._highest_tenth(score[:, without_own])
        # Equal scores are told apart by chance, or a rule that mostly says 0 could not be held to a budget.
        chance = self._generator.random(score.shape)
        apart = (score + (np.abs(score) * 1e-9 + 1e-12) * chance).reshape(steps, -1)
        began = time.process_time()
        at_budgets = np.stack([self._thresholds.decide(now) for now in apart])
        spent = self.record.spent
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
