"""Running scale per metric for many nodes at once.

The arithmetic of `prontosched.telemetry.scaling` with a leading axis of nodes.
Where one node holds a block of vectors, a fleet holds their sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from prontosched.per_node import PerNode
from prontosched.subspace import Array
from prontosched.telemetry.scaling import EARLY, IMPLAUSIBLE, OUTER, Scaling, fold, spread

At = slice | NDArray[np.intp]


class FleetScaling(PerNode):
    """Bring the metrics of M nodes to one scale, each by its own past.

    Parameters
    ----------
    nodes, features
        M and d.
    like
        Whose half-life, clip and block size to use.

    Notes
    -----
    Memory: `nodes * features * 12` floats.
    """

    PER_NODE: ClassVar[tuple[str, ...]] = (
        *("mean", "variance", "seen", "unknown", "samples"),
        *("_first", "_second", "_missing", "_inverse", "_upper", "_lower", "_outer"),
    )

    def __init__(self, nodes: int, features: int, like: Scaling) -> None:
        self.like = like
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

    def like_new(self, nodes: int) -> FleetScaling:
        """Return the scaling of so many nodes that have seen nothing."""
        return FleetScaling(nodes, self.mean.shape[1], self.like)

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
        due = self.waiting(self.samples[at]) == 0
        if due.any():
            self._take(_indices(at, due))
        return Z

    def waiting(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many vectors, of so many seen, have not entered the statistics yet."""
        return np.asarray(np.maximum(samples - EARLY, 0) % self.block_size)

    def take_over(self, node: int, state: Mapping[str, Any]) -> None:
        """Give one node what `Scaling.state` returned: it goes on here as it would have there."""
        at = np.array([node])
        self.clear(at)
        if not state["samples"]:
            return
        self.mean[node], self.variance[node] = state["mean"], state["variance"]
        self.seen[node], self.unknown[node] = state["seen"], state["unknown"]
        self.samples[node] = state["samples"]
        self._bound(at)
        unknown = np.isnan(state["block"])
        self._missing[node] = unknown.sum(axis=0)
        for away in np.where(unknown, 0.0, state["block"] - self.mean[node]):
            self._gather(away[None], at)

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
