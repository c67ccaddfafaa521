"""Traces as Parquet, streamed with pyarrow (extra `trace`)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from prontosched.errors import TelemetryError
from prontosched.extras import missing_extra
from prontosched.subspace import Array
from prontosched.telemetry.trace_files import (
    Batch,
    TraceCounts,
    Wanted,
    check_names,
    parse_time,
    to_seconds,
    without_infinity,
)


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
        try:
            schema = pq.read_schema(path)
        except (OSError, pa.ArrowException) as error:
            reason = str(error).splitlines()[0]
            raise TelemetryError(f"{path}: not a whole Parquet file ({reason})") from error
        self.names = tuple(schema.names)
        check_names(path, self.names)
        kinds = pa.types
        self.text = frozenset(
            f.name
            for f in schema
            if not (
                kinds.is_integer(f.type)
                or kinds.is_floating(f.type)
                or kinds.is_boolean(f.type)
                or kinds.is_decimal(f.type)
                or kinds.is_null(f.type)
            )
        )

    def batches(self, wanted: Wanted, size: int, counts: TraceCounts) -> Iterator[Batch]:
        """Yield at most `size` rows at a time."""
        named = [name for name in (wanted.node, wanted.timestamp) if name]
        columns = list(dict.fromkeys([*wanted.numbers, *named]))
        try:
            with self._pq.ParquetFile(self.path) as file:
                for batch in file.iter_batches(batch_size=size, columns=columns, use_threads=False):
                    counts.rows += batch.num_rows
                    yield self._convert(batch, wanted, counts)
        except (OSError, self._pa.ArrowException) as error:
            raise TelemetryError(f"{self.path}: cannot be read ({str(error).splitlines()[0]})") from error

    def _convert(self, batch: Any, wanted: Wanted, counts: TraceCounts) -> Batch:
        names, node, timestamp = wanted
        numbers = np.empty((batch.num_rows, len(names)), order="F")
        for place, name in enumerate(names):
            numbers[:, place] = self._floats(batch.column(name))
        nodes = (
            None if node is None else ["" if v is None else str(v) for v in batch.column(node).to_pylist()]
        )
        times = None if timestamp is None else self._times(batch.column(timestamp))
        return Batch(nodes, times, without_infinity(np.ascontiguousarray(numbers), counts))

    def _floats(self, column: Any) -> Array:
        if column.type != self._pa.float64():
            column = column.cast(self._pa.float64())
        floats: Array = column.to_numpy(zero_copy_only=False)
        return floats

    def _times(self, column: Any) -> Array:
        kinds = self._pa.types
        if kinds.is_timestamp(column.type):
            nanoseconds = column.cast(self._pa.timestamp("ns", tz=column.type.tz), safe=False).to_numpy(
                zero_copy_only=False
            )
            times: Array = np.where(
                np.isnat(nanoseconds), np.nan, nanoseconds.astype("datetime64[ns]").astype(np.int64) / 1e9
            )
            return times
        if kinds.is_integer(column.type) or kinds.is_floating(column.type):
            numbers = self._floats(column)
            finite = numbers[np.isfinite(numbers)]
            factor = (
                to_seconds(float(np.abs(finite).max())) / float(np.abs(finite).max()) if finite.any() else 1.0
            )
            return numbers * factor
        return np.array(
            [math.nan if v is None else parse_time(str(v)) for v in column.to_pylist()], dtype=float
        )
