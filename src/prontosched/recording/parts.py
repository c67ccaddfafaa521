"""Rows into part files, closed regularly, and joined in the end."""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from prontosched.errors import TelemetryError
from prontosched.recording.formats import LEADING, Format, choose_format, synchronise
from prontosched.telemetry.source import PROBE_COLUMN, Sample

PART_SECONDS = 60.0
# Bounds the memory of an open part, however many nodes and metrics there are.
PART_CELLS = 1_000_000


def parts_folder(out: Path) -> Path:
    """Return the folder that holds the parts of a recording."""
    return out.with_name(out.name + ".parts")


def join_parts(out: Path, *, format: Format | None = None) -> int:
    """Join the parts of a recording to one file, remove them, and return its rows."""
    folder = parts_folder(out)
    chosen = format if format is not None else choose_format(out)
    parts = sorted(folder.glob(f"part-*{chosen.suffix}"))
    if not parts:
        raise TelemetryError(f"{folder}: a recording must have at least one closed part, got none")
    whole = out.with_name(f".{out.name}.joining")
    rows = chosen.join(parts, whole)
    synchronise(whole)
    os.replace(whole, out)
    shutil.rmtree(folder)
    return rows


class Recorder:
    """Write samples into part files next to the file they will be joined to.

    Parameters
    ----------
    out
        The joined file, ending in .parquet or .csv. Must not exist yet.
    part_seconds
        A part is closed when it is as old as this, or when it is large.
    single_precision
        Store metrics as 32-bit numbers (Parquet only).

    Attributes
    ----------
    rows, parts
        Rows taken so far, and parts closed so far.

    Notes
    -----
    Memory: the rows of the open part, at most a million numbers.
    """

    def __init__(
        self, out: Path, *, part_seconds: float = PART_SECONDS, single_precision: bool = False
    ) -> None:
        self.out = out
        self.rows = 0
        self.parts = 0
        self._format = choose_format(out, single_precision=single_precision)
        self._part_seconds = part_seconds
        self._folder = parts_folder(out)
        if out.exists():
            raise TelemetryError(f"{out}: exists already: name another file, or remove it first")
        if self._folder.exists() and any(self._folder.glob("part-*")):
            raise TelemetryError(
                f"{self._folder}: holds a recording that was cut off: join it with "
                f"`pronto record --join {out}`, or remove it"
            )
        try:
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
                synchronise(unfinished)
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


def finite_mean(values: Sequence[float]) -> float:
    """Return the mean of the known values, NaN if there is none."""
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else math.nan
