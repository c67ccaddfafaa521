"""CPU Ready of many nodes, cut into windows: the input of the forecasts.

Of each window its level (median or mean) is kept, and of the windows chosen for scoring a few dozen points inside
them. Traces of one folder make a cluster; a file with many nodes is a cluster of its own. CPU Ready in percent per
CPU, or in milliseconds per interval, becomes milliseconds per 20 s, the paper's unit; any other column keeps its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from prontosched.errors import ProntoError, TelemetryError
from prontosched.evaluation.datasets import files_of
from prontosched.evaluation.datasets.paper_shape import CHUNK_STEPS, INTERVAL_SECONDS, PaperShape
from prontosched.evaluation.forecast.models import HourForecast, memory_and_network, one_hour
from prontosched.evaluation.inputs import Columns, TracePart
from prontosched.subspace import Array

Level = Literal["median", "mean"]
HOUR = 3600
DAY = 24 * HOUR
# The paper's forecasting windows, longest first.
LENGTHS: dict[int, str] = {
    DAY: "1 day",
    12 * HOUR: "12 hours",
    6 * HOUR: "6 hours",
    3 * HOUR: "3 hours",
    HOUR: "1 hour",
    HOUR // 2: "30 min",
    HOUR // 4: "15 min",
}
# Points inside a window: a quarter of an hour at 20 s has 45 samples, and longer windows get no more.
MOST_POINTS = 45
FEWEST_POINTS = 8
# A window of which more than this share is unknown is unknown.
MOST_UNKNOWN = 0.5
PAPER_INTERVAL_SECONDS = 20.0
MS_PER_PERCENT = 10.0 * PAPER_INTERVAL_SECONDS
# A trace may be this many times longer than its rows would fill before its clock is called broken.
MOST_SPAN = 50


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """One window length of one cluster."""

    levels: Array  # of every window, `(M, windows)`; NaN where too little is known
    chosen: NDArray[np.intp]  # windows whose successor is forecast, `(k,)`
    points: Array  # the inside of the chosen windows, `(M, k, points)`


@dataclass(frozen=True, slots=True, eq=False)
class ClusterWindows:
    """The nodes that are forecast from one another; a length that the trace is too short for is missing."""

    name: str
    nodes: tuple[str, ...]
    windows: Mapping[int, Windows]  # by length in seconds

    @property
    def daily(self) -> Array:
        """Daily levels, `(M, days)`; no columns where the trace is shorter than a day."""
        held = self.windows.get(DAY)
        return np.empty((len(self.nodes), 0)) if held is None else held.levels


@dataclass(frozen=True, slots=True, eq=False)
class Panel:
    """One data set, ready to be forecast."""

    name: str
    generated: bool
    unit: str  # "ms" (per 20 s), or what else CPU Ready is measured in
    interval_seconds: float
    clusters: tuple[ClusterWindows, ...]
    card: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def days(self) -> int:
        """Whole days in the longest cluster."""
        return max((cluster.daily.shape[1] for cluster in self.clusters), default=0)

    def lengths(self) -> list[int]:
        """Window lengths that some cluster has two windows of, longest first."""
        return [
            length
            for length in LENGTHS
            if any(length in c.windows and len(c.windows[length].chosen) for c in self.clusters)
        ]


def cut_windows(
    name: str, nodes: tuple[str, ...], ready: Array, step: float, windows: int | None, level: Level = "median"
) -> ClusterWindows:
    """Cut the samples of a cluster, one a `step`, `(M, steps)`, into windows of every length they suffice for.

    So many `windows` of each length are chosen for scoring, spread over the trace; None chooses all.
    """
    found = {}
    for length in LENGTHS:
        samples = round(length / step)
        count = ready.shape[1] // samples if samples else 0
        parts = points_per_window(samples) if count else 0
        if count >= 2 and parts >= FEWEST_POINTS:
            chosen = _spread(count - 1, windows)
        elif length == DAY and count and samples > 1:
            chosen = np.empty(0, dtype=np.intp)
        else:
            continue
        # One window at a time: numpy copies what it takes the median of.
        each = [ready[:, at * samples : (at + 1) * samples] for at in range(count)]
        levels = np.stack([level_of(window, level) for window in each], axis=1)
        points = np.empty((len(nodes), len(chosen), parts))
        for place, at in enumerate(chosen):
            points[:, place] = level_of(each[at].reshape(len(nodes), parts, -1), level)
        found[length] = Windows(levels, chosen, points)
    return ClusterWindows(name, nodes, found)


def points_per_window(samples: int) -> int:
    """Return into how many equal parts a window of so many samples is cut: at most 45."""
    return max(n for n in range(1, min(samples, MOST_POINTS) + 1) if samples % n == 0)


def level_of(values: Array, level: Level = "median") -> Array:
    """Return the median or mean along the last axis of what is known; NaN where less than half is."""
    unknown = np.isnan(values)
    if not unknown.any():
        plain: Array = (np.median if level == "median" else np.mean)(values, axis=-1)
        return plain
    filled = np.where(unknown.all(axis=-1, keepdims=True), 0.0, values)
    known: Array = (np.nanmedian if level == "median" else np.nanmean)(filled, axis=-1)
    return np.where(unknown.mean(axis=-1) > MOST_UNKNOWN, np.nan, known)


def _spread(count: int, wanted: int | None) -> NDArray[np.intp]:
    if wanted is None or wanted >= count:
        return np.arange(count)
    # One at random out of each of so many equal stretches: an even step would always meet the same hours.
    edges = np.linspace(0, count, wanted + 1)
    places = np.random.default_rng([count, wanted]).uniform(edges[:-1], edges[1:])
    return np.unique(places.astype(np.intp))


@dataclass(slots=True)
class NodeTrace:
    """CPU Ready of one node on a regular grid, and the metrics of its last hours."""

    node: str
    cluster: str
    start: float
    ready: Array
    tail_ready: Array
    tail_metrics: Array


@dataclass(slots=True)
class TraceSet:
    """All traces given, with what could not be used of them."""

    interval_seconds: float
    unit: str
    ready_column: str
    traces: list[NodeTrace] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    rows: int = 0
    dropped: int = 0


def read_traces(
    paths: Sequence[Path],
    *,
    ready: str | None = None,
    unit: str | None = None,
    interval_seconds: float | None = None,
    advance: Callable[[int], None] = lambda done: None,
) -> TraceSet:
    """Read CPU Ready of all nodes; a file that cannot be used is warned of, and the rest is read.

    The unit ("ms" per interval, "percent" per CPU, or "other") and the interval are told from the trace if not given.
    """
    found: TraceSet | None = None
    problems: list[ProntoError] = []
    warnings: list[str] = []
    for path in whole_traces(paths):
        advance(1)
        try:
            one = _read_one(path, ready, unit, interval_seconds)
        except TelemetryError as error:
            problems.append(error)
            warnings.append(f"left out: {error}")
            continue
        if found is None:
            found = one
        elif abs(one.interval_seconds / found.interval_seconds - 1.0) > 0.05 or one.unit != found.unit:
            warnings.append(
                f"left out: {path}: all traces must have one interval ({found.interval_seconds:g} s) and unit "
                f"({found.unit}), got {one.interval_seconds:g} s and {one.unit}"
            )
        else:
            found.traces += one.traces
            found.warnings += one.warnings
            found.rows, found.dropped = found.rows + one.rows, found.dropped + one.dropped
    if found is None:
        raise problems[0]
    found.warnings = warnings + found.warnings
    return found


def whole_traces(paths: Sequence[Path]) -> list[Path]:
    """Return files, and folders that are parts of one trace."""
    found: list[Path] = []
    for path in paths:
        parts = path.is_dir() and any(p.name.startswith("part-") for p in path.iterdir())
        stands_for_parts = not path.exists() and path.with_name(path.name + ".parts").is_dir()
        found += [path] if parts or stands_for_parts else files_of([path])
    return found


def _read_one(path: Path, ready: str | None, unit: str | None, interval: float | None) -> TraceSet:
    source, own_unit = TracePart((str(path),), Columns(ready=ready)).open()
    step = interval or source.interval_seconds
    chosen = unit or own_unit
    factor = {"percent": MS_PER_PERCENT, "ms": PAPER_INTERVAL_SECONDS / step}.get(chosen, 1.0)
    column = source.ready_column or ""
    result = TraceSet(step, "ms" if chosen in ("percent", "ms") else column, column)
    places = memory_and_network(source.metrics)
    tail = 2 * round(HOUR / step) + 2
    held: dict[str, tuple[list[Array], list[Array], Array]] = {}
    for chunk in source.chunks():
        times, values, last = held.get(chunk.node, ([], [], np.empty((0, len(places)))))
        last = np.concatenate([last, chunk.vectors[-tail:, places]])[-tail:]
        held[chunk.node] = ([*times, chunk.timestamps], [*values, chunk.ready * factor], last)
    for node, (times, values, last) in held.items():
        course = np.concatenate(values)
        if not np.isfinite(course).any():
            result.warnings.append(f"{path}: node '{node}' left out: its CPU Ready is never known")
            continue
        start, grid = _on_grid(path, np.concatenate(times), course, step)
        cluster = path.stem if len(held) > 1 else path.parent.name or "traces"
        result.traces.append(NodeTrace(node, cluster, start, grid, course[-len(last) :], last))
    result.warnings += [f"{path}: {line}" for line in source.counts.warnings()]
    result.rows, result.dropped = source.counts.rows, source.counts.dropped.total()
    if not result.traces:
        raise TelemetryError(f"{path}: CPU Ready ('{column}') must be known somewhere, got none")
    return result


def _on_grid(path: Path, times: Array, values: Array, step: float) -> tuple[float, Array]:
    """Put rows on a regular grid; what is missing is NaN."""
    if not np.isfinite(times).all():
        return 0.0, values
    place = np.round((times - times[0]) / step).astype(np.int64)
    if place[-1] > MOST_SPAN * len(times):
        raise TelemetryError(
            f"{path}: a trace must be mostly without gaps, got {len(times)} rows over {place[-1] + 1} intervals "
            f"of {step:g} s: check its timestamps"
        )
    grid = np.full(int(place[-1]) + 1, np.nan)
    grid[place] = values
    return float(times[0]), grid


def trace_panel(traces: TraceSet, *, windows: int | None, level: Level = "median") -> Panel:
    """Cut the traces into windows, cluster by cluster; nodes of a cluster share one clock."""
    step = traces.interval_seconds
    clusters: list[ClusterWindows] = []
    for name in dict.fromkeys(trace.cluster for trace in traces.traces):
        members = [trace for trace in traces.traces if trace.cluster == name]
        first = min(trace.start for trace in members)
        offsets = [round((trace.start - first) / step) for trace in members]
        steps = max(at + len(trace.ready) for at, trace in zip(offsets, members, strict=True))
        ready = np.full((len(members), steps), np.nan)
        for row, at, trace in zip(ready, offsets, members, strict=True):
            row[at : at + len(trace.ready)] = trace.ready
        nodes = tuple(trace.node for trace in members)
        clusters.append(cut_windows(name, nodes, ready, step, windows, level))
    longest = max(len(trace.ready) for trace in traces.traces) * step
    card = {
        "nodes": f"{len(traces.traces)} in {len(clusters)} clusters",
        "CPU Ready": f"column '{traces.ready_column}', in {traces.unit}",
        "interval": f"{step:g} s",
        "length": f"{longest / DAY:.1f} days" if longest > DAY else f"{longest / HOUR:.1f} hours",
        "rows": f"{traces.rows} read, {traces.dropped} dropped",
        "forecast": f"{level}s of days and windows",
    }
    return Panel("your traces", False, traces.unit, step, tuple(clusters), card, tuple(traces.warnings))


def trace_example(traces: TraceSet) -> HourForecast | None:
    """Return the one-hour example on the liveliest trace that has metrics of memory or network."""
    step = traces.interval_seconds
    need = 2 * round(HOUR / step)
    able = [t for t in traces.traces if len(t.tail_metrics) >= need >= 16 and t.tail_metrics.shape[1]]
    for trace in sorted(able, key=lambda t: -float(np.nanstd(t.tail_ready))):
        if np.isfinite(trace.tail_ready).mean() > 0.8:
            return one_hour(trace.node, trace.tail_ready, trace.tail_metrics, interval_seconds=step)
    return None


def collect_generated(
    shape: PaperShape, cluster: int, windows: int | None, level: Level = "median"
) -> ClusterWindows:
    """Generate one cluster and keep its windows."""
    hours = list(shape.stream(cluster))
    ready = np.concatenate([hour.ready_ms for hour in hours], axis=1)
    return cut_windows(hours[0].cluster, hours[0].nodes, ready, INTERVAL_SECONDS, windows, level)


def generated_panel(shape: PaperShape, clusters: Sequence[ClusterWindows], level: Level = "median") -> Panel:
    """Name a generated data set."""
    nodes = sum(len(cluster.nodes) for cluster in clusters)
    card = {
        "nodes": f"{nodes} VMs in {len(clusters)} clusters (the paper: 1,050 VMs in 3)",
        "CPU Ready": "generated, in ms per 20 s",
        "interval": f"{INTERVAL_SECONDS:g} s",
        "length": f"{shape.days} days",
        "seed": str(shape.seed),
        "forecast": f"{level}s of days and windows",
    }
    return Panel("generated data set", True, "ms", INTERVAL_SECONDS, tuple(clusters), card)


def generated_example(shape: PaperShape, hours: int = 12) -> HourForecast:
    """Return the one-hour example before noon on a node of the first cluster that varies more than most."""
    steps = hours * CHUNK_STEPS
    spread = np.concatenate([c.ready_ms for c in shape.stream(0, steps=steps)], axis=1)[:, -2 * CHUNK_STEPS :]
    # At the upper quartile: lively, but no extreme.
    node = int(np.argsort(spread.std(axis=1))[len(spread) * 3 // 4])
    chunks = list(shape.stream(0, metrics_of=[node], steps=steps))
    places = memory_and_network(chunks[0].metrics)
    ready = np.concatenate([chunk.ready_ms[node] for chunk in chunks])
    values = np.concatenate([chunk.values[0][:, places] for chunk in chunks if chunk.values is not None])
    return one_hour(f"vm-000-{node:03d}", ready, values, interval_seconds=INTERVAL_SECONDS)
