"""One formula for one node and for many: the operations that differ, and the state of both.

The learned signal is written once over `One`, where a quantity of a node is a Python float, or `Many`,
where it is an array over nodes, so a fleet decides as its nodes would. Python floats are several times
faster than arrays of length one, which is why a single node is not a fleet of one. `Component` is the
base of every part of the learned signal that keeps state.
"""

from __future__ import annotations

import copy
import math
from array import array
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from prontosched.errors import StateError
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

    def dot(self, rows: Array, x: Array) -> list[Value]:
        """Return the product of every row `(n, k)` with `x` `(k,)`, as n quantities."""
        return rows.dot(x).tolist()  # type: ignore[no-any-return]

    def column(self, x: Value) -> Value:
        """Return a quantity in the shape that multiplies a vector of every node."""
        return x

    def any(self, condition: Value) -> Value:
        """Tell whether the condition holds for any node."""
        return condition

    def no(self, a: Value) -> Value:
        """Tell whether a does not hold; `&` and `|` serve both forms."""
        return not a

    def uniform(self, seed: Value, counter: Value) -> Value:
        """Return a number in [0, 1) that looks random: the same for the same seed and counter (splitmix64)."""
        z = ((seed * APART + counter + 1) * STAGGER) & MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return ((z ^ (z >> 31)) >> 11) * 2.0**-53


