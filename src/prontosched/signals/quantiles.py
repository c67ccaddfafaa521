"""Quantiles of a long past in bounded memory, from a self-thinning sample of a stream.

It takes every value until it is full,
then drops every second one and takes half as many from then on, so that it covers
the past evenly. From a longest stride on it replaces its oldest values instead.
`OneSample` serves one node, `ManySamples` many, with equal answers. The evaluator takes
percentiles of CPU Ready and thresholds on scores from the same samples.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from prontosched.signals.arithmetic import Component, One, Operations, Value
from prontosched.subspace import Array

SIZE = 1024
LONGEST_STRIDE = 32
# A stride no sample reaches: it then covers all of the past.
WHOLE_PAST = 1 << 40
# Values are put in order once this share of them is new: an answer lags by no more.
FRESH = 64


class _Sample(Component):
    """What both forms hold: the sample as it came and in order, and where it stands."""

    STATE = ("values", "ordered", "seen", "count", "next", "fresh", "stride", "sorted_count")
    __slots__ = ("size", "longest_stride", *STATE)

    def __init__(self, ops: Operations, size: int = SIZE, longest_stride: int = LONGEST_STRIDE) -> None:
        if size < 2 or size % 2:
            raise ValueError(f"size must be even and at least 2, got {size}")
        self.ops = ops
        self.size = size
        self.longest_stride = longest_stride
        self.values = np.full((*ops.lead, size), np.inf)
        self.ordered = np.full((*ops.lead, size), np.inf)
        self.seen = ops.full(0)
        self.count = ops.full(0)
        self.next = ops.full(0)
        self.fresh = ops.full(0)
        self.stride = ops.full(1)
        self.sorted_count = ops.full(0)


class OneSample(_Sample):
    """A thinned sample of one stream.

    Memory: two rows of `size` floats.
    """

    __slots__ = ()

    def add(self, x: float) -> bool:
        """Take in one value, or none where it is NaN; tell whether answers may have changed."""
        if x != x:
            return False
        kept = self.seen % self.stride == 0
        self.seen += 1
        if not kept:
            return False
        self.values[self.next] = x
        self.next += 1
        self.fresh += 1
        if self.next > self.count:
            self.count = self.next
        if self.next == self.size:
            self._make_room()
        if self.fresh * FRESH < self.count:
            return False
        self.ordered[: self.count] = np.sort(self.values[: self.count])
        self.sorted_count = self.count
        self.fresh = 0
        return True

    def _make_room(self) -> None:
        if self.stride >= self.longest_stride:
            self.next = 0
            return
        half = self.size // 2
        self.values[:half] = self.values[::2].copy()
        self.values[half:] = np.inf
        self.count = self.next = half
        self.stride *= 2

    def quantile(self, level: float) -> float:
        """Return the value a share `level` of the sample lies below; needs one value at least."""
        last = self.sorted_count - 1
        place = int(level * self.sorted_count)
        return float(self.ordered[place if place < last else last])

    def exceeding(self, level: float) -> float:
        """Return a quantile that few values reach; infinite where all values are one.

        Where the quantile is the least value seen, as on a node that is mostly at 0, the
        next larger one is returned.
        """
        found = self.quantile(level)
        if found > self.ordered[0]:
            return found
        above = int(self.ordered.searchsorted(found, side="right"))
        return float(self.ordered[above]) if above < self.sorted_count else np.inf


class ManySamples(_Sample):
    """Thinned samples of many streams, each at its own place.

    Memory: two rows of `size` floats per stream.

    Examples
    --------
    >>> from prontosched.signals.arithmetic import Many
    >>> samples = ManySamples(Many(1), size=8, longest_stride=WHOLE_PAST)
    >>> for value in range(101):
    ...     _ = samples.add(np.array([float(value)]))
    >>> samples.quantiles(np.array([[0.25, 0.5]])).tolist()
    [[16.0, 48.0]]
    """

    def add(self, x: Array) -> Value:
        """Take in one value per stream, or none where it is NaN; tell whose answers may have changed."""
        known = x == x  # NaN differs from itself: the cheapest test there is
        kept = known & (self.seen % self.stride == 0)
        self.seen += known
        return self._keep(x[None], kept[None])

    def _keep(self, values: Array, kept: Value) -> Value:
        """Keep some of the values `(n, streams)`; only the last of a stream may fill it, or have it put in order."""
        came = kept.cumsum(axis=0)
        place = came + (self.next - 1 + np.arange(0, self.values.size, self.size))
        self.values.put(place[kept], values[kept])
        new = came[-1]
        self.next += new
        self.fresh += new
        np.maximum(self.count, self.next, out=self.count)
        full = np.flatnonzero(self.next == self.size)
        if full.size:
            self._make_room(full)
        changed: Value = (self.fresh * FRESH >= self.count) & (new > 0)
        due = np.flatnonzero(changed)
        if due.size:
            width = int(self.count[due].max())
            self.sorted_count[due] = self.count[due]
            self.fresh[due] = 0
            # Neighbours at once and in place: fresh memory takes as long as the sorting.
            gaps = np.flatnonzero(due[1:] - due[:-1] > 1)
            for first, last in zip((due[0], *due[gaps + 1]), (*due[gaps], due[-1]), strict=True):
                # A row that was thinned is shorter than before: what lies beyond it is infinite.
                ordered = self.ordered[first : last + 1, :width]
                ordered[...] = self.values[first : last + 1, :width]
                ordered.sort(axis=1)
        return changed

    def spans(self, values: Array) -> Iterator[tuple[slice, Value]]:
        """Take in many values of each stream, `(n, streams)`, in spans through which no answer changes.

        Each span comes with how many values each stream had seen before each step of it,
        `(steps, streams)`; while it is handled, answers are those of the values before it.
        """
        known = values == values
        start = 0
        while start < len(values):
            # Known values until a stream may be put in order again, or is full.
            kept = np.minimum(np.maximum(-(-self.count // FRESH) - self.fresh, 1), self.size - self.next)
            wanted = -self.seen % self.stride + (kept - 1) * self.stride + 1
            come = np.cumsum(known[start : start + int(wanted.max(initial=1))], axis=0)
            reached = (come >= wanted).any(axis=1)
            stop = start + (int(reached.argmax()) + 1 if reached.any() else len(come))
            part = known[start:stop]
            seen = self.seen + come[: stop - start] - part
            yield slice(start, stop), seen
            self._keep(values[start:stop], part & (seen % self.stride == 0))
            self.seen[:] = seen[-1] + part[-1]
            start = stop

    def _make_room(self, full: Value) -> None:
        self.next[full] = 0
        thin = full[self.stride[full] < self.longest_stride]
        half = self.size // 2
        self.values[thin, :half] = self.values[thin, ::2]
        self.values[thin, half:] = np.inf
        self.count[thin] = half
        self.next[thin] = half
        self.stride[thin] *= 2

    def quantile(self, level: Value) -> Value:
        """As in `OneSample`; infinite where a stream has no value yet."""
        return self.quantiles(np.reshape(level, (-1, 1)))[:, 0]

    def quantiles(self, levels: Array) -> Array:
        """Return quantiles `(streams, n)` for as many levels, or `(1, n)` of them; infinite before the first value."""
        count = self.sorted_count[:, None]
        place = np.minimum((levels * count).astype(np.int64), count - 1)
        np.maximum(place, 0, out=place)
        place += np.arange(0, self.ordered.size, self.size)[:, None]
        found: Array = self.ordered.ravel().take(place)
        return found

    def exceeding(self, level: float) -> Value:
        """As in `OneSample`."""
        found = self.quantile(level)
        least = self.ordered[:, 0]
        flat = np.flatnonzero(found <= least)
        if flat.size:
            above = (self.ordered[flat] <= found[flat, None]).sum(axis=1)
            following = self.ordered[flat, np.minimum(above, self.size - 1)]
            found[flat] = np.where(above < self.sorted_count[flat], following, np.inf)
        return found


def samples(
    ops: Operations, size: int = SIZE, longest_stride: int = LONGEST_STRIDE
) -> OneSample | ManySamples:
    """Return the sample, or samples, that these operations need."""
    kind = OneSample if isinstance(ops, One) else ManySamples
    return kind(ops, size, longest_stride=longest_stride)
