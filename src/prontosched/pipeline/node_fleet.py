"""M separate nodes behind the interface of a fleet, for embeddings that have no array form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from prontosched.decision import NAN, Decision, FleetDecision
from prontosched.pipeline import Embedding
from prontosched.subspace import Array, Subspace


class Member(Protocol):
    """What a `NodeFleet` asks of a node; `prontosched.pipeline.node.Node` is one."""

    embedding: Embedding
    timestep: int

    def step(self, y: Array, *, ready: float = NAN, utilisation: float = NAN, time: float = NAN) -> Decision:
        """Carry one telemetry vector all the way to a decision."""
        ...

    def adopt(self, global_view: Subspace, *, samples: float) -> None:
        """Project on the global view too."""
        ...

    @property
    def view(self) -> Subspace | None:
        """The subspace projected on."""
        ...


class NodeFleet:
    """M separate nodes behind the interface of a `Fleet`."""

    def __init__(self, nodes: Sequence[Member], features: int) -> None:
        self.members = list(nodes)
        self.nodes = len(self.members)
        self.features = features
        self._reasons = ["accepting: nothing seen yet"] * self.nodes

    def step(
        self,
        Y: Array,
        *,
        ready: Array | float = NAN,
        utilisation: Array | float = NAN,
        time: Array | float = NAN,
        present: NDArray[np.bool_] | None = None,
    ) -> FleetDecision:
        """Carry one telemetry vector of every node present all the way to a decision."""
        known = [np.broadcast_to(np.asarray(v, float), (self.nodes,)) for v in (ready, utilisation, time)]
        here = np.ones(self.nodes, np.bool_) if present is None else np.asarray(present, np.bool_)
        raised, contended = np.zeros((2, self.nodes), np.bool_)
        numbers = np.full((4, self.nodes), NAN)
        numbers[:2] = 0.0
        timestep = np.array([node.timestep for node in self.members], np.int64)
        for i in np.flatnonzero(here):
            decision = self.members[i].step(
                Y[i], ready=float(known[0][i]), utilisation=float(known[1][i]), time=float(known[2][i])
            )
            raised[i], contended[i] = decision.raised, decision.contended
            numbers[:, i] = (
                decision.score,
                decision.threshold,
                decision.probability,
                decision.expected_ready,
            )
            self._reasons[i] = decision.reason
        score, threshold, probability, expected = numbers
        return FleetDecision(raised, score, threshold, timestep, probability, expected, contended)

    def subspace(self, node: int) -> Subspace | None:
        """Return the subspace of one node."""
        return self.members[node].embedding.subspace

    def view(self, node: int) -> Subspace | None:
        """Return what one node projects on."""
        return self.members[node].view

    def adopt(self, node: int, global_view: Subspace, *, samples: float) -> None:
        """Let one node project on the global view too, for as long as its own vectors are few."""
        self.members[node].adopt(global_view, samples=samples)

    def kept(self, node: int) -> Subspace | None:
        """Return the subspace of one node with its spare directions."""
        return self.members[node].embedding.kept

    def reason(self, node: int) -> str:
        """Say why `node` was decided as it was at the last timestep."""
        return self._reasons[node]
