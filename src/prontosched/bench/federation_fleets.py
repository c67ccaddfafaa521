"""The machines on which the worth of a global view is measured."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from prontosched.errors import TelemetryError
from prontosched.extras import missing_extra
from prontosched.subspace import Array
from prontosched.telemetry.synthetic import SyntheticFleet

FEATURES = 48
# Contention, not an input: it would leak the answer into the question.
SMD_CONTENTION, SMD_UTILISATION = "load_1", "cpu_r"
SMD_LEFT_OUT = ("minute", "split", "anomaly_label", "load_1", "load_5", "load_15")


class Machine(NamedTuple):
    """A machine's whole course: vectors `(T, d)`, contention and utilisation `(T,)`."""

    metrics: tuple[str, ...]
    vectors: Array
    ready: Array
    utilisation: Array
    tolerance: float
    interval_seconds: float

    def time(self, timestep: int) -> float:
        """Return the clock at a timestep; the course begins at 0."""
        return timestep * self.interval_seconds


def same_kind(machines: int, *, seed: int, steps: int) -> list[Machine]:
    """Return the machines of a synthetic fleet, which resemble each other."""
    fleet = SyntheticFleet(machines, FEATURES, seed=seed, burst_every=120.0, announced=4)
    steps += 64
    vectors = np.zeros((machines, steps, FEATURES))
    ready, busy = np.zeros((machines, steps)), np.zeros((machines, steps))
    for t in range(steps):
        vectors[:, t], ready[:, t], busy[:, t], _ = fleet.step()
    return [Machine(fleet.metrics, vectors[i], ready[i], busy[i], 5.0, 1.0) for i in range(machines)]


def smd_machines(folder: Path, *, limit: int) -> list[Machine]:
    """Return the machines of the Server Machine Dataset in `folder`."""
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise TelemetryError(missing_extra("reading the dataset", "trace")) from error
    files = sorted(folder.glob("machine-*.parquet"))[:limit]
    if len(files) < 2:
        raise TelemetryError(
            f"{folder} must hold machine-*.parquet of at least two machines, got {len(files)}"
        )
    return [_smd_machine(parquet.read_table(file)) for file in files]


def _smd_machine(table: object) -> Machine:
    columns = {name: np.asarray(table[name].to_numpy(), np.float64) for name in _wanted(table)}  # type: ignore[index]
    metrics = tuple(name for name in columns if name not in SMD_LEFT_OUT)
    ready = columns[SMD_CONTENTION]
    # What the operator would call contention: the 95th percentile of the first half.
    tolerance = max(float(np.quantile(ready[: len(ready) // 2], 0.95)), 1e-6)
    vectors = np.stack([columns[name] for name in metrics], axis=1)
    return Machine(metrics, vectors, ready, 100.0 * columns[SMD_UTILISATION], tolerance, 60.0)


def _wanted(table: object) -> list[str]:
    names: list[str] = table.column_names  # type: ignore[attr-defined]
    return [name for name in names if name not in ("split", "anomaly_label", "minute")]
