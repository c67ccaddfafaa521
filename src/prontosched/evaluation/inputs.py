"""What is evaluated, and how: the settings of an evaluation, what counts as a spike, and traces cut into parts.

All thresholds of CPU Ready but the fixed ones are learned per node from the past alone: the threshold a value is held
against has not seen that value. Parts depend on the traces alone, never on how many workers there are, so that the
numbers do not either. Traces are opened by the workers that read them.
"""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from prontosched.errors import SettingsError, TelemetryError
from prontosched.evaluation.datasets import open_dataset, recognise, resolve
from prontosched.extras import missing_extra
from prontosched.signals.arithmetic import Many
from prontosched.signals.quantiles import WHOLE_PAST, ManySamples
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
# Upper control limit of a moving range of two.
D4 = 3.267
FEWEST_VALUES = 20
FORMS = "p95, 3sigma, xbar, median, a value such as 5%, 1000ms or 0.2"


@dataclass(frozen=True, slots=True)
class Setting:
    """How methods are run and judged."""

    methods: tuple[str, ...]
    truth: str = "p95"  # what counts as a spike, as `Truth.parse` reads it
    horizon: int = 5  # timesteps ahead in which a spike counts
    window: int = 10  # the paper's w
    budget: float = 0.10
    tolerance: str | None = None  # what signals are told contention is; None for the truth itself
    seed: int = 7
    with_ready: bool = False  # CPU Ready is one of the metrics too: the answer is then among the questions
    sweeps: tuple[tuple[str, tuple[float, ...]], ...] = ()  # variants of the published signal: name, values

    def __post_init__(self) -> None:
        for name, steps, least in (("horizon", self.horizon, 1), ("window", self.window, 2)):
            if not least <= steps <= MOST_HORIZON:
                raise SettingsError(f"{name} must be from {least} to {MOST_HORIZON} timesteps, got {steps}")
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
    """What the columns of the traces mean; empty takes the usual names."""

    ready: str | None = None
    utilisation: str | None = None
    exclude: tuple[str, ...] = ()
    qos: str | None = None  # what jobs suffer, higher is worse; by default what the probe suffered


@dataclass(frozen=True, slots=True)
class TracePart:
    """Some nodes of recorded traces, which can be sent to a worker and opened there."""

    paths: tuple[str, ...]
    columns: Columns
    nodes: tuple[str, ...] | None = None
    rows: int = 0  # about how many the files have

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
            known, wanted = name_some(source.metrics, most=2), ready_wanted(source.metrics)
            raise TelemetryError(f"{self.paths[0]}: no column of CPU Ready among {known}: {wanted}")
        return source, unit


class GeneratedPart:
    """Nodes whose rows are generated as they are read: a part, and its own source of rows."""

    nodes: tuple[str, ...]
    metrics: tuple[str, ...]
    rows: int  # of all nodes together
    interval_seconds = 20.0
    ready_column: str
    ready_unit: str

    def open(self) -> tuple[Self, str]:
        """Return itself, for there is nothing to open, and the unit of its CPU Ready."""
        return self, self.ready_unit

    def aligned(self, rows: int = 256, *, nodes: Collection[str] | None = None) -> Iterator[list[Chunk]]:
        """Yield the next rows of all nodes at once."""
        raise NotImplementedError

    @property
    def counts(self) -> TraceCounts:
        """Rows generated; none is ever dropped."""
        return TraceCounts(rows=self.rows)

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

            about = pq.read_metadata(path)
        except ImportError as error:
            raise TelemetryError(missing_extra(f"{path}: reading Parquet", "trace")) from error
        except (OSError, pa.ArrowException) as error:
            what = str(error).splitlines()[0]
            raise TelemetryError(f"{path}: not a whole Parquet file ({what})") from error
        return tuple(about.schema.names), int(about.num_rows)
    if path.endswith((".csv", ".csv.gz")) and Path(path).is_file():
        opener = gzip.open if path.endswith(".gz") else open
        try:
            with opener(path, "rt", newline="", encoding="utf-8", errors="replace") as lines:
                header = tuple(next(csv.reader(lines), ()))
                first = next(lines, "")
        except (OSError, EOFError, zlib.error, csv.Error) as error:
            raise TelemetryError(f"{path}: cannot be read ({error})") from error
        size = Path(path).stat().st_size * (4 if path.endswith(".gz") else 1)
        return header, size // max(1, len(first))
    # Folders of parts, and what does not exist: the reader knows, or says why not.
    return tuple(open_dataset([path])[0].metrics), 0


