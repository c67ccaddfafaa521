"""Record what a source sees to a trace that survives a kill.

`record` reads on time and hands samples to a `Recorder`, which closes a part file every minute. On a clean
exit the parts are joined to one file. After a kill all parts but the open one are there: readers accept
their folder, and `join_parts` makes the one file later.
"""

from __future__ import annotations

import contextlib
import csv
import math
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from prontosched.errors import TelemetryError
from prontosched.extras import missing_extra
from prontosched.telemetry.probe import Probe
from prontosched.telemetry.source import PROBE_COLUMN, Sample, Source

PART_SECONDS = 60.0
# Bounds the memory of an open part, however many nodes and metrics there are.
PART_CELLS = 1_000_000
LEADING = ("timestamp", "node", "ready", "utilisation")
ROW_GROUP_CELLS = 2_000_000
POLL_SECONDS = 0.1


def parts_folder(out: Path) -> Path:
    """Return the folder that holds the parts of a recording."""
    return out.with_name(out.name + ".parts")


def join_parts(out: Path, *, format: CsvFormat | ParquetFormat | None = None) -> int:
    """Join the parts of a recording to one file, remove them, and return its rows."""
    folder = parts_folder(out)
    chosen = format if format is not None else _format_of(out)
    parts = sorted(folder.glob(f"part-*{chosen.suffix}"))
    if not parts:
        raise TelemetryError(f"{folder}: a recording must have at least one closed part, got none")
    whole = out.with_name(f".{out.name}.joining")
    try:
        rows = chosen.join(parts, whole)
        _synchronise(whole)
        os.replace(whole, out)
    except OSError as error:
        with contextlib.suppress(OSError):
            whole.unlink()
        raise TelemetryError(
            f"{out}: the parts must be joined, got {error.strerror or error}: they are safe in {folder}, "
            f"which every command reads; make room and run `pronto record --join {out}`"
        ) from error
    shutil.rmtree(folder)
    return rows


class Recorder:
    """Write samples into part files next to `out`, the file they will be joined to, which must not exist yet.

    A part is closed when it is as old as `part_seconds`, or when it is large. With `single_precision` metrics
    are 32-bit numbers (Parquet only). Memory: the rows of the open part, at most a million numbers.
    """

    def __init__(
        self, out: Path, *, part_seconds: float = PART_SECONDS, single_precision: bool = False
    ) -> None:
        self.out = out
        self.rows = 0
        self.parts = 0
        self._format = _format_of(out, single_precision=single_precision)
        self._part_seconds = part_seconds
        self._folder = parts_folder(out)
        try:
            if out.exists():
                raise TelemetryError(f"{out}: exists already: name another file, or remove it first")
            if self._folder.exists() and any(self._folder.glob("part-*")):
                raise TelemetryError(
                    f"{self._folder}: holds a recording that was cut off: join it with "
                    f"`pronto record --join {out}`, or remove it"
                )
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TelemetryError(f"{self._folder}: cannot be made ({error.strerror})") from error
        self._open: list[Sample] = []
        self._cells = 0
        self._opened = time.monotonic()

    def write(self, samples: Sequence[Sample]) -> None:
        """Take in the samples of one timestep."""
        for sample in samples:
            # A source may reuse its buffer.
            self._open.append(replace(sample, vector=sample.vector.copy()))
            self._cells += len(sample.metrics)
            self.rows += 1
        if time.monotonic() - self._opened >= self._part_seconds or self._cells >= PART_CELLS:
            self.close_part()

    def close_part(self) -> None:
        """Write the open part, if it has rows; from here on a kill cannot lose it."""
        if self._open:
            name = f"part-{self.parts:06d}{self._format.suffix}"
            unfinished = self._folder / f".{name}.writing"
            try:
                self._format.write(unfinished, _table(self._open))
                _synchronise(unfinished)
                os.replace(unfinished, self._folder / name)
            except OSError as error:
                raise TelemetryError(
                    f"{self._folder / name}: cannot be written ({error.strerror}): {self.parts} parts are safe"
                ) from error
            self.parts += 1
        self._open = []
        self._cells = 0
        self._opened = time.monotonic()

    def finish(self) -> int:
        """Close the open part, join all parts, and return how many rows the file has."""
        self.close_part()
        if not self.parts:
            shutil.rmtree(self._folder)
            return 0
        return join_parts(self.out, format=self._format)


