"""Columns and rows of a trace: which column is what, and rows checked, ordered and cut into chunks per node."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
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
READY_NAMES = ("ready", "cpu_ready", "cpu_ready_percent", "cpu_ready_ms")
UTILISATION_NAMES = ("utilisation", "utilization", "cpu_utilisation")
TIMESTAMP_NAMES = ("timestamp", "time")
NODE_NAMES = ("node",)
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
    node
        Name of the node.
    start
        Timestep of the first row: how many rows of this node came before.
    timestamps
        Seconds since 1970, `(n,)`; NaN where the trace has none.
    ready
        CPU Ready in the trace's own unit, `(n,)`; NaN where unknown.
    utilisation
        CPU utilisation in the trace's own unit, `(n,)`; NaN where unknown.
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


class TraceRows(NamedTuple):
    """Rows in file order; `nodes` is None where all belong to the stream's own node."""

    nodes: list[str] | None
    timestamps: Array
    ready: Array
    utilisation: Array
    vectors: Array

    def take(self, kept: NDArray[np.bool_] | NDArray[np.intp]) -> TraceRows:
        """Return some of the rows."""
        nodes = None if self.nodes is None else list(np.asarray(self.nodes, dtype=object)[kept])
        return TraceRows(
            nodes, self.timestamps[kept], self.ready[kept], self.utilisation[kept], self.vectors[kept]
        )


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
                rows = _arrange(batch, len(layout.metrics), present, ready, utilisation)
                kept = self._check(file, rows, timestamp is not None, counts, interval_seconds)
                yield rows if kept.all() else rows.take(kept)

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
            for node, part in _by_node(batch, self.name):
                if nodes is None or node in nodes:
                    buffers.setdefault(node, _Buffer(node)).add(part)
            while any(buffer.size >= rows for buffer in buffers.values()):
                ready = [b for b in buffers.values() if b.size >= rows or (together and b.size)]
                taken = [buffer.take(rows) for buffer in ready]
                yield from [taken] if together else [[chunk] for chunk in taken]
        if rest := [buffer.take(rows) for buffer in buffers.values() if buffer.size]:
            yield from [rest] if together else [[chunk] for chunk in rest]

    def _check(
        self, file: TraceFile, rows: TraceRows, timed: bool, counts: TraceCounts, interval_seconds: float
    ) -> NDArray[np.bool_]:
        """Tell which rows can be used: those that go forward in time."""
        kept = np.ones(len(rows.timestamps), dtype=bool)
        if not timed:
            return kept
        for node, places in _places_by_node(rows, self.name):
            times = rows.timestamps[places]
            first = node not in self._last
            line = np.concatenate([[self._last.get(node, -np.inf)], times])
            before = np.fmax.accumulate(line)[:-1]
            unknown, late, twice = np.isnan(times), times < before, times == before
            counts.dropped.update(
                {
                    cause: int(n)
                    for cause, n in (
                        ("no timestamp", unknown.sum()),
                        ("timestamp before that of an earlier row", late.sum()),
                        ("timestamp seen before", twice.sum()),
                    )
                    if n
                }
            )
            if first and len(times) > 2 and late.sum() > len(times) / 2:
                raise TelemetryError(
                    f"{file.path}: timestamps must ascend, got {int(late.sum())} of the first {len(times)} "
                    f"rows of node '{node}' going back: sort the file by timestamp"
                )
            if interval_seconds > 0:
                # A row of -inf before the first makes no gap, for the comparison with it is not finite.
                steps = (times - before)[~(unknown | late | twice)]
                counts.gaps += int(((steps > 1.5 * interval_seconds) & np.isfinite(steps)).sum())
            kept[places] = ~(unknown | late | twice)
            self._last[node] = float(np.fmax.reduce(line))
        return kept


class Head:
    """The next row of one stream."""

    def __init__(self, stream: Stream, layout: Layout, counts: TraceCounts, interval_seconds: float) -> None:
        self._name = stream.name
        self._batches = stream.rows(layout, counts, interval_seconds)
        self._rows: TraceRows | None = None
        self._place = 0
        self._load()

    @property
    def alive(self) -> bool:
        """Whether there is a next row."""
        return self._rows is not None

    @property
    def time(self) -> float:
        """Timestamp of the next row; NaN where unknown."""
        return float("nan") if self._rows is None else float(self._rows.timestamps[self._place])

    def take(self, until: float, step: dict[str, Sample], metrics: tuple[str, ...]) -> None:
        """Add rows to the step as long as their time and node belong to it."""
        while (rows := self._rows) is not None and not self.time > until:
            place = self._place
            node = self._name if rows.nodes is None else rows.nodes[place]
            if node in step:
                return
            step[node] = Sample(
                node,
                metrics,
                rows.vectors[place].copy(),
                float(rows.timestamps[place]),
                float(rows.ready[place]),
                float(rows.utilisation[place]),
            )
            self._place += 1
            if self._place == len(rows.timestamps):
                self._load()
            if rows.nodes is None:
                return

    def _load(self) -> None:
        self._place = 0
        self._rows = next((rows for rows in self._batches if len(rows.timestamps)), None)


