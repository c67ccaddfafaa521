"""vSphere's performance counters as metrics, CPU Ready in percent per vCPU among them.

Covers what the numbers mean. Asking a vCenter for them is in `vsphere`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from prontosched.subspace import Array

INTERVAL_SECONDS = 20.0
READY = "cpu.ready.summation"
USAGE = "cpu.usage.average"
# The same waiting in other words: among the metrics they would give the answer away.
READY_ALIASES = (READY, "cpu.readiness.average")
# These only ever grow.
NOT_METRICS = (*READY_ALIASES, "sys.uptime.latest", "sys.osUptime.latest")
UNKNOWN = -1


class Counter(NamedTuple):
    """A counter's name, as group.name.rollup, and its unit in vSphere's words."""

    name: str
    unit: str


def metric_names(counters: Sequence[Counter]) -> tuple[str, ...]:
    """Return the names of the metrics: all counters but uptimes and those that say CPU Ready."""
    return tuple(counter.name for counter in counters if counter.name not in NOT_METRICS)


def in_units(value: float, unit: str) -> float:
    """Return a value in its unit: vSphere counts percent in hundredths, and -1 means unknown."""
    if value == UNKNOWN:
        return math.nan
    return value / 100.0 if unit == "percent" else float(value)


def ready_percent(milliseconds: float, *, cpus: int, interval_seconds: float = INTERVAL_SECONDS) -> float:
    """Return CPU Ready in percent of the interval and per vCPU.

    Examples
    --------
    >>> ready_percent(2000, cpus=2)
    5.0
    """
    if milliseconds == UNKNOWN or cpus < 1:
        return math.nan
    return 100.0 * milliseconds / (1000.0 * interval_seconds) / cpus


class Values(NamedTuple):
    """One entity at one moment: metrics, CPU Ready and utilisation in percent."""

    vector: Array
    ready: float
    utilisation: float


def to_values(
    counters: Sequence[Counter],
    values: Mapping[str, float],
    *,
    cpus: int,
    interval_seconds: float = INTERVAL_SECONDS,
) -> Values:
    """Turn what vSphere says of an entity into metrics.

    Parameters
    ----------
    values
        By counter the number as vSphere gives it; those missing are unknown.
    cpus
        vCPUs of a virtual machine, or logical CPUs of a host.
    """
    vector = np.array(
        [
            in_units(values.get(counter.name, UNKNOWN), counter.unit)
            for counter in counters
            if counter.name not in NOT_METRICS
        ]
    )
    ready = ready_percent(values.get(READY, UNKNOWN), cpus=cpus, interval_seconds=interval_seconds)
    return Values(vector, ready, in_units(values.get(USAGE, UNKNOWN), "percent"))


def newest(times: Sequence[float], values: Sequence[float]) -> float:
    """Return the value of the latest time, in whatever order they came.

    Unknown if there are not as many values as times: which belongs to which cannot be told then.

    Examples
    --------
    >>> newest([40.0, 20.0, 60.0], [4, 2, 6])
    6
    """
    if not times or len(times) != len(values):
        return UNKNOWN
    return values[max(range(len(times)), key=times.__getitem__)]
