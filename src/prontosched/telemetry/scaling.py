"""Running scale per metric, so that bytes do not drown percents.

Covers: exponentially weighted mean and variance of every metric, a floor for
constant ones, clipping, and unknown values. For one node (`Scaling`); a fleet
does the same arithmetic with a leading axis (`prontosched.fleet`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from prontosched.subspace import Array

# Larger than any honest measurement; beyond it a value counts as unknown.
IMPLAUSIBLE = 1e18
# Until a metric was seen this often its statistics follow every vector as it is.
EARLY = 32
# After that one vector moves the statistics by at most this many clips: a single
# absurd value then doubles a variance instead of blinding the metric for days.
OUTLIER_CLIPS = 4.0
# Floors of the deviation: absolute, and relative to the mean.
FLOOR = 1e-9
RELATIVE_FLOOR = 1e-6


class Scaling:
    """Bring every metric to mean 0 and deviation 1, as seen from its own past.

    A vector is scaled before it enters the statistics. The statistics follow
    every vector at first, later one block of vectors at a time, which costs a
    tenth and is as good: a block is short against the half-life.

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
    mean, deviation
        Per metric, `(d,)`; NaN deviations never occur, constants have the floor.
    unknown
        Values that were NaN, infinite or beyond plausibility, counted per metric.
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

    def __init__(self, half_life: float = 600.0, clip: float = 8.0, block_size: int = 10) -> None:
        if not half_life > 0:
            raise ValueError(f"half_life must be positive, got {half_life}")
        if not clip > 0:
            raise ValueError(f"clip must be positive, got {clip}")
        if block_size < 1:
            raise ValueError(f"block_size must be at least 1, got {block_size}")
        self.half_life = half_life
        self.clip = clip
        self.block_size = block_size
        self.samples = 0
        self._weight = 1.0 - 0.5 ** (1.0 / half_life)
        self._ready = False

    def _start(self, features: int) -> None:
        self.mean = np.zeros(features)
        self.variance = np.zeros(features)
        self.seen = np.zeros(features)
        self.unknown = np.zeros(features, np.int64)
        self._inverse = np.zeros(features)
        self._block = np.zeros((self.block_size, features))
        self._held = 0
        self._gaps = False
        self._upper = np.full(features, self.clip)
        self._lower = -self._upper
        self._ready = True

    @property
    def deviation(self) -> Array:
        """Standard deviation per metric, with its floor."""
        return np.maximum(np.sqrt(self.variance), np.maximum(np.abs(self.mean) * RELATIVE_FLOOR, FLOOR))

    def scale(self, y: Array) -> Array:
        """Return `y` scaled by what came before it, then take it into the statistics.

        Unknown values come back as 0, the mean.
        """
        if not self._ready:
            self._start(y.shape[0])
        self.samples += 1
        if not y.dot(y) < IMPLAUSIBLE * IMPLAUSIBLE:  # also NaN
            y = self._sanitised(y)
        z = y - self.mean
        z *= self._inverse
        np.minimum(z, self._upper, z)
        np.maximum(z, self._lower, z)
        if self._gaps:
            z[np.isnan(y)] = 0.0
        self._block[self._held] = y
        self._held += 1
        if self._held == self.block_size or self.samples <= EARLY:
            self._take()
        return z

    def _sanitised(self, y: Array) -> Array:
        """Return `y` with NaN for whatever is unknown, counting it."""
        bad = ~(np.abs(y) < IMPLAUSIBLE)
        if not bad.any():
            return y
        self._gaps = True
        self.unknown += bad
        return np.where(bad, np.nan, y)

    def _take(self) -> None:
        """Fold the vectors held into the statistics."""
        fold(
            self._block[None, : self._held],
            self.mean[None],
            self.variance[None],
            self.seen[None],
            self._inverse[None],
            weight=self._weight,
            clip=self.clip,
            gaps=self._gaps,
        )
        self._held = 0
        self._gaps = False

    def state(self) -> dict[str, Any]:
        """Return everything held, by name."""
        if not self._ready:
            return {}
        return {
            "mean": self.mean,
            "variance": self.variance,
            "seen": self.seen,
            "unknown": self.unknown,
            "inverse": self._inverse,
            "block": self._block[: self._held],
            "gaps": self._gaps,
            "samples": self.samples,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        if not state:
            return
        self._start(len(state["mean"]))
        self.mean[:] = state["mean"]
        self.variance[:] = state["variance"]
        self.seen[:] = state["seen"]
        self.unknown[:] = state["unknown"]
        self._inverse[:] = state["inverse"]
        self._held = len(state["block"])
        self._block[: self._held] = state["block"]
        self._gaps = bool(state["gaps"])
        self.samples = int(state["samples"])


def fold(
    rows: Array,
    mean: Array,
    variance: Array,
    seen: Array,
    inverse: Array,
    *,
    weight: float,
    clip: float,
    gaps: bool,
) -> None:
    """Fold `(M, n, d)` vectors of M nodes into statistics `(M, d)`, in place.

    The n vectors enter together: their own mean and variance are combined with
    the past's, each past vector having faded by n steps. NaN stands for unknown
    and is looked for only where `gaps` says that there may be some.
    """
    away = rows - mean[:, None, :]
    reach = np.divide(OUTLIER_CLIPS * clip, inverse, out=np.full_like(inverse, np.inf), where=seen > EARLY)
    np.minimum(away, reach[:, None, :], out=away)
    np.maximum(away, -reach[:, None, :], out=away)
    count: Array | float = float(rows.shape[1])
    if gaps:
        known = ~np.isnan(away)
        away[~known] = 0.0
        count = known.sum(axis=1, dtype=np.float64)
    per = np.ones(rows.shape[1]) / rows.shape[1]
    step = per @ away
    np.square(away, out=away)
    square = per @ away
    if gaps:
        filled = rows.shape[1] / np.maximum(count, 1.0)
        step *= filled
        square *= filled

    seen += count
    # While young every vector weighs the same; later the past fades.
    share = np.maximum(count / np.maximum(seen, 1.0), 1.0 - (1.0 - weight) ** count)
    variance += share * (square - np.square(step) - variance)
    variance += share * (1.0 - share) * np.square(step)
    np.maximum(variance, 0.0, out=variance)
    mean += share * step
    floor = np.maximum(np.abs(mean) * RELATIVE_FLOOR, FLOOR)
    np.divide(1.0, np.maximum(np.sqrt(variance), floor), out=inverse)
    # A metric seen once has no scale yet: its first move must not look infinite.
    if gaps or seen[0, 0] < 2:
        inverse[seen < 2] = 0.0
