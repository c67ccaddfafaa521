"""What many nodes project on, as arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from prontosched.subspace import Array, Subspace


class Shown:
    """Directions of M nodes.

    Attributes
    ----------
    rows
        Aligned directions as rows, `(M, width, d)`; zero beyond a node's rank.
    strengths
        Singular values `(M, width)`; zero beyond a node's rank.
    ranks
        Directions shown, `(M,)`; 0 while a node has no subspace.
    """

    rows: Array
    strengths: Array
    ranks: NDArray[np.intp]

    def subspace(self, node: int) -> Subspace | None:
        """Return one node's subspace."""
        rank = int(self.ranks[node])
        if not rank:
            return None
        return Subspace(self.rows[node, :rank].T.copy(), self.strengths[node, :rank].copy())

    def project(self, Z: Array, at: slice | NDArray[np.intp]) -> Array:
        """Return the projections `(m, width)` of the vectors `(m, d)` of the nodes `at`."""
        return np.asarray(np.matmul(self.rows[at], Z[:, :, None])[:, :, 0])
