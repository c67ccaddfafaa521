"""Columns and rows of a trace: which column is what, and rows checked, ordered and cut into chunks per node."""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prontosched.errors import TelemetryError, nearest
from prontosched.subspace import Array
from prontosched.telemetry.source import PROBE_COLUMN, Sample
from prontosched.telemetry.trace.files import Batch, TraceCounts, TraceFile, Wanted, name_some

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
