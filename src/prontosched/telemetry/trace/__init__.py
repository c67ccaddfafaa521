"""Recorded traces, with the interface of a live source: CSV (plain or gzipped) or Parquet, streamed and never whole.

One row per timestep; what the columns mean is in docs/telemetry.md. A folder is a trace too: files called `part-…` in
it are parts of one (what `pronto record` leaves when it is killed), any others are one trace each. What is wrong with
a file is a `TelemetryError` of one line; rows that cannot be used are dropped and counted. Formats are in `files`.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress, islice
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prontosched.errors import TelemetryError, nearest
from prontosched.subspace import Array
from prontosched.telemetry.source import PROBE_COLUMN, Sample
from prontosched.telemetry.trace.files import (
    SUFFIXES,
    Batch,
    CsvFile,
    ParquetFile,
    TraceCounts,
    TraceFile,
    Wanted,
    name_some,
)

__all__ = [
    "Chunk",
    "Layout",
    "TraceCounts",
    "TraceSource",
    "lay_out",
    "open_files",
    "open_trace",
    "ready_wanted",
]

# Cells held at a time, so that ten thousand metrics need no more memory than a hundred.
BATCH_CELLS = 1_000_000
BATCH_ROWS = 4096
# What columns are called that mean something; of several names the first that a file has counts.
ROLES = {
    "ready": ("ready", "cpu_ready", "cpu_ready_percent", "cpu_ready_ms"),
    "utilisation": ("utilisation", "utilization", "cpu_utilisation"),
    "timestamp": ("timestamp", "time"),
    "node": ("node",),
}
# Signs of CPU Ready in the name of a column, the surest first.
_SIGNS = tuple(
    re.compile(sign, re.IGNORECASE)
    for sign in (
        r"ready|rdy",
        r"steal|stolen",
        r"cpu.*(wait|delay)|run.?queue",
        r"cpu.*(psi|pressure)|(psi|pressure).*cpu",
        r"load",
    )
)


class TraceSource:
    """One or more recorded traces, read as a live source or as arrays. Made by `open_trace`.

    `chunks` and `aligned` can be called again: each starts from the beginning and counts anew.

    Attributes
    ----------
    metrics
        Names of the metrics, the union over all files; what a file lacks is NaN.
    ready_column
        Name of the column that holds CPU Ready, None if no file has one.
    interval_seconds
        Median time between two rows; 1 where the trace has no timestamps.
    counts
        What the last pass met.

    Notes
    -----
    Memory: a million cells per open file, and `rows` rows per node for `chunks` and `aligned`.
    """

    name = "trace"

    def __init__(self, streams: list[Stream], layout: Layout, columns: dict[str, str]) -> None:
        self.metrics = layout.metrics
        files = [file for stream in streams for file in stream.files]
        self.ready_column = next((c for file in files if (c := layout.pick(layout.ready, file))), None)
        self.counts = TraceCounts()
        self._streams = streams
        self._layout = layout
        self._columns = columns
        self._timed = any(layout.pick(layout.timestamp, file) for file in files)
        self.interval_seconds = self._measure_interval()
        self._nodes: tuple[str, ...] | None = None
        self._steps: Iterator[list[Sample]] | None = None
        self._closed = False

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes; the first call passes over the `node` column where there is one."""
        if self._nodes is None:
            found: dict[str, None] = {}
            for stream in self._streams:
                for file in stream.files:
                    column = self._layout.pick(self._layout.node, file)
                    if column is None:
                        found[stream.name] = None
                        continue
                    for batch in file.batches(Wanted([], node=column), 65536, TraceCounts()):
                        found.update(dict.fromkeys(batch.nodes or ()))
            self._nodes = tuple(found)
        return self._nodes

    def read(self) -> list[Sample]:
        """Read the next timestep: all nodes that have a row for it."""
        if self._closed:
            raise ValueError("read from a closed trace")
        if self._steps is None:
            self._steps = self._walk()
        step = next(self._steps, None)
        if step is None:
            raise EOFError("the trace has ended")
        return step

    def chunks(self, rows: int = 4096, *, nodes: Collection[str] | None = None) -> Iterator[Chunk]:
        """Yield the next `rows` rows of one node at a time, fewer at its end; of all nodes or only of these."""
        self._begin()
        for stream in self._streams:
            for group in stream.chunks(self._layout, self.counts, self._gap_interval, rows=rows, nodes=nodes):
                yield from (self._seen(chunk) for chunk in group)
        self._end()

    def aligned(self, rows: int = 256, *, nodes: Collection[str] | None = None) -> Iterator[list[Chunk]]:
        """Yield the next `rows` rows of all nodes at once, row by row side by side."""
        self._begin()
        going = [
            stream.chunks(
                self._layout, self.counts, self._gap_interval, rows=rows, nodes=nodes, together=True
            )
            for stream in self._streams
        ]
        while going:
            groups = [(walk, next(walk, None)) for walk in going]
            going = [walk for walk, group in groups if group is not None]
            chunks = [self._seen(chunk) for _, group in groups if group is not None for chunk in group]
            if chunks:
                yield chunks
        self._end()

    def close(self) -> None:
        """Let go of the files."""
        self._closed = True
        self._steps = None

    @property
    def _gap_interval(self) -> float:
        return self.interval_seconds if self._timed else 0.0

    def _begin(self) -> None:
        self.counts = TraceCounts(columns=dict(self._columns))
        self._numbers = 0

    def _seen(self, chunk: Chunk) -> Chunk:
        if not self._numbers:
            self._numbers = int(np.isfinite(chunk.vectors).sum())
        return chunk

    def _end(self) -> None:
        where = name_some([str(file.path) for stream in self._streams for file in stream.files], most=1)
        if not self.counts.rows:
            raise TelemetryError(f"{where}: a trace must have at least one row, got only a header")
        if self.counts.kept and not self._numbers:
            raise TelemetryError(f"{where}: no metric has a single number in {self.counts.rows} rows")

    def _measure_interval(self) -> float:
        for stream in self._streams if self._timed else ():
            for rows in stream.rows(self._layout, TraceCounts(), 0.0):
                for _, places in islice(rows.by_node(stream.name), 1):
                    times = rows.columns.timestamps[places]
                    steps = np.diff(times[np.isfinite(times)])
                    if len(steps):
                        return float(np.median(steps))
        return 1.0

    def _walk(self) -> Iterator[list[Sample]]:
        """Merge the streams by time."""
        self._begin()
        rows = [stream.samples(self._layout, self.counts, self._gap_interval) for stream in self._streams]
        heads = [next(row, None) for row in rows]
        while any(head is not None for head in heads):
            known = [
                head.timestamp for head in heads if head is not None and head.timestamp == head.timestamp
            ]
            until = min(known) + self.interval_seconds / 2 if known else math.nan
            step: dict[str, Sample] = {}
            for place, head in enumerate(heads):
                # A row without a time goes with whatever is next.
                while head is not None and not head.timestamp > until and head.node not in step:
                    step[head.node] = head
                    head = heads[place] = next(rows[place], None)
            if any(np.isfinite(sample.vector).any() for sample in step.values()):
                self._numbers = 1
            yield list(step.values())
        self._end()


