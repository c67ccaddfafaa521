"""FPCA-Edge for many streams at once, as arrays.

The same updates as `prontosched.pipeline.fpca`, batched over nodes whose block
is full. Nodes whose weak directions the Gram matrix cannot resolve are updated
one by one, by the very function a single node uses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from prontosched.per_node import Nodes, PerNode
from prontosched.pipeline.embedding import finite_all
from prontosched.pipeline.fpca import FPCAEdge
from prontosched.pipeline.shown import Shown
from prontosched.subspace import LARGEST, Array, Subspace, align_signs, leading, leading_exactly

At = slice | NDArray[np.intp]
Mask = NDArray[np.bool_]


class FPCAEdgeFleet(Shown, PerNode):
    """Follow the leading subspaces of M streams.

    Parameters
    ----------
    nodes, features
        M and d.
    like
        Whose rank, block size, forgetting and energy bounds to use.
    lag
        Vectors to remember for `window`.

    Attributes
    ----------
    rows, strengths, ranks
        As in `Shown`.
    recent
        After `learn`: the projections of the last vectors on the new directions,
        `(m, width, lag)`, oldest first, of the nodes it returned. None where a block
        does not hold as many; `window` finds them then.

    Notes
    -----
    Memory: `nodes * features * (2 * width + spare + block_size)` floats, with `width`
    the rank, or the largest rank where it adapts; `lag` more if that is longer than a
    block.
    """

    PER_NODE: ClassVar[tuple[str, ...]] = (
        *("slab", "rows", "strengths", "ranks", "blocks"),
        *("_known", "_signed", "_shown", "_held", "_last_change", "_seen", "_past"),
    )

    def __init__(self, nodes: int, features: int, like: FPCAEdge, lag: int) -> None:
        if like.energy_bounds is not None and like.growth != "spare":
            raise ValueError(
                f"a fleet's rank must grow by its spare direction, got growth={like.growth!r}: "
                "use separate nodes to compare the other rules"
            )
        self.rank = like.rank
        self.block_size = like.block_size
        self.forgetting = like.forgetting
        self.energy_bounds = like.energy_bounds
        self.holdoff = like.holdoff
        self.limit = min(like.block_size - 1, features - 1, like.max_rank or like.block_size)
        adapts = like.energy_bounds is not None
        self.spare = max(like.spare, int(adapts))
        self.width = min(max(self.rank, self.limit) if adapts else self.rank, features)
        self.depth = min(self.width + self.spare, features)
        self.lag = lag
        # The past first, each direction times its strength; then the block.
        self.slab = np.zeros((nodes, self.depth + like.block_size, features))
        self.rows = np.zeros((nodes, self.width, features))
        self.strengths = np.zeros((nodes, self.width))
        self.ranks = np.zeros(nodes, np.intp)
        self.blocks = np.zeros(nodes, np.int64)
        self.recent: Array | None = None
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
        self.like = like

    def like_new(self, nodes: int) -> FPCAEdgeFleet:
        """Return the embedding of so many nodes that have seen nothing."""
        return FPCAEdgeFleet(nodes, self.slab.shape[2], self.like, self.lag)

    def take_over(
        self, node: int, state: Mapping[str, Any], directions: Array, latest: Array, seen: int
    ) -> None:
        """Give one node what `FPCAEdge.state` returned: it goes on here as it would have there.

        Parameters
        ----------
        directions
            Those it shows, as rows, with the signs they have been given.
        latest
            Its last vectors, oldest first.
        seen
            Vectors it has seen.
        """
        self.clear(np.array([node]))
        known, slab = int(state["known"]), state["slab"]
        held, shown = len(slab) - known, len(directions)
        self.slab[node, :known] = slab[:known]
        back = np.arange(-len(latest), 0)
        self.slab[node, self.depth + (held + back[-self.block_size :]) % self.block_size] = latest[
            -self.block_size :
        ]
        if self._past is not None:
            self._past[node, (seen + back) % self.lag] = latest
        kept = np.concatenate([directions, state["basis"][shown:].reshape(-1, slab.shape[1])])
        sides = np.einsum("kd,kd->k", slab[:known], kept[:known])
        self._signed[node, :known] = np.copysign(state["strengths"][:known], sides)
        self.rows[node, :shown], self.strengths[node, :shown] = directions, state["strengths"][:shown]
        self.ranks[node], self.blocks[node] = shown, state["blocks"]
        self._known[node], self._held[node], self._seen[node] = known, held, seen
        self._shown[node], self._last_change[node] = state["shown"], state["last_change"]

    def samples(self) -> Array:
        """Vectors behind the singular values, `(M,)`."""
        blocks = self.blocks.astype(np.float64)
        if self.forgetting == 1.0:
            return blocks * self.block_size
        fade = self.forgetting**2
        return np.asarray(self.block_size * (1.0 - fade**blocks) / (1.0 - fade))

    def kept(self, node: int) -> Subspace | None:
        """Return one node's subspace with its spare directions."""
        known = int(self._known[node])
        if not known:
            return None
        signed = self._signed[node, :known]
        strengths = np.abs(signed)
        rows = self.slab[node, :known] / (self.forgetting * np.where(strengths > 0.0, signed, 1.0))[:, None]
        return Subspace(rows.T, strengths)

    def learn(self, Z: Array, at: At) -> NDArray[np.intp]:
        """Take in one vector of each of the nodes `at`; return the nodes whose subspace changed."""
        numbers = np.arange(at.start, at.stop) if isinstance(at, slice) else at
        held = self._held[numbers]
        if held.size and held.min() == held.max():
            self.slab[at, self.depth + int(held[0])] = Z
        else:
            self.slab[numbers, self.depth + held] = Z
        if self._past is not None:
            self._past[numbers, self._seen[numbers] % self.lag] = Z
        self._seen[numbers] += 1
        self._held[numbers] += 1
        full: Nodes = numbers[held + 1 == self.block_size]
        self.recent = None
        if not full.size:
            return full
        self._held[full] = 0
        self.blocks[full] += 1
        return self._update(full, at if full.size == numbers.size else full)

    def alike(self, nodes: NDArray[np.intp]) -> list[NDArray[np.intp]]:
        """Split nodes by how many vectors they remember, so that each part can ask for its `window`."""
        if self._past is None:
            return [nodes]
        held = np.minimum(self._seen[nodes], self.lag)
        return [nodes[held == n] for n in np.unique(held)]

    def window(self, nodes: NDArray[np.intp]) -> tuple[Array, int]:
        """Return the last vectors' projections `(m, width, lag)`, oldest first, and how many are real.

        All of these nodes must have seen equally many vectors, or at least `lag`.
        """
        recent = self.latest(nodes)
        return np.matmul(self.rows[nodes], recent.swapaxes(1, 2)), recent.shape[1]

    def latest(self, nodes: NDArray[np.intp]) -> Array:
        """Return the last vectors `(m, held, d)`, oldest first, of nodes that remember equally many."""
        held = min(int(self._seen[nodes].min()), self.lag)
        back = np.arange(-held, 0)
        if self._past is None:
            slots = (self._held[nodes, None] + back) % self.block_size
            return np.asarray(self.slab[nodes[:, None], self.depth + slots])
        return np.asarray(self._past[nodes[:, None], (self._seen[nodes, None] + back) % self.lag])

    def turn(self, nodes: NDArray[np.intp], signs: Array) -> None:
        """Show the directions of nodes with other signs `(m, width)`, and keep them from here on."""
        self.rows[nodes] *= signs[:, :, None]
        self._signed[nodes, : self.width] *= signs

    def _update(self, full: NDArray[np.intp], at: At) -> NDArray[np.intp]:
        """Fold the full blocks into the subspaces; return the nodes that have one now."""
        rows = self.slab[at]
        known = self._known[full]
        if self.energy_bounds is not None or self.depth + self.block_size >= rows.shape[2]:
            return self._carefully(full, at, rows, known)
        gram = np.matmul(rows, rows.swapaxes(1, 2))
        if not gram.item(gram.argmax()) < LARGEST:
            return self._carefully(full, at, rows, known)
        squares, vectors, trusted = leading(gram, self.depth)
        steady = (known == self.depth) & trusted
        if steady.all():
            self._follow(at, rows, squares, vectors)
            return full
        first, rest = full[steady], full[~steady]
        if first.size:
            self._follow(first, rows[steady], squares[steady], vectors[steady])
        self.recent = None
        return np.sort(np.concatenate([first, self._carefully(rest, rest, rows[~steady], known[~steady])]))

    def _follow(self, at: At, rows: Array, squares: Array, vectors: Array) -> None:
        """Show new directions, each turned along the one before it."""
        width, depth, lag = self.width, self.depth, self.lag
        top = vectors[:, :, : -depth - 1 : -1]
        along = np.einsum("mii->mi", top[:, :depth])
        signed = np.copysign(np.sqrt(squares[:, : -depth - 1 : -1]), along * self._signed[at])
        self._signed[at] = signed
        weighted = self._room(len(rows))
        np.matmul(vectors[:, :, -depth:].swapaxes(1, 2), rows, out=weighted)
        weighted = weighted[:, ::-1]
        self.slab[at, :depth] = weighted if self.forgetting == 1.0 else self.forgetting * weighted
        weighted = weighted[:, :width]
        self.rows[at] = np.divide(weighted, signed[:, :width, None], out=weighted)
        self.strengths[at] = np.abs(signed[:, :width])
        if lag <= self.block_size:
            # The eigenvectors hold each vector's part in each direction.
            self.recent = top[:, -lag:, :width].swapaxes(1, 2) * signed[:, :width, None]

    def _room(self, nodes: int) -> Array:
        """Return scratch space, the same each time: fresh memory would cost more than what is done in it."""
        if len(self._scratch) < nodes:
            self._scratch = np.zeros((nodes, self.depth, self.slab.shape[2]))
        return self._scratch[:nodes]

    def _carefully(self, full: Nodes, at: At, rows: Array, known: Nodes) -> Nodes:
        """Do what `_update` promises for young nodes, adapting ranks and weak directions."""
        depth, block = self.depth, self.block_size
        keep = np.minimum(self._shown[full] + self.spare, known + block)
        keep = np.minimum(keep, rows.shape[2])
        trusted = (keep < known + block) & (known + block < rows.shape[2])
        basis, strengths, trusted = self._by_gram(rows, keep, trusted)
        if not trusted.all():
            for i in np.flatnonzero(~trusted):
                self._exactly(rows[i], int(known[i]), int(keep[i]), basis[i], strengths[i])
        kept = np.count_nonzero(strengths, axis=1)
        if self.energy_bounds is not None:
            self._adapt(full, strengths, kept, basis)
            kept = np.count_nonzero(strengths, axis=1)
        self._known[full] = kept
        self.slab[at, :depth] = basis * (self.forgetting * strengths)[:, :, None]
        self._signed[at] = strengths
        alive = kept > 0
        if alive.all():
            self._show(full, at, basis, strengths, kept)
            return full
        changed: Nodes = full[alive]
        self._show(changed, changed, basis[alive], strengths[alive], kept[alive])
        return changed

    def _by_gram(self, rows: Array, keep: Nodes, wanted: Mask) -> tuple[Array, Array, Mask]:
        """Update nodes through their Gram matrices.

        Return directions and strengths, zero where there are none, and which nodes may be trusted.
        """
        depth = self.depth
        if not wanted.any():
            nothing = np.zeros((len(keep), depth, rows.shape[2]))
            return nothing, np.zeros((len(keep), depth)), wanted
        with np.errstate(over="ignore", invalid="ignore"):
            gram = np.matmul(rows, rows.swapaxes(1, 2))
            sound: Mask = np.isfinite(np.trace(gram, axis1=1, axis2=2)) & wanted
        if not sound.all():
            gram = np.where(sound[:, None, None], gram, 0.0)
        squares, vectors, trusted = leading(gram, keep)
        sound &= trusted & (squares[:, -1] < LARGEST)
        top = squares[:, : -depth - 1 : -1]
        weighted = np.matmul(vectors[:, :, -depth:].swapaxes(1, 2), rows)[:, ::-1]
        kept = (np.arange(depth) < keep[:, None]) & sound[:, None]
        strengths = np.sqrt(np.where(kept, top, 0.0))
        basis = np.where(kept[:, :, None], weighted / np.where(kept, strengths, 1.0)[:, :, None], 0.0)
        return basis, strengths, sound

    def _exactly(self, rows: Array, known: int, keep: int, basis: Array, strengths: Array) -> None:
        """Update one node as a single node would."""
        compact = np.concatenate([rows[:known], rows[self.depth :]])
        exact = leading_exactly(compact, keep)
        if exact is None:
            compact[known:] = finite_all(compact[known:])
            exact = leading_exactly(compact, keep)
        if exact is not None:
            found = len(exact[1])
            basis[:found], strengths[:found] = exact

    def _adapt(self, full: NDArray[np.intp], strengths: Array, kept: NDArray[np.intp], basis: Array) -> None:
        """Change ranks by at most one, by the energy of the weakest direction shown."""
        assert self.energy_bounds is not None
        low, high = self.energy_bounds
        shown = np.minimum(self._shown[full], kept)
        ready = (self.blocks[full] - self._last_change[full] >= self.holdoff) & (kept > 0)
        directions = np.arange(self.depth)
        total = np.where(directions < shown[:, None], strengths, 0.0).sum(axis=1)
        weakest = strengths[np.arange(full.size), np.maximum(shown - 1, 0)]
        energy = np.divide(weakest, total, out=np.full(full.size, 0.5 * (low + high)), where=total > 0)
        shrink = ready & (energy < low) & (self._shown[full] > 1)
        grow = ready & (energy > high) & ~shrink & (shown == self._shown[full])
        grow &= (shown < self.limit) & (kept > shown)
        self._shown[full] = np.where(shrink, shown - 1, self._shown[full] + grow)
        self._last_change[full] = np.where(shrink | grow, self.blocks[full], self._last_change[full])
        dropped = directions >= (self._shown[full] + self.spare)[:, None]
        strengths[dropped] = 0.0
        basis[dropped] = 0.0

    def _show(self, nodes: Nodes, at: At, basis: Array, strengths: Array, kept: Nodes) -> None:
        """Take new directions into use, aligned with the ones before."""
        width = self.width
        shown = np.minimum(self._shown[nodes], kept)
        basis, strengths = basis[:, :width], strengths[:, :width]
        directions = np.arange(width)
        signs = align_signs(basis, self.rows[at])
        self._signed[nodes, :width] *= signs
        if (shown < width).any():
            visible = directions < shown[:, None]
            signs[~visible] = 0.0
            strengths = np.where(visible, strengths, 0.0)
        self.rows[at] = basis * signs[:, :, None]
        self.strengths[at] = strengths
        self.ranks[nodes] = shown
