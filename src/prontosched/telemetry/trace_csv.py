"""Traces as CSV, streamed with the standard library and numpy.

Whole numbers of lines are parsed at C speed; only those with something odd in them cell by cell.
"""

from __future__ import annotations

import csv
import gzip
import itertools
import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from prontosched.errors import TelemetryError
from prontosched.subspace import Array
from prontosched.telemetry.trace_files import (
    Batch,
    TraceCounts,
    Wanted,
    check_names,
    name_some,
    parse_time,
    without_infinity,
)

# Lines looked at to tell columns of numbers from columns of text.
PEEK_LINES = 256
HEADER_LIMIT_CHARACTERS = 4_000_000


class CsvFile:
    """A CSV file with a header line; separated by comma, semicolon or tab, plain or gzipped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._open() as stream:
            header = self._lines(stream.readline, HEADER_LIMIT_CHARACTERS)
            if not header.strip():
                raise TelemetryError(
                    f"{path}: a trace must start with a line of column names, got an empty file"
                )
            self.separator = max(",;\t", key=header.count)
            self.names = tuple(name.strip() for name in next(csv.reader([header], delimiter=self.separator)))
            check_names(path, self.names)
            if all(is_number(name) for name in self.names):
                raise TelemetryError(
                    f"{path}: the first line must name the columns, got numbers ({name_some(self.names)})"
                )
            peek = self._lines(lambda: list(itertools.islice(stream, PEEK_LINES)))
        cells = [row for row in csv.reader(peek, delimiter=self.separator) if len(row) == len(self.names)]
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
            stream.readline()
            while lines := self._lines(lambda: list(itertools.islice(stream, size))):
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
            rows = [row for row in csv.reader(lines, delimiter=self.separator) if len(row) == width]
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

    def _lines(self, read: Any, *arguments: Any) -> Any:
        try:
            return read(*arguments)
        except (OSError, EOFError, zlib.error) as error:  # a truncated or foreign .gz shows only here
            raise TelemetryError(f"{self.path}: cannot be read ({error})") from error


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
