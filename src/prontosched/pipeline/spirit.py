"""SPIRIT: one direction after the other, vector by vector."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prontosched.pipeline.embedding import (
    VectorEmbedding,
    check_energy_bounds,
    check_forgetting,
    check_rank,
)
from prontosched.subspace import Array, Subspace, align_signs

START_ENERGY = 0.01
LEAST_ENERGY = 1e-200
# Of rows with rows; numpy has it from 2.0 on, several times faster.
_dot: Callable[[Array, Array], Array] = getattr(np, "vecdot", partial(np.einsum, "nd,nd->n"))
# What is left of a unit vector along its own, below which rounding matters.
PARALLEL = 1e-4
# Steps whose directions are made orthonormal together: those of a few dozen nodes then stay in the cache.
AT_ONCE = 8


class Spirit(VectorEmbedding):
    """Follow directions one by one, each learning from what the ones before leave over.

    The directions are not orthonormal while learning; `subspace` gives them made
    so, with the square roots of their energies as singular values.

    Parameters
    ----------
    rank
        Directions to follow, the first guess where the rank adapts.
    forgetting
        Weight of the past at each vector, in (0, 1].
    energy_bounds
        `(low, high)`: the rank grows when the directions hold less than `low` of the
        energy of the stream, and shrinks when they hold more than `high`. None keeps it.
    holdoff
        Vectors to wait after a change of rank before the next.

    Notes
    -----
    Memory: `d * (d + rank)` floats where the rank adapts, `d * 2 * rank` where it does not.

    Examples
    --------
    >>> spirit = Spirit(rank=1, forgetting=0.96)
    >>> for load in [1.0, -2.0, 3.0, -4.0] * 10:
    ...     spirit.learn_one(load * np.array([3.0, 4.0]))
    >>> abs(spirit.subspace.basis[:, 0]).round(2)
    array([0.6, 0.8])

    References
    ----------
    Papadimitriou, Sun, Faloutsos: Streaming pattern discovery in multiple time-series, VLDB 2005.
    """

    name = "spirit"

    def __init__(
        self,
        rank: int = 4,
        forgetting: float = 0.96,
        *,
        energy_bounds: tuple[float, float] | None = None,
        holdoff: int = 1,
    ) -> None:
        self.rank = check_rank(rank)
        self.forgetting = check_forgetting(forgetting)
        self.energy_bounds = check_energy_bounds(energy_bounds)
        if holdoff < 0:
            raise ValueError(f"holdoff must be at least 0 vectors, got {holdoff}")
        self.holdoff = holdoff
        self.seen = 0
        self._directions = np.zeros((0, 0))
        self._energies = np.zeros(0)
        self._rank = rank
        self._last_change = 1
        self._inside = self._whole = 0.0
        self._subspace: Subspace | None = None

    @property
    def features(self) -> int:
        """Number of metrics, 0 before the first vector."""
        return self._directions.shape[1]

    @property
    def samples(self) -> float:
        """Vectors behind the singular values: all, or as many as are remembered."""
        if self.forgetting == 1.0:
            return float(self.seen)
        return (1.0 - self.forgetting**self.seen) / (1.0 - self.forgetting)

    @property
    def subspace(self) -> Subspace | None:
        """The directions made orthonormal, None before the first vector."""
        if self._subspace is None and self.seen:
            basis = _orthonormal(self._directions[: self._rank])
            strengths = np.sqrt(self._energies[: self._rank])
            order = np.argsort(-strengths, kind="stable")
            self._subspace = Subspace(basis[order].T, strengths[order])
        return self._subspace

    def learn_one(self, y: Array) -> None:
        """Take in one telemetry vector of shape `(d,)`."""
        y = self._vector(y)
        if not self._directions.size:
            features = y.shape[0]
            self._rank = min(self.rank, features)
            self._directions = np.eye(features if self.energy_bounds else self._rank, features)
            self._energies = np.full(len(self._directions), START_ENERGY)
        self.seen += 1
        rest = y.astype(float)
        for j in range(self._rank):
            w = self._directions[j]
            along = float(w @ rest)
            energy = max(self.forgetting * self._energies[j] + along * along, LEAST_ENERGY)
            self._energies[j] = energy
            w += (along / energy) * (rest - along * w)
            rest -= along * w
            w /= np.linalg.norm(w)
        if self.energy_bounds is not None:
            self._adapt(y)
        self._subspace = None

    def _adapt(self, y: Array) -> None:
        assert self.energy_bounds is not None
        low, high = self.energy_bounds
        inside = self._directions[: self._rank] @ y
        self._inside = self.forgetting * self._inside + float(inside @ inside)
        self._whole = self.forgetting * self._whole + float(y @ y)
        if self.seen <= self._last_change + self.holdoff or self._rank >= y.shape[0]:
            return
        if self._inside < low * self._whole:
            axis = np.zeros(y.shape[0])
            axis[self._rank] = 1.0
            self._directions[self._rank] = axis
            self._rank += 1
            self._directions[: self._rank] = _orthonormal(self._directions[: self._rank])
            self._last_change = self.seen
        elif self._inside > high * self._whole and self._rank > 1:
            self._rank -= 1
            self._last_change = self.seen

    def settings(self) -> dict[str, Any]:
        """Return the constructor arguments, by name."""
        return {
            "rank": self.rank,
            "forgetting": self.forgetting,
            "energy_bounds": self.energy_bounds,
            "holdoff": self.holdoff,
        }

    def state(self) -> dict[str, Any]:
        """Return everything learned, by name."""
        return {
            "directions": self._directions,
            "energies": self._energies,
            "current_rank": self._rank,
            "last_change": self._last_change,
            "inside": self._inside,
            "whole": self._whole,
            "seen": self.seen,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        self._directions = state["directions"]
        self._energies = state["energies"]
        self._rank = int(state["current_rank"])
        self._last_change = int(state["last_change"])
        self._inside = float(state["inside"])
        self._whole = float(state["whole"])
        self.seen = int(state["seen"])
        self._subspace = None


class SpiritFleet:
    """SPIRIT on M nodes at once, for replays: the directions that M of `Spirit` with a fixed rank would have.

    Parameters
    ----------
    like
        Whose rank and forgetting to use.
    """

    def __init__(self, nodes: int, features: int, like: Spirit) -> None:
        self._forgetting = like.forgetting
        rank = min(like.rank, features)
        self._directions = np.repeat(np.eye(rank, features)[:, None], nodes, axis=1)
        self._energies = np.full((rank, nodes), START_ENERGY)
        self._seen = np.zeros(nodes, np.int64)

    def follow(self, Y: Array, sizes: NDArray[np.int64]) -> tuple[Array, Array]:
        """Learn the first of the vectors `(n, M, d)` of each node, as many as `sizes` says.

        Returns what was known before each vector: directions as rows `(n, M, r, d)`, and their strengths
        `(n, M, r)`, all 0 before the first vector.
        """
        rank, nodes, features = self._directions.shape
        rows, energies = np.empty((len(Y), nodes, rank, features)), np.empty((len(Y), nodes, rank))
        seen = np.arange(len(Y))[:, None] + self._seen
        for step, y in enumerate(Y):
            rows[step], energies[step] = self._directions.swapaxes(0, 1), self._energies.T
            here = slice(None) if step < sizes.min() else np.flatnonzero(step < sizes)
            self._learn(y[here], here)
        self._seen += sizes
        for start in range(0, len(Y), AT_ONCE):
            _make_orthonormal(rows[start : start + AT_ONCE].reshape(-1, rank, features))
        strengths = np.sqrt(energies)
        weaker = np.nonzero((strengths[..., 1:] > strengths[..., :-1]).any(axis=-1))
        if weaker[0].size:
            order = np.argsort(-strengths[weaker], axis=-1, kind="stable")
            rows[weaker] = np.take_along_axis(rows[weaker], order[..., None], axis=1)
            strengths[weaker] = np.take_along_axis(strengths[weaker], order, axis=1)
        return rows, strengths * (seen > 0)[..., None]

    def _learn(self, y: Array, here: Any) -> None:
        rest = y.copy()
        for directions, energies in zip(self._directions, self._energies, strict=True):
            w = directions[here]
            along = _dot(w, rest)
            energy = np.maximum(self._forgetting * energies[here] + along * along, LEAST_ENERGY)
            energies[here] = energy
            share, along = (along / energy)[:, None], along[:, None]
            # Towards the rest, by the share of it that the direction does not hold yet.
            w = (1.0 - share * along) * w + share * rest
            rest -= along * w
            directions[here] = w / np.sqrt(_dot(w, w))[:, None]


def _make_orthonormal(rows: Array) -> None:
    """Do what `_orthonormal` does for a stack `(n, r, d)`, in place: row after row, unless rows nearly agree."""
    directions = rows.copy()
    parallel = np.zeros(len(rows), bool)
    for j in range(rows.shape[1]):
        row = rows[:, j]
        for k in range(j):
            row -= _dot(row, rows[:, k])[:, None] * rows[:, k]
        length = np.sqrt(_dot(row, row))
        parallel |= length < PARALLEL
        row /= np.maximum(length, PARALLEL)[:, None]
    for place in np.flatnonzero(parallel):
        rows[place] = _orthonormal(directions[place])


def _orthonormal(directions: Array) -> Array:
    """Return rows spanning the same, orthonormal, each on the side of the row it came from."""
    rows = np.linalg.qr(directions.T)[0].T
    return np.ascontiguousarray(rows * align_signs(rows, directions)[:, None])
