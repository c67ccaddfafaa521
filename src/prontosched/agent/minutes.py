"""What nodes did in each minute and each ten minutes, in a few bytes per node.

Covers: adding timesteps up and packing the sums. Keeping them on disk and reading them
back is `prontosched.agent.minute_log`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prontosched.agent.nodes import MOST_NODES
from prontosched.agent.projected import KEPT_DIRECTIONS, UNKNOWN, Packed
from prontosched.subspace import Array

MINUTE_SECONDS = 60
TEN_SECONDS = 600
SPARE_NODES = 64
_LARGEST_HALF = 65_000.0
_LARGEST_SINGLE = 1e38
_LARGEST_COUNT = 65_535

Places = NDArray[np.intp]

NODE = np.dtype(
    [
        ("steps", "<u2"),
        ("raised", "u1"),
        ("rejecting", "u1"),
        ("ready_mean", "<f2"),
        ("ready_max", "<f2"),
        ("score_max", "<f2"),
    ]
)
"""One node in one record. Shares are in 255ths, rounded up."""
DETAIL = np.dtype(
    [
        ("threshold", "<f4"),
        ("utilisation", "<f2"),
        ("expected", "<f2"),
        ("low", "<i2", KEPT_DIRECTIONS),
        ("high", "<i2", KEPT_DIRECTIONS),
        ("up", "<u2", KEPT_DIRECTIONS),
        ("down", "<u2", KEPT_DIRECTIONS),
        ("begun", "u1"),
    ]
)
"""More of one node, where there are few."""


class Measured(NamedTuple):
    """What nodes did at one timestep, a number each.

    Attributes
    ----------
    time
        Seconds since 1970.
    names
        Whose numbers they are.
    details
        Threshold, utilisation and expected CPU Ready, `(3, n)`, and packed projections; None of many.
    contended
        Which were held open although contention was expected; None for none.
    """

    time: float
    names: Sequence[str]
    raised: NDArray[np.bool_]
    rejecting: NDArray[np.bool_]
    score: Array
    ready: Array
    details: tuple[Array, Sequence[bytes | None]] | None = None
    contended: NDArray[np.bool_] | None = None


class Record(NamedTuple):
    """One minute, or ten, of all nodes.

    Attributes
    ----------
    key
        The same for a record that is still being added to.
    nodes, details
        Packed as `NODE` and `DETAIL`, by place.
    contended
        Share of time held open although contention was expected, a byte each as in `NODE`; None for none.
    """

    key: tuple[int, int, int]
    seconds: int
    epoch: int
    time: float
    nodes: bytes
    details: bytes | None
    contended: bytes | None


class Details:
    """More of each node than `Sums`, added up where there are few."""

    def __init__(self) -> None:
        self.most = np.full((2, 0), -np.inf)  # threshold, expected CPU Ready
        self.used = np.zeros((2, 0))  # utilisation, and steps in which it was known
        self.low = np.zeros((0, KEPT_DIRECTIONS), np.int64)
        self.high = np.zeros((0, KEPT_DIRECTIONS), np.int64)
        self.marks = np.zeros((3, 0, KEPT_DIRECTIONS), np.int64)  # spikes up, down, beginnings

    def room(self, size: int) -> None:
        """Make room for this many nodes."""
        if size <= self.high.shape[0]:
            return
        self.most = _grown(self.most, size, -np.inf)
        self.used = _grown(self.used, size, 0)
        self.low = _grown(self.low, size, -UNKNOWN, axis=0)
        self.high = _grown(self.high, size, UNKNOWN, axis=0)
        self.marks = _grown(self.marks, size, 0, axis=1)

    def add(self, places: Places, numbers: Array, packed: Sequence[bytes | None]) -> None:
        """Add timesteps: threshold, utilisation and expected CPU Ready, and packed projections."""
        threshold, used, expected = numbers
        _raise(self.most[0], places, threshold)
        _raise(self.most[1], places, expected)
        known = np.isfinite(used)
        np.add.at(self.used[0], places, np.where(known, used, 0.0))
        np.add.at(self.used[1], places, known)
        if with_directions := [i for i, one in enumerate(packed) if one is not None]:
            rows, at = Packed([one for one in packed if one is not None]), places[with_directions]
            np.minimum.at(self.low, at, np.where(rows.values == UNKNOWN, -UNKNOWN, rows.values))
            np.maximum.at(self.high, at, rows.values)
            for row, marks in enumerate((rows.up, rows.down, rows.begun)):
                np.add.at(self.marks[row], at, marks)

    def merge(self, other: Details) -> None:
        """Add what another has added up."""
        size = other.high.shape[0]
        self.room(size)
        self.used[:, :size] += other.used
        self.marks[:, :size] += other.marks
        np.maximum(self.most[:, :size], other.most, out=self.most[:, :size])
        np.minimum(self.low[:size], other.low, out=self.low[:size])
        np.maximum(self.high[:size], other.high, out=self.high[:size])

    def packed(self) -> bytes:
        """Return all nodes as bytes."""
        found = np.zeros(self.high.shape[0], DETAIL)
        found["threshold"] = np.where(np.abs(self.most[0]) < _LARGEST_SINGLE, self.most[0], np.nan)
        found["utilisation"] = _half(_mean(self.used[0], self.used[1]))
        found["expected"] = _half(self.most[1])
        found["low"] = np.where(self.high == UNKNOWN, UNKNOWN, np.minimum(self.low, -UNKNOWN - 1))
        found["high"] = self.high
        found["up"], found["down"] = np.minimum(self.marks[:2], _LARGEST_COUNT)
        found["begun"] = np.packbits(self.marks[2] > 0, axis=1, bitorder="little")[:, 0]
        return found.tobytes()


class Sums:
    """Timesteps of many nodes added up, from `time` on."""

    def __init__(self, time: float) -> None:
        self.time = time
        self.details: Details | None = None
        self._counts = np.zeros((5, 0), np.int64)  # steps, raised, rejecting, CPU Ready known, contended
        self._ready = np.zeros(0)
        self._most = np.full((2, 0), -np.inf)  # CPU Ready, score

    def room(self, size: int) -> None:
        """Make room for this many nodes."""
        if size > self._ready.size:
            self._counts = _grown(self._counts, size, 0)
            self._ready = _grown(self._ready, size, 0)
            self._most = _grown(self._most, size, -np.inf)
        if self.details is not None:
            self.details.room(self._ready.size)

    def add(self, places: Places, found: Measured) -> None:
        """Add one timestep, or several one after the other: places may repeat."""
        if found.details is not None and self.details is None:
            self.details = Details()
            self.details.room(self._ready.size)
        known = np.isfinite(found.ready)
        for row, what in enumerate((np.ones_like(known), found.raised, found.rejecting, known)):
            np.add.at(self._counts[row], places, what)
        if found.contended is not None:
            np.add.at(self._counts[4], places, found.contended)
        np.add.at(self._ready, places, np.where(known, found.ready, 0.0))
        _raise(self._most[0], places, found.ready)
        _raise(self._most[1], places, found.score)
        if found.details is not None and self.details is not None:
            self.details.add(places, *found.details)

    def merge(self, other: Sums) -> None:
        """Add what another has added up."""
        if other.details is not None and self.details is None:
            self.details = Details()
        size = other._ready.size
        self.room(size)
        self._counts[:, :size] += other._counts
        self._ready[:size] += other._ready
        np.maximum(self._most[:, :size], other._most, out=self._most[:, :size])
        if other.details is not None and self.details is not None:
            self.details.merge(other.details)

    def packed(self) -> tuple[bytes, bytes | None, bytes | None]:
        """Return all nodes as bytes, the details where there are some, and the shares contended."""
        steps, raised, rejecting, known, contended = self._counts
        nodes = np.zeros(steps.size, NODE)
        nodes["steps"] = np.minimum(steps, _LARGEST_COUNT)
        nodes["raised"] = _share(raised, steps)
        nodes["rejecting"] = _share(rejecting, steps)
        nodes["ready_mean"] = _half(_mean(self._ready, known))
        nodes["ready_max"] = _half(self._most[0])
        nodes["score_max"] = _half(self._most[1])
        details = None if self.details is None else self.details.packed()
        return nodes.tobytes(), details, _share(contended, steps).tobytes() if contended.any() else None


class Minutes:
    """Add timesteps up, minute by minute.

    Nodes have places by name. When most names are gone, or there are too many, places are
    given anew under another epoch.

    Parameters
    ----------
    epoch, names
        What an earlier run went by, so that it can be gone on with.

    Notes
    -----
    Memory: two records of 64 bytes per node, 460 where there are few.
    """

    def __init__(self, epoch: int = 0, names: Iterable[str] = ()) -> None:
        self.epoch = epoch
        self.places = {name: place for place, name in enumerate(names)}
        self._now: dict[int, tuple[int, Sums]] = {}
        self._last: tuple[Sequence[str], Places] = ((), np.zeros(0, np.intp))

    def add(self, found: Measured) -> list[Record]:
        """Add timesteps of one minute; return the records that are complete by that."""
        places = self._places_of(found.names)
        if places is None:
            return []
        complete = self._advance(found.time)
        minute = self._now[MINUTE_SECONDS][1]
        minute.room(len(self.places))
        minute.add(places, found)
        return complete

    def so_far(self) -> list[Record]:
        """Return the records that are still being added to, as they are now."""
        found = [self._record(MINUTE_SECONDS)] if MINUTE_SECONDS in self._now else []
        return [*found, self._record(TEN_SECONDS)] if found else []

    def _advance(self, time: float) -> list[Record]:
        complete = []
        for seconds in (MINUTE_SECONDS, TEN_SECONDS):
            number = int(time // seconds)
            now = self._now.get(seconds)
            if now is not None and now[0] == number:
                continue
            if now is not None and seconds == MINUTE_SECONDS:
                self._now[TEN_SECONDS][1].merge(now[1])
            if now is not None:
                complete.append(self._record(seconds))
            self._now[seconds] = (number, Sums(time))
        return complete

    def _record(self, seconds: int) -> Record:
        number, sums = self._now[seconds]
        minute, running = self._now[MINUTE_SECONDS]
        if seconds == TEN_SECONDS and minute * MINUTE_SECONDS // TEN_SECONDS == number:
            whole = Sums(sums.time)
            whole.merge(sums)
            whole.merge(running)
            sums = whole
        return Record((self.epoch, seconds, number), seconds, self.epoch, sums.time, *sums.packed())

    def _places_of(self, names: Sequence[str]) -> Places | None:
        if names == self._last[0]:
            return self._last[1]
        distinct = dict.fromkeys(names)
        if len(distinct) > MOST_NODES:
            return None
        new = [name for name in distinct if name not in self.places]
        if new and len(self.places) + len(new) > min(MOST_NODES, 2 * len(distinct) + SPARE_NODES):
            self.epoch += 1
            self.places = {}
            self._now = {}
            new = list(distinct)
        for name in new:
            self.places[name] = len(self.places)
        places = np.array([self.places[name] for name in names], np.intp)
        self._last = (list(names), places)
        return places


def _share(part: NDArray[np.int64], whole: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return shares in 255ths, rounded up."""
    return np.ceil(255 * part / np.maximum(whole, 1)).astype(np.uint8)


def _half(values: Array) -> Array:
    """Return values that fit two bytes; NaN for those that are not known."""
    return np.where(np.isfinite(values), np.clip(values, -_LARGEST_HALF, _LARGEST_HALF), np.nan)


def _mean(total: Array, number: NDArray[Any]) -> Array:
    return np.where(number > 0, total / np.maximum(number, 1), np.nan)


def _raise(most: Array, places: Places, values: Array) -> None:
    np.maximum.at(most, places, np.where(np.isfinite(values), values, -np.inf))


def _grown(array: NDArray[Any], size: int, fill: float, axis: int = -1) -> NDArray[Any]:
    shape = list(array.shape)
    shape[axis] = size - shape[axis]
    return np.concatenate([array, np.full(shape, fill, array.dtype)], axis=axis)
