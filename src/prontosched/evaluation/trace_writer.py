"""Write generated telemetry as a trace that `telemetry.trace` reads, a few rows at a time.

Recording live sources, with part files that survive a crash, is in `recording`.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np

from prontosched.errors import TelemetryError
from prontosched.extras import missing_extra
from prontosched.telemetry.trace import Chunk


class TraceWriter:
    """A trace of many nodes in one file, as CSV or Parquet by its name.

    Parameters
    ----------
    path
        Ends in .csv or .parquet; it must not exist.
    metrics
        Names of the metrics.
    ready_column
        What the column of CPU Ready is called.

    Notes
    -----
    Memory: the rows handed over at a time.
    """

    def __init__(self, path: Path, metrics: tuple[str, ...], *, ready_column: str) -> None:
        if path.suffix not in (".csv", ".parquet"):
            raise TelemetryError(f"{path}: a trace must end in .csv or .parquet")
        if path.exists():
            raise TelemetryError(f"{path}: the file must not exist yet: name another, or remove it")
        self.names = ("timestamp", "node", ready_column, "utilisation", *metrics)
        self.rows = 0
        self._text: IO[str] | None = None
        self._parquet: Any = None
        if path.suffix == ".csv":
            self._text = path.open("x", encoding="utf-8")
            self._text.write(",".join(self.names) + "\n")
            return
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ImportError as error:
            raise TelemetryError(missing_extra("writing Parquet (not CSV)", "trace")) from error

        fields = [(name, pa.string() if name == "node" else pa.float64()) for name in self.names[:4]]
        self._schema = pa.schema([*fields, *((name, pa.float32()) for name in metrics)])
        self._pa = pa
        self._parquet = pq.ParquetWriter(path, self._schema, compression="zstd")

    def write(self, chunks: list[Chunk]) -> None:
        """Add rows of all nodes, in the order of time."""
        if not chunks:
            return
        times = np.concatenate([chunk.timestamps for chunk in chunks])
        order = np.argsort(times, kind="stable")
        owners = [chunk.node for chunk in chunks for _ in range(len(chunk))]
        nodes = [owners[place] for place in order]
        head = np.column_stack(
            [
                times,
                np.concatenate([chunk.ready for chunk in chunks]),
                np.concatenate([chunk.utilisation for chunk in chunks]),
            ]
        )[order]
        metrics = np.concatenate([chunk.vectors for chunk in chunks])[order]
        self.rows += len(order)
        if self._text is not None:
            for (time, ready, use), node, row in zip(head, nodes, metrics, strict=True):
                cells = ",".join(f"{value:.6g}" for value in row)
                self._text.write(f"{time:.3f},{node},{ready:.6g},{use:.6g},{cells}\n")
            return
        columns = [head[:, 0], nodes, head[:, 1], head[:, 2], *metrics.astype(np.float32).T]
        arrays = [self._pa.array(c, type=f.type) for c, f in zip(columns, self._schema, strict=True)]
        self._parquet.write_table(self._pa.Table.from_arrays(arrays, schema=self._schema))

    def close(self) -> None:
        """Finish the file."""
        for file in (self._text, self._parquet):
            if file is not None:
                file.close()

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
