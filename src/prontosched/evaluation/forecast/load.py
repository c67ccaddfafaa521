"""Fill panels: from traces of any kind, or from the generated data set of the paper's shape.

Traces of one folder make a cluster; a file with many nodes is a cluster of its own. CPU Ready in percent per CPU,
or in milliseconds per interval, becomes milliseconds per 20 s, the paper's unit; any other column keeps its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from prontosched.errors import ProntoError, TelemetryError
from prontosched.evaluation.datasets.opening import files_of, open_dataset
from prontosched.evaluation.forecast.example import Example, memory_and_network, one_hour
from prontosched.evaluation.forecast.panel import Cluster, Panel, PanelBuilder
from prontosched.evaluation.inputs import ready_unit
from prontosched.evaluation.paper_shape import CHUNK_STEPS, INTERVAL_SECONDS, PaperShape
from prontosched.subspace import Array
from prontosched.telemetry.trace_layout import ready_wanted

PAPER_INTERVAL_SECONDS = 20.0
MS_PER_PERCENT = 10.0 * PAPER_INTERVAL_SECONDS
# A trace may be this many times longer than its rows would fill before its clock is called broken.
MOST_SPAN = 50


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
    tell: Callable[[str], None] = lambda line: None,
) -> TraceSet:
    """Read CPU Ready of all nodes; a file that cannot be used is warned of, and the rest is read.

    Parameters
    ----------
    ready
        Column that holds CPU Ready; without it the trace's own choice.
    unit
        "ms" (per interval), "percent" (per CPU) or "other"; without it told from the trace.
    interval_seconds
        Time between two rows; without it told from the timestamps.
    tell
        Hears of each file.
    """
    found: TraceSet | None = None
    problems: list[ProntoError] = []
    warnings: list[str] = []
    for path in whole_traces(paths):
        tell(str(path))
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
    source, own_unit = open_dataset([path], ready=ready)
    if source.ready_column is None:
        raise TelemetryError(
            f"{path}: no column of CPU Ready among {len(source.metrics)} columns such as "
            f"'{source.metrics[0]}': {ready_wanted(source.metrics)}"
        )
    step = interval or source.interval_seconds
    chosen = unit or (ready_unit(source.ready_column) if own_unit == "other" else own_unit)
    factor = {"percent": MS_PER_PERCENT, "ms": PAPER_INTERVAL_SECONDS / step}.get(chosen, 1.0)
    label = "ms" if chosen in ("percent", "ms") else source.ready_column
    result = TraceSet(step, label, source.ready_column)
    held: dict[str, tuple[list[Array], list[Array], list[Array]]] = {}
    places = memory_and_network(source.metrics)
    tail = 2 * round(3600.0 / step) + 2
    for chunk in source.chunks():
        times, values, metrics = held.setdefault(chunk.node, ([], [], []))
        times.append(chunk.timestamps)
        values.append(chunk.ready * factor)
        if places:
            last = [*metrics, chunk.vectors[-tail:, places]]
            metrics[:] = [np.concatenate(last)[-tail:]]
    for node, (times, values, metrics) in held.items():
        course = np.concatenate(values)
        if not np.isfinite(course).any():
            result.warnings.append(f"{path}: node '{node}' left out: its CPU Ready is never known")
            continue
        start, grid = _on_grid(path, np.concatenate(times), course, step)
        cluster = path.stem if len(held) > 1 else path.parent.name or "traces"
        own = metrics[0] if metrics else np.empty((min(len(course), tail), 0))
        result.traces.append(NodeTrace(node, cluster, start, grid, course[-len(own) :], own))
    result.warnings += [f"{path}: {line}" for line in source.counts.warnings()]
    result.rows, result.dropped = source.counts.rows, source.counts.dropped.total()
    if not result.traces:
        raise TelemetryError(f"{path}: CPU Ready ('{source.ready_column}') must be known somewhere, got none")
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


def trace_panel(traces: TraceSet, *, windows: int | None) -> Panel:
    """Cut the traces into windows, cluster by cluster; nodes of a cluster share one clock."""
    step = traces.interval_seconds
    clusters: list[Cluster] = []
    for name in dict.fromkeys(trace.cluster for trace in traces.traces):
        members = [trace for trace in traces.traces if trace.cluster == name]
        first = min(trace.start for trace in members)
        offsets = [round((trace.start - first) / step) for trace in members]
        steps = max(at + len(trace.ready) for at, trace in zip(offsets, members, strict=True))
        builder = PanelBuilder(
            name, tuple(t.node for t in members), interval_seconds=step, steps=steps, windows=windows
        )
        day = max(1, round(86_400 / step))
        for start in range(0, steps, day):
            block = np.full((len(members), min(day, steps - start)), np.nan)
            for row, (at, trace) in enumerate(zip(offsets, members, strict=True)):
                low, high = max(start, at), min(start + block.shape[1], at + len(trace.ready))
                if low < high:
                    block[row, low - start : high - start] = trace.ready[low - at : high - at]
            builder.feed(block)
        clusters.append(builder.finish())
    longest = max(len(trace.ready) for trace in traces.traces) * step
    card = {
        "nodes": f"{len(traces.traces)} in {len(clusters)} clusters",
        "CPU Ready": f"column '{traces.ready_column}', in {traces.unit}",
        "interval": f"{step:g} s",
        "length": f"{longest / 86_400:.1f} days" if longest > 86_400 else f"{longest / 3600:.1f} hours",
        "rows": f"{traces.rows} read, {traces.dropped} dropped",
    }
    return Panel("your traces", False, traces.unit, step, tuple(clusters), card, tuple(traces.warnings))


def trace_example(traces: TraceSet) -> Example | None:
    """Return the one-hour example on the longest trace that has metrics of memory or network."""
    need = 2 * round(3600.0 / traces.interval_seconds)
    able = [
        t for t in traces.traces if len(t.tail_metrics) >= need and t.tail_metrics.shape[1] and need >= 16
    ]
    for trace in sorted(able, key=lambda t: -float(np.nanstd(t.tail_ready))):
        if np.isfinite(trace.tail_ready).mean() > 0.8:
            return one_hour(
                trace.node, trace.tail_ready, trace.tail_metrics, interval_seconds=traces.interval_seconds
            )
    return None


def collect_generated(shape: PaperShape, cluster: int, windows: int | None) -> Cluster:
    """Stream one generated cluster and keep its windows."""
    builder: PanelBuilder | None = None
    for chunk in shape.stream(cluster):
        if builder is None:
            builder = PanelBuilder(
                chunk.cluster,
                chunk.nodes,
                interval_seconds=INTERVAL_SECONDS,
                steps=shape.steps,
                windows=windows,
            )
        builder.feed(chunk.ready_ms)
    assert builder is not None  # a shape has at least a day
    return builder.finish()


def generated_panel(shape: PaperShape, clusters: Sequence[Cluster]) -> Panel:
    """Name a generated data set."""
    nodes = sum(len(cluster.nodes) for cluster in clusters)
    card = {
        "nodes": f"{nodes} VMs in {len(clusters)} clusters (the paper: 1,050 VMs in 3)",
        "CPU Ready": "generated, in ms per 20 s",
        "interval": f"{INTERVAL_SECONDS:g} s",
        "length": f"{shape.days} days",
        "seed": str(shape.seed),
    }
    return Panel("generated data set", True, "ms", INTERVAL_SECONDS, tuple(clusters), card)


def generated_example(shape: PaperShape, hours: int = 12) -> Example:
    """Return the one-hour example before noon on a node of the first cluster that varies more than most."""
    steps = hours * CHUNK_STEPS
    spread = np.concatenate([c.ready_ms for c in shape.stream(0, steps=steps)], axis=1)[:, -2 * CHUNK_STEPS :]
    # At the upper quartile: lively, but no extreme.
    node = int(np.argsort(spread.std(axis=1))[len(spread) * 3 // 4])
    ready: list[Array] = []
    values: list[Array] = []
    metrics: tuple[str, ...] = ()
    for chunk in shape.stream(0, metrics_of=[node], steps=steps):
        assert chunk.values is not None  # they were asked for
        ready.append(chunk.ready_ms[node])
        values.append(chunk.values[0])
        metrics = chunk.metrics
    places = memory_and_network(metrics)
    return one_hour(
        f"vm-000-{node:03d}",
        np.concatenate(ready),
        np.concatenate(values)[:, places],
        interval_seconds=INTERVAL_SECONDS,
    )
