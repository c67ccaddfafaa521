"""Stages 3 and 4: vector times subspace gives projections, and projections −1, 0 or +1.

A singular vector's sign is arbitrary, and the directions turn at every update. Left alone, a
projection would jump at each block end and look like a spike. So `Projector` aligns directions
with the ones before, and projects the recent past again on the new ones.

`SpikeDetector` is the smoothed z-score: a value spikes when it leaves the mean of the recent,
dampened values by more than so many of their deviations. It works in plain floats: for a handful
of projections that is several times faster than arrays. `FleetSpikeDetector` does the same for
many nodes, in arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import dist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prontosched.subspace import MOST_ROWS, Array, Subspace, align_signs, room

# Deviations below these, absolute and relative to the mean, are rounding error.
FLOOR = 1e-9
RELATIVE_FLOOR = 1e-9
# When so little of a window's squares stays after a value left, it is rounding error.
CANCELLED = 1e-4
# Running means and squares are measured afresh after the ring came round so often.
ROUNDS = 8
# Deviations of a fleet down to this share of the mean, both squared, are found in one pass.
NEARBY = 1e-3

At = slice | NDArray[np.intp]


class Projector:
    """Project vectors on a subspace that changes now and then.

    Parameters
    ----------
    lag
        Vectors to remember, so that they can be projected again on a new basis.
    orient
        Give directions a sign of their own and keep it; off, signs are whatever the
        embedding says, which turns signals round at random.

    Attributes
    ----------
    subspace
        The subspace given last with its directions aligned; None before the first.
    window
        After `project` met a new subspace: the remembered vectors' projections on
        it, `(r, n)`, as a ring. None otherwise.
    slot
        Column of that ring which is the oldest, and the next to be replaced.

    Notes
    -----
    Memory: `d * (lag + r)` floats.

    Examples
    --------
    >>> projector = Projector(lag=2)
    >>> north = Subspace(np.array([[0.0], [-1.0]]), np.array([4.0]))
    >>> projector.project(north, np.array([1.0, 2.0]))
    [2.0]
    """

    def __init__(self, lag: int = 10, *, orient: bool = True) -> None:
        if lag < 1:
            raise ValueError(f"lag must be at least 1 vector, got {lag}")
        self.lag = lag
        self.orient = orient
        self.source: Subspace | None = None
        self.subspace: Subspace | None = None
        self.window: Array | None = None
        self.slot = 0
        # Whose signs are those in use here.
        self._lineage: object = None
        self._rows = np.zeros((0, 0))
        self._projections = np.zeros(0)
        self._past = np.zeros((0, 0))
        self._slots: list[Array] = []  # rows of the past
        self._next = 0
        self._held = 0

    def project(self, subspace: Subspace | None, y: Array) -> list[float]:
        """Return the projections of `y`, and remember it; empty while there is no subspace."""
        self.window = None
        if subspace is not self.source and subspace is not None:
            self._turn(subspace)
        at = self._next
        try:
            self._slots[at][...] = y
        except IndexError:
            self._remember(room(self.lag, y.shape[0]))
            self._slots[0][...] = y
        self._next = at + 1 if at + 1 < self.lag else 0
        if self._held < self.lag:
            self._held += 1
        if subspace is None:
            return []
        projections = self._projections
        self._rows.dot(self._slots[at], projections)
        return projections.tolist()

    def _remember(self, past: Array) -> None:
        self._past = past
        self._slots = list(past)

    def _turn(self, subspace: Subspace) -> None:
        """Take a new subspace into use: align its directions, project the past on them."""
        rows = subspace.basis.T
        self.source = self.subspace = subspace
        if self.orient and (subspace.lineage is None or subspace.lineage is not self._lineage):
            rows = self._oriented(rows)
        if rows.shape != self._rows.shape:
            self._projections = np.zeros(len(rows))
        self._rows = rows = np.ascontiguousarray(rows)
        self.slot = self._next
        past = self._past if self._held == self.lag else self._past[: self._held]
        self.window = rows.dot(past.T) if self._held else np.zeros((len(rows), 0))

    def _oriented(self, rows: Array) -> Array:
        """Return the new subspace's directions with the signs they should have here."""
        assert self.source is not None
        signs = align_signs(rows, self._rows)
        self._lineage = self.source.lineage
        if signs.min() < 0.0:
            rows = rows * signs[:, None]
            self.subspace = Subspace(rows.T, self.source.singular_values)
            self._lineage = None
        return rows

    def __setstate__(self, state: dict[str, Any]) -> None:
        # As in `FPCAEdge`.
        self.__dict__.update(state)
        self._slots = list(self._past)

    def state(self) -> dict[str, Any]:
        """Return everything held, by name."""
        subspace = self.subspace
        return {
            "rows": self._rows,
            "strengths": np.zeros(0) if subspace is None else subspace.singular_values,
            "past": self._past,
            "next": self._next,
            "held": self._held,
        }

    def restore(self, state: Mapping[str, Any], source: Subspace | None) -> None:
        """Take over what `state` returned; `source` is the subspace that was in use."""
        self._remember(state["past"])
        self._next = int(state["next"])
        self._held = int(state["held"])
        self.source = source
        if state["rows"].size:
            self._rows = state["rows"]
            self._projections = np.zeros(len(self._rows))
            self.subspace = Subspace(self._rows.T, state["strengths"])


