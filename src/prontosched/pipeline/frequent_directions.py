"""Frequent Directions: a sketch of rows that is squeezed when it is full."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from prontosched.pipeline.embedding import VectorEmbedding, check_rank
from prontosched.subspace import Array, Subspace, leading_exactly, room

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

    def follow(self, Y: Array) -> tuple[Array, Array]:
        """Take in the vectors `(n, d)` in order; return what was known before each.

        Directions are rows `(n, rank, d)` and strengths `(n, rank)`, 0 where there are fewer. They are those of
        `subspace` to about ten digits, found for all vectors at once.
        """
        sketches = np.zeros((len(Y), 2 * self.rank, Y.shape[1]))
        for step, y in enumerate(Y):
            if self._used:
                sketches[step, : self._used] = self._rows[: self._used]
            self.learn_one(y)
        rank = min(self.rank, Y.shape[1])
        rows, strengths = np.zeros((len(Y), rank, Y.shape[1])), np.zeros((len(Y), rank))
        squares, vectors = np.linalg.eigh(np.matmul(sketches, sketches.swapaxes(1, 2)))
        squares, vectors = squares[:, ::-1], vectors[:, :, ::-1]
        # Directions whose squares nearly agree, or are weak, need an SVD.
        apart = squares[:, :rank] - np.pad(squares, ((0, 0), (0, 1)))[:, 1 : rank + 1]
        clear = (apart > GRAM_CLEAR * squares[:, :1]).all(axis=1)
        strengths[clear] = np.sqrt(squares[clear, :rank])
        along = np.matmul(vectors[clear, :, :rank].swapaxes(1, 2), sketches[clear])
        rows[clear] = along / strengths[clear, :, None]
        for place in np.flatnonzero(~clear):
            found = leading_exactly(sketches[place], rank)
            if found is not None:
                rows[place, : len(found[0])], strengths[place, : len(found[1])] = found
        return rows, strengths

    def _squeeze(self) -> None:
        _, strengths, directions = np.linalg.svd(self._rows, full_matrices=False)
        kept = min(self.rank, strengths.size)
        # The weakest kept direction pays for all: its square is taken from each.
        floor = strengths[kept - 1] ** 2 if strengths.size >= self.rank else 0.0
        shrunk = np.sqrt(np.maximum(strengths[:kept] ** 2 - floor, 0.0))
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
