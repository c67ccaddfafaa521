"""Many nodes stepped together: for replay, simulation and agentless sources.

`Fleet` carries M nodes as arrays through the stages of `prontosched.pipeline.node`, with
the same arithmetic. Separate nodes behind the same interface: `prontosched.pipeline.node_fleet`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prontosched.decision import NAN, Evidence, FleetDecision, FleetEvidence, FleetSignal
from prontosched.per_node import Nodes, Rows, Separable, fitting, part_of
from prontosched.pipeline import FPCAEdge
from prontosched.pipeline.embedding import finite_all
from prontosched.pipeline.fleet_views import FleetViews
from prontosched.pipeline.fpca_fleet import FPCAEdgeFleet
from prontosched.pipeline.spikes import SpikeDetector
from prontosched.pipeline.spikes_fleet import FleetSpikeDetector
from prontosched.subspace import Array, Subspace
from prontosched.telemetry.scaling import IMPLAUSIBLE, Scaling
from prontosched.telemetry.scaling_fleet import FleetScaling

# Nodes per pass: what one pass touches then stays in the cache.
CHUNK = 256

At = slice | NDArray[np.intp]


class Fleet:
    """Decide, vector by vector, for M machines at once.

    Parameters
    ----------
    nodes, features
        M and d.
    signal
        Turns the evidence of a step into M decisions.
    lag
        Vectors the detectors look back on.
    scaling
        Brings the metrics to one scale, each node by its own past; None takes vectors as they are.
    metrics
        Names of the metrics.
    settings
        Arguments of `FPCAEdge`.

    Notes
    -----
    Memory: about `nodes * features * (3 * rank + block_size + 14)` floats; up to
    `nodes * features * 2 * rank` more while nodes hold views they adopted.

    Examples
    --------
    >>> from prontosched.signals import RejectJobFleet
    >>> fleet = Fleet(2, 3, RejectJobFleet(2), rank=1, block_size=4)
    >>> decision = fleet.step(np.ones((2, 3)))
    >>> decision.raised
    array([False, False])
    """

    def __init__(
        self,
        nodes: int,
        features: int,
        signal: FleetSignal,
        *,
        lag: int = 10,
        scaling: Scaling | None = None,
        metrics: tuple[str, ...] | None = None,
        **settings: Any,
    ) -> None:
        if nodes < 1 or features < 1:
            raise ValueError(f"a fleet must have nodes and metrics, got {nodes} nodes of {features} metrics")
        self.nodes = nodes
        self.features = features
        self.signal = signal
        self.metrics = metrics
        self.scaling = None if scaling is None else FleetScaling(nodes, features, scaling)
        self.embedding = FPCAEdgeFleet(nodes, features, FPCAEdge(**settings), lag)
        self.detector = FleetSpikeDetector(nodes, self.embedding.width, SpikeDetector(lag))
        self.timestep = np.zeros(nodes, np.int64)
        width = self.embedding.width
        self._vectors = self._seen = np.zeros((nodes, features))
        self._projections = np.zeros((nodes, width))
        self._spikes = np.zeros((nodes, width), np.int8)
        self._warm = np.zeros(nodes, np.bool_)
        self._embedded = np.zeros(nodes, np.bool_)
        self._views: FleetViews | None = None
        # A signal that holds something per metric can then be taken apart before its first step.
        expect = getattr(signal, "expect", None)
        if callable(expect) and not getattr(signal, "features", 0):
            expect(features)

    def step(
        self,
        Y: Array,
        *,
        ready: Array | float = NAN,
        utilisation: Array | float = NAN,
        time: Array | float = NAN,
        present: NDArray[np.bool_] | None = None,
    ) -> FleetDecision:
        """Carry one telemetry vector of every node present all the way to a decision.

        Parameters
        ----------
        Y
            All metrics now, `(M, d)`; NaN where one is unknown.
        ready, utilisation, time
            As for `Node.step`, one for all or `(M,)`.
        present
            Which nodes step now, `(M,)`; all when not given. The others stay as they are.
        """
        if Y.shape != (self.nodes, self.features):
            raise ValueError(f"Y must be ({self.nodes}, {self.features}), got {Y.shape}")
        here = np.ones(self.nodes, np.bool_) if present is None else np.asarray(present, np.bool_)
        shown = self.embedding if self._views is None else self._refreshed(self._views, here)
        embedded = shown.ranks > 0
        self._embedded = embedded if present is None else np.where(here, embedded, self._embedded)
        parts = list(self._parts(here))
        self._seen = vectors = self._look(Y, parts, shown)
        whole: At = slice(0, self.nodes) if present is None or here.all() else np.flatnonzero(here)
        self._spikes[whole], self._warm[whole] = self.detector.detect(
            self._projections[whole], whole, embedded[whole]
        )
        evidence = FleetEvidence(
            present=here,
            timestep=self.timestep.copy(),
            ready=self._each(ready),
            utilisation=self._each(utilisation),
            time=self._each(time),
            vectors=vectors,
            projections=self._projections,
            spikes=self._spikes,
            singular_values=shown.strengths,
            basis=shown.rows.swapaxes(1, 2),
            embedded=embedded,
            warm=self._warm,
            samples=shown.samples(),
            metrics=self.metrics,
        )
        decision = self.signal.decide(evidence)
        self._learn(vectors, parts)
        self.timestep += here
        return decision

    def _parts(self, here: NDArray[np.bool_]) -> Iterator[At]:
        """Yield the nodes present in passes that fit the cache."""
        if here.all():
            for start in range(0, self.nodes, CHUNK):
                yield slice(start, min(start + CHUNK, self.nodes))
            return
        numbers = np.flatnonzero(here)
        for start in range(0, numbers.size, CHUNK):
            yield numbers[start : start + CHUNK]

    def _look(self, Y: Array, parts: list[At], shown: FPCAEdgeFleet | FleetViews) -> Array:
        """Scale and project; return the scaled vectors, which are `Y` itself where it may stay as it is."""
        vectors = Y if self.scaling is None else self._vectors
        for at in parts:
            given = Y[at]
            Z = finite_all(given, IMPLAUSIBLE) if self.scaling is None else self.scaling.scale(given, at)
            if Z is not given:
                if vectors is Y:
                    vectors = self._vectors
                    vectors[...] = Y
                vectors[at] = Z
            self._projections[at] = shown.project(Z, at)
        return vectors

    def _learn(self, vectors: Array, parts: list[At]) -> None:
        """Let the embeddings learn; where directions turned, the detectors see the past on the new ones."""
        for at in parts:
            changed = self.embedding.learn(vectors[at], at)
            if self._views is not None:
                self._views.learned(changed)
            if self.embedding.recent is not None:
                self.detector.refill(changed, self.embedding.recent, self.detector.lag)
            elif changed.size:
                for nodes in self.embedding.alike(changed):
                    window, held = self.embedding.window(nodes)
                    self.detector.refill(nodes, window, held)

    def _refreshed(self, views: FleetViews, here: NDArray[np.bool_]) -> FPCAEdgeFleet | FleetViews:
        """Return what to project on; where views turn it, the detectors see the past on the new directions."""
        for nodes, window in views.refresh(here, self.timestep):
            self.detector.refill(nodes, window, window.shape[2])
        self._views = views if len(views) else None
        return self._views or self.embedding

    def adopt(self, node: int, global_view: Subspace, *, samples: float) -> None:
        """Let one node project on the global view too, for as long as its own vectors are few.

        Arguments and meaning are those of `prontosched.pipeline.node.Node.adopt`, but for two details.
        Of a view with more directions than the nodes here have, a node without a subspace
        of its own projects on the leading ones only. And right after a block the signs of
        directions follow those of that block, not of the one before.
        """
        if not 0 <= node < self.nodes:
            raise ValueError(f"node must be from 0 to {self.nodes - 1}, got {node}")
        if self._views is None:
            self._views = FleetViews(self.embedding)
        self._views.adopt(node, global_view, samples, fresh=not self._embedded[node])

    def take(self, at: Nodes) -> dict[str, Rows]:
        """Return copies of all that is held of the nodes `at`, by name, nodes first.

        Adopted views are left out: a node that comes back adopts anew.
        """
        state: dict[str, Rows] = {name: held[at] for name, held in self._notes()}
        state["apart"] = np.zeros(at.size, np.bool_) if self._views is None else self._views.apart(at)
        for name, part in self._held():
            state |= {f"{name}.{key}": value for key, value in part.take(at).items()}
        return state

    def put(self, at: Nodes, state: Mapping[str, Rows]) -> None:
        """Give the nodes `at` what `take` returned, of this fleet or another of the same kind.

        A node goes on bit for bit as if it had not stopped, but for one that projected
        on an adopted view and now goes on without. After a `StateError` the nodes hold a
        part of each: `clear` them.
        """
        apart = fitting("apart", state, (at.size,), self._embedded.dtype)
        for name, part in self._held():
            part.put(at, part_of(name, state))
        for name, held in self._notes():
            held[at] = fitting(name, state, (at.size, *held.shape[1:]), held.dtype)
        if self._views is not None:
            self._views.forget(at)
        for node in at[apart].tolist():
            self.look_back(node)

    def look_back(self, node: int) -> None:
        """Let the detector of one node see its last vectors on its own directions; nothing without any."""
        alone = np.array([node])
        if self.embedding.ranks[node]:
            self.detector.refill(alone, *self.embedding.window(alone))
        else:
            self.detector.clear(alone)

    def enter(self, node: int, timestep: int, evidence: Evidence | None) -> None:
        """Record that a node came in from outside (`prontosched.pipeline.joining`)."""
        self.timestep[node] = timestep
        self._embedded[node] = self.embedding.ranks[node] > 0
        self._spikes[node] = 0
        spikes = None if evidence is None else evidence.spikes
        self._warm[node] = spikes is not None
        if spikes is not None:
            width = min(len(spikes), self.embedding.width)
            self._spikes[node, :width] = spikes[:width]
        if self._views is not None:
            self._views.forget(np.array([node]))

    def clear(self, at: Nodes) -> None:
        """Make the nodes `at` as new."""
        for _, part in self._held():
            part.clear(at)
        for _, held in self._notes():
            held[at] = 0
        if self._views is not None:
            self._views.forget(at)

    def _notes(self) -> list[tuple[str, Rows]]:
        """Return the arrays that the fleet itself holds of each node."""
        return [
            ("timestep", self.timestep),
            ("embedded", self._embedded),
            ("warm", self._warm),
            ("spikes", self._spikes),
        ]

    def _held(self) -> Iterator[tuple[str, Separable]]:
        """Yield the parts that hold something of each node; a signal that cannot be taken apart is left out."""
        if self.scaling is not None:
            yield "scaling", self.scaling
        yield "embedding", self.embedding
        yield "detector", self.detector
        if isinstance(self.signal, Separable):
            yield "signal", self.signal

    def _each(self, value: Array | float) -> Array:
        return np.broadcast_to(np.asarray(value, dtype=np.float64), (self.nodes,))

    def subspace(self, node: int) -> Subspace | None:
        """Return the subspace of one node, learned from its own vectors alone."""
        return self.embedding.subspace(node)

    def view(self, node: int) -> Subspace | None:
        """Return what one node projects on: its own subspace, merged with an adopted one while that counts."""
        return (self.embedding if self._views is None else self._views).subspace(node)

    def evidence(self, node: int) -> Evidence:
        """Return what is known of one node's last timestep, on the directions that it has now."""
        subspace, vector, warm = self.view(node), self._seen[node].copy(), bool(self._warm[node])
        rank = 0 if subspace is None else subspace.rank
        return Evidence(
            int(self.timestep[node]) - 1,
            vector=vector,
            subspace=subspace,
            projections=[] if subspace is None else (subspace.basis.T @ vector).tolist(),
            spikes=self._spikes[node, :rank].tolist() if warm and rank else None,
            samples=float(self.embedding.samples()[node]),
            metrics=self.metrics,
        )

    def kept(self, node: int) -> Subspace | None:
        """Return the subspace of one node with its spare directions."""
        return self.embedding.kept(node)

    def reason(self, node: int) -> str:
        """Say why `node` was decided as it was at the last timestep."""
        return self.signal.reason(node)
