"""What is evaluated, and how: the settings of an evaluation, and traces cut into parts of nodes.

Parts depend on the traces alone, never on how many workers there are, so that the numbers do not either.
Traces are opened by the workers that read them.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from prontosched.errors import SettingsError, TelemetryError
from prontosched.evaluation.datasets import open_dataset, recognise, resolve
from prontosched.extras import missing_extra
from prontosched.subspace import Array
from prontosched.telemetry.source import PROBE_COLUMN
from prontosched.telemetry.trace import Chunk, TraceCounts, TraceSource, ready_wanted
from prontosched.telemetry.trace.files import name_some

BUDGETS = (0.02, 0.03, 0.05, 0.07, 0.10, 0.14, 0.20, 0.30)
LOW_DOWNTIME = 0.05
MOST_HORIZON = 240
# Nodes of a part, where there are so many: arrays over fewer cost more for each, over more they gain little.
MOST_NODES = 128
LARGE_PART = 32
FEWEST_NODES = 4
# Of a small fleet each part is a quarter: work for four cores.
PARTS = 4
ENDINGS = (".parquet", ".csv", ".csv.gz", ".txt")


@dataclass(frozen=True, slots=True)
class Setting:
    """How methods are run and judged.

    Attributes
    ----------
    truth
        What counts as a spike, as `truth.Truth.parse` reads it.
    horizon
        Timesteps ahead in which a spike counts.
    tolerance
        What signals are told contention is; None for the truth itself.
    with_ready
        CPU Ready is one of the metrics too, though the answer is then among the questions.
    sweeps
        `(name, values)`: variants of the published signal.
    """

    methods: tuple[str, ...]
    truth: str = "p95"
    horizon: int = 5
    window: int = 10
    budget: float = 0.10
    tolerance: str | None = None
    seed: int = 7
    with_ready: bool = False
    sweeps: tuple[tuple[str, tuple[float, ...]], ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.horizon <= MOST_HORIZON:
            raise SettingsError(f"horizon must be from 1 to {MOST_HORIZON} timesteps, got {self.horizon}")
        if not 2 <= self.window <= MOST_HORIZON:
            raise SettingsError(f"window must be from 2 to {MOST_HORIZON} timesteps, got {self.window}")
        if not BUDGETS[0] <= self.budget <= BUDGETS[-1]:
            raise SettingsError(
                f"budget must be from {BUDGETS[0]:.0%} to {BUDGETS[-1]:.0%} of the time, got {self.budget:.0%}: "
                "methods are only compared where their curves were measured"
            )

    @property
    def budgets(self) -> tuple[float, ...]:
        """Downtimes at which every method runs: from 2 to 30 %, the chosen one among them."""
        return tuple(sorted({*BUDGETS, self.budget}))

    @property
    def targets(self) -> tuple[float, float]:
        """The low and the chosen downtime at which methods are compared."""
        return (min(LOW_DOWNTIME, self.budget), self.budget)


@dataclass(frozen=True, slots=True)
class Columns:
    """What the columns of the traces mean; empty takes the usual names.

    `qos` is what jobs suffer, higher is worse; by default what the probe suffered, where a trace has it.
    """

    ready: str | None = None
    utilisation: str | None = None
    exclude: tuple[str, ...] = ()
    qos: str | None = None


@dataclass(frozen=True, slots=True)
class TracePart:
    """Some nodes of recorded traces, which can be sent to a worker and opened there."""

    paths: tuple[str, ...]
    columns: Columns
    nodes: tuple[str, ...] | None = None
    rows: int = 0

    @property
    def qos(self) -> str:
        """Name of the column of what jobs suffer, if there is one."""
        return self.columns.qos or PROBE_COLUMN

    def open(self, *, with_qos: bool = False) -> tuple[TraceSource, str]:
        """Open the traces and return the unit of CPU Ready too; refuse traces without CPU Ready.

        What jobs suffer is among the metrics only where it is asked for.
        """
        columns = self.columns
        left_out = () if with_qos or columns.qos is None else (columns.qos,)
        source, unit = open_dataset(
            self.paths,
            ready=columns.ready,
            exclude=(*columns.exclude, *left_out),
            utilisation=columns.utilisation,
            keep=(self.qos,) if with_qos else (),
        )
        if source.ready_column is None:
            known = name_some(source.metrics, most=2)
            raise TelemetryError(
                f"{self.paths[0]}: no column of CPU Ready among {known}: {ready_wanted(source.metrics)}"
            )
        return source, unit

    def total_rows(self) -> int:
        """Return how many rows the files have, as far as that can be told without reading them."""
        return self.rows


class GeneratedPart:
    """Nodes whose rows are generated as they are read: a part, and its own source of rows."""

    nodes: tuple[str, ...]
    metrics: tuple[str, ...]
    interval_seconds = 20.0
    ready_column: str
    ready_unit: str

    def open(self) -> tuple[Self, str]:
        """Return itself, for there is nothing to open, and the unit of its CPU Ready."""
        return self, self.ready_unit

    def total_rows(self) -> int:
        """Return how many rows it has, over all nodes."""
        raise NotImplementedError

    def aligned(self, rows: int = 256, *, nodes: Collection[str] | None = None) -> Iterator[list[Chunk]]:
        """Yield the next rows of all nodes at once."""
        raise NotImplementedError

    @property
    def counts(self) -> TraceCounts:
        """Rows generated; none is ever dropped."""
        return TraceCounts(rows=self.total_rows())

    def close(self) -> None:
        """Let go of nothing."""


Part = TracePart | GeneratedPart
Feed = TraceSource | GeneratedPart


class FirstRows(NamedTuple):
    """The first rows of the first node of a part."""

    node: str
    vectors: Array
    ready: Array
    interval_seconds: float
    ready_unit: str


def first_rows(part: Part, rows: int = 6000) -> FirstRows:
    """Read about the first `rows` rows of the first node of a part, or all that it has."""
    feed, unit = part.open()
    chunks: list[Chunk] = []
    try:
        for chunk, *_ in feed.aligned(256):
            if chunks and chunk.node != chunks[0].node:
                break
            chunks.append(chunk)
            if sum(map(len, chunks)) >= rows:
                break
    finally:
        feed.close()
    vectors, ready = (np.concatenate([getattr(c, name) for c in chunks]) for name in ("vectors", "ready"))
    return FirstRows(chunks[0].node, vectors, ready, feed.interval_seconds, unit)


@dataclass(slots=True)
class Plan:
    """Parts to evaluate, and files that cannot be."""

    parts: list[Part] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)


def chunk_size(nodes: int) -> int:
    """Return how many of `nodes` nodes make a part."""
    fewest = FEWEST_NODES if nodes <= LARGE_PART else LARGE_PART
    return max(fewest, min(MOST_NODES, -(-nodes // PARTS)))


def plan_traces(paths: Sequence[str], columns: Columns) -> Plan:
    """Cut traces into parts of nodes with the same columns; set aside files that cannot be read.

    One file that is no good does not keep the others from being evaluated. If none is good, the first
    reason is raised.
    """
    plan = Plan()
    groups: dict[tuple[str, ...], list[TracePart]] = {}
    many: list[TracePart] = []
    for path in _expanded(paths):
        try:
            header, rows = _header(path)
            part = TracePart((path,), columns, rows=rows)
            if "node" in header:
                many.append(replace(part, nodes=part.open()[0].nodes))
            else:
                if header not in groups:
                    part.open()[0].close()
                groups.setdefault(header, []).append(part)
        except TelemetryError as error:
            plan.refused[path] = str(error)
    size = chunk_size(sum(map(len, groups.values())) + sum(len(part.nodes or ()) for part in many))
    for members in groups.values():
        for start in range(0, len(members), size):
            chosen = members[start : start + size]
            names = tuple(part.paths[0] for part in chosen)
            plan.parts.append(TracePart(names, columns, rows=sum(part.rows for part in chosen)))
    for part in many:
        nodes = part.nodes or ()
        for start in range(0, len(nodes), size):
            share = nodes[start : start + size]
            plan.parts.append(replace(part, nodes=share, rows=part.rows * len(share) // len(nodes)))
    if not plan.parts:
        raise TelemetryError(next(iter(plan.refused.values()), "name at least one trace, got none"))
    return plan


def _expanded(paths: Sequence[str]) -> list[str]:
    """Replace names of shipped traces, and folders of several by their files; a folder of parts stays one trace."""
    found: list[str] = []
    for path in map(resolve, paths):
        files = [file for ending in ENDINGS for file in sorted(path.glob(f"*{ending}"))]
        # A folder may hold a licence or notes as well; text counts only where it is a known data set.
        files = [file for file in files if file.suffix != ".txt" or recognise(file) is not None]
        if path.is_dir() and files and not any(file.name.startswith("part-") for file in files):
            found += [str(file) for file in files]
        else:
            found.append(str(path))
    return list(dict.fromkeys(found))


def _header(path: str) -> tuple[tuple[str, ...], int]:
    """Return a file's column names and about how many rows it has; only headers are read."""
    if path.endswith(".parquet") and Path(path).is_file():
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ImportError as error:
            raise TelemetryError(missing_extra(f"{path}: reading Parquet", "trace")) from error
        try:
            about = pq.read_metadata(path)
        except (OSError, pa.ArrowException) as error:
            raise TelemetryError(
                f"{path}: not a whole Parquet file ({str(error).splitlines()[0]})"
            ) from error
        return tuple(about.schema.names), int(about.num_rows)
    if path.endswith((".csv", ".csv.gz")) and Path(path).is_file():
        opener = gzip.open if path.endswith(".gz") else open
        with opener(path, "rt", newline="", encoding="utf-8", errors="replace") as lines:
            header = tuple(next(csv.reader(lines), ()))
            first = next(lines, "")
        size = Path(path).stat().st_size * (4 if path.endswith(".gz") else 1)
        return header, size // max(1, len(first))
    # Folders of parts, and what does not exist: the reader knows, or says why not.
    return tuple(open_dataset([path])[0].metrics), 0
