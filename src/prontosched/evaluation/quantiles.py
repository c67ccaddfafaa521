"""Quantiles of many endless streams at once, in memory that never grows.

Covers: the self-thinning buffer behind percentile truths and online thresholds.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from prontosched.subspace import Array

Mask = NDArray[np.bool_]


class RunningQuantiles:
    """Quantiles of everything each stream has shown so far.

    Every stream keeps at most `capacity` values. When they are full, every other
    one is dropped and from then on only every second (fourth, eighth, …) value is
    kept, so the buffer always covers the whole past evenly. With `stride_limit`
    the oldest values are overwritten once that stride is reached: a long memory
    instead of an endless one.

    Parameters
    ----------
    streams
        How many streams.
    capacity
        Values held per stream, even.
    stride_limit
        Largest stride; 0 for none.

    Notes
    -----
    Memory: `2 * streams * capacity` floats. Values are sorted once a sixty-fourth
    of them is new, so an answer may lag by that share.

    Examples
    --------
    >>> quantiles = RunningQuantiles(streams=1, capacity=8)
    >>> for value in range(101):
    ...     quantiles.learn(np.array([float(value)]))
    >>> float(quantiles.level(np.array([[0.5]]))[0, 0])
    48.0
    """

    def __init__(self, streams: int, capacity: int = 1024, *, stride_limit: int = 0) -> None:
        if capacity < 2 or capacity % 2:
            raise ValueError(f"capacity must be even and at least 2, got {capacity}")
        self.capacity = capacity
        self.stride_limit = stride_limit
        self.seen: NDArray[np.int64] = np.zeros(streams, np.int64)
        self._held: NDArray[np.int64] = np.zeros(streams, np.int64)
        self._stride: NDArray[np.int64] = np.ones(streams, np.int64)
        self._next: NDArray[np.int64] = np.zeros(streams, np.int64)
        self._fresh: NDArray[np.int64] = np.zeros(streams, np.int64)
        self._values = np.full((streams, capacity), np.inf)
        self._sorted = np.full((streams, capacity), np.inf)
        self._sorted_held: NDArray[np.int64] = np.zeros(streams, np.int64)
        self._offsets: NDArray[np.int64] = (np.arange(streams, dtype=np.int64) * capacity)[:, None]

    def learn(self, values: Array) -> None:
        """Take in one value per stream; NaN says that a stream has none now."""
        known = values == values  # NaN differs from itself: the cheapest test there is
        kept = known & (self.seen % self._stride == 0)
        self.seen += known
        rows = np.flatnonzero(kept)
        if not rows.size:
            return
        self._values[rows, self._next[rows]] = values[rows]
        self._next[rows] += 1
        self._fresh[rows] += 1
        self._held[rows] = np.maximum(self._held[rows], self._next[rows])
        full = rows[self._next[rows] == self.capacity]
        if full.size:
            self._make_room(full)
        # Few values are sorted at each step, many only when a sixty-fourth of them is new.
        due = rows[self._fresh[rows] * 64 >= self._held[rows]]
        if due.size:
            width = int(self._held[due].max())
            self._sorted[due, :width] = np.sort(self._values[due, :width], axis=1)
            self._sorted_held[due] = self._held[due]
            self._fresh[due] = 0

    def level(self, share: Array) -> Array:
        """Return the values below which `share` of each stream lies.

        `share` has shape `(streams, n)`. Streams without values give NaN.
        """
        held = self._sorted_held[:, None]
        index = np.minimum((share * held).astype(np.int64), held - 1)
        np.maximum(index, 0, out=index)
        found: Array = self._sorted.ravel().take(index + self._offsets)
        if not self._sorted_held.all():
            found[self._sorted_held == 0] = np.nan
        return found

    def _make_room(self, full: NDArray[np.int64]) -> None:
        limit = self.stride_limit
        overwrite = full[self._stride[full] >= limit] if limit else full[:0]
        self._next[overwrite] = 0
        thin = full[self._stride[full] < limit] if limit else full
        half = self.capacity // 2
        self._values[thin, :half] = self._values[thin, ::2]
        self._values[thin, half:] = np.inf
        self._held[thin] = half
        self._next[thin] = half
        self._stride[thin] *= 2
