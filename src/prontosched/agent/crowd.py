"""Many nodes through one source, stepped together as arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prontosched.agent.answer import Known
from prontosched.agent.fleet_node import FleetNode, fleet_node, progress
from prontosched.agent.nodes import Insight, Overview
from prontosched.agent.schema import MAX_METRICS, Schema
from prontosched.agent.tally import Tally
from prontosched.decision import Decision, FleetDecision
from prontosched.fleet import Fleet
from prontosched.node_fleet import NodeFleet
from prontosched.subspace import Subspace
from prontosched.telemetry.source import Sample

SPARE_SHARE = 0.25
NAN = float("nan")


class Standing(NamedTuple):
    """All nodes of a crowd as arrays, one number each.

    Attributes
    ----------
    raised
        Whether the signal is raised.
    seen_at
        When the node was stepped last.
    blocks
        Changes when the node's subspace does.
    score, ready
        Of the last decision, and CPU Ready; NaN where unknown.
    timestep
        Vectors seen.
    embedded
        Whether the node has a subspace of its own.
    """

    raised: NDArray[np.bool_]
    seen_at: NDArray[np.float64]
    blocks: NDArray[np.int64]
    score: NDArray[np.float64]
    ready: NDArray[np.float64]
    timestep: NDArray[np.int64]
    embedded: NDArray[np.bool_]


class Crowd:
    """A `Fleet` behind the names of its nodes.

    When nodes come that it has no room for it is built anew, cold, with a quarter to
    spare. What it learned lives as long as the agent does.

    Parameters
    ----------
    build
        Makes a fleet for a number of nodes and a list of metrics.
    name
        What the agent is called while it knows no node.

    Notes
    -----
    Memory: what the fleet holds, and a dozen numbers per node.
    """

    def __init__(
        self,
        build: Callable[[int, tuple[str, ...]], Fleet | NodeFleet],
        *,
        name: str,
        tolerance: float = 5.0,
    ) -> None:
        self.fallback_name = name
        self.tolerance = tolerance
        self.tally = Tally()
        self.fleet: Fleet | NodeFleet | None = None
        self._build = build
        self._metrics: tuple[str, ...] = ()
        self._schemas: dict[tuple[str, ...], Schema] = {}
        self._place: dict[str, int] = {}
        self._decision: FleetDecision | None = None
        self._changed: list[str] = []
        self._resize(0)

    @property
    def names(self) -> list[str]:
        """Names of the nodes seen so far, in the order they came."""
        return list(self._place)

    @property
    def changed(self) -> list[str]:
        """Names of the nodes whose signal turned at the last timestep."""
        return self._changed

    @property
    def features(self) -> int:
        """Metrics per node."""
        return len(self._metrics)

    def step(self, samples: Sequence[Sample], now: float) -> None:
        """Carry one sample per node to decisions; nodes without a sample stay as they are."""
        self._changed = []
        samples = [sample for sample in samples if np.isfinite(sample.vector).any()]
        if not samples:
            return
        self._make_room(samples)
        assert self.fleet is not None
        size = self.fleet.nodes
        vectors = np.full((size, len(self._metrics)), np.nan)
        present = np.zeros(size, np.bool_)
        timestamps = np.full(size, np.nan)
        for sample in samples:
            at = self._place[sample.node]
            vectors[at] = self._aligned(sample)
            present[at] = True
            self._ready[at], self._used[at] = sample.ready, sample.utilisation
            timestamps[at] = sample.timestamp
        decision = self.fleet.step(
            vectors, ready=self._ready, utilisation=self._used, time=timestamps, present=present
        )
        self._note(decision, present, timestamps, now)

    def overview(self) -> Overview:
        """Return all nodes at a glance."""
        count = len(self._place)
        return Overview(self._raised[:count].tolist(), self._ready[:count].tolist())

    def standing(self) -> Standing:
        """Return where each node stands, in the order of the names."""
        count = len(self._place)
        nothing = np.zeros(count, np.int64)
        blocks, timestep, embedded = (
            (nothing, nothing, nothing > 0) if self.fleet is None else progress(self.fleet, count)
        )
        return Standing(
            self._raised[:count],
            self._seen_at[:count],
            blocks,
            self._numbers[0, :count],
            self._ready[:count],
            timestep,
            embedded,
        )

    def node(self, at: int) -> FleetNode:
        """Return one node, by its place among the names, as others see a node."""
        assert self.fleet is not None
        return fleet_node(self.fleet, at, self._metrics)

    def adopt(self, at: int, global_view: Subspace, *, samples: float) -> None:
        """Let one node, by its place among the names, project on the global view too."""
        assert self.fleet is not None
        self.fleet.adopt(at, global_view, samples=samples)

    def known(self, name: str, *, words: bool = True) -> Known:
        """Return the newest that is known of a node."""
        if name not in self._place:
            raise KeyError(f"no node {name!r} among {len(self._place)}")
        at = self._place[name]
        known = Known(name, float(self._seen_at[at]), float(self._changed_at[at]))
        known.ready, known.utilisation = float(self._ready[at]), float(self._used[at])
        known.timestamp = float(self._timestamps[at])
        if self._decided[at] and self._decision is not None and self.fleet is not None:
            numbers = self._numbers[:, at]
            known.decision = Decision(
                bool(self._raised[at]),
                float(numbers[0]),
                float(numbers[1]),
                self.fleet.reason(at) if words else "",
                int(self._decision.timestep[at]),
                float(numbers[2]),
                float(numbers[3]),
            )
        return known

    def fresh(self, name: str | None, now: float) -> bool:
        """Tell whether the node (None: any) was stepped at `now`."""
        if name is None:
            return bool((self._seen_at == now).any())
        return name in self._place and bool(self._seen_at[self._place[name]] == now)

    def insight(self, name: str) -> Insight | None:
        """Return what the last decision of a node was made from."""
        self.known(name, words=False)
        at = self._place[name]
        if self.fleet is None or not self._decided[at]:
            return None
        subspace: Subspace | None = self.fleet.view(at)
        if not isinstance(self.fleet, Fleet) or subspace is None:
            return Insight(self._metrics, None, subspace, (), None)
        vector = self.fleet._vectors[at]
        projections = [float(p) for p in subspace.basis.T @ vector]
        return Insight(self._metrics, vector, subspace, projections, None)

    def state(self) -> dict[str, Any]:
        """Return nothing: a fleet starts cold."""
        return {}

    def _aligned(self, sample: Sample) -> NDArray[np.float64]:
        if sample.metrics == self._metrics:
            return sample.vector
        if sample.metrics not in self._schemas:
            if len(self._schemas) >= 256:
                self._schemas.clear()
            self._schemas[sample.metrics] = Schema(self._metrics)
        return self._schemas[sample.metrics].align(sample)

    def _make_room(self, samples: Sequence[Sample]) -> None:
        names = dict.fromkeys([*self._place, *(sample.node for sample in samples)])
        if self.fleet is None or len(names) > self.fleet.nodes:
            if not self._metrics:
                union = dict.fromkeys(metric for sample in samples for metric in sample.metrics)
                self._metrics = tuple(union)[:MAX_METRICS]
            # Room for more only once it has been needed: most crowds never grow.
            size = len(names) if self.fleet is None else int(len(names) * (1.0 + SPARE_SHARE)) + 1
            self.fleet = self._build(size, self._metrics)
            self._resize(size)
        for name in names:
            self._place.setdefault(name, len(self._place))

    def _resize(self, size: int) -> None:
        self._ready = np.full(size, np.nan)
        self._used = np.full(size, np.nan)
        self._timestamps = np.full(size, np.nan)
        self._seen_at = np.full(size, -np.inf)
        self._changed_at = np.full(size, -np.inf)
        self._raised = np.zeros(size, np.bool_)
        self._decided = np.zeros(size, np.bool_)
        self._numbers = np.full((4, size), np.nan)

    def _note(
        self,
        decision: FleetDecision,
        present: NDArray[np.bool_],
        timestamps: NDArray[np.float64],
        now: float,
    ) -> None:
        turned = present & self._decided & (decision.raised != self._raised)
        self._changed_at[turned | (present & ~self._decided)] = now
        self._seen_at[present] = now
        self._timestamps[present] = timestamps[present]
        self._raised[present] = decision.raised[present]
        self._numbers[:, present] = np.stack(
            [decision.score, decision.threshold, decision.probability, decision.expected_ready]
        )[:, present]
        self._decided |= present
        self._decision = decision
        numbers = set(np.flatnonzero(turned).tolist())
        self._changed = [name for name, at in self._place.items() if at in numbers] if numbers else []
        self.tally.add_many(self._raised[present], len(numbers), self._ready[present], self.tolerance)
