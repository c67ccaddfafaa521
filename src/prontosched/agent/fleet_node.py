"""One node of a fleet, looked at as a node of its own, for those who take nodes one by one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prontosched.pipeline.fleet import Fleet
from prontosched.pipeline.node_fleet import NodeFleet
from prontosched.subspace import Array, Subspace
from prontosched.telemetry.scaling import FleetScaling, Scaling

TIMESTEPS_PER_LOOK = 10


class FleetEmbedding(NamedTuple):
    """What a node of a fleet has learned of its own vectors."""

    subspace: Subspace | None
    kept: Subspace | None
    samples: float


class FleetScale(NamedTuple):
    """A node's own scale: as `prontosched.telemetry.scaling.Scaling` shows it."""

    mean: Array
    variance: Array
    unknown: NDArray[np.int64]
    samples: int


class FleetNodeSignal(NamedTuple):
    """The signal of one node of a fleet, for those who share and take up what is learned."""

    fleet: Any
    at: int

    @property
    def name(self) -> str:
        """Under which its statistics travel."""
        return str(self.fleet.name)

    def share(self) -> dict[str, Array]:
        """Return statistics that add up over nodes."""
        return dict(self.fleet.share(self.at))

    def start_from(self, shared: Mapping[str, Array]) -> None:
        """Go on from what a fleet has learned too."""
        self.fleet.start_from(shared, self.at)


class FleetNode(NamedTuple):
    """What a summary of a node is made from; see `prontosched.federation.contribution`."""

    embedding: FleetEmbedding
    metrics: tuple[str, ...] | None
    timestep: int
    scaling: FleetScale | None
    signal: Any = None


def fleet_node(fleet: Fleet | NodeFleet, at: int, metrics: tuple[str, ...]) -> FleetNode:
    """Return node number `at` of a fleet as it is now."""
    if isinstance(fleet, NodeFleet):
        member = fleet.members[at]
        own = FleetEmbedding(fleet.subspace(at), fleet.kept(at), float(member.embedding.samples))
        scaling = getattr(member, "scaling", None)
        scale = None if scaling is None else _scale(scaling, None)
        return FleetNode(own, metrics, member.timestep, scale, getattr(member, "signal", None))
    own = FleetEmbedding(fleet.subspace(at), fleet.kept(at), float(fleet.embedding.samples()[at]))
    scale = None if fleet.scaling is None else _scale(fleet.scaling, at)
    signal = FleetNodeSignal(fleet.signal, at) if hasattr(fleet.signal, "share") else None
    return FleetNode(own, metrics, int(fleet.timestep[at]), scale, signal)


class Progress(NamedTuple):
    """How far the nodes of a fleet are, one number each.

    Attributes
    ----------
    learned
        Changes when the node's subspace does.
    timestep
        Vectors seen.
    embedded
        Whether the node has a subspace of its own.
    """

    learned: NDArray[np.int64]
    timestep: NDArray[np.int64]
    embedded: NDArray[np.bool_]


def progress(fleet: Fleet | NodeFleet, count: int) -> Progress:
    """Return how far the first `count` nodes of a fleet are."""
    if isinstance(fleet, NodeFleet):
        members = fleet.members[:count]
        steps = np.array([member.timestep for member in members], np.int64)
        own = np.array([member.embedding.subspace is not None for member in members], np.bool_)
        return Progress(steps // TIMESTEPS_PER_LOOK, steps, own)
    own = fleet.embedding.ranks[:count] > 0
    return Progress(fleet.embedding.blocks[:count].copy(), fleet.timestep[:count].copy(), own)


def _scale(scaling: Scaling | FleetScaling, at: int | None) -> FleetScale:
    if isinstance(scaling, FleetScaling):
        assert at is not None
        arrays = (scaling.mean[at].copy(), scaling.variance[at].copy(), scaling.unknown[at].copy())
        return FleetScale(*arrays, int(scaling.samples[at]))
    return FleetScale(scaling.mean, scaling.variance, scaling.unknown, scaling.samples)
