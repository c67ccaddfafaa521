"""FPCA-Edge with adaptive rank, the paper's own embedding.

Covers: one stream. Many streams at once are in `prontosched.pipeline.fleet`; merging the
results of several nodes is in `prontosched.subspace`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from prontosched.pipeline.embedding import (
    check_energy_bounds,
    check_forgetting,
    check_rank,
    finite_all,
)
from prontosched.pipeline.leading import leading_rows
from prontosched.subspace import Array, Subspace

Growth = Literal["spare", "canonical", "authors"]


class FPCAEdge:
    """Follow the leading subspace of a stream, block by block.

    Vectors gather in a block. A full block is folded into the subspace whole and
    forgotten; until the first one fills, `subspace` is None. An all-zero start
    leaves it None.

    Parameters
    ----------
    rank
        Directions to follow, the first guess where the rank adapts. Paper: r.
    block_size
        Vectors per update, at least `rank`. Paper: b.
    forgetting
        Weight of the past in each update, in (0, 1]. Paper: λ.
    energy_bounds
        `(low, high)`: after each block the rank shrinks by one when the weakest
        direction holds less than `low` of the sum of singular values, and grows by
        one when it holds more than `high`. None keeps the rank. Paper: [α, β].
    holdoff
        Least number of blocks between two changes of rank.
    max_rank
        Upper limit of an adapting rank; never more than `block_size - 1` or `d - 1`.
    spare
        Directions followed beyond those shown: the ones shown come out closer to those of
        the whole stream, and merging summaries loses less.
    growth
        Where a new direction comes from. `spare`: one more direction than shown is
        followed all the time, so growing shows the true next one. `canonical`: the
        next coordinate axis, made orthogonal, with singular value 0, as the paper
        has it. `authors`: as in the paper authors' public code, axis r + 2 and a
        stale singular value; only to compare with it.

    Notes
    -----
    Memory: `d * (3 * rank + 2 * spare + 2 * block_size)` floats between updates, and less than
    three times that during one, however long the stream.
    Cost: one `(rank + block_size)`-sized symmetric eigenproblem per block.

    Examples
    --------
    >>> embedding = FPCAEdge(rank=1, block_size=2)
    >>> for load in [1.0, 2.0, 3.0, 4.0]:
    ...     embedding.learn_one(load * np.array([3.0, 4.0]))
    >>> abs(embedding.subspace.basis[:, 0]).round(2)
    array([0.6, 0.8])

    References
    ----------
    Paper, appendix "Subspace tracking", algorithm FPCA-Edge.
    """

    name = "fpca"

    def __init__(
        self,
        rank: int = 4,
        block_size: int = 10,
        forgetting: float = 1.0,
        *,
        energy_bounds: tuple[float, float] | None = None,
        holdoff: int = 0,
        max_rank: int | None = None,
        spare: int = 0,
        growth: Growth = "spare",
        authors: bool = False,
    ) -> None:
        self.rank = check_rank(rank)
        if block_size < rank:
            raise ValueError(
                f"block_size must be at least rank ({rank}), got {block_size}: "
                "a shorter block cannot hold that many directions"
            )
        if holdoff < 0:
            raise ValueError(f"holdoff must be at least 0 blocks, got {holdoff}")
        if spare < 0:
            raise ValueError(f"spare must be at least 0 directions, got {spare}")
        if max_rank is not None and max_rank < rank:
            raise ValueError(f"max_rank must be at least rank ({rank}), got {max_rank}")
        self.block_size = block_size
        self.forgetting = check_forgetting(forgetting)
        self.energy_bounds = check_energy_bounds(energy_bounds)
        self.holdoff = holdoff
        self.max_rank = max_rank
        self.spare = spare
        self.growth: Growth = "authors" if authors else growth
        self.subspace: Subspace | None = None
        self.kept: Subspace | None = None
        self.blocks = 0
        self.samples = 0.0
        # A rank that grows by its spare direction needs one.
        self._spare = max(spare, int(self.energy_bounds is not None and self.growth == "spare"))
        self._shown = rank
        self._last_change = 0
        self._to_come: int | None = None
        self._slab = np.zeros((0, 0))
        self._slots: list[Array] = []  # its rows
        self._known = 0  # rows of the slab that hold the past; vectors follow
        self._held = 0
        # Strengths with the sign that the slab's rows have against the directions shown.
        self._signed = np.zeros(0)
        self._stale = np.zeros(0)
        self._lineage = object()

    def _remembered(self) -> float:
        """Return how many vectors are behind the singular values: all, or as many as are remembered."""
        if self.forgetting == 1.0:
            return float(self.blocks * self.block_size)
        fade = self.forgetting**2
        return self.block_size * (1.0 - fade**self.blocks) / (1.0 - fade)

    def learn_one(self, y: Array) -> None:
        """Take in one telemetry vector of shape `(d,)`."""
        try:
            self._slots[self._held][...] = y
        except (IndexError, ValueError):
            self._make_room(y)
        self._held = held = self._held + 1
        if held - self._known == self.block_size:
            self._update()

    def learn_many(self, Y: Array) -> None:
        """Take in the columns of `(d, n)`, in order.

        A last block that does not fill stays in the buffer. With `authors` the
        matrix is a whole run, whose last two blocks leave the rank alone.
        """
        whole = (self._held - self._known + Y.shape[1]) // self.block_size
        self._to_come = whole if self.growth == "authors" else None
        for y in np.ascontiguousarray(Y.T):
            self.learn_one(y)
        self._to_come = None

    def flush(self) -> None:
        """Fold in the vectors of a block that has not filled; `subspace` then knows all of them."""
        if self._held > self._known:
            self._update()

    def _make_room(self, y: Array) -> None:
        if self._slab.size:
            raise ValueError(
                f"a vector must have {self._slab.shape[1]} metrics as the first one had, got {y.shape}: "
                "start a new embedding when the metrics change"
            )
        # The rank may grow to the block size, with the spare directions.
        most = self.block_size + self._spare + 2
        self._slab = np.zeros((most + self.block_size, y.shape[0]))
        self._slots = list(self._slab)
        self._stale = np.zeros(most)
        self._slab[self._held] = y

    def _update(self) -> None:
        """Fold the block into the subspace: the leading part of [forgetting * past, block]."""
        rows = self._slab[: self._held]
        known = self._known
        rank = self._shown + self._spare
        found = leading_rows(rows, rank if rank <= self._held else self._held)
        if found is None:
            rows[known:] = finite_all(rows[known:])
            found = leading_rows(rows, min(rank, *rows.shape))
        self.blocks += 1
        self.samples = self._remembered()
        self._held = self._known = 0
        if found is None:
            return
        weighted, strengths, along = found
        if self.energy_bounds is None:
            self._follow(weighted, strengths, along, known)
            return
        self._stale[: strengths.size] = strengths
        basis, strengths = self._adapt(weighted / strengths[:, None], strengths)
        self._hold(basis * strengths[:, None], strengths)
        self._show(basis, strengths, None)

    def _follow(self, weighted: Array, strengths: Array, along: Array, known: int) -> None:
        """Show new directions, each turned along the one before it, or to a positive sum if it is new."""
        kept = strengths.size
        sides = along * self._signed if known == kept else self._new_sides(weighted, along, known)
        self._signed = signed = np.copysign(strengths, sides)
        self._hold(weighted, strengths)
        self._show(weighted / signed[:, None], strengths, self._lineage)

    def _show(self, basis: Array, strengths: Array, lineage: object) -> None:
        shown = self._shown
        self.subspace = self.kept = Subspace(basis.T, strengths, lineage)
        if strengths.size > shown:
            self.subspace = Subspace(basis[:shown].T, strengths[:shown], lineage)

    def _new_sides(self, weighted: Array, along: Array, known: int) -> Array:
        sides: Array = weighted.sum(axis=1)
        before = min(known, sides.size)
        sides[:before] = along[:before] * self._signed[:before]
        return sides

    def _hold(self, weighted: Array, strengths: Array) -> None:
        """Keep the past for the next update."""
        self._known = self._held = kept = strengths.size
        self._slab[:kept] = weighted
        if self.forgetting != 1.0:
            self._slab[:kept] *= self.forgetting

    def _adapt(self, basis: Array, strengths: Array) -> tuple[Array, Array]:
        """Change the rank by at most one, by the energy of the weakest direction shown."""
        assert self.energy_bounds is not None
        low, high = self.energy_bounds
        waited = self.blocks - self._last_change
        if waited < self.holdoff or (self._to_come is not None and self.blocks > self._to_come - 2):
            return basis, strengths
        shown = min(self._shown, strengths.size)
        energy = strengths[shown - 1] / strengths[:shown].sum()
        if energy < low and self._shown > 1:
            self._shown = shown - 1
            self._last_change = self.blocks
            kept = self._shown + self._spare
            return basis[:kept], strengths[:kept]
        limit = min(self.block_size - 1, basis.shape[1] - 1, self.max_rank or self.block_size)
        if self.growth == "authors":
            limit = min(self.block_size, basis.shape[1] - 1)
        if energy > high and shown == self._shown < limit:
            if self.growth != "spare":
                basis, strengths = self._axis(basis, strengths)
            elif strengths.size <= shown:
                return basis, strengths
            self._shown += 1
            self._last_change = self.blocks
        return basis, strengths

    def _axis(self, basis: Array, strengths: Array) -> tuple[Array, Array]:
        """Append a coordinate axis made orthogonal to the basis, unless it lies within."""
        axis = np.zeros(basis.shape[1])
        authors = self.growth == "authors"
        axis[self._shown + authors] = 1.0
        for _ in range(2):
            axis -= basis.T @ (basis @ axis)
        length = float(np.linalg.norm(axis))
        if length < 1e-8:
            return basis, strengths
        strength = self._stale[self._shown] if authors else 0.0
        return np.vstack([basis, axis / length]), np.append(strengths, strength)

    def settings(self) -> dict[str, Any]:
        """Return the constructor arguments, by name."""
        return {
            "rank": self.rank,
            "block_size": self.block_size,
            "forgetting": self.forgetting,
            "energy_bounds": self.energy_bounds,
            "holdoff": self.holdoff,
            "max_rank": self.max_rank,
            "spare": self.spare,
            "growth": self.growth,
        }

    def state(self) -> dict[str, Any]:
        """Return everything learned, by name."""
        kept = self.kept
        return {
            "slab": self._slab[: self._held],
            "features": self._slab.shape[1],
            "known": self._known,
            "basis": np.zeros((0, 0)) if kept is None else np.ascontiguousarray(kept.basis.T),
            "strengths": np.zeros(0) if kept is None else kept.singular_values,
            "signed": self._signed,
            "stale": self._stale,
            "shown": self._shown,
            "last_change": self._last_change,
            "blocks": self.blocks,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        if state["features"]:
            self._make_room(np.zeros(int(state["features"])))
        self._held = len(state["slab"])
        self._slab[: self._held] = state["slab"]
        self._known = int(state["known"])
        self._signed = state["signed"]
        self._stale = state["stale"]
        self._shown = int(state["shown"])
        self._last_change = int(state["last_change"])
        self.blocks = int(state["blocks"])
        self.samples = self._remembered()
        if len(state["basis"]):
            lineage = self._lineage if self.energy_bounds is None else None
            self._show(state["basis"], state["strengths"], lineage)