def open_trace(
    paths: str | PathLike[str] | Iterable[str | PathLike[str]],
    *,
    ready: str | None = None,
    exclude: Sequence[str] = (),
    utilisation: str | None = None,
    timestamp: str | None = None,
    node: str | None = None,
    keep: Sequence[str] = (),
) -> TraceSource:
    """Open files and folders as one source; only headers are read.

    Parameters
    ----------
    ready, utilisation, timestamp, node
        Columns with these meanings; every file must have those that are given. Of the others the usual names
        are taken where a file has them (`ROLES`). `utilisation` stays among the metrics if it is given.
    exclude
        Columns to leave out, with `*` and `?` as wildcards.
    keep
        Columns to have among the metrics although they say what came of it, such as the probe's.
    """
    chosen = [paths] if isinstance(paths, str | PathLike) else list(paths)
    streams = [stream for path in chosen for stream in _streams(Path(path))]
    if not streams:
        raise TelemetryError(f"a trace must be a file or a folder with files, got {len(chosen)} paths")
    given = {"ready": ready, "utilisation": utilisation, "timestamp": timestamp, "node": node}
    return _open_streams(streams, given, exclude, keep)


def open_files(
    files: Sequence[TraceFile],
    *,
    ready: str | None = None,
    exclude: Sequence[str] = (),
    utilisation: str | None = None,
    keep: Sequence[str] = (),
) -> TraceSource:
    """Open files of any format that a reader of its own has opened, each one node; else as `open_trace`."""
    streams = [Stream(_stem(file.path), [file]) for file in files]
    given = {"ready": ready, "utilisation": utilisation, "timestamp": None, "node": None}
    return _open_streams(streams, given, exclude, keep)


