"""Part files and the joined file, as Parquet or CSV.

A table is a mapping of column names to arrays or lists. Parquet needs pyarrow, imported when first used.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from prontosched.errors import TelemetryError
from prontosched.extras import missing_extra

LEADING = ("timestamp", "node", "ready", "utilisation")
ROW_GROUP_CELLS = 2_000_000


class Format(Protocol):
    """How tables become files."""

    suffix: str

    def write(self, path: Path, table: dict[str, Any]) -> None:
        """Write one part."""
        ...

    def join(self, parts: Sequence[Path], path: Path) -> int:
        """Write all parts into one file and return how many rows it has."""
        ...


def choose_format(path: Path, *, single_precision: bool = False) -> Format:
    """Return the format that the file's name asks for."""
    if path.suffix == ".csv":
        return CsvFormat()
    if path.suffix == ".parquet":
        return ParquetFormat(single_precision=single_precision)
    raise TelemetryError(f"{path}: a recording must end in .parquet or .csv")


def synchronise(path: Path) -> None:
    """Force a file's content to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _all_columns(headers: Sequence[Sequence[str]]) -> list[str]:
    names = dict.fromkeys(name for header in headers for name in header)
    return [*LEADING, *(name for name in names if name not in LEADING)]


class CsvFormat:
    """Comma-separated text; `nan` is unknown, and so is an empty cell."""

    suffix = ".csv"

    def write(self, path: Path, table: dict[str, Any]) -> None:
        """Write one part."""
        with path.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(table)
            columns = [values if name == "node" else _texts(values) for name, values in table.items()]
            writer.writerows(zip(*columns, strict=True))

    def join(self, parts: Sequence[Path], path: Path) -> int:
        """Write all parts into one file; columns that a part lacks stay empty."""
        headers = []
        for part in parts:
            with part.open(newline="", encoding="utf-8") as stream:
                headers.append(next(csv.reader(stream)))
        columns = _all_columns(headers)
        rows = 0
        with path.open("w", newline="", encoding="utf-8") as out:
            writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
            writer.writeheader()
            for part in parts:
                with part.open(newline="", encoding="utf-8") as stream:
                    for row in csv.DictReader(stream):
                        writer.writerow(row)
                        rows += 1
        return rows


def _texts(values: Any) -> list[str]:
    return [repr(value) for value in map(float, values)]


class ParquetFormat:
    """Parquet, compressed with zstd.

    Parameters
    ----------
    single_precision
        Store metrics as 32-bit numbers; time, CPU Ready and utilisation keep 64.
    """

    suffix = ".parquet"

    def __init__(self, *, single_precision: bool = False) -> None:
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ImportError as error:
            raise TelemetryError(missing_extra("recording Parquet (not CSV)", "trace")) from error
        self._pa, self._pq = pa, pq
        self._number = pa.float32() if single_precision else pa.float64()

    def write(self, path: Path, table: dict[str, Any]) -> None:
        """Write one part."""
        arrays = [self._pa.array(values).cast(self._kind(name)) for name, values in table.items()]
        self._pq.write_table(self._pa.table(arrays, names=list(table)), path, compression="zstd")

    def join(self, parts: Sequence[Path], path: Path) -> int:
        """Write all parts into one file; columns that a part lacks are unknown there."""
        columns = _all_columns([self._pq.read_schema(part).names for part in parts])
        schema = self._pa.schema([(name, self._kind(name)) for name in columns])
        waiting: list[Any] = []
        rows = 0
        with self._pq.ParquetWriter(path, schema, compression="zstd", compression_level=12) as writer:
            for part in parts:
                waiting.append(self._complete(self._pq.read_table(part), schema))
                rows += waiting[-1].num_rows
                if sum(table.num_rows for table in waiting) * len(columns) > ROW_GROUP_CELLS:
                    writer.write_table(self._pa.concat_tables(waiting))
                    waiting = []
            if waiting:
                writer.write_table(self._pa.concat_tables(waiting))
        return rows

    def _kind(self, name: str) -> Any:
        if name == "node":
            return self._pa.string()
        return self._pa.float64() if name in LEADING else self._number

    def _complete(self, table: Any, schema: Any) -> Any:
        held = set(table.column_names)
        columns = [
            table.column(field.name).cast(field.type)
            if field.name in held
            else self._pa.nulls(table.num_rows, field.type)
            for field in schema
        ]
        return self._pa.table(columns, schema=schema)
