"""Many nodes through one source, stepped together as arrays."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from prontosched.agent.answer import Known
from prontosched.agent.crowd_metrics import CrowdMetrics
from prontosched.agent.crowd_notes import Notes, Standing
from prontosched.agent.crowd_state import SavedNodes, carry, shard_fields, shard_nodes, thaw
from prontosched.agent.fleet_node import FleetNode, fleet_node, progress
from prontosched.agent.gathering import gather
from prontosched.agent.nodes import Insight, OneNode, Overview
from prontosched.agent.places import MOST_NODES, Arrangement, welcome, without
from prontosched.agent.schema import MAX_METRICS
from prontosched.agent.tally import Tally
from prontosched.decision import Decision
from prontosched.pipeline.fleet import Fleet
from prontosched.pipeline.node_fleet import NodeFleet
from prontosched.subspace import Array, Subspace
from prontosched.telemetry.source import Sample

LOG = logging.getLogger("prontosched.agent")
GONE_SECONDS = 86_400.0
"""A day: a node that is not seen for longer while others are may lose its place."""
LOOK_SECONDS = 3600.0
# Time without any telemetry at all says nothing of a single node.
LONGEST_GAP_SECONDS = 600.0
GONE_SHARE = 0.25


class Crowd:
    """A `Fleet` behind the names of its nodes.

    When more nodes come than it has room for, those that were not seen for a day give up
    their places, and a larger fleet takes over what the others know. Nodes that were saved
    are waited for as long, and listed once they are seen.

    Parameters
    ----------
    build
        Makes a fleet for a number of nodes and a list of metrics.
    name
        What the agent is called while it knows no node.
    saved, alone
        Nodes of an earlier run, for those who come back, and nodes that stood on their own until now.
    gone_seconds, most
        How long a place is kept for a node that is not seen while others are, and how many places there are.

    Attributes
    ----------
    builds
        How many fleets there have been; a new one takes over all but the views that nodes adopted.
    left_out
        Samples of nodes that found no place.
    message
        What became of saved nodes, for people.

    Notes
    -----
    Memory: what the fleet holds, and a dozen numbers per node, of at most 16,384; twice
    that for a moment while the fleet grows.
    """

    def __init__(
        self,
        build: Callable[[int, tuple[str, ...]], Fleet | NodeFleet],
        *,
        name: str,
        tolerance: float = 5.0,
        saved: SavedNodes | None = None,
        alone: Mapping[str, OneNode] | None = None,
        gone_seconds: float = GONE_SECONDS,
        most: int = MOST_NODES,
    ) -> None:
        self.fallback_name = name
        self.tolerance = tolerance
        self.tally = Tally()
        self.fleet: Fleet | NodeFleet | None = None
        self.builds = 0
        self.left_out = 0
        self.message = ""
        self._build = build
        self._saved = saved
        self._alone = alone or {}
        self._gone_seconds, self._most = gone_seconds, most
        self._metrics = CrowdMetrics()
        self._order = Arrangement([], 0, 0)
        self._place: dict[str, int] = {}
        self._notes = Notes(0)
        self._changed: list[str] = []
        self._chances: dict[int, Array] | None = None
        self._time = 0.0  # seconds in which there was telemetry
        self._stepped_at = float("inf")
        self._looked_at = 0.0
        self._per_shard = 0

    @property
    def names(self) -> list[str]:
        """Names of the nodes seen so far, by place."""
        return self._order.names[: self._order.listed]

    @property
    def changed(self) -> list[str]:
        """Names of the nodes whose signal turned at the last timestep."""
        return self._changed

    @property
    def features(self) -> int:
        """Metrics per node."""
        return len(self._metrics.names)

    def step(self, samples: Sequence[Sample], now: float) -> None:
        """Carry one sample per node to decisions; nodes without a sample stay as they are."""
        self._changed = []
        self._chances = None
        samples = [sample for sample in samples if np.isfinite(sample.vector).any()]
        if not samples:
            return
        self._time += min(max(0.0, now - self._stepped_at), LONGEST_GAP_SECONDS)
        self._stepped_at = now
        if self._time - self._looked_at >= LOOK_SECONDS:
            self._forget_gone({sample.node for sample in samples})
        samples = self._make_room(samples)
        assert self.fleet is not None
        size, notes = self.fleet.nodes, self._notes
        vectors = np.full((size, self.features), np.nan)
        present = np.zeros(size, np.bool_)
        timestamps = np.full(size, np.nan)
        for sample in samples:
            at = self._place[sample.node]
            vectors[at] = self._metrics.align(sample)
            present[at] = True
            notes.ready[at], notes.used[at] = sample.ready, sample.utilisation
            timestamps[at] = notes.timestamps[at] = sample.timestamp
        decision = self.fleet.step(
            vectors, ready=notes.ready, utilisation=notes.used, time=timestamps, present=present
        )
        turned = np.flatnonzero(notes.decision(decision, present, now, self._time))
        self._changed = [self._order.names[at] for at in turned]
        self.tally.add_many(notes.raised[present], turned.size, notes.ready[present], self.tolerance)
        if new := self._metrics.settled(len(samples)):
            self._widen(new)

    def overview(self) -> Overview:
        """Return all nodes at a glance."""
        count, notes = self._order.listed, self._notes
        return Overview(*(held[:count].tolist() for held in (notes.raised, notes.contended, notes.ready)))

    def standing(self) -> Standing:
        """Return where each node stands, in the order of the names."""
        count, notes = self._order.listed, self._notes
        nothing = np.zeros(count, np.int64)
        blocks, timestep, embedded = (
            (nothing, nothing, nothing > 0) if self.fleet is None else progress(self.fleet, count)
        )
        return Standing(
            notes.raised[:count],
            notes.contended[:count],
            notes.seen_at[:count],
            blocks,
            notes.numbers[0, :count],
            notes.ready[:count],
            timestep,
            embedded,
        )

    def node(self, at: int) -> FleetNode:
        """Return one node, by its place among the names, as others see a node."""
        assert self.fleet is not None
        return fleet_node(self.fleet, at, self._metrics.names)

    def adopt(self, at: int, global_view: Subspace, *, samples: float) -> None:
        """Let one node, by its place among the names, project on the global view too."""
        assert self.fleet is not None
        self.fleet.adopt(at, global_view, samples=samples)

    def known(self, name: str, *, words: bool = True) -> Known:
        """Return the newest that is known of a node."""
        at, notes = self._listed(name), self._notes
        if at is None:
            raise KeyError(f"no node {name!r} among {self._order.listed}")
        known = Known(name, float(notes.seen_at[at]), float(notes.changed_at[at]))
        known.ready, known.utilisation = float(notes.ready[at]), float(notes.used[at])
        known.timestamp = float(notes.timestamps[at])
        if notes.decided[at] and self.fleet is not None:
            score, threshold, probability, expected = notes.numbers[:, at].tolist()
            reason = self.fleet.reason(at) if words else ""
            known.decision = Decision(
                bool(notes.raised[at]),
                score,
                threshold,
                reason,
                int(notes.timestep[at]),
                probability,
                expected,
                bool(notes.contended[at]),
                self._outlook(at) if words else (),
            )
        return known

    def _outlook(self, at: int) -> tuple[tuple[int, float], ...]:
        """Return a node's chances of contention within further horizons, where the signal gives them."""
        signal = getattr(self.fleet, "signal", None)
        if signal is None or not hasattr(signal, "outlook"):
            return ()
        if self._chances is None:  # of all nodes at once, and once a timestep
            self._chances = signal.outlook()
        return tuple((steps, float(chances[at])) for steps, chances in self._chances.items())

    def fresh(self, name: str | None, now: float) -> bool:
        """Tell whether the node (None: any) was stepped at `now`."""
        if name is None:
            return bool((self._notes.seen_at == now).any())
        at = self._listed(name)
        return at is not None and bool(self._notes.seen_at[at] == now)

    def insight(self, name: str) -> Insight | None:
        """Return what the last decision of a node was made from."""
        self.known(name, words=False)
        at = self._place[name]
        if self.fleet is None or not self._notes.decided[at]:
            return None
        if not isinstance(self.fleet, Fleet):
            return Insight(self._metrics.names, None, self.fleet.view(at), (), None)
        seen = self.fleet.evidence(at)
        by_spikes = getattr(self.fleet.signal, "name", "") == "paper"
        return Insight(
            self._metrics.names, seen.vector, seen.subspace, seen.projections, seen.spikes, by_spikes
        )

    def state(self) -> dict[str, Any]:
        """Return that this is a crowd; what its nodes know is in its shards."""
        return {"form": "crowd", "nodes": self._order.listed}

    @property
    def shards(self) -> int:
        """Parts in which the nodes are saved; none where they cannot be."""
        if not isinstance(self.fleet, Fleet):
            return 0
        self._per_shard = self._per_shard or shard_nodes(self.fleet)
        return -(-len(self._order.names) // self._per_shard)

    def shard(self, number: int) -> dict[str, Any]:
        """Return what a restart needs of one part of the nodes."""
        assert isinstance(self.fleet, Fleet)
        first = number * self._per_shard
        at = np.arange(first, min(first + self._per_shard, len(self._order.names)))
        names = [self._order.names[place] for place in at]
        return shard_fields(self.fleet, at, names, self._metrics.names, self._time - self._notes.heard[at])

    def _listed(self, name: str) -> int | None:
        at = self._place.get(name)
        return at if at is not None and at < self._order.listed else None

    def _make_room(self, samples: list[Sample]) -> list[Sample]:
        """Give newcomers places; return the samples of those who have one."""
        listed, place = self._order.listed, self._place
        new = dict.fromkeys(s.node for s in samples if place.get(s.node, listed) >= listed)
        if not new:
            return samples
        saved = None
        if self.fleet is None:
            saved = self._begin(samples)
        gone = self._gone({sample.node for sample in samples})
        places = welcome(self._order, list(new), gone, most=self._most)
        if places.names != self._order.names or places.listed != self._order.listed or self.fleet is None:
            self._move(places)
        if saved is not None and isinstance(self.fleet, Fleet):
            absent = saved.absent
            found = thaw(saved, self.fleet, self._place)
            self._notes.heard[found] = [-absent[self._order.names[at]] for at in found]
            self._tell(f"{len(found)} of {len(absent)} saved nodes go on")
        if self._alone and isinstance(self.fleet, Fleet):
            gone_on = gather(self._alone, self.fleet, self._place, self._metrics.names, self._notes)
            self._tell(f"{gone_on} of {len(self._alone)} nodes that stood on their own go on")
            self._alone = {}
        if places.left_out:
            if not self.left_out:
                LOG.warning("no place for more than %d nodes: %d are left out", places.size, places.left_out)
            self.left_out += places.left_out
            samples = [sample for sample in samples if sample.node in self._place]
        return samples

    def _begin(self, samples: list[Sample]) -> SavedNodes | None:
        """Take the metrics of the first samples, unless saved nodes still fit them."""
        metrics = tuple(dict.fromkeys(name for sample in samples for name in sample.metrics))[:MAX_METRICS]
        here = {sample.node for sample in samples}
        saved, self._saved = self._saved, None
        if saved is not None and not saved.fits(metrics):
            self._tell("starting cold: the saved nodes are of other metrics", LOG.warning)
            saved = None
        held = () if saved is None else saved.metrics
        before = (name for one in self._alone.values() for name in one.metrics)
        self._metrics = CrowdMetrics(tuple(dict.fromkeys((*held, *metrics, *before)))[:MAX_METRICS])
        names = [] if saved is None else saved.names(self._gone_seconds, here, self._most)
        names = list(dict.fromkeys((*names, *self._alone)))
        self._order = Arrangement(names[: self._most], 0, 0)
        return saved

    def _tell(self, message: str, say: Callable[..., None] = LOG.info) -> None:
        self.message = message
        say("%s", message)

    def _gone(self, here: set[str]) -> list[int]:
        """Return the places of those who were not seen for long, the longest first."""
        heard = self._notes.heard[: len(self._order.names)]
        gone = np.flatnonzero(self._time - heard > self._gone_seconds)
        oldest_first = gone[np.argsort(heard[gone], kind="stable")].tolist()
        return [at for at in oldest_first if self._order.names[at] not in here]

    def _forget_gone(self, here: set[str]) -> None:
        self._looked_at = self._time
        gone = self._gone(here)
        if len(gone) >= max(1.0, GONE_SHARE * len(self._order.names)):
            self._move(without(self._order, gone))

    def _widen(self, new: tuple[str, ...]) -> None:
        """Go on with more metrics than before."""
        old = self.fleet
        if not isinstance(old, Fleet):
            return
        self._metrics = CrowdMetrics((*self._metrics.names, *new))
        self.fleet = self._build(old.nodes, self._metrics.names)
        self.builds += 1
        carry(old, self.fleet, np.arange(old.nodes), old.nodes)
        self._tell(f"new metrics have come to stay, {len(new)}: the nodes go on with {self.features}")

    def _move(self, places: Arrangement) -> None:
        """Bring everyone to a new place, or to none, with all that is known."""
        origin = np.full(places.size, -1, np.intp)
        origin[: len(places.names)] = [self._place.get(name, -1) for name in places.names]
        if self.fleet is None or places.size != self.fleet.nodes:
            old, self.fleet = self.fleet, self._build(places.size, self._metrics.names)
            self.builds += 1
        else:
            old = self.fleet
        carry(old, self.fleet, origin, len(self._order.names))
        self._notes = self._notes.moved(origin)
        self._notes.heard[origin < 0] = self._time
        self._order = places._replace(left_out=0)
        self._place = {name: at for at, name in enumerate(places.names)}
