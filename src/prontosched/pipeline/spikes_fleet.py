"""The smoothed z-score for many nodes at once; see `prontosched.pipeline.spikes`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from prontosched.per_node import Nodes, PerNode, Rows, fitting
from prontosched.pipeline.spikes import CANCELLED, RELATIVE_FLOOR, ROUNDS, SpikeDetector
from prontosched.subspace import Array

At = slice | NDArray[np.intp]
# Deviations down to this share of the mean, both squared, are found in one pass.
NEARBY = 1e-3


class FleetSpikeDetector(PerNode):
    """Tell for each projection of M nodes whether it leaves its recent range.

    Parameters
    ----------
    nodes, width
        M, and the largest number of projections of a node.
    like
        Whose lag, threshold, influence and floor to use.

    Notes
    -----
    Memory: `nodes * width * (lag + 2)` floats.
    """

    PER_NODE: ClassVar[tuple[str, ...]] = ("_mean", "_square", "_held", "_next", "_rounds")

    def __init__(self, nodes: int, width: int, like: SpikeDetector) -> None:
        self.like = like
        self.lag = like.lag
        self.threshold = like.threshold
        self.influence = like.influence
        self.floor = like.floor
        shape = (nodes, width)
        # Rings of values; their means, and their squared distances from the mean, summed.
        self._values = np.zeros((like.lag, nodes, width))
        self._mean = np.zeros(shape)
        self._square = np.zeros(shape)
        self._held = np.zeros(nodes, np.intp)
        self._next = np.zeros(nodes, np.intp)
        self._rounds = np.zeros(nodes, np.intp)

    def like_new(self, nodes: int) -> FleetSpikeDetector:
        """Return the detector of so many nodes that have seen nothing."""
        return FleetSpikeDetector(nodes, self._mean.shape[1], self.like)

    def take(self, at: Nodes) -> dict[str, Rows]:
        """Return copies of all that is held of the nodes `at`, by name, nodes first."""
        return {**super().take(at), "values": self._values[:, at].swapaxes(0, 1)}

    def put(self, at: Nodes, state: Mapping[str, Rows]) -> None:
        """Give the nodes `at` what `take` returned."""
        super().put(at, state)
        shape = (at.size, self.lag, self._mean.shape[1])
        self._values[:, at] = fitting("values", state, shape, self._values.dtype).swapaxes(0, 1)

    def take_over(self, node: int, state: Mapping[str, Any]) -> None:
        """Give one node what `SpikeDetector.state` returned: it goes on here as it would have there."""
        self.clear(np.array([node]))
        windows: Array = state["windows"]
        width = len(windows)
        self._values[:, node, :width] = windows.T
        self._held[node], self._next[node] = state["held"], state["next"]
        self._rounds[node] = state["rounds"]
        if state["held"] == self.lag:
            self._mean[node, :width], self._square[node, :width] = state["sums"]

    def refill(self, nodes: NDArray[np.intp], window: Array, held: int) -> None:
        """Replace the recent values of `nodes` by `window` `(m, width, held)`, oldest first."""
        self._values[:held, nodes] = window.transpose(2, 0, 1)
        self._held[nodes] = held
        self._next[nodes] = held % self.lag
        self._rounds[nodes] = 0
        if held == self.lag:
            self._measure(nodes)

    def _measure(self, nodes: NDArray[np.intp]) -> None:
        values = self._values[:, nodes]
        mean = values.sum(axis=0) / self.lag
        offset = self.lag * mean * mean
        square = np.einsum("lmr,lmr->mr", values, values) - offset
        drowned = square < NEARBY * offset
        if drowned.any():
            away = values[:, drowned] - mean[drowned]
            square[drowned] = np.einsum("lk,lk->k", away, away)
        self._mean[nodes] = mean
        self._square[nodes] = square
        self._rounds[nodes] = 0

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

        mean, square = self._mean[at], self._square[at]
        away = P - mean
        spiked = np.square(away) > (self.threshold * self.threshold / self.lag) * square
        spiked &= warm[:, None]
        value = P
        if spiked.any():
            least = np.maximum(RELATIVE_FLOOR * np.abs(mean), self.floor)
            spiked &= np.abs(away) > self.threshold * least
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
        # A node that is not warm is measured when it becomes so: what stands here until then is not used.
        mean, square = self._mean[at], self._square[at]
        change = new - old
        step = change * (1.0 / self.lag)
        left = square + change * (new - mean - step + old - mean)
        self._mean[at] = mean + step
        self._square[at] = left
        moved = numbers if embedded.all() else numbers[embedded]
        self._next[moved] = (self._next[moved] + 1) % self.lag
        self._rounds[moved] += self._next[moved] == 0
        filling = numbers[embedded & ~warm]
        self._held[filling] += 1
        afresh = (left < CANCELLED * square).any(axis=1) | (self._rounds[at] >= ROUNDS)
        afresh = (afresh & warm) | (embedded & ~warm & (self._held[at] == self.lag))
        if afresh.any():
            self._measure(numbers[afresh])
