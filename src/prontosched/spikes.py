"""Stage 4: projections to −1, 0 or +1.

The smoothed z-score: a value spikes when it leaves the mean of the recent,
dampened values by more than so many of their deviations. In plain floats: for a
handful of projections that is several times faster than arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import mul
from typing import Any

import numpy as np

from prontosched.subspace import Array

# Deviations below these, absolute and relative to the mean, are rounding error.
FLOOR = 1e-9
RELATIVE_FLOOR = 1e-9
# When a value leaves that made up nearly all of a window's squares, or the window has moved this far
# from its reference, what is left of the sums is rounding error.
CANCELLED = 1e-7
# Running sums are measured afresh after this many values at the latest.
REFRESH = 64


class SpikeDetector:
    """Tell for each projection whether it leaves its recent range.

    Parameters
    ----------
    lag
        Values that make up the recent range, the newest included.
    threshold
        Deviations that make a spike. Paper: α in Reject-Job.
    influence
        How much a spike shifts the recent range, 0 to 1. Paper: β in Reject-Job.
    floor
        Smallest deviation, absolute; keeps rounding errors of a flat signal from spiking.

    Notes
    -----
    Memory: `r * (lag + 4)` floats.

    Examples
    --------
    >>> detector = SpikeDetector(lag=4)
    >>> [detector.detect([v]) for v in [1.0, 1.1, 0.9, 1.0, 5.0, 1.0]]
    [None, None, None, None, [1], [0]]
    """

    def __init__(
        self, lag: int = 10, threshold: float = 3.5, influence: float = 0.5, *, floor: float = FLOOR
    ) -> None:
        if lag < 2:
            raise ValueError(f"lag must be at least 2 values, got {lag}")
        if not threshold > 0:
            raise ValueError(f"threshold must be positive, got {threshold}")
        if not 0.0 <= influence <= 1.0:
            raise ValueError(f"influence must be from 0 to 1, got {influence}")
        self.lag = lag
        self.threshold = threshold
        self.influence = influence
        self.floor = floor
        # Rings of values, each less its reference; and sums over them, of values and of squares.
        self._windows: list[list[float]] = []
        self._references: list[float] = []
        self._firsts: list[float] = []
        self._seconds: list[float] = []
        self._spreads: list[float] = []
        self._held = 0
        self._next = 0
        self._since = 0

    @property
    def warm(self) -> bool:
        """True once `lag` values are held."""
        return self._held == self.lag

    @property
    def filtered(self) -> list[float]:
        """The newest dampened value of each projection."""
        pairs = zip(self._windows, self._references, strict=True)
        return [values[self._next - 1] + reference for values, reference in pairs]

    def refill(self, window: Array, slot: int | None = None) -> None:
        """Replace the recent values by `window`, `(r, n)` with n at most `lag`.

        A full window may be a ring: `slot` is then its oldest column.
        """
        self._held = window.shape[1]
        self._next = self._held % self.lag if slot is None else slot
        self._since = 0
        self._windows = window.tolist()
        self._references = [0.0] * len(self._windows)
        if self._held == self.lag:
            self._measure()
        else:
            missing = [0.0] * (self.lag - self._held)
            for values in self._windows:
                values.extend(missing)

    def _measure(self) -> None:
        """Add full windows up afresh, each around its middle value, which no outlier can be."""
        lag = self.lag
        self._since = 0
        self._firsts = []
        self._seconds = []
        self._spreads = []
        for i, values in enumerate(self._windows):
            shift = sorted(values)[lag // 2]
            values[:] = [value - shift for value in values]
            self._references[i] += shift
            first, second = sum(values), sum(map(mul, values, values))
            self._firsts.append(first)
            self._seconds.append(second)
            self._spreads.append(lag * second - first * first)

    def detect(self, projections: list[float]) -> list[int] | None:
        """Return −1, 0 or +1 for each projection, or None while the lag fills."""
        if self._held != self.lag or len(projections) != len(self._windows):
            self._fill(projections)
            return None
        lag, at, firsts, seconds, spreads = self.lag, self._next, self._firsts, self._seconds, self._spreads
        limit = self.threshold * self.threshold
        spikes = [0] * len(projections)
        cancelled = False
        for i, values in enumerate(self._windows):
            value = projections[i] - self._references[i]
            first = firsts[i]
            # Both sides times lag squared: distance from the mean, and variance.
            away = lag * value - first
            if away * away > limit * spreads[i] and self._beyond_rounding(i, away):
                spikes[i] = 1 if away > 0.0 else -1
                value = self.influence * value + (1.0 - self.influence) * values[at - 1]
            old = values[at]
            values[at] = value
            firsts[i] = first = first + (value - old)
            old *= old
            seconds[i] = second = seconds[i] + (value * value - old)
            first *= first
            spreads[i] = spread = lag * second - first
            if second < CANCELLED * old or spread < CANCELLED * first:
                cancelled = True
        self._next = at + 1 if at + 1 < lag else 0
        self._since += 1
        if cancelled or self._since >= REFRESH:
            self._measure()
        return spikes

    def _beyond_rounding(self, i: int, away: float) -> bool:
        """Tell whether a distance is more than the smallest deviation that is not rounding error allows."""
        mean = self._references[i] + self._firsts[i] / self.lag
        return abs(away) > self.lag * self.threshold * max(self.floor, RELATIVE_FLOOR * abs(mean))

    def _fill(self, projections: list[float]) -> None:
        if len(projections) != len(self._windows):
            self._windows = [[0.0] * self.lag for _ in projections]
            self._references = [0.0] * len(projections)
            self._held = self._next = 0
        for value, values in zip(projections, self._windows, strict=True):
            values[self._next] = value
        self._held += 1
        self._next = self._held % self.lag
        if self.warm:
            self._measure()

    def state(self) -> dict[str, Any]:
        """Return everything held, by name."""
        return {
            "windows": np.array(self._windows, dtype=np.float64).reshape(len(self._windows), self.lag),
            "sums": np.array([self._references, self._firsts, self._seconds], dtype=np.float64)
            if self.warm
            else np.array([self._references] * 3, dtype=np.float64),
            "held": self._held,
            "next": self._next,
            "since": self._since,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        self._windows = state["windows"].tolist()
        self._references, self._firsts, self._seconds = state["sums"].tolist()
        pairs = zip(self._firsts, self._seconds, strict=True)
        self._spreads = [self.lag * second - first * first for first, second in pairs]
        self._held = int(state["held"])
        self._next = int(state["next"])
        self._since = int(state["since"])