@dataclass(frozen=True, slots=True)
class Truth:
    """A definition of a spike: its kind, and the number that belongs to it.

    Examples
    --------
    >>> Truth.parse("p95")
    Truth(kind='percentile', value=95.0, unit='')
    >>> Truth.parse("1000ms").in_unit_of("percent", interval_seconds=20.0)
    5.0
    """

    kind: str  # fixed, percentile, 3sigma, xbar or median
    value: float = float("nan")  # the threshold of a fixed one, the percentile of a percentile one
    unit: str = ""  # of a fixed one: % (of one CPU), ms (per interval), or empty for the trace's own

    @classmethod
    def parse(cls, text: str) -> Truth:
        """Read a definition as written on the command line."""
        word = text.strip().lower().replace(" ", "")
        word = {"mean+3sigma": "3sigma", "x-bar": "xbar"}.get(word, word)
        if word in ("3sigma", "xbar", "median"):
            return cls(word)
        if match := re.fullmatch(r"p(\d+(?:\.\d+)?)", word):
            share = float(match[1])
            if 0 < share < 100:
                return cls("percentile", share)
        elif match := re.fullmatch(r"(?:fixed:)?(\d+(?:\.\d*)?|\.\d+)(%|ms)?", word):
            return cls("fixed", float(match[1]), match[2] or "")
        raise SettingsError(f"a spike must be defined as {FORMS}, got '{text}'")

    def __str__(self) -> str:
        """Return the form `parse` reads."""
        if self.kind == "percentile":
            return f"p{self.value:g}"
        return f"{self.value:g}{self.unit}" if self.kind == "fixed" else self.kind

    def describe(self) -> str:
        """Say in words what counts as a spike."""
        words = {
            "percentile": f"the {self.value:g}th percentile of the node's own past",
            "3sigma": "the mean plus three standard deviations of the node's own past",
            "xbar": "the x̄ chart's limit (mean + D4 x mean moving range) of its past",
            "median": "the median of the node's own past",
            "fixed": f"{self.value:g}{self.unit or ' (in the unit of the trace)'}",
        }
        return f"CPU Ready at or over {words[self.kind]}"

    def in_unit_of(self, trace_unit: str, *, interval_seconds: float) -> float:
        """Return a fixed threshold in the trace's unit: `percent` of one CPU, `ms` per interval, or other."""
        asked = {"%": "percent", "ms": "ms"}.get(self.unit, trace_unit)
        if asked == trace_unit:
            return self.value
        if trace_unit not in ("percent", "ms"):
            raise SettingsError(
                f"a threshold of {self} needs CPU Ready in percent or milliseconds, got a trace in a unit of its own: "
                "give a plain number or a percentile such as p95"
            )
        one_percent = interval_seconds * 10.0
        if not one_percent > 0:
            raise SettingsError(
                f"a threshold of {self} needs the interval of the trace, got {interval_seconds} s: "
                f"give the threshold in the trace's own unit ({trace_unit})"
            )
        return self.value / one_percent if asked == "ms" else self.value * one_percent

    def tolerance(self, unit: str, *, interval_seconds: float) -> str:
        """Return the truth as a signal's tolerance: a percentile, or a value in the trace's unit."""
        if self.kind == "fixed":
            return repr(self.in_unit_of(unit, interval_seconds=interval_seconds))
        return {"percentile": f"p{self.value:g}", "median": "p50"}.get(self.kind, "p95")

    def learner(
        self, nodes: int, *, trace_unit: str = "percent", interval_seconds: float = 20.0
    ) -> ThresholdLearner:
        """Return what follows the threshold of `nodes` nodes at once."""
        if self.kind == "fixed":
            return FixedThreshold(self.in_unit_of(trace_unit, interval_seconds=interval_seconds))
        if self.kind in ("percentile", "median"):
            return PercentileThreshold(nodes, 0.5 if self.kind == "median" else self.value / 100.0)
        return ChartThreshold(nodes, ranges=self.kind == "xbar")


class FixedThreshold:
    """The same threshold for all nodes and times."""

    def __init__(self, value: float) -> None:
        self._value = value

    def follow(self, ready: Array) -> Array:
        """Return the threshold for every value."""
        return np.full(ready.shape, self._value)


class PercentileThreshold:
    """A percentile of the node's own past.

    Where that is also the lowest value ever seen, as on a node that is mostly at 0, only what lies above
    it is a spike: a node that always shows the same value has none. Memory: 8,192 floats per node. Past 4,096
    values it is that of an even sample of them.
    """

    def __init__(self, nodes: int, share: float) -> None:
        self._past = ManySamples(Many(nodes), 4096, WHOLE_PAST)
        self._share = share
        self._lowest = np.full((1, nodes), np.inf)

    def follow(self, ready: Array) -> Array:
        """Return the percentile of all values before each."""
        found = np.full(ready.shape, np.nan)
        # Where CPU Ready is unknown it lowers nothing.
        lowest = np.fmin.accumulate(np.concatenate([self._lowest, ready]), axis=0)
        self._lowest = lowest[-1:]
        for span, seen in self._past.spans(ready):
            level = self._past.quantile(self._share)
            above = np.where(level <= lowest[:-1][span], np.nextafter(level, np.inf), level)
            found[span] = np.where(seen >= FEWEST_VALUES, above, np.nan)
        return found


class ChartThreshold:
    """A control limit: mean + 3σ, or with `ranges` mean + D4 times the mean moving range; five floats per node."""

    def __init__(self, nodes: int, *, ranges: bool) -> None:
        self._ranges = ranges
        self._seen, self._mean, self._squares, self._moving_range = np.zeros((4, nodes))
        self._last = np.full(nodes, np.nan)

    def follow(self, ready: Array) -> Array:
        """Return the upper control limit before each value."""
        found = np.empty(ready.shape)
        for step, values in enumerate(ready):
            deviation = np.sqrt(self._squares / np.maximum(self._seen, 1.0))
            spread = D4 * self._moving_range if self._ranges else 3.0 * deviation
            found[step] = np.where(self._seen >= FEWEST_VALUES, self._mean + spread, np.nan)
            self._learn(values)
        return found

    def _learn(self, ready: Array) -> None:
        known = np.isfinite(ready)
        self._seen += known
        off = np.where(known, ready - self._mean, 0.0)
        self._mean += off / np.maximum(self._seen, 1.0)
        self._squares += off * np.where(known, ready - self._mean, 0.0)
        moved = np.abs(ready - self._last)
        steps = np.maximum(self._seen - 1.0, 1.0)
        self._moving_range += np.where(np.isfinite(moved), (moved - self._moving_range) / steps, 0.0)
        self._last = np.where(known, ready, self._last)


# `follow` takes CPU Ready of some timesteps of every node, `(T, M)` and NaN where unknown, and returns the threshold
# in force at each: learned from the steps before alone, NaN where too little was seen.
ThresholdLearner = FixedThreshold | PercentileThreshold | ChartThreshold
