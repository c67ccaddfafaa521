"""Frequent Directions: a sketch of rows that is squeezed when it is full."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prontosched.pipeline.embedding import VectorEmbedding, check_rank, finite_all
from prontosched.subspace import Array, Subspace, leading, leading_exactly, room

# Distance between squares, over the largest, from which directions of a Gram matrix are good to ten digits.
GRAM_CLEAR = 1e-5


class FrequentDirections(VectorEmbedding):
    """Keep a small matrix whose Gram matrix is close to that of all vectors seen.

    With l rows after a squeeze, the Gram matrices differ by at most the energy
    outside the best k directions divided by l - k, for any k below l.

    Parameters
    ----------
    rank
        Directions to give, and rows left after a squeeze.
    authors
        Follow the schedule of the paper authors' public code: squeeze when all but
        one row are used, refill from the row after the gap, give only the first
        rows. Only to compare with it.

    Notes
    -----
    Memory: `d * 3 * rank` floats.
    Cost: one SVD of `2 * rank` rows per squeeze, and one whenever `subspace` is asked
    for after a new vector.

    Examples
    --------
    >>> sketch = FrequentDirections(rank=2)
    >>> sketch.learn_many(np.array([[3.0, 6.0, -3.0], [4.0, 8.0, -4.0]]))
    >>> abs(sketch.subspace.basis[:, 0]).round(2)
    array([0.6, 0.8])

    References
    ----------
    Ghashami, Liberty, Phillips, Woodruff: Frequent Directions, SIAM J. Comput. 2016.
    """

    name = "frequent-directions"

    def __init__(self, rank: int = 4, *, authors: bool = False) -> None:
        self.rank = check_rank(rank)
        self.authors = authors
        self.seen = 0
        self._rows = np.zeros((0, 0))
        self._used = 0
        self._subspace: Subspace | None = None
        self._fresh = True

    @property
    def features(self) -> int:
        """Number of metrics, 0 before the first vector."""
        return self._rows.shape[1]

    @property
    def samples(self) -> float:
        """Vectors behind the singular values: all of them."""
        return float(self.seen)

    @property
    def subspace(self) -> Subspace | None:
        """The leading directions of the sketch, None until a vector was not zero."""
        if not self._fresh:
            rows = self._rows[: self.rank if self.authors else self._used]
            found = leading_exactly(rows, self.rank)
            self._subspace = None if found is None else Subspace(found[0].T, found[1])
            self._fresh = True
        return self._subspace

    def learn_one(self, y: Array) -> None:
        """Take in one telemetry vector of shape `(d,)`."""
        y = self._vector(y)
        if not self._rows.size:
            self._rows = room(2 * self.rank, y.shape[0])
        if self._used >= len(self._rows) - self.authors:
            self._squeeze()
        self._rows[self._used] = y
        self._used += 1
        self.seen += 1
        self._fresh = False

    def _squeeze(self) -> None:
        _, strengths, directions = np.linalg.svd(self._rows, full_matrices=False)
        kept = min(self.rank, strengths.size)
        # The weakest kept direction pays for all: its square is taken from each.
        squares = strengths[:kept] ** 2
        floor = squares[-1] if strengths.size >= self.rank else 0.0
        shrunk = np.sqrt(np.maximum(squares - floor, 0.0))
        self._rows[:] = 0.0
        self._rows[:kept] = shrunk[:, None] * directions[:kept]
        # The last kept row is now zero: the next vector may have its place.
        self._used = self.rank if self.authors else int(np.count_nonzero(shrunk))

    def settings(self) -> dict[str, Any]:
        """Return the constructor arguments, by name."""
        return {"rank": self.rank, "authors": self.authors}

    def state(self) -> dict[str, Any]:
        """Return everything learned, by name."""
        return {"rows": self._rows, "used": self._used, "seen": self.seen}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        self._rows = state["rows"]
        self._used = int(state["used"])
        self.seen = int(state["seen"])
        self._fresh = self.seen == 0


class FrequentDirectionsFleet:
    """Frequent Directions on M nodes at once, for replays: what M of `FrequentDirections` would have.

    Parameters
    ----------
    like
        Whose rank to use.
    """

    def __init__(self, nodes: int, features: int, like: FrequentDirections) -> None:
        self._rank = like.rank
        self._sketches = np.zeros((nodes, 2 * like.rank, features))
        self._used = np.zeros(nodes, np.int64)

    def follow(self, Y: Array, sizes: NDArray[np.int64]) -> tuple[Array, Array]:
        """Learn the first of the vectors `(n, M, d)` of each node, as many as `sizes` says.

        Returns what was known before each vector: directions as rows `(n, M, r, d)`, and their strengths
        `(n, M, r)`, 0 where there are fewer. They are those of `FrequentDirections.subspace` to about ten digits.
        """
        steps, nodes, features = Y.shape
        rank = min(self._rank, features)
        rows, strengths = np.zeros((steps, nodes, rank, features)), np.zeros((steps, nodes, rank))
        here, least = np.arange(nodes), sizes.min()
        at: Any = slice(0, nodes)
        for step, y in enumerate(finite_all(Y)):
            if step >= least:
                at = here = np.flatnonzero(step < sizes)
            sketches = self._sketches[at, : max(rank + 1, self._used[here].max(initial=0))]
            rows[step, at], strengths[step, at] = _strongest(sketches, rank)
            full = here[self._used[here] == 2 * self._rank]
            if full.size:
                self._squeeze(full)
            self._sketches[here, self._used[here]] = y[at]
            self._used[here] += 1
        return rows, strengths

    def _squeeze(self, nodes: NDArray[np.int64]) -> None:
        _, strengths, directions = np.linalg.svd(self._sketches[nodes], full_matrices=False)
        kept = strengths[:, : self._rank]
        squares = kept**2
        floor = squares[:, -1:] if kept.shape[1] == self._rank else 0.0
        shrunk = np.sqrt(np.maximum(squares - floor, 0.0))
        self._sketches[nodes] = 0.0
        self._sketches[nodes, : kept.shape[1]] = shrunk[..., None] * directions[:, : kept.shape[1]]
        self._used[nodes] = np.count_nonzero(shrunk, axis=1)


def _strongest(sketches: Array, rank: int) -> tuple[Array, Array]:
    """Return directions and strengths of a stack of sketches, each as `leading_exactly` would."""
    squares, vectors, _ = leading(np.matmul(sketches, sketches.swapaxes(1, 2)), rank)
    squares, vectors = squares[:, ::-1], vectors[:, :, : -rank - 1 : -1]
    # Directions whose squares nearly agree, or are weak, need an SVD.
    apart = squares[:, :rank] - squares[:, 1 : rank + 1]
    clear = apart.min(axis=1) > GRAM_CLEAR * squares[:, 0]
    strengths = np.sqrt(np.where(clear[:, None], squares[:, :rank], 1.0))
    rows = np.matmul(vectors.swapaxes(1, 2), sketches)
    rows /= strengths[..., None]
    for place in np.flatnonzero(~clear):
        rows[place], strengths[place] = 0.0, 0.0
        found = leading_exactly(sketches[place], rank)
        if found is not None:
            rows[place, : len(found[0])], strengths[place, : len(found[1])] = found
    return rows, strengths
