"""Files of a trace: CSV with the standard library and numpy, Parquet with pyarrow (extra `trace`), streamed."""

from __future__ import annotations

import csv
import gzip
import math
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

import numpy as np

from prontosched.errors import TelemetryError
from prontosched.extras import missing_extra
from prontosched.subspace import Array

SUFFIXES = (".parquet", ".csv", ".csv.gz")
# Lines looked at to tell columns of numbers from columns of text.
PEEK_LINES = 256
LINE_LIMIT_CHARACTERS = 4_000_000
BATCH_LIMIT_CHARACTERS = 64_000_000
# Of one column of a row group, unpacked: a few kB of Parquet may stand for gigabytes.
COLUMN_LIMIT_BYTES = 256 * 1024 * 1024
TICKS_PER_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}


@dataclass(slots=True)
class TraceCounts:
    """What a pass over a trace met.

    Rows in the files; rows not used, and cells that became NaN, by cause; gaps of more than one interval and a
    half between two rows of a node; columns not used, by name, with the reason.
    """

    rows: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    cells: Counter[str] = field(default_factory=Counter)
    gaps: int = 0
    columns: dict[str, str] = field(default_factory=dict)

    @property
    def kept(self) -> int:
        """Rows used."""
        return self.rows - self.dropped.total()

    def warnings(self) -> list[str]:
        """Return one line per kind of trouble, none for a clean trace."""
        lines = [f"{n} of {self.rows} rows dropped: {cause}" for cause, n in sorted(self.dropped.items())]
        lines += [f"{n} cells taken as unknown: {cause}" for cause, n in sorted(self.cells.items())]
        if self.gaps:
            lines.append(f"{self.gaps} gap{'s' if self.gaps > 1 else ''} in time")
        by_reason: dict[str, list[str]] = {}
        for name, reason in self.columns.items():
            by_reason.setdefault(reason, []).append(name)
        lines += [f"{name_some(names)}: {reason}" for reason, names in by_reason.items()]
        return lines


def name_some(names: Sequence[str], most: int = 4) -> str:
    """Return a few of the names, quoted, and how many more there are."""
    shown = ", ".join(f"'{name}'" for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


class Wanted(NamedTuple):
    """The columns to read of a file: numbers, and where there are such columns node names and timestamps."""

    numbers: Sequence[str]
    node: str | None = None
    timestamp: str | None = None


class Batch(NamedTuple):
    """Some rows of one file: node names and timestamps where there are such columns, and the numbers."""

    nodes: list[str] | None
    timestamps: Array | None
    numbers: Array


class TraceFile(Protocol):
    """One file: its columns, and its rows in batches."""

    path: Path
    names: tuple[str, ...]
    text: frozenset[str]

    def batches(self, wanted: Wanted, size: int, counts: TraceCounts) -> Iterator[Batch]:
        """Yield at most `size` rows at a time; `numbers` has one column per name that is wanted."""
        ...


def check_names(path: Path, names: Sequence[str]) -> None:
    """Refuse a header that names two columns alike."""
    double = [name for name, n in Counter(names).items() if n > 1]
    if double:
        raise TelemetryError(f"{path}: column names must differ, got {name_some(double)} more than once")


def without_infinity(numbers: Array, counts: TraceCounts) -> Array:
    """Turn infinite numbers into NaN, in place, and count them."""
    infinite = np.isinf(numbers)
    if infinite.any():
        counts.cells["infinite"] += int(infinite.sum())
        numbers[infinite] = np.nan
    return numbers


def to_seconds(number: float) -> float:
    """Return a clock time in seconds; milli-, micro- and nanoseconds are told by their size."""
    size = abs(number)
    return number / (1e9 if size > 1e17 else 1e6 if size > 1e14 else 1e3 if size > 1e11 else 1.0)


def all_to_seconds(numbers: Array) -> Array:
    """Return clock times in seconds; the largest tells the unit of all."""
    largest = float(np.abs(numbers[np.isfinite(numbers)]).max(initial=0.0))
    return numbers * (to_seconds(largest) / largest if largest else 1.0)


def parse_time(text: str) -> float:
    """Return seconds since 1970 of a number or an ISO 8601 time (UTC unless it says otherwise), else NaN."""
    try:
        number = to_seconds(float(text))
        return number if math.isfinite(number) else math.nan
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text.strip())
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return math.nan


