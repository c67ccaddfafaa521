"""An embedding over some rows at once: its strengths, spikes and distances, as `pipeline.node.Node` would find them.

A node scales, projects, detects and then learns, vector by vector. Only learning depends on the vectors before. So the
directions in force at each step are found first, and everything else follows for all steps together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from prontosched.evaluation.measures import Mask
from prontosched.pipeline import Embedding
from prontosched.pipeline.fpca import FPCAEdge, FPCAEdgeFleet
from prontosched.pipeline.frequent_directions import FrequentDirections, FrequentDirectionsFleet
from prontosched.pipeline.node import ADOPTED_SAMPLES
from prontosched.pipeline.power_method import PowerMethod
from prontosched.pipeline.projection import RELATIVE_FLOOR, SpikeDetector
from prontosched.pipeline.spirit import Spirit, SpiritFleet
from prontosched.subspace import Array, Subspace

# Numbers held at a time in the directions of all nodes and steps.
MOST_NUMBERS = 4_000_000


class SubspaceRows(NamedTuple):
    """What an embedding shows of some rows, `(steps, …)` of one node or `(steps, nodes, …)`."""

    spikes: NDArray[np.int8]  # −1, 0 or +1 for each direction, `(…, r)`
    strengths: Array  # their singular values, 0 for a direction that is missing
    warm: Mask  # whether a spike could be told
    t_squared: Array  # Hotelling's T², NaN while there is no subspace
    spe: Array  # the squared prediction error, the same


class SubspaceReplay:
    """An embedding on every node of a part; projector and detector look back on `lag` vectors."""

    def __init__(self, make: Callable[[], Embedding], nodes: int, features: int, lag: int) -> None:
        like = make()
        adapts = getattr(like, "energy_bounds", None) is not None
        self._width = min(getattr(like, "block_size" if adapts else "rank", 4), features)
        self._detector = SpikeDetector(lag)
        self._restless = bool(getattr(like, "restless", False))
        self._fleet: SpiritFleet | FrequentDirectionsFleet | None = None
        self._fpca = None
        self._embeddings: list[_NodeEmbedding] = []
        if isinstance(like, Spirit) and not adapts:
            self._fleet = SpiritFleet(nodes, features, like)
        elif isinstance(like, FrequentDirections) and not like.authors:
            self._fleet = FrequentDirectionsFleet(nodes, features, like)
        elif isinstance(like, FPCAEdge) and not adapts:
            self._fpca = FPCAEdgeFleet(nodes, features, like, lag=1)
        else:
            self._embeddings = [_NodeEmbedding(make(), self._width) for _ in range(nodes)]
        self._samples = np.full(nodes, float(ADOPTED_SAMPLES))
        self._turned = np.zeros(nodes, bool)
        self._directions = np.zeros((nodes, self._width, features))
        self._past = np.zeros((lag, nodes, features))
        self._held, self._since_turn = np.zeros((2, nodes), np.int64)
        # Of the last values along each direction: whether they spiked, and what they were dampened to.
        self._spiked = np.zeros((lag, nodes, self._width), bool)
        self._dampened = np.zeros((lag, nodes, self._width))

    def run(self, scaled: Array, sizes: NDArray[np.int64]) -> SubspaceRows:
        """Return what is seen of the next scaled vectors, `(steps, nodes, d)`; of each node the first `sizes`."""
        steps, nodes, features = scaled.shape
        piece = max(1, MOST_NUMBERS // (nodes * self._width * features))
        parts = [
            self._look(scaled[start : start + piece], np.clip(sizes - start, 0, min(piece, steps - start)))
            for start in range(0, steps, piece)
        ]
        return SubspaceRows(*map(np.concatenate, zip(*parts, strict=True)))

    def _look(self, Z: Array, sizes: NDArray[np.int64]) -> SubspaceRows:
        steps, nodes, _ = Z.shape
        lag = self._detector.lag
        line = np.concatenate([self._past, Z])
        # The vectors of the lag and the present one, along the directions of now.
        along = np.zeros((steps, nodes, self._width, lag + 1))
        strengths, samples = np.zeros((steps, nodes, self._width)), np.ones((steps, nodes))
        turned = np.ones((steps, nodes), bool)
        if self._fpca is not None:
            self._follow_blocks(self._fpca, line, sizes, along, strengths, samples, turned)
        else:
            together = None if self._fleet is None else self._fleet.follow(Z, sizes)
            for node, size in enumerate(sizes.tolist()):
                if not size:
                    continue
                at = slice(size), node
                if together is not None:
                    rows, strengths[at] = together[0][at], together[1][at]
                else:
                    rows, strengths[at], samples[at], turned[at] = self._embeddings[node].follow(Z[at])
                windows = sliding_window_view(line[: lag + size, node], lag + 1, axis=0)
                np.multiply(np.matmul(rows, windows), self._signs(rows, node)[..., None], out=along[at])
        there = strengths[..., 0] > 0.0
        step = np.arange(steps)[:, None]
        warm = there & (self._held + step >= lag) & (step < sizes)
        self._past, self._held = self._last(line, sizes), self._held + sizes
        spikes = self._detect(along, turned, warm, sizes)
        squares = along[..., lag] ** 2
        with np.errstate(divide="ignore", invalid="ignore"):
            inside = np.where(strengths > 0.0, squares * samples[..., None] / strengths**2, 0.0).sum(axis=2)
        outside = np.maximum(np.einsum("tmd,tmd->tm", Z, Z) - squares.sum(axis=2), 0.0)
        distances = (np.where(there, distance, np.nan) for distance in (inside, outside))
        return SubspaceRows(spikes, strengths, warm, *distances)

    def _last(self, line: Any, sizes: NDArray[np.int64]) -> Any:
        """Return the last values of each node, as many as the lag, of those held before and `sizes` more."""
        if (sizes == len(line) - self._detector.lag).all():
            return line[len(line) - self._detector.lag :]
        return line[sizes + np.arange(self._detector.lag)[:, None], np.arange(len(sizes))]

    def _follow_blocks(
        self,
        fleet: FPCAEdgeFleet,
        line: Array,
        sizes: NDArray[np.int64],
        along: Array,
        strengths: Array,
        samples: Array,
        turned: Mask,
    ) -> None:
        """Let nodes learn whose directions turn once a block, and hold between; all vectors of it at once."""
        lag, steps = self._detector.lag, len(along)
        turns = np.zeros((steps + 1, len(sizes)), bool)
        turns[0] = self._turned
        rows, first = fleet.rows.copy(), 0
        for step in range(steps):
            strengths[step], samples[step] = fleet.strengths, self._samples
            whole = step < sizes.min()
            at = slice(0, len(sizes)) if whole else np.flatnonzero(step < sizes)
            for changed, _ in fleet.learn(line[lag + step, at], at):
                turns[step + 1, changed] = True
            if step + 1 < steps and not turns[step + 1].any():
                continue
            values = np.matmul(rows, line[first : step + 1 + lag].transpose(1, 2, 0))
            along[first : step + 1] = sliding_window_view(values, lag + 1, axis=2).transpose(2, 0, 1, 3)
            self._samples = np.where(turns[step + 1], fleet.samples(), self._samples)
            rows, first = fleet.rows.copy(), step + 1
        strengths[np.arange(steps)[:, None] >= sizes] = 0.0
        turned[:] = turns[:-1]
        self._turned = turns[sizes, np.arange(len(sizes))]

    def _signs(self, rows: Array, node: int) -> Array:
        """Return the signs of directions beside those before them, as `subspace.align_signs` would one by one."""
        before = np.einsum("rd,rd->r", rows[0], self._directions[node])
        side = np.sign(np.concatenate([before[None], np.einsum("trd,trd->tr", rows[1:], rows[:-1])]))
        # A direction that has none before it starts with a sum that is not negative.
        starts = side == 0.0
        if starts.any():
            side[starts] = np.where(rows[starts].sum(axis=1) < 0.0, -1.0, 1.0)
        signs = np.cumprod(side, axis=0)
        if starts.any():
            begun = np.maximum.accumulate(np.where(starts, np.arange(len(rows))[:, None], 0), axis=0)
            earlier = np.concatenate([np.ones((1, self._width)), signs])
            signs *= np.take_along_axis(earlier, begun, axis=0)
        self._directions[node] = rows[-1] * signs[-1, :, None]
        return signs

    def _detect(self, along: Array, turned: Mask, warm: Mask, sizes: NDArray[np.int64]) -> NDArray[np.int8]:
        """Return the spikes, as `SpikeDetector` finds them.

        A spike dampens its own value in the windows of the steps after it. So spikes are found as if there were
        none, then again with those found, until nothing changes: the first k steps are right after k rounds.
        """
        lag, influence = self._detector.lag, self._detector.influence
        windows, values = along[..., :lag], along[..., lag]
        count, nodes = turned.shape
        steps, each = np.arange(count)[:, None], np.arange(nodes)
        last = np.maximum.accumulate(np.where(turned, steps, -1))
        since = np.where(last >= 0, steps - last, self._since_turn + steps)
        self._since_turn = np.where(sizes > 0, since[sizes - 1, each] + 1, self._since_turn)
        # What was dampened before directions turned counts as it was again, unless they turn at every vector.
        reach = np.full(turned.shape, lag) if self._restless else np.minimum(since, lag)
        found = self._outliers(windows, values, warm[..., None])
        newest = windows[..., -1].copy()
        spiked = np.concatenate([self._spiked, found != 0])
        dampened = np.concatenate([self._dampened, values])
        changed = spiked.copy()
        while True:
            now = np.where(found, influence * values + (1.0 - influence) * newest, values)
            changed[lag:] |= now != dampened[lag:]
            dampened[lag:] = now
            before = np.zeros((lag + count + 1, *values.shape[1:]), np.int32)
            np.cumsum(changed, axis=0, out=before[1:])
            # Where nothing changed in reach of a window, it tells what it told before.
            some = np.nonzero(before[lag : lag + count] > before[lag - reach + steps, each])
            if not some[0].size:
                break
            marks = sliding_window_view(spiked, lag, axis=0)[some]
            marks = marks & (np.arange(lag) >= lag - reach[some[:2]][:, None])
            given = windows[some]
            if self._restless:
                given = _dampen(given, marks, influence)
            else:
                given = np.where(marks, sliding_window_view(dampened, lag, axis=0)[some], given)
            found[some] = self._outliers(given, values[some], warm[some[:2]])
            newest[some] = given[:, -1]
            changed = np.concatenate([np.zeros_like(self._spiked), spiked[lag:] != (found != 0)])
            spiked[lag:] = found
        self._spiked, self._dampened = self._last(spiked, sizes), self._last(dampened, sizes)
        return found

    def _outliers(self, windows: Array, values: Array, warm: Mask) -> NDArray[np.int8]:
        """Return −1 or +1 for values that lie too many deviations away from the mean of their window, else 0."""
        detector = self._detector
        mean = windows.mean(axis=-1)
        apart = windows - mean[..., None]
        square = np.einsum("...l,...l->...", apart, apart)
        away = values - mean
        far = away * away > detector.threshold**2 / detector.lag * square
        far &= np.abs(away) > detector.threshold * np.maximum(detector.floor, RELATIVE_FLOOR * np.abs(mean))
        return np.where(far & warm, np.sign(away), 0.0).astype(np.int8)


class _NodeEmbedding:
    """The embedding of one node, where nodes do not learn together."""

    def __init__(self, embedding: Embedding, width: int) -> None:
        self._embedding = embedding
        self._width = width
        self._last: Subspace | None = None

    def follow(self, Z: Array) -> tuple[Array, Array, Array, Mask]:
        """Let it learn; return directions, strengths, samples and turns, as known before each vector."""
        embedding, last = self._embedding, self._last
        if isinstance(embedding, PowerMethod):
            rows, strengths, turned = embedding.follow(Z)
            return rows, strengths, np.ones(len(Z)), turned
        kept: list[Subspace] = [] if last is None else [last]
        samples = [embedding.samples or ADOPTED_SAMPLES]
        which, turned = np.empty(len(Z), np.int64), np.zeros(len(Z), bool)
        for step, z in enumerate(Z):
            now = embedding.subspace
            if now is not last:
                turned[step] = True
                if now is not None:
                    kept.append(now)
                    samples.append(embedding.samples or ADOPTED_SAMPLES)
                last = now
            which[step] = 0 if now is None else len(kept)
            embedding.learn_one(z)
        self._last = last
        # The first stands for none.
        rows = np.zeros((1 + len(kept), self._width, Z.shape[1]))
        strengths = np.zeros((1 + len(kept), self._width))
        for place, one in enumerate(kept, start=1):
            rank = min(one.rank, self._width)
            rows[place, :rank], strengths[place, :rank] = one.basis.T[:rank], one.singular_values[:rank]
        behind = np.array([samples[0], *samples] if len(samples) == len(kept) else samples)
        return rows[which], strengths[which], behind[which], turned


def _dampen(windows: Array, spiked: Mask, influence: float) -> Array:
    """Dampen what spiked by the value before it; the first calm one stands in for one that has left the window."""
    found = windows.copy()
    before = windows[np.arange(len(windows)), np.argmin(spiked, axis=1)]
    for place, value in enumerate(windows.T):
        before = np.where(spiked[:, place], influence * value + (1.0 - influence) * before, value)
        found[:, place] = before
    return found
