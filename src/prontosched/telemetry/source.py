"""Stage 1: what anything that yields telemetry must do, and counters to rates.

A source reads machines and yields samples: one vector `(d,)` per node and timestep. Pure: reading is the
business of each source.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from prontosched.subspace import Array

NAN = float("nan")
# Column of a recording that says what a probe suffered; an outcome, and never among the metrics.
PROBE_COLUMN = "probe_slowdown"
MIXED_NOTE = "waiting for quotas and at low priority cannot be told apart and is in CPU Ready, with steal"
# What of CPU Ready each source can tell apart, for people.
SEPARATION = {
    "linux": "waiting at normal priority and steal; held back by quotas and background waiting are counted apart",
    "prometheus": f"{MIXED_NOTE}; use an agent on the machine to tell them apart",
    "vsphere": (
        "what a virtual machine's own limit held back (cpu.maxlimited) is in cpu.ready; inside of the guest nothing "
        "is seen: neither its run queue nor quotas or priorities"
    ),
    "trace": "whatever its recording could tell: the column ready is taken as it is",
}
WRAPS = (2.0**32, 2.0**64)
# A wrap goes on at the pace of before; a fall that would need a sudden leap was a reset.
PACE_FACTOR = 16.0
PACE_SLACK = 65536.0
PACE_MEMORY = 0.98
# Some kernel counters (iowait, idle) are corrected downwards now and then.
DIP_SHARE = 0.01


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """A telemetry vector with its node, time and metric names.

    Attributes
    ----------
    node
        Name of the node it describes.
    metrics
        Names of the metrics, in the order of `vector`. The same tuple object as
        long as nothing changed, so that `is` tells a change of schema.
    vector
        The metrics, `(d,)`; NaN where a metric could not be read.
    timestamp
        Clock time in seconds since 1970, NaN where unknown.
    ready
        CPU Ready, in percent per CPU unless the source says otherwise; NaN where unknown.
    utilisation
        CPU utilisation in percent of all CPUs; NaN where unknown.
    notes
        What a person should know of this sample, e.g. which fallback gave `ready`.
    probe_slowdown
        How many times longer than alone a probe took that ended just before; NaN where none did.
    """

    node: str
    metrics: tuple[str, ...]
    vector: Array
    timestamp: float = NAN
    ready: float = NAN
    utilisation: float = NAN
    notes: tuple[str, ...] = ()
    probe_slowdown: float = NAN


class Source(Protocol):
    """Anything that yields telemetry.

    Live sources are asked at every timestep; recorded ones yield until they end.
    """

    name: str
    interval_seconds: float

    def read(self) -> list[Sample]:
        """Read every node once, now.

        An empty list means nothing can be read at this moment. A trace that has ended raises `EOFError`.
        """
        ...

    def close(self) -> None:
        """Let go of files and connections; reading again is an error."""
        ...


def samples(source: Source) -> Iterator[list[Sample]]:
    """Read a source until it ends, one list of samples per timestep, and close it."""
    try:
        while True:
            yield source.read()
    except EOFError:
        return
    finally:
        source.close()


class Rates:
    """Turn readings of ever-growing counters into rates per second.

    A rate is NaN at the first reading of a counter, after a reset (nobody knows what was counted before
    it) and when no time has passed. It is never negative. A wrap-around at 32 or 64 bits, also of one of
    several counters that were summed, goes on without a gap, and a small step back is no movement.

    Notes
    -----
    Memory: four floats a counter, however long it runs.

    Examples
    --------
    >>> rates = Rates(2)
    >>> rates.step(np.array([10.0, 4294967290.0]), seconds=1.0)
    array([nan, nan])
    >>> rates.step(np.array([30.0, 4294967295.0]), seconds=2.0)
    array([10. ,  2.5])
    >>> rates.step(np.array([5.0, 4.0]), seconds=1.0)
    array([nan,  5.])
    """

    def __init__(self, features: int) -> None:
        self.resets = 0
        self.wraps = 0
        self._last = np.full(features, np.nan)
        self._since = np.zeros(features)
        self._pace = np.zeros(features)
        self._increase = np.empty(features)

    def step(self, values: Array, *, seconds: float) -> Array:
        """Return the rates between the last reading and this one, `seconds` later.

        A counter that could not be read is NaN, and its next rate is over all the time since it was.
        """
        if values.shape != self._last.shape:
            raise ValueError(f"values must be {self._last.size} counters, got shape {values.shape}")
        increase = np.subtract(values, self._last, out=self._increase)
        if (increase < 0.0).any():
            self._mend_falls(increase)
        self._since += max(seconds, 0.0)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            rates: Array = increase / self._since
        if seconds <= 0.0:
            rates[self._since <= 0.0] = np.nan
        read = ~np.isnan(values)
        np.copyto(self._last, values, where=read)
        self._since[read] = 0.0
        np.multiply(self._pace, PACE_MEMORY, out=self._pace)
        np.fmax(self._pace, increase, out=self._pace)
        return rates

    def relabel(self, origins: Sequence[int]) -> None:
        """Follow a change of the list of counters: for each new one its place in the old list, or -1."""
        places = np.asarray(origins, dtype=np.intp)
        known = places >= 0
        last = np.full(places.size, np.nan)
        since, pace = np.zeros(places.size), np.zeros(places.size)
        last[known] = self._last[places[known]]
        since[known] = self._since[places[known]]
        pace[known] = self._pace[places[known]]
        self._last, self._since, self._pace = last, since, pace
        self._increase = np.empty(places.size)

    def _mend_falls(self, increase: Array) -> None:
        for place in np.flatnonzero(increase < 0.0):
            fall = -increase[place]
            limit = PACE_FACTOR * self._pace[place] + PACE_SLACK
            wrapped = next((wrap - fall for wrap in WRAPS if 0.0 <= wrap - fall <= limit), None)
            if wrapped is not None:
                increase[place] = wrapped
                self.wraps += 1
            elif fall <= DIP_SHARE * self._last[place]:
                increase[place] = 0.0
            else:
                increase[place] = np.nan
                self.resets += 1