def _open_streams(
    streams: list[Stream], given: dict[str, str | None], exclude: Sequence[str], keep: Sequence[str]
) -> TraceSource:
    names = [stream.name for stream in streams]
    for stream in streams:
        # Streams of one name carry that of their folder as well.
        if names.count(stream.name) > 1:
            stream.name = f"{stream.files[0].path.parent.name}/{stream.name}"
    files = [file for stream in streams for file in stream.files]
    for column in filter(None, given.values()):
        require_column(column, files)
    layout, columns = lay_out(files, given, exclude, keep)
    return TraceSource(streams, layout, columns)


def _open_file(path: Path) -> TraceFile:
    if path.name.endswith(".parquet"):
        return ParquetFile(path)
    if path.name.endswith((".csv", ".csv.gz")):
        return CsvFile(path)
    raise TelemetryError(f"{path}: a trace must end in .parquet, .csv or .csv.gz")


def _stem(path: Path) -> str:
    return re.sub(r"\.(parquet|csv|csv\.gz|txt)$", "", path.name.removesuffix(".parts"))


def _streams(path: Path) -> list[Stream]:
    parts_folder = path.with_name(path.name + ".parts")
    if not path.exists() and parts_folder.is_dir():
        path = parts_folder
    if not path.is_dir():
        if not path.exists():
            raise TelemetryError(f"{path}: no such file")
        return [Stream(_stem(path), [_open_file(path)])]
    found = sorted(file for file in path.iterdir() if file.name.endswith(SUFFIXES))
    if not found:
        raise TelemetryError(f"{path}: the folder must hold .parquet or .csv files, got none")
    parts = [file for file in found if file.name.startswith("part-")]
    streams = [Stream(_stem(path), [_open_file(file) for file in parts])] if parts else []
    return streams + [Stream(_stem(file), [_open_file(file)]) for file in found if file not in parts]


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Consecutive rows of one node as arrays.

    Attributes
    ----------
    start
        Timestep of the first row: how many rows of this node came before.
    timestamps
        Seconds since 1970, `(n,)`; NaN where the trace has none.
    ready, utilisation
        CPU Ready and CPU utilisation in the trace's own units, `(n,)`; NaN where unknown.
    vectors
        The metrics, one row per timestep, `(n, d)`; NaN where unknown.
    """

    node: str
    start: int
    timestamps: Array
    ready: Array
    utilisation: Array
    vectors: Array

    def __len__(self) -> int:
        """Return how many rows it holds."""
        return len(self.timestamps)


class RowArrays(NamedTuple):
    """Some rows, as the arrays that a `Chunk` has."""

    timestamps: Array
    ready: Array
    utilisation: Array
    vectors: Array

    def take(self, kept: NDArray[np.bool_] | NDArray[np.intp] | slice) -> RowArrays:
        """Return some of the rows."""
        return RowArrays(*(column[kept] for column in self))


class TraceRows(NamedTuple):
    """Rows in file order; `nodes` is None where all belong to the stream's own node."""

    nodes: list[str] | None
    columns: RowArrays

    def by_node(self, name: str) -> Iterator[tuple[str, NDArray[np.intp]]]:
        """Yield every node with the places of its rows."""
        if self.nodes is None:
            yield name, np.arange(len(self.columns.timestamps))
            return
        places: dict[str, list[int]] = {}
        for place, node in enumerate(self.nodes):
            places.setdefault(node, []).append(place)
        for node, found in places.items():
            yield node, np.array(found, dtype=np.intp)