def _table(samples: list[Sample]) -> dict[str, Any]:
    table: dict[str, Any] = {
        "timestamp": np.array([sample.timestamp for sample in samples]),
        "node": [sample.node for sample in samples],
        "ready": np.array([sample.ready for sample in samples]),
        "utilisation": np.array([sample.utilisation for sample in samples]),
    }
    probed = np.array([sample.probe_slowdown for sample in samples])
    if np.isfinite(probed).any():
        table[PROBE_COLUMN] = probed
    start = 0
    while start < len(samples):
        metrics, end = samples[start].metrics, start + 1
        while end < len(samples) and samples[end].metrics is metrics:
            end += 1
        vectors = np.array([sample.vector for sample in samples[start:end]])
        for place, name in enumerate(metrics):
            # A metric of a leading column's name would hide it.
            column = f"metric_{name}" if name in (*LEADING, PROBE_COLUMN) else name
            if column not in table:
                table[column] = np.full(len(samples), np.nan)
            table[column][start:end] = vectors[:, place]
        start = end
    return table


def _format_of(path: Path, *, single_precision: bool = False) -> CsvFormat | ParquetFormat:
    if path.suffix == ".csv":
        return CsvFormat()
    if path.suffix == ".parquet":
        return ParquetFormat(single_precision=single_precision)
    raise TelemetryError(f"{path}: a recording must end in .parquet or .csv")


def _synchronise(path: Path) -> None:
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
            columns = (v if name == "node" else [repr(float(one)) for one in v] for name, v in table.items())
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


class ParquetFormat:
    """Parquet, compressed with zstd; time, CPU Ready and utilisation have 64 bits in single precision too."""

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


@dataclass(slots=True)
class RecordingProgress:
    """How far a recording is.

    `timesteps` are readings, `rows` one per node and timestep, `late` the readings that started more than half an
    interval late, `probes` those whose slowdown was recorded, and `ready` the mean over nodes at the last reading.
    """

    timesteps: int = 0
    rows: int = 0
    parts: int = 0
    metrics: int = 0
    late: int = 0
    probes: int = 0
    seconds: float = 0.0
    ready: float = math.nan


def record(
    source: Source,
    recorder: Recorder,
    *,
    seconds: float = math.inf,
    probe: Probe | None = None,
    stopped: Callable[[], bool] = lambda: False,
    progress: Callable[[RecordingProgress], None] = lambda now: None,
) -> RecordingProgress:
    """Record until the time is over, the source ends, or `stopped`; the recorder is left to be finished.

    Readings keep to a grid: a late one does not shift those after it. The first reading only sets the
    counters and is not recorded. With a `probe`, what it finds goes to the reading after it.
    """
    state = RecordingProgress()
    begun = time.monotonic()
    source.read()
    grid = 0
    while True:
        grid += 1
        due = begun + grid * source.interval_seconds
        if due - begun > seconds or not _sleep_until(due, stopped):
            break
        late = time.monotonic() - due
        if late > source.interval_seconds / 2:
            state.late += 1
            grid += int(late // source.interval_seconds)
        try:
            samples = source.read()
        except EOFError:
            break
        if probe is not None and samples:
            found = probe.poll(time.monotonic(), ready=samples[0].ready)
            if found is not None:
                samples = [replace(samples[0], probe_slowdown=found.slowdown), *samples[1:]]
                state.probes += 1
        recorder.write(samples)
        state.timesteps += 1
        state.rows, state.parts = recorder.rows, recorder.parts
        state.metrics = len(samples[0].metrics) if samples else state.metrics
        state.seconds = time.monotonic() - begun
        known = [sample.ready for sample in samples if not math.isnan(sample.ready)]
        state.ready = math.fsum(known) / len(known) if known else math.nan
        progress(state)
    return state


def _sleep_until(due: float, stopped: Callable[[], bool]) -> bool:
    """Sleep until then; return whether to go on."""
    while not stopped() and (left := due - time.monotonic()) > 0:
        time.sleep(min(left, POLL_SECONDS))
    return not stopped()
