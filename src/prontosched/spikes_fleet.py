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
    Memory: `nodes * width * (lag + 5)` floats.
    """

    def __init__(self, nodes: int, width: int, like: SpikeDetector) -> None:
        self.lag = like.lag
        self.threshold = like.threshold
        self.influence = like.influence
        self.floor = like.floor
        shape = (nodes, width)
        self._values = np.zeros((like.lag, nodes, width))
        self._reference = np.zeros(shape)
        self._first = np.zeros(shape)
        self._second = np.zeros(shape)
        self._mean = np.zeros(shape)
        self._variance = np.zeros(shape)
        self._held = np.zeros(nodes, np.intp)
        self._next = np.zeros(nodes, np.intp)
        self._since = np.zeros(nodes, np.intp)

    def refill(self, nodes: NDArray[np.intp], window: Array, held: int) -> None:
        """Replace the recent values of `nodes` by `window` `(m, width, held)`, oldest first."""
        self._values[:held, nodes] = window.transpose(2, 0, 1)
        self._held[nodes] = held
        self._next[nodes] = held % self.lag
        self._since[nodes] = 0
        if held == self.lag:
            self._measure(nodes)

    def _measure(self, nodes: NDArray[np.intp]) -> None:
        values = self._values[:, nodes]
        reference = values[0]
        away = values - reference
        first = away.sum(axis=0)
        second = np.square(away, out=away).sum(axis=0)
        mean = first / self.lag
        self._reference[nodes] = reference
        self._first[nodes] = first
        self._second[nodes] = second
        self._mean[nodes] = reference + mean
        self._variance[nodes] = second / self.lag - mean * mean
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

        mean, variance, reference = self._mean[at], self._variance[at], self._reference[at]
        away = P - mean
        least = np.maximum(RELATIVE_FLOOR * np.abs(mean), self.floor)
        spiked = np.square(away) > (self.threshold * self.threshold) * variance
        spiked &= np.abs(away) > self.threshold * least
        spiked &= warm[:, None]
        spikes = np.where(spiked, np.copysign(1.0, away), 0.0).astype(np.int8)
        value = P
        if spiked.any():
            damped = self.influence * P + (1.0 - self.influence) * self._values[before, place[1]]
            value = np.where(spiked, damped, P)
        old = self._values[place] - reference
        new = value - reference
        if embedded.all():
            self._values[place] = value
        else:
            self._values[slot[embedded], numbers[embedded]] = value[embedded]
        self._advance(numbers, at, old, new, embedded, warm)
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
        first = self._first[at] + (new - old)
        np.square(old, out=old)
        second = self._second[at] + (np.square(new) - old)
        mean = first / self.lag
        # A node that is not warm is measured when it becomes so: what stands here until then is not used.
        self._first[at] = first
        self._second[at] = second
        self._mean[at] = self._reference[at] + mean
        self._variance[at] = second / self.lag - mean * mean
        moved = numbers if embedded.all() else numbers[embedded]
        self._next[moved] = (self._next[moved] + 1) % self.lag
        self._since[moved] += 1
        filling = numbers[embedded & ~warm]
        self._held[filling] += 1
        afresh = (second < CANCELLED * old).any(axis=1) | (self._since[at] >= REFRESH)
        afresh = (afresh & warm) | (embedded & ~warm & (self._held[at] == self.lag))
        if afresh.any():
            self._measure(numbers[afresh])
