"""A chunk of nodes, streamed through all methods at once: predict, then learn.

Covers: the loop over time. What is kept of it is in `record`; spreading chunks over workers in `engines`.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from prontosched.errors import TelemetryError
from prontosched.evaluation.budget import BudgetThresholds
from prontosched.evaluation.inputs import Feed, Part, TracePart
from prontosched.evaluation.methods import Chunked, Method, choose
from prontosched.evaluation.nulls import NullTotal
from prontosched.evaluation.record import Record, Shape
from prontosched.evaluation.runners import Runner, make_runners
from prontosched.evaluation.setting import Setting
from prontosched.evaluation.summary import FEWEST_SCORED, OWN, SHIFTS, STATISTICS, NodeSummary, summarise_node
from prontosched.evaluation.truth import Learner, Truth
from prontosched.evaluation.windows import Mask
from prontosched.subspace import Array
from prontosched.telemetry.trace import Chunk, TraceCounts

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
    node_steps, seconds
        Work done, and the processor time it took.
    """

    nodes: list[NodeSummary] = field(default_factory=list)
    paths: tuple[str, ...] = ()
    counts: TraceCounts = field(default_factory=TraceCounts)
    refused: dict[str, str] = field(default_factory=dict)
    nulls: dict[str, NullTotal] = field(default_factory=dict)
    metrics: tuple[str, ...] = ()
    ready_column: str = ""
    ready_unit: str = "percent"
    interval_seconds: float = float("nan")
    thinning: int = 1
    node_steps: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Block:
    """The next rows of all nodes of a chunk, side by side: `(steps, nodes, …)`."""

    vectors: Array
    ready: Array
    utilisation: Array
    time: Array
    present: Mask
    gap: Mask


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
    feed, unit = part.open()
    try:
        nodes = part.nodes if isinstance(part, TracePart) and part.nodes is not None else feed.nodes
        truth = Truth.parse(setting.truth)
        interval = feed.interval_seconds
        learner = truth.learner(len(nodes), trace_unit=unit, interval_seconds=interval)
        tolerance = setting.tolerance or _tolerance(truth, unit, interval)
        extra = (feed.ready_column or "ready",) if setting.with_ready else ()
        metrics = (*feed.metrics, *extra)
        chunk = Chunked(nodes, len(metrics), interval, tolerance, setting, unit)
        methods = choose(setting.methods, setting.sweeps)
        record, steps = _stream(feed, metrics, chunk, methods, learner, progress)
    finally:
        feed.close()
    record.finish()
    result = PartResult(
        paths=part.paths if isinstance(part, TracePart) else (),
        counts=feed.counts,
        metrics=metrics,
        ready_column=feed.ready_column or "",
        ready_unit=unit,
        interval_seconds=interval,
        thinning=record.thinning,
        node_steps=steps,
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
    return result


def _drop_meaningless(nodes: list[NodeSummary], methods: list[Method], unit: str) -> None:
    """Set the own figures of rules to NaN whose limit is in percent where CPU Ready is not."""
    if unit in ("percent", "ms"):
        return
    columns = [STATISTICS.index(statistic) for statistic in OWN]
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
) -> tuple[Record, int]:
    runners = make_runners(methods, chunk, metrics)
    place = {method.name: k for k, method in enumerate(methods)}
    order = [np.array([place[method.name] for method in runner.methods]) for runner in runners]
    loop = _Loop(chunk, len(methods), runners, order)
    last_time = np.full(len(chunk.nodes), np.nan)
    index = {name: k for k, name in enumerate(chunk.nodes)}
    steps = 0
    for chunks in feed.aligned(ROWS, nodes=chunk.nodes):
        block = _block(chunks, index, chunk.features, last_time, chunk.interval_seconds)
        threshold = np.empty(block.ready.shape)
        for step, ready in enumerate(block.ready):
            threshold[step] = learner.threshold()
            learner.learn(ready)
        for runner in runners:
            runner.prepare(block.ready, block.utilisation, threshold, block.time)
        for step in range(block.ready.shape[0]):
            loop.step(block, step, threshold[step])
        done = int(block.present.sum())
        steps += done
        if progress is not None:
            progress(done)
    return loop.record, steps


class _Loop:
    """What is carried from step to step."""

    def __init__(self, chunk: Chunked, methods: int, runners: list[Runner], order: list[Array]) -> None:
        setting, nodes = chunk.setting, len(chunk.nodes)
        budgets = setting.budgets
        shape = Shape(methods, nodes, budgets, budgets.index(setting.budget), setting.horizon, setting.window)
        self.record = Record(shape)
        self._runners = runners
        self._order = order
        self._thresholds = BudgetThresholds(methods * nodes, budgets)
        self._generator = np.random.default_rng([setting.seed, 5, zlib.crc32(chunk.nodes[0].encode())])
        self._shape = (methods, nodes)
        self._score = np.full(self._shape, np.nan)
        self._probability = np.full(self._shape, np.nan)
        self._own = np.zeros(self._shape, bool)

    def step(self, block: Block, step: int, threshold: Array) -> None:
        present = block.present[step]
        for runner, order in zip(self._runners, self._order, strict=True):
            heard = runner.step(
                block.vectors[step],
                ready=block.ready[step],
                utilisation=block.utilisation[step],
                time=block.time[step],
                present=present,
                threshold=threshold,
            )
            for place, said in zip(order, heard, strict=True):
                self._score[place] = said.score
                self._own[place] = said.raised
                self._probability[place] = said.probability
        score = self._score if present.all() else np.where(present, self._score, np.nan)
        # Equal scores are told apart by chance, or a rule that mostly says 0 could not be held to a budget.
        chance = self._generator.random(self._shape)
        at_budgets = self._thresholds.decide((score + (np.abs(score) * 1e-9 + 1e-12) * chance).ravel())
        ready = block.ready[step]
        self.record.put(
            ready=ready,
            threshold=threshold,
            known=present & np.isfinite(ready),
            gap=block.gap[step],
            score=score,
            probability=self._probability,
            own=self._own & present,
            at_budgets=at_budgets.reshape(*self._shape, -1),
        )


def _block(
    chunks: list[Chunk], index: dict[str, int], features: int, last_time: Array, interval: float
) -> Block:
    """Put the next rows of all nodes side by side; nodes that have ended are absent."""
    steps, nodes = max(len(chunk) for chunk in chunks), len(index)
    vectors = np.full((steps, nodes, features), np.nan)
    ready, utilisation, clock = (np.full((steps, nodes), np.nan) for _ in range(3))
    present, gap = np.zeros((steps, nodes), bool), np.zeros((steps, nodes), bool)
    for chunk in chunks:
        node, size = index[chunk.node], len(chunk)
        given = chunk.vectors.shape[1]
        vectors[:size, node, :given] = chunk.vectors
        if given < features:
            vectors[:size, node, given] = chunk.ready
        ready[:size, node] = chunk.ready
        utilisation[:size, node] = chunk.utilisation
        clock[:size, node] = chunk.timestamps
        present[:size, node] = True
        line = np.concatenate([[last_time[node]], chunk.timestamps])
        with np.errstate(invalid="ignore"):
            gap[:size, node] = np.diff(line) > 1.5 * interval
        last_time[node] = line[-1]
    return Block(vectors, ready, utilisation, clock, present, gap)