@dataclass(slots=True)
class Stream:
    """Files whose rows follow one another."""

    name: str
    files: list[TraceFile]
    _last: dict[str, float] = field(default_factory=dict)

    def rows(self, layout: Layout, counts: TraceCounts, interval_seconds: float) -> Iterator[TraceRows]:
        """Yield all rows that can be used, in file order."""
        self._last = {}
        size = max(16, min(BATCH_ROWS, BATCH_CELLS // max(1, len(layout.metrics))))
        for file in self.files:
            node, timestamp = layout.pick(layout.node, file), layout.pick(layout.timestamp, file)
            ready, utilisation = layout.pick(layout.ready, file), layout.pick(layout.utilisation, file)
            held = set(file.names) - file.text
            present = [place for place, name in enumerate(layout.metrics) if name in held]
            wanted = [layout.metrics[place] for place in present]
            wanted += [name for name in (ready, utilisation) if name is not None]
            for batch in file.batches(Wanted(wanted, node, timestamp), size, counts):
                columns = _arrange(batch, len(layout.metrics), present, ready, utilisation, counts)
                rows = TraceRows(batch.nodes, columns)
                kept = np.ones(len(columns.timestamps), dtype=bool)
                if timestamp is not None:
                    kept = self._forward(file, rows, counts, interval_seconds)
                if kept.all():
                    yield rows
                else:
                    nodes = rows.nodes and list(compress(rows.nodes, kept))
                    yield TraceRows(nodes, columns.take(kept))

    def samples(self, layout: Layout, counts: TraceCounts, interval_seconds: float) -> Iterator[Sample]:
        """Yield all rows that can be used, one by one."""
        for nodes, columns in self.rows(layout, counts, interval_seconds):
            for place in range(len(columns.timestamps)):
                node = self.name if nodes is None else nodes[place]
                time, ready, busy = (float(column[place]) for column in columns[:3])
                yield Sample(node, layout.metrics, columns.vectors[place].copy(), time, ready, busy)

    def chunks(
        self,
        layout: Layout,
        counts: TraceCounts,
        interval_seconds: float,
        *,
        rows: int,
        nodes: Collection[str] | None = None,
        together: bool = False,
    ) -> Iterator[list[Chunk]]:
        """Yield chunks as they fill, one node at a time, or those of all nodes `together`."""
        buffers: dict[str, _Buffer] = {}
        for batch in self.rows(layout, counts, interval_seconds):
            for node, places in batch.by_node(self.name):
                if nodes is None or node in nodes:
                    part = batch.columns if batch.nodes is None else batch.columns.take(places)
                    buffers.setdefault(node, _Buffer(node)).add(part)
            while any(buffer.size >= rows for buffer in buffers.values()):
                full = [b for b in buffers.values() if b.size >= rows or (together and b.size)]
                taken = [buffer.take(rows) for buffer in full]
                yield from [taken] if together else [[chunk] for chunk in taken]
        if rest := [buffer.take(rows) for buffer in buffers.values() if buffer.size]:
            yield from [rest] if together else [[chunk] for chunk in rest]

    def _forward(
        self, file: TraceFile, rows: TraceRows, counts: TraceCounts, interval_seconds: float
    ) -> NDArray[np.bool_]:
        """Tell which rows go forward in time, and count the others and the gaps."""
        kept = np.ones(len(rows.columns.timestamps), dtype=bool)
        for node, places in rows.by_node(self.name):
            times = rows.columns.timestamps[places]
            line = np.concatenate([[self._last.get(node, -np.inf)], times])
            before = np.fmax.accumulate(line)[:-1]
            unknown, late, twice = np.isnan(times), times < before, times == before
            causes = ("no timestamp", "timestamp before that of an earlier row", "timestamp seen before")
            for cause, found in zip(causes, (unknown, late, twice), strict=True):
                if found.any():
                    counts.dropped[cause] += int(found.sum())
            if node not in self._last and len(times) > 2 and late.sum() > len(times) / 2:
                raise TelemetryError(
                    f"{file.path}: timestamps must ascend, got {int(late.sum())} of the first {len(times)} "
                    f"rows of node '{node}' going back: sort the file by timestamp"
                )
            kept[places] = forward = ~(unknown | late | twice)
            if interval_seconds > 0:
                # A row of -inf before the first makes no gap, for the comparison with it is not finite.
                steps = (times - before)[forward]
                counts.gaps += int(((steps > 1.5 * interval_seconds) & np.isfinite(steps)).sum())
            self._last[node] = float(np.fmax.reduce(line))
        return kept


class _Buffer:
    """Rows of one node until they make a chunk."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.size = 0
        self._start = 0
        self._parts: list[RowArrays] = []

    def add(self, part: RowArrays) -> None:
        self._parts.append(part)
        self.size += len(part.timestamps)

    def take(self, rows: int) -> Chunk:
        """Return the first `rows` rows, or all if there are fewer."""
        whole = self._parts[0]
        if len(self._parts) > 1:
            whole = RowArrays(*map(np.concatenate, zip(*self._parts, strict=True)))
        chunk = Chunk(self.node, self._start, *whole.take(slice(rows)))
        self._start += len(chunk)
        self.size -= len(chunk)
        self._parts = [whole.take(slice(rows, None))] if self.size else []
        return chunk


def _arrange(
    batch: Batch,
    features: int,
    present: list[int],
    ready: str | None,
    utilisation: str | None,
    counts: TraceCounts,
) -> RowArrays:
    numbers, n, d = batch.numbers, len(batch.numbers), len(present)
    unknown = np.full(n, np.nan)
    if d == features:
        vectors = numbers[:, :d]
    else:
        vectors = np.full((n, features), np.nan)
        vectors[:, present] = numbers[:, :d]
    times = unknown if batch.timestamps is None else batch.timestamps
    if np.isinf(times).any():
        times = np.where(np.isinf(times), np.nan, times)  # no row could come after an infinite time
    waiting = unknown if ready is None else numbers[:, d]
    if (below := waiting < 0.0).any():
        counts.cells["CPU Ready below 0"] += int(below.sum())
        waiting = np.where(below, np.nan, waiting)
    return RowArrays(times, waiting, unknown if utilisation is None else numbers[:, -1], vectors)


@dataclass(frozen=True, slots=True)
class Layout:
    """Which columns mean what; of several names the first that a file has counts."""

    metrics: tuple[str, ...]
    ready: tuple[str, ...]
    utilisation: tuple[str, ...]
    timestamp: tuple[str, ...]
    node: tuple[str, ...]

    @staticmethod
    def pick(names: tuple[str, ...], file: TraceFile) -> str | None:
        """Return the first of the names that the file has."""
        return next((name for name in names if name in file.names), None)


def require_column(column: str, files: list[TraceFile]) -> None:
    """Refuse files that lack a column."""
    for file in files:
        if column not in file.names:
            near = nearest(column, file.names)
            what = f"did you mean {name_some(near)}?" if near else "name one that is there"
            raise TelemetryError(
                f"{file.path}: no column '{column}' among {name_some(file.names, most=2)}: {what}"
            )


def ready_wanted(names: Sequence[str]) -> str:
    """Return what to do about a trace without CPU Ready: which option, and the columns that look right.

    Examples
    --------
    >>> ready_wanted(["load_1", "memory", "cpu.ready.summation"])
    "name it with --ready COLUMN ('cpu.ready.summation', 'load_1' look right)"
    """
    found = ((next((i for i, sign in enumerate(_SIGNS) if sign.search(name)), None), name) for name in names)
    likely = [name for _, name in sorted((place, name) for place, name in found if place is not None)]
    looks = "looks" if len(likely) == 1 else "look"
    return "name it with --ready COLUMN" + (f" ({name_some(likely, most=3)} {looks} right)" if likely else "")


def lay_out(
    files: list[TraceFile], given: dict[str, str | None], exclude: Sequence[str], keep: Sequence[str] = ()
) -> tuple[Layout, dict[str, str]]:
    """Decide what each column is; return the layout and the columns left out with the reason.

    Columns to `keep` are among the metrics, whatever they are, where a file has them.
    """
    roles = {role: (name,) if (name := given[role]) else names for role, names in ROLES.items()}
    # What happened to a probe is an outcome: read it as `ready`, or `keep` it, where it is wanted.
    reserved = {*roles["ready"], *roles["timestamp"], *roles["node"], *ROLES["utilisation"], PROBE_COLUMN}
    reserved -= set(keep)
    columns: dict[str, str] = {}
    metrics: Counter[str] = Counter()
    for file in files:
        for name in file.names:
            if name in reserved:
                if name in file.text and name in roles["ready"] + roles["utilisation"]:
                    raise TelemetryError(f"{file.path}: column '{name}' must hold numbers, got text")
            elif name not in keep and any(fnmatch.fnmatchcase(name, pattern) for pattern in exclude):
                continue
            elif name in file.text:
                columns[name] = "left out, not numbers"
            else:
                metrics[name] += 1
    for pattern in exclude:
        if not any(fnmatch.fnmatchcase(name, pattern) for file in files for name in file.names):
            columns[pattern] = "to be left out, but no column is called so"
    for name, n in metrics.items():
        if n < len(files):
            columns[name] = f"in only some of the {len(files)} files, unknown elsewhere"
    if not metrics:
        raise TelemetryError(
            f"{files[0].path}: a trace must have at least one column of numbers, got none left"
        )
    return Layout(metrics=tuple(metrics), **roles), columns