class Many:
    """The same operations on the quantities of many nodes at once."""

    log: ClassVar[Any] = staticmethod(np.log)
    sqrt: ClassVar[Any] = staticmethod(np.sqrt)
    where: ClassVar[Any] = staticmethod(np.where)
    maximum: ClassVar[Any] = staticmethod(np.maximum)
    minimum: ClassVar[Any] = staticmethod(np.minimum)
    # In place of np.clip, which takes three times as long over a few numbers; counting is the fastest look for any.
    clip: ClassVar[Any] = staticmethod(lambda x, low, high: np.minimum(np.maximum(x, low), high))
    no: ClassVar[Any] = staticmethod(np.logical_not)
    exp: ClassVar[Any] = staticmethod(lambda x: np.exp(np.minimum(x, 709.0)))
    largest: ClassVar[Any] = staticmethod(lambda values: np.maximum.reduce(values))
    smallest: ClassVar[Any] = staticmethod(lambda values: np.minimum.reduce(values))
    stack: ClassVar[Any] = staticmethod(lambda values: np.array(values).T.copy())
    known: ClassVar[Any] = staticmethod(lambda x: x == x)
    whole: ClassVar[Any] = staticmethod(lambda x: x.astype(np.int64))
    column: ClassVar[Any] = staticmethod(lambda x: x[:, None])
    any: ClassVar[Any] = staticmethod(lambda condition: np.count_nonzero(condition) > 0)

    def __init__(self, nodes: int) -> None:
        self.lead: tuple[int, ...] = (nodes,)
        self.rows = np.arange(nodes)

    def full(self, value: Value) -> Value:
        """As in `One`."""
        return np.full(self.lead, value)

    def counted(self, first: int) -> Value:
        """As in `One`."""
        return first + self.rows

    def table(self, size: int, value: float = 0.0) -> Table:
        """As in `One`; nodes lie side by side, as most look at the same place."""
        return np.full((size, *self.lead), value).T

    def place(self, x: Value, size: int, first: int = 0) -> Any:
        """As in `One`."""
        at = first + x.astype(np.int64) % size
        return (slice(None), int(at[0])) if (at == at[0]).all() else (self.rows, at)

    def dot(self, rows: Array, x: Array) -> list[Value]:
        """As in `One`, with a leading axis over nodes in both."""
        return list(np.matmul(rows, x[..., None])[..., 0].T)

    @staticmethod
    def uniform(seed: Value, counter: Value) -> Value:
        """As in `One`: whole numbers of 64 bits wrap around by themselves."""
        z = seed.astype(np.uint64) * np.uint64(APART) + counter.astype(np.uint64) + np.uint64(1)
        z = z * np.uint64(STAGGER)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return ((z ^ (z >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) * 2.0**-53


Operations = One | Many


def push(values: list[Any], newest: Any) -> None:
    """Put the newest in front of a list and drop its last one; for a few values a deque takes five times the memory."""
    values.insert(0, newest)
    values.pop()


class Component:
    """A part of the learned signal that keeps state.

    State are numbers, arrays, tables, lists of those (of fixed length) and other components. Over
    many nodes all have the node as their first axis. Attributes are slots: reading the `__dict__`
    of an object, as saving would, makes every later use of its attributes slower.

    Attributes
    ----------
    STATE
        Names of the attributes that are state; some settings leave some of them unset.
    SAVED_AS
        Names that state files have for some of it.
    """

    STATE: ClassVar[tuple[str, ...]] = ()
    SAVED_AS: ClassVar[Mapping[str, str]] = {}
    __slots__ = ("ops",)
    ops: Operations

    def _parts(self) -> list[tuple[str, Any]]:
        """Return everything that is state, by the attribute's name."""
        return [(name, getattr(self, name)) for name in self.STATE if hasattr(self, name)]

    def state(self) -> dict[str, Any]:
        """Return everything held, by dotted name: plain numbers and arrays."""
        found: dict[str, Any] = {}
        for name, value in self._parts():
            key = self.SAVED_AS.get(name, name)
            if isinstance(value, Component):
                found.update({f"{key}.{k}": v for k, v in value.state().items()})
            elif isinstance(value, (list, array, np.ndarray)):
                found[key] = np.array(value)
            else:
                found[key] = value
        return found

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        inner: dict[str, dict[str, Any]] = {}
        for key, value in state.items():
            head, dot, rest = key.partition(".")
            if dot:
                inner.setdefault(head, {})[rest] = value
        for name, value in self._parts():
            key = self.SAVED_AS.get(name, name)
            if isinstance(value, Component):
                value.restore(inner.get(key, {}))
            elif key in state:
                setattr(self, name, _like(key, value, state[key]))
            else:
                raise StateError(f"saved state must hold {key!r}, got none: start afresh")

    def take(self, nodes: NDArray[np.int64]) -> Self:
        """Return a copy that holds only these nodes, to step them."""
        part = copy.copy(self)
        part.ops = Many(len(nodes))
        for name, value in self._parts():
            if isinstance(value, Component):
                setattr(part, name, value.take(nodes))
            elif isinstance(value, list):
                setattr(part, name, [v[nodes] for v in value])
            else:
                setattr(part, name, value[nodes])
        return part

    def put(self, nodes: NDArray[np.int64], part: Self) -> None:
        """Put back what `take` returned."""
        for name, value in self._parts():
            changed = getattr(part, name)
            if isinstance(value, Component):
                value.put(nodes, changed)
            elif isinstance(value, list):
                # A list shifts by replacing its members, so members may be shared: copy before writing.
                for i, (old, new) in enumerate(zip(value, changed, strict=True)):
                    value[i] = old.copy()
                    value[i][nodes] = new
            else:
                value[nodes] = changed


def _like(name: str, old: Any, new: Any) -> Any:
    """Return a saved value as the kind of thing that is held under its name."""
    if isinstance(old, list):
        if len(new) != len(old):
            raise StateError(
                f"saved state must hold {len(old)} of {name!r}, got {len(new)}: it was made with other options"
            )
        if np.size(old[0]) and np.shape(new)[1:] != np.shape(old[0]):
            raise StateError(
                f"saved {name!r} must have members of shape {np.shape(old[0])}: it was made otherwise"
            )
        return [np.array(n) for n in new] if isinstance(old[0], np.ndarray) else np.asarray(new).tolist()
    if isinstance(old, array):
        if np.shape(new) != (len(old),):
            raise StateError(f"saved {name!r} must have {len(old)} numbers, got {np.shape(new)}")
        return array("d", np.asarray(new, dtype=np.float64).tobytes())
    if isinstance(old, np.ndarray):
        if np.shape(new) != old.shape and old.size:
            raise StateError(
                f"saved {name!r} must have shape {old.shape}, got {np.shape(new)}: "
                "it was made with other options or metrics"
            )
        return np.array(new, dtype=old.dtype)
    return type(old)(new)
