"""The smoothed z-score for many nodes at once; see `prontosched.spikes`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from prontosched.spikes import CANCELLED, REFRESH, RELATIVE_FLOOR, SpikeDetector
from prontosched.subspace import Array

At = slice | NDArray[np.intp]


class FleetSpikeDetector:
    """Tell for each projection of M nodes whether it leaves its recent range.

    Parameters
    ----------
    nodes, width
        M, and the largest number of projections of a node.
    like
        Whose lag, threshold, influence and floor to use.

    Notes
    -----
    Memory: `nodes * width * (lag + 3)` floats.
    """

    def __init__(self, nodes: int, width: int, like: SpikeDetector) -> None:
        self.lag = like.lag
        self.threshold = like.threshold
        self.influence = like.influence
        self.floor = like.floor
        shape = (nodes, width)
        # Rings of values, each less its reference; and sums over them, of values and of squares.
        self._values = np.zeros((like.lag, nodes, width))
        self._reference = np.zeros(shape)
        self._first = np.zeros(shape)
        self._second = np.zeros(shape)
        self._held = np.zeros(nodes, np.intp)
        self._next = np.zeros(nodes, np.intp)
        self._since = np.zeros(nodes, np.intp)

    def refill(self, nodes: NDArray[np.intp], window: Array, held: int) -> None:
        """Replace the recent values of `nodes` by `window` `(m, width, held)`, oldest first."""
        self._values[:held, nodes] = window.transpose(2, 0, 1)
        self._reference[nodes] = 0.0
        self._held[nodes] = held
        self._next[nodes] = held % self.lag
        self._since[nodes] = 0
        if held == self.lag:
            self._measure(nodes)

    def _measure(self, nodes: NDArray[np.intp]) -> None:
        values = self._values[:, nodes]
        shift = np.sort(values, axis=0)[self.lag // 2]
        values -= shift
        self._values[:, nodes] = values
        self._reference[nodes] += shift
        self._first[nodes] = values.sum(axis=0)
        self._second[nodes] = np.square(values, out=values).sum(axis=0)
        self._since[nodes] = 0

    def detect(
        self, P: Array, at: At, embedded: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int8], NDArray[np.bool_]]:
        """Return −1, 0 or +1 for the projections `(m, width)` of the nodes `at`, and which are warm.

        Nodes that are not `embedded` are left alone.
        """
        numbers = np.arange(at.start, at.stop) if isinstance(at, slice) else at
        warm = embedded & (self._held[at] == self.lag)
        slot = self._next[at]
        uniform = bool(slot.size) and bool((slot == slot[0]).all())
        place: tuple[int | NDArray[np.intp], At]
        place = (int(slot[0]), at) if uniform else (slot, numbers)
        before = (place[0] - 1) % self.lag

        lag, limit = self.lag, self.threshold * self.threshold
        reference, first, second = self._reference[at], self._first[at], self._second[at]
        value = P - reference
        # Both sides times lag squared: distance from the mean, and variance.
        away = lag * value - first
        spiked = np.square(away) > limit * (lag * second - first * first)
        spiked &= warm[:, None]
        if spiked.any():
            least = np.maximum(RELATIVE_FLOOR * np.abs(reference + first / lag), self.floor)
            spiked &= np.abs(away) > (lag * self.threshold) * least
            damped = self.influence * value + (1.0 - self.influence) * self._values[before, place[1]]
            value = np.where(spiked, damped, value)
        spikes = np.where(spiked, np.copysign(1.0, away), 0.0).astype(np.int8)
        old = self._values[place]
        old = old.copy() if uniform else old
        if embedded.all():
            self._values[place] = value
        else:
            self._values[slot[embedded], numbers[embedded]] = value[embedded]
        self._advance(numbers, at, old, value, embedded, warm)
        return spikes, warm

    def _advance(
        self,
        numbers: NDArray[np.intp],
        at: At,
        old: Array,
        new: Array,
        embedded: NDArray[np.bool_],
        warm: NDArray[np.bool_],
    ) -> None:
        """Move the running sums on by one value, measuring afresh where they are not to be trusted."""
        # A node that is not warm is added up when it becomes so: what stands here until then is not used.
        first = self._first[at] + (new - old)
        self._first[at] = first
        np.square(old, out=old)
        second = self._second[at] + (np.square(new) - old)
        self._second[at] = second
        moved = numbers if embedded.all() else numbers[embedded]
        self._next[moved] = (self._next[moved] + 1) % self.lag
        self._since[moved] += 1
        filling = numbers[embedded & ~warm]
        self._held[filling] += 1
        first = np.square(first)
        lost = (second < CANCELLED * old) | (self.lag * second - first < CANCELLED * first)
        afresh = lost.any(axis=1) | (self._since[at] >= REFRESH)
        afresh = (afresh & warm) | (embedded & ~warm & (self._held[at] == self.lag))
        if afresh.any():
            self._measure(numbers[afresh])
