"""Stage 2: what anything that follows a subspace through a stream must do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from prontosched.decision import one_line
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

    Notes
    -----
    One whose subspace changes at every vector says `restless = True`. A detector then keeps its dampening
    across changes; elsewhere the dampening ends with the block.
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
    restless = True
    seen: int

    @property
    def features(self) -> int:
        """Number of metrics, 0 before the first vector."""
        raise NotImplementedError

    @property
    def kept(self) -> Subspace | None:
        """The directions shown: there are no others."""
        return self.subspace  # type: ignore[no-any-return]

    def learn_one(self, y: Array) -> None:
        """Take in one telemetry vector of shape `(d,)`."""
        raise NotImplementedError

    def learn_many(self, Y: Array) -> None:
        """Take in the columns of `(d, n)`, in order."""
        for y in rows_of(Y, self.features):
            self.learn_one(y)

    def settings(self) -> dict[str, Any]:
        """Return the constructor arguments, by name."""
        raise NotImplementedError

    def __repr__(self) -> str:
        state = f"{self.features} metrics, {self.seen} vectors" if self.seen else "no vector yet"
        return one_line(self, self.settings(), state)

    def _vector(self, y: Any) -> Array:
        """Return `y` as floats, with 0 for what is not finite; refuse one of another length."""
        y = np.asarray(y, dtype=np.float64)
        if y.shape != (self.features or y.size,):
            raise ValueError(other_metrics(self.features, y.shape))
        return finite(y)


def other_metrics(features: int, shape: tuple[int, ...]) -> str:
    """Return what is wrong with a vector of this shape."""
    expected = f"{features} metrics as the first one had" if features else "one number per metric"
    return f"a vector must have {expected}, got {shape}: start a new embedding when the metrics change"


def rows_of(Y: Any, features: int) -> Array:
    """Return the vectors of a block as rows `(n, d)`; refuse a block in the wrong orientation.

    Parameters
    ----------
    Y
        One vector per column, `(d, n)`. A data frame has one vector per row.
    features
        Number of metrics, 0 where it is not known yet.
    """
    rows = Y.to_numpy() if hasattr(Y, "columns") else np.asarray(Y).T
    rows = np.ascontiguousarray(rows, dtype=np.float64)
    if rows.ndim != 2 or (features and rows.shape[1] != features):
        turned = rows.ndim == 2 and rows.shape[0] == features
        hint = ": one vector per column is wanted, give its transpose" if turned else ""
        raise ValueError(f"a block must be ({features or 'd'}, n), got {rows.T.shape}{hint}")
    return rows


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
    if rank < 1 or rank != int(rank):
        raise ValueError(f"rank must be at least 1, got {rank}: give a whole number")
    return int(rank)


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
