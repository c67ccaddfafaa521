"""FPCA-Edge with adaptive rank, the paper's own embedding: of one stream, and of many at once.

`FPCAEdgeFleet` batches the updates of `FPCAEdge` over nodes whose block is full; nodes whose weak
directions the Gram matrix cannot resolve are updated one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from prontosched.decision import one_line
from prontosched.pipeline.embedding import (
    check_energy_bounds,
    check_forgetting,
    check_rank,
    finite_all,
    other_metrics,
    rows_of,
)
from prontosched.subspace import LARGEST, Array, Subspace, align_signs, leading, leading_exactly, room

Growth = Literal["spare", "canonical", "authors"]
Nodes = NDArray[np.intp]
At = slice | Nodes

# Nodes of a fleet per pass: what one pass touches then stays in the cache.
CHUNK = 256


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
    Memory: `d * (2 * (rank + spare) + block_size)` floats between updates, `d * block_size` more where the
    rank adapts, and less than three times that during an update, however long the stream.
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

    def remembered(self, blocks: Any) -> Any:
        """Return how many vectors are behind singular values after so many blocks; a number, or an array of them."""
        if self.forgetting == 1.0:
            return 1.0 * blocks * self.block_size
        fade = self.forgetting**2
        return self.block_size * (1.0 - fade**blocks) / (1.0 - fade)

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
        rows = rows_of(Y, self._slab.shape[1])
        whole = (self._held - self._known + len(rows)) // self.block_size
        self._to_come = whole if self.growth == "authors" else None
        for y in rows:
            self.learn_one(y)
        self._to_come = None

    def flush(self) -> None:
        """Fold in the vectors of a block that has not filled; `subspace` then knows all of them."""
        if self._held > self._known:
            self._update()

    def _make_room(self, y: Array) -> None:
        y = np.asarray(y, dtype=np.float64)
        if self._slab.size or y.ndim != 1:
            raise ValueError(other_metrics(self._slab.shape[1], y.shape))
        # A rank that adapts may grow to the block size.
        most = self._spare + (self.rank if self.energy_bounds is None else self.block_size + 2)
        self._slab = room(most + self.block_size, y.shape[0])
        self._slots = list(self._slab)
        self._stale = np.zeros(most)
        self._slab[self._held] = y

    def _update(self) -> None:
        """Fold the block into the subspace: the leading part of [forgetting * past, block]."""
        held, known = self._held, self._known
        rows = self._slab if held == len(self._slab) else self._slab[:held]
        rank = self._shown + self._spare
        found = fold_block(rows, known, rank)
        self.blocks += 1
        self.samples = self.remembered(self.blocks)
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
        """Show new directions with the signs of `align_signs`, for which `along` saves the products."""
        if known == strengths.size:
            sides = along * self._signed
        else:
            sides = weighted.sum(axis=1)
            before = min(known, sides.size)
            sides[:before] = along[:before] * self._signed[:before]
        self._signed = signed = np.copysign(strengths, sides)
        self._hold(weighted, strengths)
        self._show(np.divide(weighted, signed[:, None], weighted), strengths, self._lineage)

    def _show(self, basis: Array, strengths: Array, lineage: object) -> None:
        shown = self._shown
        self.subspace = self.kept = Subspace(basis.T, strengths, lineage)
        if strengths.size > shown:
            self.subspace = Subspace(basis[:shown].T, strengths[:shown], lineage)

    def _hold(self, weighted: Array, strengths: Array) -> None:
        """Keep the past for the next update."""
        self._known = self._held = kept = strengths.size
        self._slab[:kept] = weighted
        if self.forgetting != 1.0:
            self._slab[:kept] *= self.forgetting

    def _adapt(self, basis: Array, strengths: Array) -> tuple[Array, Array]:
        """Change the rank by at most one."""
        # The authors' code leaves the rank alone in the last two blocks of a run.
        if self._to_come is not None and self.blocks > self._to_come - 2:
            return basis, strengths
        waited = self.blocks - self._last_change
        shown, before = self.next_rank(strengths, self._shown, waited, basis.shape[1]), self._shown
        if shown < before:
            basis, strengths = basis[: shown + self._spare], strengths[: shown + self._spare]
        elif shown > before and self.growth != "spare":
            basis, strengths = self._axis(basis, strengths)
        if shown != before:
            self._shown, self._last_change = shown, self.blocks
        return basis, strengths

    def next_rank(self, strengths: Array, shown: int, waited: int, features: int) -> int:
        """Return the rank after a block, by the energy of the weakest direction shown.

        `strengths` are those of all directions followed, `shown` is the rank so far, and `waited` the blocks
        since it last changed.
        """
        if self.energy_bounds is None or waited < self.holdoff:
            return shown
        low, high = self.energy_bounds
        there = min(shown, strengths.size)
        energy = strengths[there - 1] / strengths[:there].sum()
        if energy < low and shown > 1:
            return there - 1
        limit = min(self.block_size - 1, features - 1, self.max_rank or self.block_size)
        if self.growth == "authors":
            limit = min(self.block_size, features - 1)
        spare = self.growth != "spare" or strengths.size > there
        return shown + 1 if energy > high and there == shown < limit and spare else shown

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

    def __setstate__(self, state: dict[str, Any]) -> None:
        # A copy's rows are of its own table; copied one by one they would belong to none.
        self.__dict__.update(state)
        self._slots = list(self._slab)

    def __repr__(self) -> str:
        known = f"{self._slab.shape[1]} metrics, {self.blocks} blocks" if self._slab.size else "no vector yet"
        return one_line(self, self.settings(), known)

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
        self.samples = self.remembered(self.blocks)
        if len(state["basis"]):
            lineage = self._lineage if self.energy_bounds is None else None
            self._show(state["basis"], state["strengths"], lineage)


def fold_block(rows: Array, known: int, rank: int) -> tuple[Array, Array, Array] | None:
    """Return `leading_rows` of the past, the first `known` rows, and the block after it.

    Values of the block that are not finite become 0.
    """
    found = leading_rows(rows, rank if rank <= len(rows) else len(rows))
    if found is None:
        rows[known:] = finite_all(rows[known:])
        found = leading_rows(rows, min(rank, *rows.shape))
    return found


def leading_rows(rows: Array, rank: int) -> tuple[Array, Array, Array] | None:
    """Return at most `rank` leading right directions of `rows` `(n, d)`, as rows.

    Each comes multiplied with its strength; then follow the strengths, and on which
    side of row 0, 1, 2, … direction 0, 1, 2, … lies, as numbers whose sign counts.
    Through the Gram matrix where that is exact enough, which it is for nearly all
    telemetry; else by a full SVD. Negligible directions are dropped. None comes
    back for rows that are all zero, or not finite.
    """
    if rank < rows.shape[0] < rows.shape[1]:
        gram = gram_of(rows)
        # No entry is larger than the largest on the diagonal, and NaN counts as larger still.
        if gram is not None and gram.item(gram.argmax()) < LARGEST:
            squares, vectors, trusted = leading(gram, rank)
            if trusted:
                strongest = vectors.T[: -rank - 1 : -1]
                return strongest.dot(rows), np.sqrt(squares[: -rank - 1 : -1]), strongest.diagonal()
    found = leading_exactly(rows, rank)
    if found is None:
        return None
    directions, strengths = found
    return directions * strengths[:, None], strengths, directions.dot(rows[: strengths.size].T).diagonal()


def gram_of(rows: Array) -> Array | None:
    """Return the products of rows with each other; None where they overflow and warnings are errors."""
    try:
        gram: Array = rows.dot(rows.T)
    except (RuntimeWarning, FloatingPointError):
        return None
    return gram


def as_slice(nodes: Nodes) -> At:
    """Return ascending numbers of nodes as a slice, which is faster to index with, where none is left out."""
    first, last = int(nodes[0]), int(nodes[-1])
    return slice(first, last + 1) if last - first + 1 == nodes.size else nodes


def _numbers(at: At) -> Nodes:
    return np.arange(at.start, at.stop) if isinstance(at, slice) else at


class FPCAEdgeFleet:
    """Follow the leading subspaces of M streams, with the settings of `like`.

    `lag` vectors are projected again on new directions.

    Memory: `nodes * features * (2 * width + spare + block_size)` floats, with `width`
    the rank, or the largest rank where it adapts; `lag` more if that is longer than a
    block.
    """

    def __init__(self, nodes: int, features: int, like: FPCAEdge, lag: int) -> None:
        if like.energy_bounds is not None and like.growth != "spare":
            raise ValueError(
                f"a fleet's rank must grow by its spare direction, got growth={like.growth!r}: "
                "use separate nodes to compare the other rules"
            )
        self.rank = like.rank
        self.block_size = like.block_size
        self.forgetting = like.forgetting
        self.like = like
        adapts = like.energy_bounds is not None
        self.spare = max(like.spare, int(adapts))
        most = min(like.block_size - 1, features - 1, like.max_rank or like.block_size)
        self.width = min(max(self.rank, most) if adapts else self.rank, features)
        self.depth = min(self.width + self.spare, features)
        self.lag = lag
        # The past first, each direction times its strength; then the block.
        self.slab = np.zeros((nodes, self.depth + like.block_size, features))
        # Aligned directions as rows, singular values, and the number of directions shown: 0 where there is no
        # subspace. What lies beyond a node's rank is zero.
        self.rows = np.zeros((nodes, self.width, features))
        self.strengths = np.zeros((nodes, self.width))
        self.ranks = np.zeros(nodes, np.intp)
        self.blocks = np.zeros(nodes, np.int64)
        self._scratch = np.zeros((0, self.depth, features))
        self._known = np.zeros(nodes, np.intp)
        # Strengths of the past, with the sign its rows have against the directions shown.
        self._signed = np.zeros((nodes, self.depth))
        self._shown = np.full(nodes, self.rank)
        self._held = np.zeros(nodes, np.intp)
        self._last_change = np.zeros(nodes, np.int64)
        # Only a lag longer than a block needs more of the past than the block itself.
        self._past = np.zeros((nodes, lag, features)) if lag > like.block_size else None
        self._seen = np.zeros(nodes, np.int64)

    def samples(self) -> Array:
        """Vectors behind the singular values, `(M,)`."""
        return np.asarray(self.like.remembered(self.blocks.astype(np.float64)))

    def subspace(self, node: int) -> Subspace | None:
        """Return one node's subspace."""
        rank = int(self.ranks[node])
        if not rank:
            return None
        return Subspace(self.rows[node, :rank].T.copy(), self.strengths[node, :rank].copy())

    def project(self, Z: Array, at: slice | Nodes) -> Array:
        """Return the projections `(m, width)` of the vectors `(m, d)` of the nodes `at`."""
        return np.asarray(np.matmul(self.rows[at], Z[:, :, None])[:, :, 0])

    def kept(self, node: int) -> Subspace | None:
        """Return one node's subspace with its spare directions."""
        known = int(self._known[node])
        if not known:
            return None
        signed = self._signed[node, :known]
        strengths = np.abs(signed)
        rows = self.slab[node, :known] / (self.forgetting * np.where(strengths > 0.0, signed, 1.0))[:, None]
        return Subspace(rows.T, strengths)

    def learn(self, Z: Array, at: At) -> list[tuple[Nodes, Array]]:
        """Take in one vector of each of the nodes `at`.

        Returns the nodes whose subspace changed, in groups, each with the projections of its
        last vectors on the new directions: `(m, width, n)`, oldest first, n at most `lag`.
        """
        self.keep(Z, at)
        return self.learn_kept(at)

    def keep(self, Z: Array, at: At) -> None:
        """Put one vector of each of the nodes `at` into their blocks; they do not count until learned."""
        held = self._held[at]
        if held.size and (held == held[0]).all():
            self.slab[at, self.depth + int(held[0])] = Z
        else:
            self.slab[_numbers(at), self.depth + held] = Z
        if self._past is not None:
            self._past[_numbers(at), self._seen[at] % self.lag] = Z

    def learn_kept(self, at: At) -> list[tuple[Nodes, Array]]:
        """Do the rest of what `learn` does, of vectors that were kept."""
        held = self._held[at] + 1
        full = _numbers(at)[held == self.block_size]
        self._held[at] = held
        self._held[full] = 0
        self._seen[at] += 1
        self.blocks[full] += 1
        found: list[tuple[Nodes, Array]] = []
        for start in range(0, full.size, CHUNK):
            found += self._update(full[start : start + CHUNK])
        return found

    def _windows(self, nodes: Nodes) -> list[tuple[Nodes, Array]]:
        """Project the last vectors of nodes on their directions, nodes with equally many together."""
        held = np.minimum(self._seen[nodes], self.lag)
        found = []
        for count in np.unique(held):
            some, back = nodes[held == count], np.arange(-count, 0)
            if self._past is None:
                slots = (self._held[some, None] + back) % self.block_size
                recent = self.slab[some[:, None], self.depth + slots]
            else:
                recent = self._past[some[:, None], (self._seen[some, None] + back) % self.lag]
            found.append((some, np.matmul(self.rows[some], recent.swapaxes(1, 2))))
        return found

    def _update(self, full: Nodes) -> list[tuple[Nodes, Array]]:
        """Fold the full blocks into the subspaces; return what `learn` does."""
        at = as_slice(full)
        rows = self.slab[at]
        if self.like.energy_bounds is not None or self.depth + self.block_size >= rows.shape[2]:
            return self._windows(self._one_by_one(full, rows))
        gram = np.matmul(rows, rows.swapaxes(1, 2))
        if not gram.item(gram.argmax()) < LARGEST:
            return self._windows(self._one_by_one(full, rows))
        squares, vectors, trusted = leading(gram, self.depth)
        steady = (self._known[full] == self.depth) & trusted
        if steady.all():
            recent = self._follow(at, rows, squares, vectors)
            return self._windows(full) if recent is None else [(full, recent)]
        first, rest = full[steady], full[~steady]
        if first.size:
            self._follow(first, rows[steady], squares[steady], vectors[steady])
        rest = self._one_by_one(rest, rows[~steady])
        return self._windows(np.sort(np.concatenate([first, rest])))

    def _follow(self, at: At, rows: Array, squares: Array, vectors: Array) -> Array | None:
        """Show new directions, as in `FPCAEdge`; return the last vectors' projections, if the block has them."""
        width, depth, lag = self.width, self.depth, self.lag
        # Strongest first, and a row each: BLAS takes no reversed array.
        top = vectors.swapaxes(1, 2)[:, : -depth - 1 : -1].copy()
        along = np.einsum("mii->mi", top[:, :, :depth])
        signed = np.copysign(np.sqrt(squares[:, : -depth - 1 : -1]), along * self._signed[at])
        self._signed[at] = signed
        weighted = np.matmul(top, rows, out=self._room(len(rows)))
        self.slab[at, :depth] = weighted if self.forgetting == 1.0 else self.forgetting * weighted
        self.rows[at] = np.divide(weighted[:, :width], signed[:, :width, None], out=weighted[:, :width])
        self.strengths[at] = np.abs(signed[:, :width])
        if lag > self.block_size:
            return None
        # The eigenvectors hold each vector's part in each direction.
        return np.asarray(top[:, :width, -lag:] * signed[:, :width, None])

    def _room(self, nodes: int) -> Array:
        """Return scratch space, the same each time: fresh memory would cost more than what is done in it."""
        if len(self._scratch) < nodes:
            self._scratch = np.zeros((nodes, self.depth, self.slab.shape[2]))
        return self._scratch[:nodes]

    def _one_by_one(self, full: Nodes, rows: Array) -> Nodes:
        """Do what `_update` promises as single nodes would: for young nodes, adapting ranks and weak directions."""
        depth = self.depth
        basis, strengths = np.zeros((full.size, depth, rows.shape[2])), np.zeros((full.size, depth))
        for i, node in enumerate(full.tolist()):
            known, shown = int(self._known[node]), int(self._shown[node])
            compact = np.concatenate([rows[i, :known], rows[i, depth:]])
            found = fold_block(compact, known, shown + self.spare)
            if found is None:
                continue
            weighted, strong, _ = found
            waited = int(self.blocks[node] - self._last_change[node])
            if (now := self.like.next_rank(strong, shown, waited, rows.shape[2])) != shown:
                self._shown[node], self._last_change[node] = now, self.blocks[node]
                strong = strong[: now + self.spare]
            basis[i, : strong.size] = weighted[: strong.size] / strong[:, None]
            strengths[i, : strong.size] = strong
        kept = np.count_nonzero(strengths, axis=1)
        self._known[full] = kept
        self.slab[full, :depth] = basis * (self.forgetting * strengths)[:, :, None]
        self._signed[full] = strengths
        alive = kept > 0
        changed: Nodes = full[alive]
        self._show(changed, basis[alive], strengths[alive], kept[alive])
        return changed

    def _show(self, nodes: Nodes, basis: Array, strengths: Array, kept: Nodes) -> None:
        """Take new directions into use, aligned with the ones before."""
        width = self.width
        shown = np.minimum(self._shown[nodes], kept)
        basis, strengths = basis[:, :width], strengths[:, :width]
        directions = np.arange(width)
        signs = align_signs(basis, self.rows[nodes])
        self._signed[nodes, :width] *= signs
        if (shown < width).any():
            visible = directions < shown[:, None]
            signs[~visible] = 0.0
            strengths = np.where(visible, strengths, 0.0)
        self.rows[nodes] = basis * signs[:, :, None]
        self.strengths[nodes] = strengths
        self.ranks[nodes] = shown
