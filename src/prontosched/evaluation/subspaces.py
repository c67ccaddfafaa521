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
from prontosched.pipeline.frequent_directions import FrequentDirections
from prontosched.pipeline.node import ADOPTED_SAMPLES
from prontosched.pipeline.power_method import PowerMethod
from prontosched.pipeline.projection import RELATIVE_FLOOR, SpikeDetector
from prontosched.pipeline.spirit import Spirit, SpiritFleet
from prontosched.subspace import Array, Subspace

# Numbers held at a time in the directions of all nodes and steps.
MOST_NUMBERS = 4_000_000


class SubspaceRows(NamedTuple):
    """What an embedding shows of some rows, `(steps, …)` of one node or `(steps, nodes, …)`.

    Attributes
    ----------
    spikes, strengths
        −1, 0 or +1 for each direction, and its singular value: 0 for one that is missing, `(…, r)`.
    warm
        Whether a spike could be told.
    t_squared, spe
        Hotelling's T² and the squared prediction error, NaN while there is no subspace.
    """

    spikes: NDArray[np.int8]
    strengths: Array
    warm: Mask
    t_squared: Array
    spe: Array


class SubspaceReplay:
    """An embedding on every node of a part.

    Parameters
    ----------
    make
        Returns a new embedding.
    lag
        Vectors that projector and detector look back on.
    """

    def __init__(self, make: Callable[[], Embedding], nodes: int, features: int, lag: int) -> None:
        self._nodes = [_NodeSubspace(make(), features, lag) for _ in range(nodes)]
        like = self._nodes[0].embedding
        self._spirit = None
        if isinstance(like, Spirit) and like.energy_bounds is None:
            self._spirit = SpiritFleet(nodes, features, like)

    def run(self, scaled: Array, sizes: NDArray[np.int64]) -> SubspaceRows:
        """Return what is seen of the next scaled vectors, `(steps, nodes, d)`; of each node the first `sizes`."""
        steps, nodes, features = scaled.shape
        width = self._nodes[0].width
        found = SubspaceRows(
            np.zeros((steps, nodes, width), np.int8),
            np.zeros((steps, nodes, width)),
            np.zeros((steps, nodes), bool),
            *(np.full((steps, nodes), np.nan) for _ in range(2)),
        )
        wholes: tuple[NDArray[Any], ...] = found
        piece = max(1, MOST_NUMBERS // (nodes * width * features))
        for start in range(0, steps, piece):
            part = scaled[start : start + piece]
            left = np.clip(sizes - start, 0, len(part))
            spirit = None if self._spirit is None else self._spirit.follow(part, left)
            for node, (one, size) in enumerate(zip(self._nodes, left.tolist(), strict=True)):
                if not size:
                    continue
                given = None if spirit is None else (spirit[0][:size, node], spirit[1][:size, node])
                for whole, values in zip(wholes, one.look(part[:size, node], given), strict=True):
                    whole[start : start + size, node] = values
        return found


class _NodeSubspace:
    """Embedding, projector and detector of one node."""

    def __init__(self, embedding: Embedding, features: int, lag: int) -> None:
        self.embedding = embedding
        adapts = getattr(embedding, "energy_bounds", None) is not None
        self.width = min(getattr(embedding, "block_size" if adapts else "rank", 4), features)
        self._detector = SpikeDetector(lag)
        self._restless = bool(getattr(embedding, "restless", False))
        self._past = np.zeros((lag, features))
        self._held = 0
        self._last: Subspace | None = None
        self._directions = np.zeros((1, self.width, features))
        self._since_turn = 0
        # Of the last values: whether they spiked, and what they were dampened to.
        self._spiked = np.zeros((lag, self.width), bool)
        self._dampened = np.zeros((lag, self.width))

    def look(self, Z: Array, given: tuple[Array, Array] | None) -> SubspaceRows:
        """Return what is seen of the next vectors; directions and strengths may be given."""
        lag, steps = self._detector.lag, len(Z)
        samples, turned = np.ones(steps), np.ones(steps, bool)
        if given is not None:
            rows, strengths = given
        elif isinstance(self.embedding, FrequentDirections):
            rows, strengths = self.embedding.follow(Z)
        elif isinstance(self.embedding, PowerMethod):
            rows, strengths, turned = self.embedding.follow(Z)
        else:
            rows, strengths, samples, turned = self._follow(Z)
        there = strengths[:, 0] > 0.0
        line = np.concatenate([self._past, Z])
        # The vectors of the lag and the present one, along the directions of now.
        along = np.matmul(self._aligned(rows), sliding_window_view(line, lag + 1, axis=0))
        warm = there & (self._held + np.arange(steps) >= lag)
        self._past, self._held = line[steps:], self._held + steps
        spikes = self._detect(along, turned, warm)
        squares = along[..., lag] ** 2
        with np.errstate(divide="ignore", invalid="ignore"):
            inside = np.where(strengths > 0.0, squares * samples[:, None] / strengths**2, 0.0).sum(axis=1)
        outside = np.maximum(np.einsum("td,td->t", Z, Z) - squares.sum(axis=1), 0.0)
        distances = (np.where(there, distance, np.nan) for distance in (inside, outside))
        return SubspaceRows(spikes, strengths, warm, *distances)

    def _follow(self, Z: Array) -> tuple[Array, Array, Array, Mask]:
        """Let the embedding learn; return directions, strengths, samples and turns, as known before each vector."""
        embedding, last = self.embedding, self._last
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
        rows, strengths = (
            np.zeros((1 + len(kept), self.width, Z.shape[1])),
            np.zeros((1 + len(kept), self.width)),
        )
        for place, one in enumerate(kept, start=1):
            rank = min(one.rank, self.width)
            rows[place, :rank], strengths[place, :rank] = one.basis.T[:rank], one.singular_values[:rank]
        behind = np.array([samples[0], *samples] if len(samples) == len(kept) else samples)
        return rows[which], strengths[which], behind[which], turned

    def _aligned(self, rows: Array) -> Array:
        """Return directions with the signs of those before them, as `subspace.align_signs` would one by one."""
        side = np.sign(np.einsum("trd,trd->tr", rows, np.concatenate([self._directions, rows[:-1]])))
        # A direction that has none before it starts with a sum that is not negative.
        starts = side == 0.0
        signs = np.cumprod(np.where(starts, np.where(rows.sum(axis=2) < 0.0, -1.0, 1.0), side), axis=0)
        begun = np.maximum.accumulate(np.where(starts, np.arange(len(rows))[:, None], 0), axis=0)
        before = np.concatenate([np.ones((1, self.width)), signs])
        rows = rows * (signs * np.take_along_axis(before, begun, axis=0))[..., None]
        self._directions = rows[-1:]
        return rows

    def _detect(self, along: Array, turned: Mask, warm: Mask) -> NDArray[np.int8]:
        """Return the spikes, as `SpikeDetector` finds them.

        A spike dampens its own value in the windows of the steps after it. So spikes are found as if there were
        none, then again with those found, until nothing changes: the first k steps are right after k rounds.
        """
        lag, influence = self._detector.lag, self._detector.influence
        windows, values = along[..., :lag], along[..., lag]
        steps = np.arange(len(values))
        last = np.maximum.accumulate(np.where(turned, steps, -1))
        since = np.where(last >= 0, steps - last, self._since_turn + steps)
        self._since_turn = int(since[-1]) + 1
        # What was dampened before directions turned counts as it was again, unless they turn at every vector.
        reach = np.full(len(values), lag) if self._restless else np.minimum(since, lag)
        spiked = np.concatenate([self._spiked, np.zeros(values.shape, bool)])
        dampened = np.concatenate([self._dampened, values])
        plain = found = self._outliers(windows, values, warm[:, None])
        newest = windows[..., -1].copy()
        while True:
            spiked[lag:] = found
            dampened[lag:] = np.where(found, influence * values + (1.0 - influence) * newest, values)
            before = np.concatenate([np.zeros((1, self.width), int), np.cumsum(spiked, axis=0)])
            step, k = np.nonzero(before[lag : lag + len(values)] > before[lag - reach + steps, :])
            if not step.size:
                break
            marks = sliding_window_view(spiked, lag, axis=0)[step, k]
            marks = marks & (np.arange(lag) >= lag - reach[step, None])
            if self._restless:
                some = _dampen(windows[step, k], marks, influence)
            else:
                some = np.where(marks, sliding_window_view(dampened, lag, axis=0)[step, k], windows[step, k])
            again = plain.copy()
            again[step, k] = self._outliers(some, values[step, k], warm[step])
            settled = np.array_equal(newest[step, k], some[:, -1]) and np.array_equal(found, again)
            found = again
            newest[step, k] = some[:, -1]
            if settled:
                break
        self._spiked, self._dampened = spiked[len(values) :], dampened[len(values) :]
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


def _dampen(windows: Array, spiked: Mask, influence: float) -> Array:
    """Dampen what spiked by the value before it; the first calm one stands in for one that has left the window."""
    found = windows.copy()
    before = windows[np.arange(len(windows)), np.argmin(spiked, axis=1)]
    for place, value in enumerate(windows.T):
        before = np.where(spiked[:, place], influence * value + (1.0 - influence) * before, value)
        found[:, place] = before
    return found
