"""Ever-growing counters to rates per second.

Covers what makes a difference of two readings lie: the first reading, a reset, a wrap-around at 32 or 64
bits (also of one of several counters that were summed), and small steps back. Pure: the time between two
readings arrives as a number. Reading the counters is the sources' business.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from prontosched.subspace import Array

WRAPS = (2.0**32, 2.0**64)
# A wrap goes on at the pace of before; a fall that would need a sudden leap was a reset.
PACE_FACTOR = 16.0
PACE_SLACK = 65536.0
PACE_MEMORY = 0.98
# Some kernel counters (iowait, idle) are corrected downwards now and then.
DIP_SHARE = 0.01


class Rates:
    """Turn readings of counters into rates per second.

    A rate is NaN at the first reading of a counter, after a reset (nobody knows what was counted before
    it) and when no time has passed. It is never negative.

    Parameters
    ----------
    features
        How many counters are read together.

    Attributes
    ----------
    resets
        Counters seen to start again, in total.
    wraps
        Counters seen to wrap around, in total.

    Notes
    -----
    Memory: four arrays of `features` floats, however long it runs.

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

    @property
    def features(self) -> int:
        """How many counters are read together."""
        return self._last.size

    def step(self, values: Array, *, seconds: float) -> Array:
        """Return the rates between the last reading and this one.

        Parameters
        ----------
        values
            The counters now, `(features,)`; NaN where one could not be read. Not kept.
        seconds
            Time since the last reading.
        """
        if values.shape != self._last.shape:
            raise ValueError(f"values must be {self.features} counters, got shape {values.shape}")
        increase = np.subtract(values, self._last, out=self._increase)
        if (increase < 0.0).any():
            self._mend_falls(increase)
        self._since += max(seconds, 0.0)
        # Since each counter's own last reading: one that was missing spans more than one interval.
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            rates: Array = increase / self._since
        if seconds <= 0.0:
            rates[self._since <= 0.0] = np.nan
        self._remember(values, increase)
        return rates

    def relabel(self, origins: Sequence[int]) -> None:
        """Follow a change of the list of counters.

        Parameters
        ----------
        origins
            For each counter of the new list its place in the old one, or -1 if it is new.
        """
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

    def _remember(self, values: Array, increase: Array) -> None:
        read = ~np.isnan(values)
        np.copyto(self._last, values, where=read)
        self._since[read] = 0.0
        np.multiply(self._pace, PACE_MEMORY, out=self._pace)
        np.fmax(self._pace, increase, out=self._pace)