class SpikeDetector:
    """Tell for each projection whether it leaves its recent range.

    Parameters
    ----------
    lag
        Values that make up the recent range, the newest included.
    threshold
        Deviations that make a spike. Paper: α in Reject-Job.
    influence
        How much a spike shifts the recent range, 0 to 1. Paper: β in Reject-Job.
    floor
        Smallest deviation, absolute; keeps rounding errors of a flat signal from spiking.

    Notes
    -----
    Memory: `r * (2 * lag + 2)` floats.

    Examples
    --------
    >>> detector = SpikeDetector(lag=4)
    >>> [detector.detect([v]) for v in [1.0, 1.1, 0.9, 1.0, 5.0, 1.0]]
    [None, None, None, None, [1], [0]]
    """

    def __init__(
        self, lag: int = 10, threshold: float = 3.5, influence: float = 0.5, *, floor: float = FLOOR
    ) -> None:
        if not 2 <= lag <= MOST_ROWS:
            raise ValueError(f"lag must be at least 2 and at most {MOST_ROWS} values, got {lag}")
        if not threshold > 0:
            raise ValueError(f"threshold must be positive, got {threshold}")
        if not 0.0 <= influence <= 1.0:
            raise ValueError(f"influence must be from 0 to 1, got {influence}")
        self.lag = lag
        self.threshold = threshold
        self.influence = influence
        self.floor = floor
        self._share = 1.0 / lag
        self._limit = threshold * threshold / lag
        # Rings of values; their means, and their squared distances from the mean, summed.
        self._windows: list[list[float]] = []
        self._means: list[float] = []
        self._squares: list[float] = []
        self._held = 0
        self._next = 0
        self._rounds = 0
        # Slots of the ring whose values spiked, each with the spikes.
        self._spiked: dict[int, list[int]] = {}

    @property
    def warm(self) -> bool:
        """True once `lag` values are held."""
        return self._held == self.lag

    @property
    def filtered(self) -> list[float]:
        """The newest dampened value of each projection."""
        return [values[self._next - 1] for values in self._windows]

    def refill(self, window: Array, slot: int | None = None, *, dampen: bool = False) -> None:
        """Replace the recent values by `window`, `(r, n)` with n at most `lag`.

        A full window may be a ring: `slot` is then its oldest column. With `dampen`, the window
        holds the same vectors as before in the same slots, on other directions: what spiked then
        is dampened again.
        """
        self._windows = window.tolist()
        self._held = window.shape[1]
        self._next = self._held % self.lag if slot is None else slot
        if not dampen:
            self._spiked.clear()
        elif self._spiked:
            self._dampen()
        if self._held == self.lag:
            self._measure()
        else:
            for values, missing in zip(
                self._windows, room(len(self._windows), self.lag - self._held), strict=True
            ):
                values.extend(missing.tolist())

    def _dampen(self) -> None:
        """Dampen the values that spiked; the first calm one stands in for a predecessor that has left."""
        order = [(self._next + place) % self._held for place in range(self._held)]
        for i, values in enumerate(self._windows):
            spiked = [bool((found := self._spiked.get(at)) and i < len(found) and found[i]) for at in order]
            if not any(spiked):
                continue
            before = values[order[spiked.index(False) if False in spiked else 0]]
            for at, spike in zip(order, spiked, strict=True):
                if spike:
                    values[at] = self.influence * values[at] + (1.0 - self.influence) * before
                before = values[at]

    def _measure(self) -> None:
        """Find the means and squares of full windows afresh."""
        share = self._share
        self._rounds = 0
        self._means = means = []
        self._squares = squares = []
        for values in self._windows:
            mean = sum(values) * share
            away = dist(values, (mean,) * self.lag)
            means.append(mean)
            squares.append(away * away)

    def detect(self, projections: list[float]) -> list[int] | None:
        """Return −1, 0 or +1 for each projection, or None while the lag fills."""
        windows = self._windows
        if self._held != self.lag or len(projections) != len(windows):
            self._fill(projections)
            return None
        at, means, squares, share, limit = self._next, self._means, self._squares, self._share, self._limit
        spikes = [0] * len(projections)
        cancelled = spiked = False
        for i, values in enumerate(windows):
            value, mean, square = projections[i], means[i], squares[i]
            away = value - mean
            if away * away > limit * square and abs(away) > self.threshold * self._least(mean):
                spiked = True
                spikes[i] = 1 if away > 0.0 else -1
                value = self.influence * value + (1.0 - self.influence) * values[at - 1]
                away = value - mean
            old = values[at]
            values[at] = value
            change = value - old
            moved = change * share
            means[i] = mean + moved
            squares[i] = left = square + change * (away - moved + old - mean)
            if left < CANCELLED * square:
                cancelled = True
        if spiked:
            self._spiked[at] = spikes
        elif self._spiked:
            self._spiked.pop(at, None)
        if at + 1 < self.lag:
            self._next = at + 1
        else:
            self._next = 0
            self._rounds += 1
        if cancelled or self._rounds == ROUNDS:
            self._measure()
        return spikes

    def _least(self, mean: float) -> float:
        """Return the smallest deviation that is not rounding error."""
        return max(self.floor, RELATIVE_FLOOR * abs(mean))

    def _fill(self, projections: list[float]) -> None:
        if len(projections) != len(self._windows):
            self._windows = room(len(projections), self.lag).tolist()
            self._held = self._next = 0
            self._spiked.clear()
        for value, values in zip(projections, self._windows, strict=True):
            values[self._next] = value
        self._held += 1
        self._next = self._held % self.lag
        if self.warm:
            self._measure()

    def state(self) -> dict[str, Any]:
        """Return everything held, by name."""
        return {
            "windows": np.array(self._windows, dtype=np.float64).reshape(len(self._windows), self.lag),
            "sums": np.array([self._means, self._squares] if self.warm else [[], []], dtype=np.float64),
            "held": self._held,
            "next": self._next,
            "rounds": self._rounds,
            "spiked": self._spikes_by_slot(),
        }

    def _spikes_by_slot(self) -> Array:
        """Return the spikes of the values held, `(lag, r)`; a direction may be younger than they are."""
        found = np.zeros((self.lag, len(self._windows)))
        for at, spikes in self._spiked.items():
            known = min(len(spikes), found.shape[1])
            found[at, :known] = spikes[:known]
        return found

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        windows = state["windows"]
        empty = room(len(windows), self.lag)
        # States saved before there were such slots have none.
        spiked = state.get("spiked", empty.T)
        if windows.shape != empty.shape or spiked.shape != empty.T.shape:
            raise ValueError(f"windows of a lag of {self.lag} must have that length, got {windows.shape}")
        self._windows = windows.tolist()
        self._means, self._squares = state["sums"].tolist()
        self._held = int(state["held"])
        self._next = int(state["next"])
        self._rounds = int(state["rounds"])
        self._spiked = {at: [int(spike) for spike in found] for at, found in enumerate(spiked) if any(found)}


