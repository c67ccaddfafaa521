"""What a crowd's nodes know: carried from place to place, saved in parts, and taken up again.

Covers: what is in a part. Its bytes and files are `prontosched.agent.shards`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prontosched.agent.places import MOST_NODES
from prontosched.agent.schema import FAMILIAR_SHARE, known_share
from prontosched.errors import StateError
from prontosched.pipeline.fleet import Fleet
from prontosched.pipeline.node_fleet import NodeFleet
from prontosched.signals import lasting_settings

LOG = logging.getLogger("prontosched.agent")
NODES_PER_SHARD = 32
SHARD_BYTES = 16 * 1024 * 1024

State = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class SavedNodes:
    """Nodes that an earlier run saved, read when they are wanted.

    Attributes
    ----------
    metrics
        What they measured.
    absent
        By name, for how many seconds of telemetry a node had not been seen.
    parts
        Reads what each of them knows, part by part: names, the signal, and their state.
    """

    metrics: tuple[str, ...]
    absent: dict[str, float]
    parts: Callable[[], Iterator[tuple[list[str], str, State]]]

    def fits(self, metrics: tuple[str, ...]) -> bool:
        """Tell whether nodes with these metrics can go on from here."""
        return known_share(self.metrics, metrics) >= FAMILIAR_SHARE

    def names(self, longest: float, here: set[str], most: int = MOST_NODES) -> list[str]:
        """Return whom to take up, at most so many: those here, and others that were not absent for longer."""
        some = [name for name, absent in self.absent.items() if name in here or absent <= longest]
        others = [name for name in some if name not in here][: max(0, most - len(here))]
        return [*(name for name in some if name in here), *others]


def carry(old: Fleet | NodeFleet | None, new: Fleet | NodeFleet, origin: NDArray[np.intp], used: int) -> None:
    """Give place i of `new` what place `origin[i]` of `old` has; as new where that is negative.

    Parameters
    ----------
    old
        The same fleet, another one, or None where there was none.
    used
        How many places of `old` were taken.
    """
    # Nodes one by one are made only where there is no array form: they begin anew.
    if not isinstance(old, Fleet) or not isinstance(new, Fleet):
        return
    if old is new:
        moved = np.flatnonzero((origin >= 0) & (origin != np.arange(origin.size)))
        state = new.take(origin[moved]) if moved.size else {}
        empty = np.flatnonzero(origin[:used] < 0)
        if empty.size:
            new.clear(empty)
        if moved.size:
            new.put(moved, state)
        return
    kept = np.flatnonzero(origin >= 0)
    for first in range(0, kept.size, NODES_PER_SHARD):
        at = kept[first : first + NODES_PER_SHARD]
        new.put(at, widened(old.take(origin[at]), new, at))


def shard_nodes(fleet: Fleet) -> int:
    """Return how many nodes make a part: few enough that saving one takes no time."""
    one = sum(held.nbytes for held in fleet.take(np.zeros(1, np.intp)).values())
    return max(1, min(NODES_PER_SHARD, SHARD_BYTES // max(1, one)))


def shard_fields(
    fleet: Fleet,
    at: NDArray[np.intp],
    names: list[str],
    metrics: tuple[str, ...],
    absent: NDArray[np.float64],
) -> dict[str, Any]:
    """Return all that a restart needs of the nodes `at`: plain values, and their state apart."""
    return {
        "names": names,
        "metrics": list(metrics),
        "absent": absent,
        "signal": _signal(fleet),
        "state": fleet.take(at),
    }


def thaw(saved: SavedNodes, fleet: Fleet, place: Mapping[str, int]) -> list[int]:
    """Give nodes what was saved of them; return the places of those that go on.

    With other settings of the signal they go on too, and the signal begins anew.
    """
    found: list[int] = []
    signal = _signal(fleet)
    for names, before, state in saved.parts():
        rows = [row for row, name in enumerate(names) if name in place]
        if not rows:
            continue
        at = np.array([place[names[row]] for row in rows], np.intp)
        mine = {name: values[rows] for name, values in state.items()}
        if before != signal:
            anew = {name: values for name, values in fleet.take(at).items() if name.startswith("signal.")}
            mine = {name: values for name, values in mine.items() if not name.startswith("signal.")} | anew
        try:
            fleet.put(at, widened(mine, fleet, at))
        except StateError as error:
            fleet.clear(at)
            LOG.warning("%d nodes start cold: %s", at.size, error)
            continue
        found += at.tolist()
    return found


def widened(state: State, fleet: Fleet, at: NDArray[np.intp]) -> State:
    """Return what nodes with fewer metrics know, for the places `at` of a fleet that has others after those."""
    slab = state.get("embedding.slab")
    if slab is None or slab.shape[-1] == fleet.features:
        return state
    found, had = dict(state), slab.shape[-1]
    for name, like in fleet.take(at).items():
        held = state.get(name)
        if held is not None and held.shape == (*like.shape[:-1], had) and like.shape[-1] == fleet.features:
            # As new where they have not measured anything.
            found[name] = like.copy()
            found[name][..., :had] = held[..., : fleet.features]
    if fleet.scaling is not None and "scaling.samples" in state:
        found["scaling.missing"][:, had:] = fleet.scaling.waiting(state["scaling.samples"])[:, None]
    return found


def _signal(fleet: Fleet) -> str:
    """Return the signal and its settings in words."""
    return f"{type(fleet.signal).__name__} {sorted(lasting_settings(fleet.signal).items())}"
