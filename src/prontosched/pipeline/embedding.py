"""Stage 2: what anything that follows a subspace through a stream must do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from prontosched.subspace import LARGEST, Array, Subspace


class Embedding(Protocol):
    """Follow the leading subspace of a stream in memory that never grows.

    Attributes
    ----------
    subspace
        What is known so far, None for nothing. The same object as long as nothing
        changed, so that `is` tells an update.
    kept
        The same with directions followed beyond those shown, where there are any.
    samples
        Vectors behind the singular values: all of them, or as many as are remembered.
    name
        How presets and saved state call this embedding.
    """

    name: str

    @property
    def subspace(self) -> Subspace | None:
        """The leading directions, None until there are any."""
        ...

    @property
    def kept(self) -> Subspace | None:
        """The leading directions and the spare ones."""
        ...

    @property
    def samples(self) -> float:
        """Vectors behind the singular values."""
        ...

    def learn_one(self, y: Array) -> None:
        """Take in one telemetry vector `(d,)`."""
        ...

    def learn_many(self, Y: Array) -> None:
        """Take in the columns of `(d, n)`, in order."""
        ...

    def settings(self) -> dict[str, Any]:
        """Return the constructor arguments, by name."""
        ...

    def state(self) -> dict[str, Any]:
        """Return everything learned, by name: numbers, strings and arrays."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        ...


class VectorEmbedding:
    """What embeddings share that learn vector by vector and follow no spare directions."""

    subspace: Any

    @property
    def kept(self) -> Subspace | None:
        """The directions shown: there are no others."""
        return self.subspace  # type: ignore[no-any-return]

    def learn_one(self, y: Array) -> None:
        """Take in one telemetry vector of shape `(d,)`."""
        raise NotImplementedError

    def learn_many(self, Y: Array) -> None:
        """Take in the columns of `(d, n)`, in order."""
        for y in np.ascontiguousarray(Y.T):
            self.learn_one(y)


def finite(y: Array, bound: float = LARGEST) -> Array:
    """Return a vector as it is when all values lie within the bound, else with 0 for those that do not."""
    try:
        # The cheapest look at all values; squares that overflow warn, and raise where warnings do.
        within = y.dot(y) < bound * bound
    except (RuntimeWarning, FloatingPointError):
        within = False
    return y if within else finite_all(y, bound)


def finite_all(Y: Array, bound: float = LARGEST) -> Array:
    """Return many vectors as `finite` returns one."""
    # NaN counts as the largest and as the smallest.
    if not Y.size or (Y.item(Y.argmax()) < bound and Y.item(Y.argmin()) > -bound):
        return Y
    return np.where(np.abs(Y) < bound, Y, 0.0)


def check_rank(rank: int) -> int:
    """Return `rank`, or raise if it is not a number of directions."""
    if rank < 1:
        raise ValueError(f"rank must be at least 1, got {rank}")
    return rank


def check_forgetting(forgetting: float) -> float:
    """Return `forgetting`, or raise if it is not a weight of the past."""
    if not 0.0 < forgetting <= 1.0:
        raise ValueError(f"forgetting must be in (0, 1], got {forgetting}")
    return forgetting


def check_energy_bounds(bounds: tuple[float, float] | None) -> tuple[float, float] | None:
    """Return the energy bounds as a pair, or raise if they are not in order."""
    if bounds is None:
        return None
    low, high = bounds
    if not 0.0 <= low < high <= 1.0:
        raise ValueError(f"energy_bounds must be (low, high) with 0 <= low < high <= 1, got {bounds}")
    return float(low), float(high)
