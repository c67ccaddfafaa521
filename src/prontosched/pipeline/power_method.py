"""The block power method: multiply by the covariance of each block, orthonormalise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prontosched.pipeline.embedding import VectorEmbedding, check_rank, finite_all
from prontosched.subspace import Array, Subspace


class PowerMethod(VectorEmbedding):
    """Turn a basis towards the leading directions, one block at a time.

    It yields no singular values: 1, 1/2, 1/3, … stand in for them. Until the first
    block is finished there is only the starting basis, which knows nothing.

    Parameters
    ----------
    rank
        Directions to follow.
    block_size
        Vectors per update; the number of metrics when not given, as the method's
        theory asks for at least that many.
    initial_basis
        Orthonormal start `(d, rank)`; a seeded random one when not given.
    seed
        Of the random start.

    Notes
    -----
    Memory: `d * 2 * rank` floats.

    Examples
    --------
    >>> power = PowerMethod(rank=1, block_size=2)
    >>> power.learn_many(np.array([[3.0, 6.0], [4.0, 8.0]]))
    >>> abs(power.subspace.basis[:, 0]).round(2)
    array([0.6, 0.8])

    References
    ----------
    Mitliagkas, Caramanis, Jain: Memory limited, streaming PCA, NeurIPS 2013.
    """

    name = "power-method"
    restless = False

    def __init__(
        self,
        rank: int = 4,
        block_size: int | None = None,
        *,
        initial_basis: Array | None = None,
        seed: int = 0,
    ) -> None:
        self.rank = check_rank(rank)
        if block_size is not None and block_size < 1:
            raise ValueError(f"block_size must be at least 1, got {block_size}")
        if initial_basis is not None and (initial_basis.ndim != 2 or initial_basis.shape[1] != rank):
            raise ValueError(f"initial_basis must be (d, {rank}), got {initial_basis.shape}")
        self.block_size = block_size
        self.seed = seed
        self.seen = 0
        self.subspace: Subspace | None = None
        self._product = np.zeros((0, 0))
        self._held = 0
        if initial_basis is not None:
            self._show(initial_basis.copy())

    @property
    def features(self) -> int:
        """Number of metrics, 0 before the first vector."""
        return self._product.shape[0]

    @property
    def samples(self) -> float:
        """One: the singular values are stand-ins, not sums over vectors."""
        return 1.0

    def _show(self, basis: Array) -> None:
        self.subspace = Subspace(basis, 1.0 / np.arange(1, basis.shape[1] + 1))
        self._product = np.zeros(basis.shape)
        self._held = 0

    def learn_one(self, y: Array) -> None:
        """Take in one telemetry vector of shape `(d,)`."""
        y = self._vector(y)
        if self.subspace is None:
            random = np.random.default_rng(self.seed).standard_normal(
                (y.shape[0], min(self.rank, y.shape[0]))
            )
            self._show(np.linalg.qr(random)[0])
        assert self.subspace is not None
        self._add(np.outer(y, y @ self.subspace.basis), 1)

    def follow(self, Y: Array) -> tuple[Array, Array, NDArray[np.bool_]]:
        """Take in the vectors `(n, d)` in order; return what was known before each.

        Directions are rows `(n, r, d)` and strengths `(n, r)`, all 0 before the first vector; the
        third marks the vectors that are the first to meet new directions.
        """
        rank = min(self.rank, Y.shape[1])
        rows, strengths = np.zeros((len(Y), rank, Y.shape[1])), np.zeros((len(Y), rank))
        turned = np.zeros(len(Y), bool)
        start = 0
        while start < len(Y):
            if self.subspace is None:
                self.learn_one(Y[start])
                start += 1
                continue
            part = Y[start : start + (self.block_size or Y.shape[1]) - self._held]
            stop = start + len(part)
            rows[start:stop], strengths[start:stop] = self.subspace.basis.T, self.subspace.singular_values
            turned[start] = self._held == 0
            part = finite_all(part)
            self._add(part.T @ (part @ self.subspace.basis), len(part))
            start = stop
        return rows, strengths, turned

    def _add(self, product: Array, vectors: int) -> None:
        """Add the product of some vectors with the directions, and end the block when it is full."""
        assert self.subspace is not None
        self._product += product
        self.seen += vectors
        self._held += vectors
        if self._held >= (self.block_size or len(product)):
            basis, strengths, _ = np.linalg.svd(self._product / self._held, full_matrices=False)
            # An idle block says nothing of direction: keep what is known.
            if strengths[0] > 0.0 and np.isfinite(strengths[0]):
                self._show(basis)
            else:
                self._show(self.subspace.basis)

    def settings(self) -> dict[str, Any]:
        """Return the constructor arguments, by name; the starting basis is part of the state."""
        return {"rank": self.rank, "block_size": self.block_size, "seed": self.seed}

    def state(self) -> dict[str, Any]:
        """Return everything learned, by name."""
        basis = np.zeros((0, 0)) if self.subspace is None else self.subspace.basis
        return {"basis": basis, "product": self._product, "held": self._held, "seen": self.seen}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        if state["basis"].size:
            self._show(state["basis"])
        self._product = state["product"]
        self._held = int(state["held"])
        self.seen = int(state["seen"])
