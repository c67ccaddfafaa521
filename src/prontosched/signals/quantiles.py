"""Quantiles of a long past in bounded memory.

Covers: a self-thinning sample of a stream, kept in order. It takes every value
until it is full, then drops every second one and takes half as many from then on;
from a stride of 32 it replaces its oldest, so it looks back on `size * 32` values.
`OneSample` serves one node, `ManySamples` many, with equal answers.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from prontosched.signals.arithmetic import Many, One, Operations, Value
from prontosched.signals.held import Held
from prontosched.subspace import Array

SIZE = 1024
LONGEST_STRIDE = 32


class OneSample(Held):
    """A thinned sample of one stream.

    Notes
    -----
    Memory: two rows of `size` floats.
    """

    def __init__(self, size: int = SIZE, longest_stride: int = LONGEST_STRIDE) -> None:
        self.ops = One()
        self.longest_stride = longest_stride
        self.size = size
        self.values = array("d", bytes(8 * size))  # in order of arrival, from `oldest` on
        self.ordered: list[float] = []
        self.count = 0
        self.oldest = 0
        self.stride = 1
        self.skipped = 0

    def add(self, x: float) -> bool:
        """Take in one value; tell whether the sample changed."""
        self.skipped += 1
        if self.skipped < self.stride:
            return False
        self.skipped = 0
        if self.count == self.size:
            if self.stride < self.longest_stride:
                self._thin()
            else:
                old = self.values[self.oldest]
                del self.ordered[bisect_left(self.ordered, old)]
                insort(self.ordered, x)
                self.values[self.oldest] = x
                self.oldest = (self.oldest + 1) % self.size
                return True
        self.values[self.count] = x
        self.count += 1
        insort(self.ordered, x)
        return True

    def _thin(self) -> None:
        kept = self.values[1::2]
        self.count = len(kept)
        self.values[: self.count] = kept
        self.ordered = sorted(kept)
        self.stride *= 2

    def quantile(self, level: float) -> float:
        """Return the value a share `level` of the sample lies below; needs one value at least."""
        place = level * (self.count - 1)
        low = int(place)
        if low + 1 >= self.count:
            return self.ordered[-1]
        return self.ordered[low] + (place - low) * (self.ordered[low + 1] - self.ordered[low])

    def exceeding(self, level: float) -> float:
        """Return a quantile that few values reach; infinite where all values are one.

        Where the quantile is the least value seen, as on a node that is mostly at 0, the
        next larger one is returned.
        """
        found = self.quantile(level)
        if found > self.ordered[0]:
            return found
        above = bisect_right(self.ordered, found)
        return self.ordered[above] if above < self.count else np.inf

    def state(self) -> dict[str, Any]:
        """Return everything held; the order is found again from the values."""
        return {
            "values": np.frombuffer(self.values, dtype=np.float64).copy(),
            "place": np.array([self.count, self.oldest, self.stride, self.skipped], dtype=np.int64),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        self.values = array("d", np.asarray(state["values"], dtype=np.float64).tobytes())
        self.size = len(self.values)
        self.count, self.oldest, self.stride, self.skipped = (int(n) for n in state["place"])
        self.ordered = sorted(self.values[: self.count])


class ManySamples(Held):
    """Thinned samples of many streams, each at its own place.

    Notes
    -----
    Memory: two rows of `size` floats per stream.
    """

    HELD: ClassVar[tuple[str, ...]] = ("values", "ordered", "count", "oldest", "stride", "skipped")

    def __init__(self, ops: Many, size: int = SIZE, longest_stride: int = LONGEST_STRIDE) -> None:
        self.longest_stride = longest_stride
        self.ops: Operations = ops
        self.size = size
        self.values = ops.table(size)
        self.ordered = ops.table(size, np.inf)
        self.count = ops.full(0)
        self.oldest = ops.full(0)
        self.stride = ops.full(1)
        self.skipped = ops.full(0)

    def add(self, x: Array) -> Value:
        """Take in one value per stream; tell whose sample changed."""
        self.skipped += 1
        due = self.skipped >= self.stride
        self.skipped[due] = 0
        full = due & (self.count == self.size)
        for node in np.flatnonzero(full & (self.stride < self.longest_stride)):
            self._thin(int(node))
        rows = np.flatnonzero(due)
        if not rows.size:
            return due
        replacing = self.count[rows] == self.size
        at = np.where(replacing, self.oldest[rows], self.count[rows])
        # An empty place holds infinity in the ordered row, so filling one is replacing infinity.
        gone = np.where(replacing, self.values[rows, at], np.inf)
        self.values[rows, at] = x[rows]
        self.count[rows] += ~replacing
        self.oldest[rows] = np.where(replacing, (self.oldest[rows] + 1) % self.size, self.oldest[rows])
        ordered = self.ordered[rows]
        ordered[np.arange(rows.size), (ordered < gone[:, None]).sum(axis=1)] = x[rows]
        ordered.sort(axis=1)
        self.ordered[rows] = ordered
        return due

    def _thin(self, node: int) -> None:
        kept = self.values[node, 1::2].copy()
        self.count[node] = kept.size
        self.values[node, : kept.size] = kept
        self.ordered[node, : kept.size] = np.sort(kept)
        self.ordered[node, kept.size :] = np.inf
        self.stride[node] *= 2

    def quantile(self, level: Value) -> Value:
        """As in `OneSample`; infinite where a stream has no value yet."""
        rows = np.arange(len(self.count))
        place = level * np.maximum(self.count - 1, 0)
        low = place.astype(np.int64)
        last = np.maximum(self.count - 1, 0)
        here = self.ordered[rows, np.minimum(low, last)]
        after = self.ordered[rows, np.minimum(low + 1, last)]
        with np.errstate(invalid="ignore"):
            return np.where(
                low + 1 >= self.count, self.ordered[rows, last], here + (place - low) * (after - here)
            )

    def exceeding(self, level: float) -> Value:
        """As in `OneSample`."""
        found = self.quantile(level)
        above = (self.ordered <= found[:, None]).sum(axis=1)
        rows = np.arange(len(self.count))
        following = np.where(above < self.count, self.ordered[rows, np.minimum(above, self.size - 1)], np.inf)
        return np.where(found > self.ordered[:, 0], found, following)


def samples(
    ops: Operations, size: int = SIZE, *, longest_stride: int = LONGEST_STRIDE
) -> OneSample | ManySamples:
    """Return the sample, or samples, that these operations need."""
    return (
        ManySamples(ops, size, longest_stride) if isinstance(ops, Many) else OneSample(size, longest_stride)
    )
