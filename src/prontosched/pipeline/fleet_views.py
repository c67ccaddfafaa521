"""Adopted global views of the nodes of a fleet, as arrays.

For each node the meaning is that of `prontosched.pipeline.node.Node.adopt`: what a node
learned itself stays apart in `prontosched.pipeline.fpca_fleet`, and what it
projects on is both, merged, for as long as the view counts.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from prontosched.per_node import Nodes
from prontosched.pipeline.adoption import ADOPTED_SAMPLES, LEAST_WEIGHT, adopted_weight
from prontosched.pipeline.fpca_fleet import FPCAEdgeFleet
from prontosched.pipeline.shown import Shown
from prontosched.subspace import Array, Subspace, align_signs, leading, merge

# Nodes merged per pass: what one pass touches then stays in the cache.
CHUNK = 256

At = slice | NDArray[np.intp]
Mask = NDArray[np.bool_]


class FleetViews(Shown):
    """Hold what the nodes of a fleet project on while some of them have an adopted view.

    Parameters
    ----------
    embedding
        What the nodes learn themselves.

    Attributes
    ----------
    rows, strengths, ranks
        As those of the embedding; merged with the view where a node has one.

    Notes
    -----
    Memory: `nodes * features * width` floats, and `features * rank` for each view held.
    """

    def __init__(self, embedding: FPCAEdgeFleet) -> None:
        self.embedding = embedding
        self.rows = embedding.rows.copy()
        self.strengths = embedding.strengths.copy()
        self.ranks = embedding.ranks.copy()
        self._adopted: dict[int, Subspace] = {}
        nodes = len(self.ranks)
        self._has = np.zeros(nodes, np.bool_)
        self._due = np.zeros(nodes, np.bool_)
        # Those whose view has been projected on.
        self._apart = np.zeros(nodes, np.bool_)

    def __len__(self) -> int:
        return len(self._adopted)

    def adopt(self, node: int, view: Subspace, samples: float, *, fresh: bool) -> None:
        """Give one node a view; it counts from the next `refresh` on.

        `fresh` tells that the node has projected on nothing yet.
        """
        features = self.rows.shape[2]
        if not samples > 0:
            raise ValueError(f"samples must be positive, got {samples}")
        if view.features != features:
            raise ValueError(
                f"a global view must have {features} metrics as this fleet has, got {view.features}: "
                "align it to the fleet's metrics first"
            )
        self._adopted[node] = Subspace(view.basis, view.singular_values / np.sqrt(samples))
        self._has[node] = self._due[node] = True
        if fresh:
            # What it learned since has no say in the signs of its directions.
            self.ranks[node] = 0

    def apart(self, at: Nodes) -> Mask:
        """Tell which of the nodes `at` project on something else than their own subspaces."""
        return self._apart[at]

    def forget(self, at: Nodes) -> None:
        """Drop the views of the nodes `at`, which have become others."""
        for node in at[self._has[at]].tolist():
            del self._adopted[node]
        self._has[at] = self._due[at] = self._apart[at] = False
        self._show_own(at)

    def learned(self, changed: Nodes) -> None:
        """Take note of the nodes whose own subspace changed."""
        has = self._has[changed]
        self._due[changed[has]] = True
        self._show_own(changed[~has])

    def refresh(self, here: Mask, timestep: NDArray[np.int64]) -> Iterator[tuple[Nodes, Array]]:
        """Merge the views of the nodes `here` with what these learned since.

        Yields the nodes that project on something new, with the projections of their last
        vectors on it, `(m, width, held)`, oldest first.
        """
        due = np.flatnonzero(self._due & here)
        self._due[due] = False
        for start in range(0, due.size, CHUNK):
            turned = self._turn(due[start : start + CHUNK], timestep)
            held = np.minimum(timestep[turned], self.embedding.lag)
            for count in np.unique(held):
                nodes = turned[held == count]
                recent = self.embedding.latest(nodes)
                yield nodes, np.matmul(self.rows[nodes], recent.swapaxes(1, 2))

    def samples(self) -> Array:
        """Vectors behind the singular values, `(M,)`."""
        own = self.embedding.samples()
        return np.where(self._has & (own == 0.0), ADOPTED_SAMPLES, own)

    def _turn(self, nodes: Nodes, timestep: NDArray[np.int64]) -> Nodes:
        weight = adopted_weight(timestep[nodes].astype(np.float64))
        young = self.embedding.ranks[nodes] == 0
        faded = ~young & (weight < LEAST_WEIGHT)
        self._show_alone(nodes[young])
        self._show_merged(nodes[~young & ~faded], weight[~young & ~faded])
        return np.sort(np.concatenate([nodes[~faded], self._let_go(nodes[faded])]))

    def _show_own(self, nodes: Nodes) -> None:
        """Show the own subspaces of nodes without a view."""
        self.rows[nodes] = self.embedding.rows[nodes]
        self.strengths[nodes] = self.embedding.strengths[nodes]
        self.ranks[nodes] = self.embedding.ranks[nodes]

    def _show_alone(self, nodes: Nodes) -> None:
        """Show the views of nodes that have no subspace of their own yet."""
        if not nodes.size:
            return
        width = self.rows.shape[1]
        rows = np.zeros((nodes.size, *self.rows.shape[1:]))
        strengths = np.zeros((nodes.size, width))
        for i, node in enumerate(nodes.tolist()):
            view = self._adopted[node]
            rank = min(view.rank, width)
            rows[i, :rank] = view.basis[:, :rank].T
            strengths[i, :rank] = view.singular_values[:rank]
        self._show(nodes, rows, strengths)
        self._apart[nodes] = True

    def _show_merged(self, nodes: Nodes, weight: Array) -> None:
        """Show views and own subspaces as one, of each node's own rank."""
        if not nodes.size:
            return
        own, width = self.embedding, self.rows.shape[1]
        views = [self._adopted[node] for node in nodes.tolist()]
        most = max(view.rank for view in views)
        wide = np.zeros((nodes.size, most + width, self.rows.shape[2]))
        np.multiply(own.rows[nodes], own.strengths[nodes][:, :, None], out=wide[:, most:])
        faded = [
            Subspace(v.basis, v.singular_values * w) for v, w in zip(views, np.sqrt(weight), strict=True)
        ]
        for i, view in enumerate(faded):
            wide[i, : view.rank] = (view.basis * view.singular_values).T
        keep = own.ranks[nodes]
        squares, vectors, trusted = leading(np.matmul(wide, wide.swapaxes(1, 2)), keep)
        kept = (np.arange(width) < keep[:, None]) & trusted[:, None]
        strengths = np.sqrt(np.where(kept, squares[:, : -width - 1 : -1], 0.0))
        rows = np.matmul(vectors[:, :, -width:].swapaxes(1, 2), wide)[:, ::-1]
        rows = np.where(kept[:, :, None], rows / np.where(kept, strengths, 1.0)[:, :, None], 0.0)
        for i in np.flatnonzero(~trusted).tolist():
            one = merge(faded[i], own.subspace(int(nodes[i])), rank=int(keep[i]))
            assert one is not None
            rows[i, : one.rank], strengths[i, : one.rank] = one.basis.T, one.singular_values
        self._show(nodes, rows, strengths)
        self._apart[nodes] = True

    def _let_go(self, nodes: Nodes) -> Nodes:
        """Forget views that have faded; return the nodes that had projected on theirs."""
        own, apart = self.embedding, self._apart[nodes]
        over, never = nodes[apart], nodes[~apart]
        for node in nodes.tolist():
            del self._adopted[node]
        self._has[nodes] = self._apart[nodes] = False
        self.ranks[never] = own.ranks[never]
        if over.size:
            # Own directions go on along those that were shown, here and at the next block.
            own.turn(over, self._show(over, own.rows[over], own.strengths[over]))
        return over

    def _show(self, nodes: Nodes, rows: Array, strengths: Array) -> Array:
        """Take directions into use with the signs of those before, which are returned."""
        ranks = np.count_nonzero(strengths, axis=1)
        known = np.arange(rows.shape[1]) < self.ranks[nodes][:, None]
        signs = align_signs(rows, self.rows[nodes] * known[:, :, None])
        self.rows[nodes] = rows * signs[:, :, None]
        self.strengths[nodes] = strengths
        self.ranks[nodes] = ranks
        return signs