class CsvFile:
    """A CSV file; separated by comma, semicolon or tab, plain or gzipped.

    Parameters
    ----------
    names
        The columns of a file without a header line; not given, the first line names them.
    """

    def __init__(self, path: Path, names: tuple[str, ...] = ()) -> None:
        self.path = path
        self._header = not names
        with self._open() as stream:
            header = ",".join(names) or self._line(stream)
            if not header.strip():
                raise TelemetryError(
                    f"{path}: a trace must start with a line of column names, got an empty file"
                )
            self.separator = max(",;\t", key=header.count)
            self.names = tuple(name.strip() for name in self._cells([header])[0])
            check_names(path, self.names)
            if all(is_number(name) for name in self.names):
                raise TelemetryError(
                    f"{path}: the first line must name the columns, got numbers ({name_some(self.names)})"
                )
            peek = self._lines(stream, PEEK_LINES)
        cells = [row for row in self._cells(peek) if len(row) == len(self.names)]
        self.text = frozenset(
            name for place, name in enumerate(self.names) if _is_text([row[place] for row in cells])
        )

    def batches(self, wanted: Wanted, size: int, counts: TraceCounts) -> Iterator[Batch]:
        """Yield at most `size` rows at a time."""
        order = {name: place for place, name in enumerate(self.names)}
        places = [order[name] for name in wanted.numbers]
        clock = order[wanted.timestamp] if wanted.timestamp else None
        owner = order[wanted.node] if wanted.node else None
        with self._open() as stream:
            if self._header:
                self._line(stream)
            while lines := self._lines(stream, size):
                lines = [line for line in lines if not line.isspace()]
                counts.rows += len(lines)
                yield self._parse(lines, places, clock, owner, counts)

    def _parse(
        self, lines: list[str], places: list[int], clock: int | None, owner: int | None, counts: TraceCounts
    ) -> Batch:
        width = len(self.names)
        commas, quoted = width - 1, any('"' in line for line in lines)
        regular = not quoted and all(line.count(self.separator) == commas for line in lines)
        numbers: Array | None = None
        if regular and lines and places:
            numbers = self._parse_fast(lines, places)
        if numbers is not None and clock is None and owner is None:
            return Batch(None, None, without_infinity(numbers, counts))
        if regular:
            rows = [line.rstrip("\r\n").split(self.separator) for line in lines]
        else:
            rows = [row for row in self._cells(lines) if len(row) == width]
            if len(rows) < len(lines):
                counts.dropped["wrong number of cells"] += len(lines) - len(rows)
        if numbers is None:
            numbers = np.array([[_number(row[p], counts) for p in places] for row in rows], dtype=float)
            numbers = numbers.reshape(len(rows), len(places))
        times = None if clock is None else np.array([parse_time(row[clock]) for row in rows], dtype=float)
        nodes = None if owner is None else [row[owner].strip() for row in rows]
        return Batch(nodes, times, without_infinity(numbers, counts))

    def _parse_fast(self, lines: list[str], places: list[int]) -> Array | None:
        try:
            return np.loadtxt(lines, delimiter=self.separator, usecols=places, ndmin=2, comments=None)
        except ValueError:  # an empty cell or text: cell by cell then, counting
            return None

    def _open(self) -> IO[str]:
        try:
            if self.path.name.endswith(".gz"):
                return gzip.open(self.path, "rt", encoding="utf-8-sig", errors="replace", newline="")
            return self.path.open(encoding="utf-8-sig", errors="replace", newline="")
        except OSError as error:
            raise TelemetryError(f"{self.path}: cannot be read ({error.strerror or error})") from error

    def _lines(self, stream: IO[str], most: int) -> list[str]:
        """Return the next lines, fewer where they are very long."""
        lines: list[str] = []
        left = BATCH_LIMIT_CHARACTERS
        while len(lines) < most and left > 0 and (line := self._line(stream)):
            lines.append(line)
            left -= len(line)
        return lines

    def _line(self, stream: IO[str]) -> str:
        try:
            line = stream.readline(LINE_LIMIT_CHARACTERS)
        except (OSError, EOFError, zlib.error) as error:  # a truncated or foreign .gz shows only here
            raise TelemetryError(f"{self.path}: cannot be read ({error})") from error
        if len(line) >= LINE_LIMIT_CHARACTERS:
            raise TelemetryError(
                f"{self.path}: a line must have fewer than {LINE_LIMIT_CHARACTERS} characters, got more"
            )
        return line

    def _cells(self, lines: list[str]) -> list[list[str]]:
        try:
            return list(csv.reader(lines, delimiter=self.separator))
        except csv.Error as error:
            raise TelemetryError(f"{self.path}: cannot be read as CSV ({error})") from error


