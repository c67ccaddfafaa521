"""One formula for one node and for many: the operations that differ between the two.

Covers: `One`, where a quantity of a node is a Python float, and `Many`, where it is
an array over nodes. The learned signal is written once, over these, so a fleet
decides as its nodes would. Python floats are several times faster than arrays of
length one, which is why a single node is not a fleet of one.
Does not cover: what is computed; see `history`, `heads`, `budget`, `learner`.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from prontosched.subspace import Array

# A float for one node, an array over nodes for many; a bool or an int likewise.
Value = Any
# A row of numbers per node: `array` for one node, `(M, n)` for many.
Table = Any

# Of splitmix64, and a large odd number that keeps the streams of neighbouring seeds apart.
STAGGER = 0x9E3779B97F4A7C15
APART = 0xD1342543DE82EF95
MASK = (1 << 64) - 1


class One:
    """Operations on the quantities of a single node.

    Methods though none needs `self`: Python calls them a third faster than static ones,
    a hundred and more times a step.
    """

    lead: tuple[int, ...] = ()
    log: ClassVar[Any] = staticmethod(math.log)
    sqrt: ClassVar[Any] = staticmethod(math.sqrt)
    largest: ClassVar[Any] = staticmethod(max)
    smallest: ClassVar[Any] = staticmethod(min)
    stack: ClassVar[Any] = staticmethod(np.array)

    def exp(self, x: Value) -> Value:
        """Return e to the power of x; the signal never asks for more than e**700."""
        return math.exp(x) if x < 700.0 else math.inf

    def full(self, value: Value) -> Value:
        """Return the value a quantity starts with."""
        return value

    def counted(self, first: int) -> Value:
        """Return `first` for the first node, and one more for each node after it."""
        return first

    def table(self, size: int, value: float = 0.0) -> Table:
        """Return a row of numbers, all `value`."""
        return array("d", [value]) * size

    def where(self, condition: Value, yes: Value, no: Value) -> Value:
        """Return `yes` where the condition holds, otherwise `no`."""
        return yes if condition else no

    def maximum(self, a: Value, b: Value) -> Value:
        """Return the larger of the two."""
        return a if a > b else b

    def minimum(self, a: Value, b: Value) -> Value:
        """Return the smaller of the two."""
        return a if a < b else b

    def clip(self, x: Value, low: Value, high: Value) -> Value:
        """Return x, moved into [low, high]."""
        return low if x < low else high if x > high else x

    def known(self, x: Value) -> Value:
        """Tell whether x is not NaN."""
        return x == x

    def whole(self, x: Value) -> Value:
        """Return the whole part of a positive number."""
        return int(x)

    def place(self, x: Value, size: int, first: int = 0) -> Any:
        """Return what to index a table with: the whole part of x, wrapped around, from `first` on."""
        return first + int(x) % size

    def split(self, vector: Array) -> list[Value]:
        """Return a vector as a list of quantities."""
        return vector.tolist()  # type: ignore[no-any-return]

    def dot(self, rows: Array, x: Array) -> list[Value]:
        """Return the product of every row `(n, k)` with `x` `(k,)`, as n quantities."""
        return rows.dot(x).tolist()  # type: ignore[no-any-return]

    def times(self, matrices: Array, x: Array) -> Array:
        """Return the product of every matrix `(n, k, k)` with `x` `(k,)`, `(n, k)`."""
        return np.asarray(np.matmul(matrices, x))

    def any(self, condition: Value) -> Value:
        """Tell whether the condition holds anywhere."""
        return condition

    def top(self, x: Value) -> int:
        """Return the largest of a whole number over nodes."""
        return int(x)

    def both(self, a: Value, b: Value) -> Value:
        """Tell whether a and b hold."""
        return a and b

    def either(self, a: Value, b: Value) -> Value:
        """Tell whether a or b holds."""
        return a or b

    def no(self, a: Value) -> Value:
        """Tell whether a does not hold."""
        return not a

    def uniform(self, seed: Value, counter: Value) -> Value:
        """Return a number in [0, 1) that looks random: the same for the same seed and counter (splitmix64)."""
        z = ((seed * APART + counter + 1) * STAGGER) & MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return ((z ^ (z >> 31)) >> 11) * 2.0**-53


class Many:
    """Operations on the quantities of many nodes at once.

    Parameters
    ----------
    nodes
        How many.
    """

    log: ClassVar[Any] = staticmethod(np.log)
    sqrt: ClassVar[Any] = staticmethod(np.sqrt)
    where: ClassVar[Any] = staticmethod(np.where)
    maximum: ClassVar[Any] = staticmethod(np.maximum)
    minimum: ClassVar[Any] = staticmethod(np.minimum)
    clip: ClassVar[Any] = staticmethod(np.clip)
    both: ClassVar[Any] = staticmethod(np.logical_and)
    either: ClassVar[Any] = staticmethod(np.logical_or)
    no: ClassVar[Any] = staticmethod(np.logical_not)

    def __init__(self, nodes: int) -> None:
        self.lead: tuple[int, ...] = (nodes,)
        self.rows = np.arange(nodes)

    @staticmethod
    def exp(x: Value) -> Value:
        """As in `One`."""
        return np.exp(np.minimum(x, 709.0))

    def full(self, value: Value) -> Value:
        """As in `One`."""
        return np.full(self.lead, value)

    def counted(self, first: int) -> Value:
        """As in `One`."""
        return first + self.rows

    def table(self, size: int, value: float = 0.0) -> Table:
        """As in `One`."""
        return np.full((*self.lead, size), value)

    @staticmethod
    def largest(values: Sequence[Value]) -> Value:
        """Return the largest of a list."""
        return np.maximum.reduce(list(values))

    @staticmethod
    def smallest(values: Sequence[Value]) -> Value:
        """Return the smallest of a list."""
        return np.minimum.reduce(list(values))

    @staticmethod
    def known(x: Value) -> Value:
        """As in `One`."""
        return x == x

    @staticmethod
    def whole(x: Value) -> Value:
        """As in `One`."""
        return x.astype(np.int64)

    def place(self, x: Value, size: int, first: int = 0) -> Any:
        """As in `One`."""
        return self.rows, first + x.astype(np.int64) % size

    @staticmethod
    def stack(values: Sequence[Value]) -> Array:
        """Return a list of quantities as a vector; `(M, n)` for many nodes."""
        return np.stack(values, axis=-1)

    @staticmethod
    def split(vector: Array) -> list[Value]:
        """As in `One`."""
        return [vector[..., i] for i in range(vector.shape[-1])]

    @staticmethod
    def dot(rows: Array, x: Array) -> list[Value]:
        """As in `One`, with a leading axis over nodes in both."""
        return Many.split(np.matmul(rows, x[..., None])[..., 0])

    @staticmethod
    def times(matrices: Array, x: Array) -> Array:
        """As in `One`, with a leading axis over nodes in both."""
        return np.asarray(np.matmul(matrices, x[:, None, :, None])[..., 0])

    @staticmethod
    def any(condition: Value) -> bool:
        """As in `One`."""
        return bool(np.any(condition))

    @staticmethod
    def top(x: Value) -> int:
        """As in `One`."""
        return int(x.max()) if x.size else 0

    @staticmethod
    def uniform(seed: Value, counter: Value) -> Value:
        """As in `One`: whole numbers of 64 bits wrap around by themselves."""
        z = seed.astype(np.uint64) * np.uint64(APART) + counter.astype(np.uint64) + np.uint64(1)
        z = z * np.uint64(STAGGER)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return ((z ^ (z >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) * 2.0**-53


Operations = One | Many
