"""State of many nodes as arrays with a row per node: taken out, put back and made new for some of them.

Covers: `PerNode`, the base of every part of a fleet that is a handful of such arrays.
What the learned signal holds is deeper: `prontosched.signals.arithmetic`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from prontosched.errors import StateError

Nodes = NDArray[np.intp]
Rows = NDArray[Any]


@runtime_checkable
class Separable(Protocol):
    """Something whose state can be taken apart by nodes."""

    def take(self, at: Nodes) -> dict[str, Rows]:
        """Return copies of all that is held of the nodes `at`, by name, nodes first."""
        ...

    def put(self, at: Nodes, state: Mapping[str, Rows]) -> None:
        """Give the nodes `at` what `take` returned, here or in another fleet of the same kind."""
        ...

    def clear(self, at: Nodes) -> None:
        """Make the nodes `at` as new."""
        ...


class PerNode:
    """A part of a fleet, made of arrays whose first axis is the node.

    Attributes
    ----------
    PER_NODE
        Names of these arrays; one that is None is left out.
    """

    PER_NODE: ClassVar[tuple[str, ...]] = ()

    def like_new(self, nodes: int) -> Self:
        """Return a part of the same kind for so many nodes that have seen nothing."""
        raise TypeError(f"{type(self).__name__} must say how it is made for other nodes")

    def take(self, at: Nodes) -> dict[str, Rows]:
        """Return copies of all that is held of the nodes `at`, by name, nodes first."""
        return {name: held[at] for name, held in self._arrays()}

    def put(self, at: Nodes, state: Mapping[str, Rows]) -> None:
        """Give the nodes `at` what `take` returned."""
        for name, held in self._arrays():
            held[at] = fitting(name, state, (at.size, *held.shape[1:]), held.dtype)

    def clear(self, at: Nodes) -> None:
        """Make the nodes `at` as new."""
        self.put(at, self.like_new(at.size).take(np.arange(at.size)))

    def _arrays(self) -> Iterator[tuple[str, Rows]]:
        for name in self.PER_NODE:
            held = getattr(self, name)
            if held is not None:
                yield name.lstrip("_"), held


def fitting(name: str, state: Mapping[str, Rows], shape: tuple[int, ...], kind: np.dtype[Any]) -> Rows:
    """Return one array of a saved state, or raise if it is not what is held here."""
    if name not in state:
        raise StateError(f"saved state must hold {name!r}, got none: start afresh")
    found = np.asarray(state[name])
    if found.shape != shape or found.dtype.kind != kind.kind:
        raise StateError(
            f"saved {name!r} must be {shape} of {kind}, got {found.shape} of {found.dtype}: "
            "it was made with other options or metrics"
        )
    return found


def part_of(name: str, state: Mapping[str, Rows]) -> dict[str, Rows]:
    """Return what a saved state has of one part, without the part's name."""
    start = name + "."
    return {key[len(start) :]: value for key, value in state.items() if key.startswith(start)}
