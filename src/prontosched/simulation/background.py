"""Recorded machines as tenants: their load, and all that they showed of themselves."""

from __future__ import annotations

import importlib.resources
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from prontosched.errors import SettingsError
from prontosched.simulation.tenants import Background
from prontosched.telemetry.trace import open_trace

# The load of a recorded machine is scaled so that this percentile of it takes all CPUs.
FULL_AT = 95.0
LEAST_ROWS = 100


def read_background(
    paths: Sequence[Path], *, load: str | None = None, exclude: Sequence[str] = ()
) -> Background:
    """Read traces for tenants to replay, one row a step.

    Parameters
    ----------
    load
        Column that tells how many tasks run or wait; by default utilisation and CPU Ready
        together. Its unit does not matter: the 95th percentile takes all CPUs.
    exclude
        Patterns of columns that are not shown to the signal.
    """
    source = open_trace(list(paths), ready=load, exclude=list(exclude))
    vectors: dict[str, list[np.ndarray]] = {}
    demand: dict[str, list[np.ndarray]] = {}
    for chunk in source.chunks():
        wanted = chunk.ready if load else np.nan_to_num(chunk.utilisation) + np.nan_to_num(chunk.ready)
        vectors.setdefault(chunk.node, []).append(chunk.vectors)
        demand.setdefault(chunk.node, []).append(np.nan_to_num(wanted))
    machines = [np.concatenate(parts) for parts in demand.values()]
    for node, wanted in zip(demand, machines, strict=True):
        if wanted.size < LEAST_ROWS or not np.percentile(wanted, FULL_AT) > 0.0:
            raise SettingsError(
                f"{node}: a trace must have at least {LEAST_ROWS} rows with load, got {wanted.size} rows: "
                "name the column that tells the load with --load-column"
            )
    return Background(
        source.metrics,
        tuple(np.nan_to_num(np.concatenate(parts)) for parts in vectors.values()),
        tuple(wanted / np.percentile(wanted, FULL_AT) for wanted in machines),
    )


def shipped_background() -> Background | None:
    """Return the host trace that comes with Pronto; None where it cannot be read."""
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        return None
    path = importlib.resources.files("prontosched") / "data" / "host.parquet"
    with importlib.resources.as_file(path) as file:
        return read_background([file])
