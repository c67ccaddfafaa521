"""What a file of a trace must offer, and the count of all that could not be used.

Nothing is passed over: rows, cells and columns that cannot be used are counted by cause. The formats
themselves are in `trace_csv` and `trace_parquet`; several files as one trace in `trace`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from prontosched.errors import TelemetryError
from prontosched.subspace import Array

SUFFIXES = (".parquet", ".csv", ".csv.gz")


@dataclass(slots=True)
class TraceCounts:
    """What a pass over a trace met.

    Attributes
    ----------
    rows
        Rows in the files.
    dropped
        Rows not used, by cause.
    cells
        Cells that became NaN, by cause.
    gaps
        Places where more than one interval and a half lies between two rows of a node.
    columns
        Columns not used, by name, with the reason.
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
            lines.append(f"{self.gaps} gaps in time")
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


def parse_time(text: str) -> float:
    """Return seconds since 1970 of a number or an ISO 8601 time (UTC unless it says otherwise), else NaN."""
    try:
        return to_seconds(float(text))
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        return math.nan
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