class _Buffer:
    """Rows of one node until they make a chunk."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.size = 0
        self._start = 0
        self._parts: list[TraceRows] = []

    def add(self, rows: TraceRows) -> None:
        self._parts.append(rows)
        self.size += len(rows.timestamps)

    def take(self, rows: int) -> Chunk:
        """Return the first `rows` rows, or all if there are fewer."""
        times = _join([part.timestamps for part in self._parts])
        ready = _join([part.ready for part in self._parts])
        utilisation = _join([part.utilisation for part in self._parts])
        vectors = _join([part.vectors for part in self._parts])
        chunk = Chunk(self.node, self._start, times[:rows], ready[:rows], utilisation[:rows], vectors[:rows])
        rest = TraceRows(None, times[rows:], ready[rows:], utilisation[rows:], vectors[rows:])
        self._start += len(chunk)
        self.size -= len(chunk)
        self._parts = [rest] if self.size else []
        return chunk


def _join(parts: list[Array]) -> Array:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _arrange(
    batch: Batch, features: int, present: list[int], ready: str | None, utilisation: str | None
) -> TraceRows:
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
    return TraceRows(
        batch.nodes,
        times,
        unknown if ready is None else numbers[:, d],
        unknown if utilisation is None else numbers[:, -1],
        vectors,
    )


def _places_by_node(rows: TraceRows, name: str) -> Iterator[tuple[str, NDArray[np.intp]]]:
    if rows.nodes is None:
        yield name, np.arange(len(rows.timestamps))
        return
    places: dict[str, list[int]] = {}
    for place, node in enumerate(rows.nodes):
        places.setdefault(node, []).append(place)
    for node, found in places.items():
        yield node, np.array(found, dtype=np.intp)


def _by_node(rows: TraceRows, name: str) -> Iterator[tuple[str, TraceRows]]:
    if rows.nodes is None:
        yield name, rows
        return
    for node, places in _places_by_node(rows, name):
        yield node, rows.take(places)._replace(nodes=None)


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


def like_ready(names: Sequence[str]) -> list[str]:
    """Return the columns that may hold CPU Ready or what stands for it, the likeliest first.

    Examples
    --------
    >>> like_ready(["load_1", "memory", "cpu.ready.summation"])
    ['cpu.ready.summation', 'load_1']
    """
    found = ((next((i for i, sign in enumerate(_SIGNS) if sign.search(name)), None), name) for name in names)
    return [name for _, name in sorted((place, name) for place, name in found if place is not None)]


def ready_wanted(names: Sequence[str]) -> str:
    """Return what to do about a trace without CPU Ready: which option, and the columns that look right."""
    likely = like_ready(names)
    looks = "looks" if len(likely) == 1 else "look"
    return "name it with --ready COLUMN" + (f" ({name_some(likely, most=3)} {looks} right)" if likely else "")


def lay_out(
    files: list[TraceFile], given: dict[str, str | None], exclude: Sequence[str], keep: Sequence[str] = ()
) -> tuple[Layout, dict[str, str]]:
    """Decide what each column is; return the layout and the columns left out with the reason.

    Columns to `keep` are among the metrics, whatever they are, where a file has them.
    """
    defaults = {
        "ready": READY_NAMES,
        "utilisation": UTILISATION_NAMES,
        "timestamp": TIMESTAMP_NAMES,
        "node": NODE_NAMES,
    }
    roles = {role: (name,) if (name := given[role]) else defaults[role] for role in defaults}
    reserved = {name for role, names in roles.items() if role != "utilisation" for name in names}
    # What happened to a probe is an outcome: read it as `ready`, or `keep` it, where it is wanted.
    reserved |= {*UTILISATION_NAMES, PROBE_COLUMN}
    reserved -= set(keep)
    columns: dict[str, str] = {}
    metrics: dict[str, int] = {}
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
                metrics[name] = metrics.get(name, 0) + 1
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