def is_number(cell: str) -> bool:
    """Tell whether a cell holds a number."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _is_text(cells: list[str]) -> bool:
    filled = [cell for cell in cells if cell.strip()]
    return bool(filled) and not any(is_number(cell) for cell in filled)


def _number(cell: str, counts: TraceCounts) -> float:
    try:
        return float(cell)
    except ValueError:
        if cell.strip():
            counts.cells["text in a number"] += 1
        return math.nan


class ParquetFile:
    """A Parquet file, read row group by row group. Needs pyarrow (extra `trace`)."""

    def __init__(self, path: Path) -> None:
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ImportError as error:
            raise TelemetryError(missing_extra(f"{path}: reading Parquet", "trace")) from error
        self.path = path
        self._pa, self._pq = pa, pq
        self._errors = (OSError, pa.ArrowException, ValueError, OverflowError, TypeError, MemoryError)
        try:
            schema = pq.read_schema(path)
            self.names = tuple(schema.names)
        except self._errors as error:
            raise self._refused("not a whole Parquet file", error) from error
        check_names(path, self.names)
        is_of = pa.types
        kinds = (is_of.is_integer, is_of.is_floating, is_of.is_boolean, is_of.is_decimal, is_of.is_null)
        self.text = frozenset(
            column.name for column in schema if not any(kind(column.type) for kind in kinds)
        )
        # Lists and structures have no dictionary under their own name.
        flat = (is_of.is_string, is_of.is_large_string, is_of.is_binary, is_of.is_large_binary)
        self._strings = frozenset(column.name for column in schema if any(kind(column.type) for kind in flat))

    def batches(self, wanted: Wanted, size: int, counts: TraceCounts) -> Iterator[Batch]:
        """Yield at most `size` rows at a time."""
        named = [name for name in (wanted.node, wanted.timestamp) if name]
        columns = list(dict.fromkeys([*wanted.numbers, *named]))
        # Texts stay in their dictionary: one of a megabyte may stand in every row.
        texts = [name for name in named if name in self._strings]
        try:
            with self._pq.ParquetFile(self.path, read_dictionary=texts) as file:
                self._check_sizes(file.metadata)
                for batch in file.iter_batches(batch_size=size, columns=columns, use_threads=False):
                    counts.rows += batch.num_rows
                    yield self._convert(batch, wanted, counts)
        except self._errors as error:
            raise self._refused("cannot be read", error) from error

    def _refused(self, what: str, error: Exception) -> TelemetryError:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        return TelemetryError(f"{self.path}: {what} ({first})")

    def _check_sizes(self, metadata: Any) -> None:
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            # To ask a damaged file for a column ends the process (a C++ exception that pyarrow does not catch), so
            # only large groups are asked; who forges one size can forge the other.
            total = group.total_byte_size
            if total < 0:
                raise TelemetryError(f"{self.path}: a row group must have a size, got {total}: it is damaged")
            if total <= COLUMN_LIMIT_BYTES:
                continue
            for place in range(group.num_columns):
                size = group.column(place).total_uncompressed_size
                if size > COLUMN_LIMIT_BYTES:
                    raise TelemetryError(
                        f"{self.path}: a column of a row group must be at most {COLUMN_LIMIT_BYTES} bytes, "
                        f"got {size}: write it with smaller row groups"
                    )

    def _convert(self, batch: Any, wanted: Wanted, counts: TraceCounts) -> Batch:
        names, node, timestamp = wanted
        numbers = np.empty((batch.num_rows, len(names)), order="F")
        for place, name in enumerate(names):
            numbers[:, place] = self._floats(batch.column(name))
        nodes = None if node is None else self._texts(batch.column(node), "")
        times = None if timestamp is None else self._times(batch.column(timestamp))
        return Batch(nodes, times, without_infinity(np.ascontiguousarray(numbers), counts))

    def _floats(self, column: Any) -> Array:
        if column.type != self._pa.float64():
            column = column.cast(self._pa.float64(), safe=False)
        floats: Array = column.to_numpy(zero_copy_only=False)
        return floats

    def _times(self, column: Any) -> Array:
        kind, kinds = column.type, self._pa.types
        if kinds.is_timestamp(kind):
            return self._floats(column.cast(self._pa.int64())) / TICKS_PER_SECOND[kind.unit]
        if kinds.is_integer(kind) or kinds.is_floating(kind):
            return all_to_seconds(self._floats(column))
        return np.array([parse_time(text) for text in self._texts(column, "nan")], dtype=float)

    def _texts(self, column: Any, unknown: str) -> list[str]:
        values, places = column, range(len(column))
        if self._pa.types.is_dictionary(column.type):
            values, places = column.dictionary, column.indices.to_pylist()
        known = [unknown if value is None else str(value) for value in values.to_pylist()]
        return [unknown if place is None else known[place] for place in places]
