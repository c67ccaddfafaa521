"""Recorded traces, with the interface of a live source: CSV (plain or gzipped) or Parquet, streamed and never whole.

One row per timestep; what the columns mean is in docs/telemetry.md. A folder is a trace too: files called `part-…` in
it are parts of one (what `pronto record` leaves when it is killed), any others are one trace each. What is wrong with
a file is a `TelemetryError` of one line; rows that cannot be used are dropped and counted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from os import PathLike
from pathlib import Path

import numpy as np

from prontosched.errors import TelemetryError
from prontosched.telemetry.source import Sample
from prontosched.telemetry.trace.files import (
    SUFFIXES,
    CsvFile,
    ParquetFile,
    TraceCounts,
    TraceFile,
    Wanted,
    name_some,
)
from prontosched.telemetry.trace.rows import Chunk, Layout, Stream, lay_out, require_column

__all__ = ["Chunk", "TraceCounts", "TraceSource", "open_files", "open_trace"]


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
        are taken where a file has them (`rows.ROLES`). `utilisation` stays among the metrics if it is given.
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
