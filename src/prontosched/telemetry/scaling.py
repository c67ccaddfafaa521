"""Running scale per metric, so that bytes do not drown percents: mean and deviation, clipping, unknown values.

For one node (`Scaling`) and for many at once (`FleetScaling`), which share `fold` and `spread`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prontosched.subspace import Array, room

# Larger than any honest measurement; beyond it a value counts as unknown.
IMPLAUSIBLE = 1e18
# The statistics follow every single vector until this many were seen.
EARLY = 32
# One vector moves settled statistics by at most this many clips: a single absurd
# value then doubles a variance instead of blinding its metric for days.
OUTER = 4.0
# Floors of the deviation: absolute, and relative to the mean.
FLOOR = 1e-9
RELATIVE_FLOOR = 1e-6

At = slice | NDArray[np.intp]


class Scaling:
    """Bring every metric to mean 0 and deviation 1, as seen from its own past.

    A vector is scaled before it enters the statistics. These follow every vector
    at first, later a block of vectors at a time, which costs far less and is as
    good: a block is short against the half-life.

    Parameters
    ----------
    half_life
        Timesteps after which a vector weighs half.
    clip
        Largest scaled value, either side.
    block_size
        Vectors taken together once the first `EARLY` were seen.

    Attributes
    ----------
    mean, variance, seen
        Per metric, `(d,)`; `seen` counts the known values.
    unknown
        Values that were NaN, infinite or implausible, counted per metric, `(d,)`.
    samples
        Vectors seen.

    Notes
    -----
    Memory: `d * (block_size + 8)` floats.

    Examples
    --------
    >>> scaling = Scaling()
    >>> for level in [1.0, 3.0, 1.0, 3.0]:
    ...     _ = scaling.scale(np.array([level, 7.0]))
    >>> scaling.scale(np.array([3.0, 7.0])).round(2)
    array([1., 0.])
    """

    def __init__(self, half_life: float = 600.0, clip: float = 8.0, block_size: int = 32) -> None:
        if not half_life > 0:
            raise ValueError(f"half_life must be positive, got {half_life}")
        if not clip > 0:
            raise ValueError(f"clip must be positive, got {clip}")
        if block_size < 1:
            raise ValueError(f"block_size must be at least 1, got {block_size}")
        self.half_life = half_life
        self.clip = clip
        self.block_size = block_size
        self.weight = weight_of(half_life)
        self.samples = 0
        self.mean = self.variance = self.seen = np.zeros(0)
        self.unknown = np.zeros(0, np.int64)
        self._block = np.zeros((0, 0))
        self._slots: list[Array] = []  # its rows
        self._held = 0
        self._gaps = False
        self._far = False  # some of the vectors held may lie beyond what is clipped
        self._wary = True

    @property
    def deviation(self) -> Array:
        """Standard deviation per metric, with its floor."""
        return spread(self.mean, self.variance)

    def scale(self, y: Array) -> Array:
        """Return `y` scaled by what came before it, then take it into the statistics.

        Unknown values come back as 0, the mean.
        """
        if not self.samples:
            self._start(y.shape[0])
        self.samples += 1
        z = None if self._wary else self._plainly(y)
        if z is None:
            y, z = self._bounded(y)
        self._slots[self._held][...] = y
        self._held += 1
        if self._held == self.block_size or self.samples <= EARLY:
            self._take()
        return z

    def scale_many(self, Y: Array) -> Array:
        """Return vectors `(n, d)` as `scale` would, one after the other: a block of them at a time."""
        found = np.empty(Y.shape)
        start = 0
        while start < len(Y):
            if self.samples < EARLY:
                found[start] = self.scale(Y[start])
                start += 1
                continue
            part = Y[start : start + self.block_size - self._held]
            stop = start + len(part)
            bad = ~(np.abs(part) < IMPLAUSIBLE)
            if bad.any():
                self.unknown += bad.sum(axis=0)
                self._gaps = True
                part = np.where(bad, np.nan, part)
            z = np.clip(part, self._lower, self._upper, out=found[start:stop])
            z -= self.mean
            z *= self._inverse
            z[bad] = 0.0
            self._block[self._held : self._held + len(part)] = part
            self._far = True
            self._held += len(part)
            self.samples += len(part)
            if self._held == self.block_size:
                self._take()
            start = stop
        return found

    def _plainly(self, y: Array) -> Array | None:
        """Return `y` scaled, or None where a value is unknown or has to be clipped."""
        try:
            z = y - self.mean
            z *= self._inverse
        except (RuntimeWarning, FloatingPointError):
            # Absurd values overflow, and warnings are errors here.
            return None
        # NaN counts as the largest and as the smallest; this is the cheapest look at all values.
        return z if z.item(z.argmax()) < self.clip and z.item(z.argmin()) > -self.clip else None

    def _bounded(self, y: Array) -> tuple[Array, Array]:
        """Return `y` with NaN for whatever is unknown, counting it; and `y` scaled, with 0 there, and clipped."""
        self._far = True
        bad = ~(np.abs(y) < IMPLAUSIBLE)
        gaps = bool(bad.any())
        if gaps:
            self.unknown += bad
            self._gaps = True
            y = np.where(bad, np.nan, y)
        z = np.minimum(y, self._upper)
        np.maximum(z, self._lower, out=z)
        z -= self.mean
        z *= self._inverse
        if gaps:
            z[bad] = 0.0
        return y, z

    def _start(self, features: int) -> None:
        self.mean = np.zeros(features)
        self.variance = np.zeros(features)
        self.seen = np.zeros(features)
        self.unknown = np.zeros(features, np.int64)
        self._block = room(self.block_size, features)
        self._slots = list(self._block)
        self._bound()

    def _take(self) -> None:
        """Fold the vectors held into the statistics."""
        rows = self._block[: self._held]
        if self._far and self.samples > EARLY:
            np.minimum(rows, self.mean + self._reach, out=rows)
            np.maximum(rows, self.mean - self._reach, out=rows)
        rows -= self.mean
        count: Array | float = float(self._held)
        if self._gaps:
            known = ~np.isnan(rows)
            rows[~known] = 0.0
            count = known.sum(axis=0, dtype=np.float64)
        first = np.add.reduce(rows)
        np.square(rows, out=rows)
        fold(self.mean, self.variance, self.seen, first, np.add.reduce(rows), count, self.weight)
        self._bound()
        self._held = 0
        self._gaps = self._far = False

    def _bound(self) -> None:
        """Find each metric's factor, and the values beyond which it is clipped."""
        self._reach = reach = self.deviation
        self._inverse = np.divide(1.0, reach)
        if self.samples <= EARLY or self._gaps:
            # Seen once, a metric has no scale yet: its first move must not look infinite.
            fresh = self.seen < 2
            self._inverse[fresh] = 0.0
            reach[fresh] = IMPLAUSIBLE
        reach *= self.clip
        self._upper = self.mean + reach
        self._lower = self.mean - reach
        # Where implausible values would not be clipped, they have to be looked for.
        highest = self._upper.item(self._upper.argmax())
        self._wary = not (highest < IMPLAUSIBLE and self._lower.item(self._lower.argmin()) > -IMPLAUSIBLE)
        reach *= OUTER

    def __setstate__(self, state: dict[str, Any]) -> None:
        # A copy's rows are of its own table; copied one by one they would belong to none.
        self.__dict__.update(state)
        self._slots = list(self._block)

    def state(self) -> dict[str, Any]:
        """Return everything held, by name."""
        return {
            "mean": self.mean,
            "variance": self.variance,
            "seen": self.seen,
            "unknown": self.unknown,
            "block": self._block[: self._held],
            "gaps": self._gaps,
            "samples": self.samples,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        if not state["samples"]:
            return
        self._start(len(state["mean"]))
        self.mean = state["mean"]
        self.variance = state["variance"]
        self.seen = state["seen"]
        self.unknown = state["unknown"]
        self.samples = int(state["samples"])
        self._gaps = True  # so that metrics not seen yet are found again
        self._bound()
        self._gaps = bool(state["gaps"])
        self._held = len(state["block"])
        self._far = True
        self._block[: self._held] = state["block"]


def weight_of(half_life: float) -> float:
    """Return the weight of the newest value in an average with this half-life in timesteps.

    Examples
    --------
    >>> weight_of(1.0)
    0.5
    """
    return float(1.0 - 0.5 ** (1.0 / half_life))


def fold(
    mean: Array,
    variance: Array,
    seen: Array,
    first: Array,
    second: Array,
    count: Array | float,
    weight: float,
) -> None:
    """Fold `count` new values into running statistics, in place, for arrays of any one shape.

    `first` and `second` are the sums of their distances from `mean`, and of the squares. While young, every value
    weighs the same; later the past fades by `weight` a value.
    """
    seen += count
    # One number is the count of all, and at least 1; among several some may be 0.
    alike = isinstance(count, float)
    share = np.maximum(count / (seen if alike else np.maximum(seen, 1.0)), 1.0 - (1.0 - weight) ** count)
    per = 1.0 / (count if alike else np.maximum(count, 1.0))
    step = first * per
    new = second * per
    new -= variance
    new -= share * np.square(step)
    variance += share * new
    np.maximum(variance, 0.0, out=variance)
    mean += share * step


def spread(mean: Array, variance: Array) -> Array:
    """Return the deviation with its floors, for statistics of any shape."""
    floor = np.abs(mean)
    floor *= RELATIVE_FLOOR
    np.maximum(floor, FLOOR, out=floor)
    return np.maximum(np.sqrt(variance), floor)


class FleetScaling:
    """Bring the metrics of many nodes to one scale, each by its own past, with the settings of `like`.

    Memory: `nodes * features * 12` floats.
    """

    def __init__(self, nodes: int, features: int, like: Scaling) -> None:
        self.clip = like.clip
        self.block_size = like.block_size
        self.weight = like.weight
        shape = (nodes, features)
        self.mean = np.zeros(shape)
        self.variance = np.zeros(shape)
        self.seen = np.zeros(shape)
        self.unknown = np.zeros(shape, np.int64)
        self.samples = np.zeros(nodes, np.int64)
        self._first = np.zeros(shape)
        self._second = np.zeros(shape)
        self._missing = np.zeros(shape)
        self._inverse = np.zeros(shape)
        self._upper = np.full(shape, IMPLAUSIBLE)
        self._lower = np.full(shape, -IMPLAUSIBLE)
        self._outer = np.full(shape, np.inf)

    def scale(self, Y: Array, at: At) -> Array:
        """Return the vectors `Y` `(m, d)` of the nodes `at`, scaled by what came before them."""
        self.samples[at] += 1
        bad = None
        if not (Y.max(initial=0.0) < IMPLAUSIBLE and Y.min(initial=0.0) > -IMPLAUSIBLE):
            bad = ~(np.abs(Y) < IMPLAUSIBLE)
            self.unknown[at] += bad
            self._missing[at] += bad
            Y = np.where(bad, self.mean[at], Y)
        mean = self.mean[at]
        Z: Array = np.minimum(Y, self._upper[at])
        np.maximum(Z, self._lower[at], out=Z)
        Z -= mean
        Z *= self._inverse[at]
        if bad is not None:
            Z[bad] = 0.0
        self._gather(Y - mean, at)
        due = np.maximum(self.samples[at] - EARLY, 0) % self.block_size == 0
        if due.any():
            self._take(_indices(at, due))
        return Z

    def _gather(self, away: Array, at: At) -> None:
        """Add vectors, as distances from the mean, to the sums; what is unknown lies at 0."""
        outer = self._outer[at]
        np.minimum(away, outer, out=away)
        np.maximum(away, -outer, out=away)
        self._first[at] += away
        self._second[at] += np.square(away, out=away)

    def _take(self, nodes: NDArray[np.intp]) -> None:
        """Fold the sums of these nodes into their statistics."""
        early = (self.samples[nodes] <= EARLY)[:, None]
        count = np.where(early, 1.0, float(self.block_size)) - self._missing[nodes]
        mean, variance, seen = self.mean[nodes], self.variance[nodes], self.seen[nodes]
        fold(mean, variance, seen, self._first[nodes], self._second[nodes], count, self.weight)
        self.mean[nodes], self.variance[nodes], self.seen[nodes] = mean, variance, seen
        self._first[nodes] = 0.0
        self._second[nodes] = 0.0
        self._missing[nodes] = 0.0
        self._bound(nodes)

    def _bound(self, nodes: NDArray[np.intp]) -> None:
        """Find the factors of these nodes' metrics, and the values beyond which they are clipped."""
        mean = self.mean[nodes]
        reach = spread(mean, self.variance[nodes])
        inverse = 1.0 / reach
        fresh = self.seen[nodes] < 2
        inverse[fresh] = 0.0
        reach[fresh] = IMPLAUSIBLE
        reach *= self.clip
        self._inverse[nodes] = inverse
        self._upper[nodes] = mean + reach
        self._lower[nodes] = mean - reach
        # While young every vector enters as it is.
        self._outer[nodes] = np.where((self.samples[nodes] < EARLY)[:, None], np.inf, reach * OUTER)


def _indices(at: At, chosen: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return the node numbers of those `chosen` among `at`."""
    positions = np.flatnonzero(chosen)
    return positions + (at.start or 0) if isinstance(at, slice) else at[positions]