class FleetSpikeDetector:
    """Tell for each projection of M nodes, `width` at most of each, whether it leaves its recent range.

    Lag, threshold, influence and floor are those of `like`. Memory: `nodes * width * (lag + 2)` floats.
    """

    def __init__(self, nodes: int, width: int, like: SpikeDetector) -> None:
        self.lag = like.lag
        self.threshold = like.threshold
        self.influence = like.influence
        self.floor = like.floor
        shape = (nodes, width)
        # Rings of values; their means, and their squared distances from the mean, summed.
        self._values = np.zeros((like.lag, nodes, width))
        self._mean = np.zeros(shape)
        self._square = np.zeros(shape)
        self._held = np.zeros(nodes, np.intp)
        self._next = np.zeros(nodes, np.intp)
        self._rounds = np.zeros(nodes, np.intp)

    def refill(self, nodes: At, window: Array) -> None:
        """Replace the recent values of `nodes` by `window` `(m, width, n)`, oldest first."""
        held = window.shape[2]
        self._values[:held, nodes] = window.transpose(2, 0, 1)
        self._held[nodes] = held
        self._next[nodes] = held % self.lag
        self._rounds[nodes] = 0
        if held == self.lag:
            self._measure(nodes)

    def _measure(self, nodes: At) -> None:
        values = self._values[:, nodes]
        mean = values.sum(axis=0) / self.lag
        offset = self.lag * mean * mean
        square = np.einsum("lmr,lmr->mr", values, values) - offset
        drowned = square < NEARBY * offset
        if drowned.any():
            away = values[:, drowned] - mean[drowned]
            square[drowned] = np.einsum("lk,lk->k", away, away)
        self._mean[nodes] = mean
        self._square[nodes] = square
        self._rounds[nodes] = 0

    def detect(
        self, P: Array, at: At, embedded: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int8], NDArray[np.bool_]]:
        """Return −1, 0 or +1 for the projections `(m, width)` of the nodes `at`, and which are warm.

        Nodes that are not `embedded` are left alone.
        """
        numbers = np.arange(at.start, at.stop) if isinstance(at, slice) else at
        warm = embedded & (self._held[at] == self.lag)
        slot = self._next[at]
        uniform = bool(slot.size) and bool((slot == slot[0]).all())
        place: tuple[int | NDArray[np.intp], At]
        place = (int(slot[0]), at) if uniform else (slot, numbers)
        before = self._values[(place[0] - 1) % self.lag, place[1]]

        mean, square = self._mean[at], self._square[at]
        away = P - mean
        spiked = np.square(away) > (self.threshold * self.threshold / self.lag) * square
        if not warm.all():
            spiked &= warm[:, None]
        value, spikes = P, np.zeros(P.shape, np.int8)
        if spiked.any():
            # Few do: what follows is worked out for those alone.
            here = np.nonzero(spiked)
            least = np.maximum(RELATIVE_FLOOR * np.abs(mean[here]), self.floor)
            beyond = np.abs(away[here]) > self.threshold * least
            here = (here[0][beyond], here[1][beyond])
            spikes[here] = np.sign(away[here])
            value = P.copy()
            value[here] = self.influence * P[here] + (1.0 - self.influence) * before[here]
        old = self._values[place]
        old = old.copy() if uniform else old
        if embedded.all():
            self._values[place] = value
        else:
            self._values[slot[embedded], numbers[embedded]] = value[embedded]
        self._advance(numbers, at, old, value, embedded, warm)
        return spikes, warm

    def _advance(
        self,
        numbers: NDArray[np.intp],
        at: At,
        old: Array,
        new: Array,
        embedded: NDArray[np.bool_],
        warm: NDArray[np.bool_],
    ) -> None:
        """Move the running sums on by one value, measuring afresh where they are not to be trusted."""
        # A node that is not warm is measured when it becomes so: what stands here until then is not used.
        mean, square = self._mean[at], self._square[at]
        change = new - old
        step = change * (1.0 / self.lag)
        left = square + change * (new - mean - step + old - mean)
        self._mean[at] = mean + step
        self._square[at] = left
        moved = at if embedded.all() else numbers[embedded]
        following = self._next[moved] + 1
        following[following == self.lag] = 0
        self._next[moved] = following
        self._rounds[moved] += following == 0
        filling = embedded & ~warm
        self._held[at] += filling
        afresh = self._rounds[at] >= ROUNDS
        cancelled = left < CANCELLED * square
        if cancelled.any():
            afresh |= cancelled.any(axis=1)
        afresh = (afresh & warm) | (filling & (self._held[at] == self.lag))
        if afresh.any():
            self._measure(numbers[afresh])
