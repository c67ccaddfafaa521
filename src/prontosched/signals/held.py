"""What a learned signal holds: saved, restored, and cut down to some of the nodes.

Covers: `Held`, the base of every part that keeps state. A part names what it holds
once, in `HELD`, and is then saved to plain arrays, restored bit for bit, and, over
many nodes, taken apart and put back.
"""

from __future__ import annotations

import copy
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from prontosched.errors import StateError
from prontosched.per_node import fitting, part_of
from prontosched.signals.arithmetic import Many, Operations


def ring(values: Iterable[Any]) -> deque[Any]:
    """Return a list of fixed length: what is put in front of it pushes the last one out."""
    kept = list(values)
    return deque(kept, maxlen=len(kept))


class Held:
    """A part of a signal that keeps state.

    Attributes
    ----------
    HELD
        Names of the attributes that are state: numbers, arrays, tables, lists of
        those (of fixed length), or other parts. Over many nodes all have the node
        as their first axis.
    ASIDE
        Names among them of what no step touches: a copy that is to step goes without.
    """

    HELD: ClassVar[tuple[str, ...]] = ()
    ASIDE: ClassVar[tuple[str, ...]] = ()
    ops: Operations

    def state(self) -> dict[str, Any]:
        """Return everything held, by dotted name: plain numbers and arrays."""
        found: dict[str, Any] = {}
        for name in self.HELD:
            value = getattr(self, name)
            if isinstance(value, Held):
                found.update({f"{name}.{k}": v for k, v in value.state().items()})
            elif isinstance(value, (list, deque)):
                found[name] = np.array(value)
            elif isinstance(value, array):
                found[name] = np.frombuffer(value, dtype=np.float64).copy()
            elif isinstance(value, np.ndarray):
                found[name] = value.copy()
            else:
                found[name] = value
        return found

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        for name in self.HELD:
            value = getattr(self, name)
            if isinstance(value, Held):
                start = name + "."
                value.restore({k[len(start) :]: v for k, v in state.items() if k.startswith(start)})
                continue
            if name not in state:
                raise StateError(f"saved state must hold {name!r}, got none: start afresh")
            setattr(self, name, self._like(name, value, state[name]))

    def _like(self, name: str, old: Any, new: Any) -> Any:
        """Return `new` as the kind of thing `old` is."""
        if isinstance(old, (list, deque)):
            if len(new) != len(old):
                raise StateError(
                    f"saved state must hold {len(old)} of {name!r}, got {len(new)}: it was made with other options"
                )
            kept = [np.array(n) for n in new] if isinstance(old[0], np.ndarray) else np.asarray(new).tolist()
            return kept if isinstance(old, list) else ring(kept)
        if isinstance(old, array):
            return array("d", np.asarray(new, dtype=np.float64).tobytes())
        if isinstance(old, np.ndarray):
            if np.shape(new) != old.shape and old.size:
                raise StateError(
                    f"saved {name!r} must have shape {old.shape}, got {np.shape(new)}: "
                    "it was made with other options or metrics"
                )
            return np.array(new, dtype=old.dtype)
        return type(old)(new)

    def take(self, nodes: NDArray[np.int64]) -> Self:
        """Return a copy that holds only these nodes, to step them."""
        part = copy.copy(self)
        part.ops = Many(len(nodes))
        for name in self._stepped():
            value = getattr(self, name)
            if isinstance(value, Held):
                setattr(part, name, value.take(nodes))
            elif isinstance(value, (list, deque)):
                some = [v[nodes] for v in value]
                setattr(part, name, some if isinstance(value, list) else ring(some))
            else:
                setattr(part, name, value[nodes])
        return part

    def extract(self, nodes: NDArray[np.intp]) -> dict[str, NDArray[Any]]:
        """Return copies of all that is held of some of many nodes, by dotted name, nodes first."""
        found: dict[str, NDArray[Any]] = {}
        for name in self.HELD:
            value = getattr(self, name)
            if isinstance(value, Held):
                found.update({f"{name}.{k}": v for k, v in value.extract(nodes).items()})
            elif isinstance(value, (list, deque)):
                found[name] = np.stack([v[nodes] for v in value], axis=1)
            else:
                found[name] = value[nodes]
        return found

    def insert(self, nodes: NDArray[np.intp], state: Mapping[str, NDArray[Any]]) -> None:
        """Give some of many nodes what `extract` returned."""
        for name in self.HELD:
            value = getattr(self, name)
            if isinstance(value, Held):
                value.insert(nodes, part_of(name, state))
            elif isinstance(value, (list, deque)):
                shape = (nodes.size, len(value), *value[0].shape[1:])
                for i, new in enumerate(fitting(name, state, shape, value[0].dtype).swapaxes(0, 1)):
                    value[i] = value[i].copy()
                    value[i][nodes] = new
            else:
                if value.ndim == 1:
                    # It may be a member of a list elsewhere.
                    value = value.copy()
                    setattr(self, name, value)
                value[nodes] = fitting(name, state, (nodes.size, *value.shape[1:]), value.dtype)

    def put(self, nodes: NDArray[np.int64], part: Self) -> None:
        """Put back what `take` returned."""
        for name in self._stepped():
            value, changed = getattr(self, name), getattr(part, name)
            if isinstance(value, Held):
                value.put(nodes, changed)
            elif isinstance(value, (list, deque)):
                # A list shifts by replacing its members, so members may be shared: copy before writing.
                for i, (old, new) in enumerate(zip(value, changed, strict=True)):
                    value[i] = old.copy()
                    value[i][nodes] = new
            else:
                value[nodes] = changed

    def _stepped(self) -> Iterator[str]:
        return (name for name in self.HELD if name not in self.ASIDE)
