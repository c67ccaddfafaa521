"""Many nodes stepped together, for replay and simulation.

`Fleet` carries M nodes as arrays through the stages of `prontosched.pipeline.node`, with
the same arithmetic.
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
from prontosched.pipeline.fpca import FPCAEdgeFleet, Shown
from prontosched.pipeline.node import ADOPTED_SAMPLES, LEAST_WEIGHT, adopted_weight
from prontosched.pipeline.spikes import FleetSpikeDetector, SpikeDetector
from prontosched.subspace import Array, Subspace, align_signs, leading, merge
from prontosched.telemetry.scaling import IMPLAUSIBLE, FleetScaling, Scaling

# Nodes per pass: what one pass touches then stays in the cache.
CHUNK = 256

At = slice | NDArray[np.intp]
Mask = NDArray[np.bool_]


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


class FleetViews(Shown):
    """Hold what the nodes of a fleet project on while some of them have an adopted view.

    Parameters
    ----------
    embedding
        What the nodes learn themselves.

    Attributes
    ----------
    rows, strengths, ranks
        As those of the embedding; merged with the view where a node has one.

    Notes
    -----
    Memory: `nodes * features * width` floats, and `features * rank` for each view held.
    """

    def __init__(self, embedding: FPCAEdgeFleet) -> None:
        self.embedding = embedding
        self.rows = embedding.rows.copy()
        self.strengths = embedding.strengths.copy()
        self.ranks = embedding.ranks.copy()
        self._adopted: dict[int, Subspace] = {}
        nodes = len(self.ranks)
        self._has = np.zeros(nodes, np.bool_)
        self._due = np.zeros(nodes, np.bool_)
        # Those whose view has been projected on.
        self._apart = np.zeros(nodes, np.bool_)

    def __len__(self) -> int:
        return len(self._adopted)

    def adopt(self, node: int, view: Subspace, samples: float, *, fresh: bool) -> None:
        """Give one node a view; it counts from the next `refresh` on.

        `fresh` tells that the node has projected on nothing yet.
        """
        features = self.rows.shape[2]
        if not samples > 0:
            raise ValueError(f"samples must be positive, got {samples}")
        if view.features != features:
            raise ValueError(
                f"a global view must have {features} metrics as this fleet has, got {view.features}: "
                "align it to the fleet's metrics first"
            )
        self._adopted[node] = Subspace(view.basis, view.singular_values / np.sqrt(samples))
        self._has[node] = self._due[node] = True
        if fresh:
            # What it learned since has no say in the signs of its directions.
            self.ranks[node] = 0

    def apart(self, at: Nodes) -> Mask:
        """Tell which of the nodes `at` project on something else than their own subspaces."""
        return self._apart[at]

    def forget(self, at: Nodes) -> None:
        """Drop the views of the nodes `at`, which have become others."""
        for node in at[self._has[at]].tolist():
            del self._adopted[node]
        self._has[at] = self._due[at] = self._apart[at] = False
        self._show_own(at)

    def learned(self, changed: Nodes) -> None:
        """Take note of the nodes whose own subspace changed."""
        has = self._has[changed]
        self._due[changed[has]] = True
        self._show_own(changed[~has])

    def refresh(self, here: Mask, timestep: NDArray[np.int64]) -> Iterator[tuple[Nodes, Array]]:
        """Merge the views of the nodes `here` with what these learned since.

        Yields the nodes that project on something new, with the projections of their last
        vectors on it, `(m, width, held)`, oldest first.
        """
        due = np.flatnonzero(self._due & here)
        self._due[due] = False
        for start in range(0, due.size, CHUNK):
            turned = self._turn(due[start : start + CHUNK], timestep)
            held = np.minimum(timestep[turned], self.embedding.lag)
            for count in np.unique(held):
                nodes = turned[held == count]
                recent = self.embedding.latest(nodes)
                yield nodes, np.matmul(self.rows[nodes], recent.swapaxes(1, 2))

    def samples(self) -> Array:
        """Vectors behind the singular values, `(M,)`."""
        own = self.embedding.samples()
        return np.where(self._has & (own == 0.0), ADOPTED_SAMPLES, own)

    def _turn(self, nodes: Nodes, timestep: NDArray[np.int64]) -> Nodes:
        weight = adopted_weight(timestep[nodes].astype(np.float64))
        young = self.embedding.ranks[nodes] == 0
        faded = ~young & (weight < LEAST_WEIGHT)
        self._show_alone(nodes[young])
        self._show_merged(nodes[~young & ~faded], weight[~young & ~faded])
        return np.sort(np.concatenate([nodes[~faded], self._let_go(nodes[faded])]))

    def _show_own(self, nodes: Nodes) -> None:
        """Show the own subspaces of nodes without a view."""
        self.rows[nodes] = self.embedding.rows[nodes]
        self.strengths[nodes] = self.embedding.strengths[nodes]
        self.ranks[nodes] = self.embedding.ranks[nodes]

    def _show_alone(self, nodes: Nodes) -> None:
        """Show the views of nodes that have no subspace of their own yet."""
        if not nodes.size:
            return
        width = self.rows.shape[1]
        rows = np.zeros((nodes.size, *self.rows.shape[1:]))
        strengths = np.zeros((nodes.size, width))
        for i, node in enumerate(nodes.tolist()):
            view = self._adopted[node]
            rank = min(view.rank, width)
            rows[i, :rank] = view.basis[:, :rank].T
            strengths[i, :rank] = view.singular_values[:rank]
        self._show(nodes, rows, strengths)
        self._apart[nodes] = True

    def _show_merged(self, nodes: Nodes, weight: Array) -> None:
        """Show views and own subspaces as one, of each node's own rank."""
        if not nodes.size:
            return
        own, width = self.embedding, self.rows.shape[1]
        views = [self._adopted[node] for node in nodes.tolist()]
        most = max(view.rank for view in views)
        wide = np.zeros((nodes.size, most + width, self.rows.shape[2]))
        np.multiply(own.rows[nodes], own.strengths[nodes][:, :, None], out=wide[:, most:])
        faded = [
            Subspace(v.basis, v.singular_values * w) for v, w in zip(views, np.sqrt(weight), strict=True)
        ]
        for i, view in enumerate(faded):
            wide[i, : view.rank] = (view.basis * view.singular_values).T
        keep = own.ranks[nodes]
        squares, vectors, trusted = leading(np.matmul(wide, wide.swapaxes(1, 2)), keep)
        kept = (np.arange(width) < keep[:, None]) & trusted[:, None]
        strengths = np.sqrt(np.where(kept, squares[:, : -width - 1 : -1], 0.0))
        rows = np.matmul(vectors[:, :, -width:].swapaxes(1, 2), wide)[:, ::-1]
        rows = np.where(kept[:, :, None], rows / np.where(kept, strengths, 1.0)[:, :, None], 0.0)
        for i in np.flatnonzero(~trusted).tolist():
            one = merge(faded[i], own.subspace(int(nodes[i])), rank=int(keep[i]))
            assert one is not None
            rows[i, : one.rank], strengths[i, : one.rank] = one.basis.T, one.singular_values
        self._show(nodes, rows, strengths)
        self._apart[nodes] = True

    def _let_go(self, nodes: Nodes) -> Nodes:
        """Forget views that have faded; return the nodes that had projected on theirs."""
        own, apart = self.embedding, self._apart[nodes]
        over, never = nodes[apart], nodes[~apart]
        for node in nodes.tolist():
            del self._adopted[node]
        self._has[nodes] = self._apart[nodes] = False
        self.ranks[never] = own.ranks[never]
        if over.size:
            # Own directions go on along those that were shown, here and at the next block.
            own.turn(over, self._show(over, own.rows[over], own.strengths[over]))
        return over

    def _show(self, nodes: Nodes, rows: Array, strengths: Array) -> Array:
        """Take directions into use with the signs of those before, which are returned."""
        ranks = np.count_nonzero(strengths, axis=1)
        known = np.arange(rows.shape[1]) < self.ranks[nodes][:, None]
        signs = align_signs(rows, self.rows[nodes] * known[:, :, None])
        self.rows[nodes] = rows * signs[:, :, None]
        self.strengths[nodes] = strengths
        self.ranks[nodes] = ranks
        return signs
