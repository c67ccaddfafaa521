"""Many nodes stepped together, for replay and simulation.

`Fleet` carries M nodes as arrays through the stages of `prontosched.pipeline.node`, with
the same arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prontosched.decision import NAN, FleetDecision, FleetEvidence, FleetSignal
from prontosched.pipeline.embedding import finite_all
from prontosched.pipeline.fpca import CHUNK, FPCAEdge, FPCAEdgeFleet, as_slice
from prontosched.pipeline.node import check_ready
from prontosched.pipeline.projection import FleetSpikeDetector, SpikeDetector
from prontosched.subspace import Array, Subspace
from prontosched.telemetry.scaling import IMPLAUSIBLE, FleetScaling, Scaling

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
    Memory: about `nodes * features * (3 * rank + block_size + 14)` floats.

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
        width = self.embedding.width
        self.detector = FleetSpikeDetector(nodes, width, SpikeDetector(lag))
        self.timestep = np.zeros(nodes, np.int64)
        self._vectors = np.zeros((nodes, features))
        self._projections = np.zeros((nodes, width))
        self._spikes = np.zeros((nodes, width), np.int8)
        self._warm = np.zeros(nodes, np.bool_)

    def step(
        self,
        Y: Any,
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
            All metrics now, `(M, d)`; NaN where one is unknown. The columns of a data frame
            are matched with `metrics` by name, where the fleet has them.
        ready, utilisation, time
            As for `Node.step`, one for all or `(M,)`.
        present
            Which nodes step now, `(M,)`; all when not given. The others stay as they are.
        """
        if Y.__class__ is not np.ndarray or Y.dtype != np.float64:
            Y = self._floats(Y)
        if Y.shape != (self.nodes, self.features):
            raise ValueError(f"Y must be ({self.nodes}, {self.features}), got {Y.shape}: one row per node")
        here = np.ones(self.nodes, np.bool_) if present is None else np.asarray(present, np.bool_)
        ready = self._each(ready)
        check_ready(ready[here], self.timestep[here])
        embedded = self.embedding.ranks > 0
        whole: At = slice(0, self.nodes) if here.all() else np.flatnonzero(here)
        vectors = self._project(Y, whole)
        self._spikes[whole], self._warm[whole] = self.detector.detect(
            self._projections[whole], whole, embedded[whole]
        )
        evidence = FleetEvidence(
            present=here,
            timestep=self.timestep.copy(),
            ready=ready,
            utilisation=self._each(utilisation),
            time=self._each(time),
            vectors=vectors,
            projections=self._projections,
            spikes=self._spikes,
            singular_values=self.embedding.strengths,
            basis=self.embedding.rows.swapaxes(1, 2),
            embedded=embedded,
            warm=self._warm,
            samples=self.embedding.samples(),
            metrics=self.metrics,
        )
        decision = self.signal.decide(evidence)
        # Where directions turned, the detectors see the past on the new ones.
        for nodes, window in self.embedding.learn_kept(whole):
            self.detector.refill(as_slice(nodes), window)
        self.timestep += here
        return decision

    def _floats(self, Y: Any) -> Array:
        if hasattr(Y, "columns") and self.metrics is not None:
            missing = np.full(len(Y), NAN)
            return np.column_stack([Y[name] if name in Y.columns else missing for name in self.metrics])
        return np.asarray(Y, dtype=np.float64)

    def __repr__(self) -> str:
        steps = int(self.timestep.max())
        signal = type(self.signal).__name__
        return f"Fleet({self.nodes} nodes, fpca, {signal}, {self.features} metrics, timestep={steps})"

    def _project(self, Y: Array, whole: At) -> Array:
        """Scale, project and keep; return the scaled vectors, which are `Y` itself where it may stay as it is."""
        vectors = Y if self.scaling is None else self._vectors
        for at in _parts(whole):
            given = Y[at]
            Z = finite_all(given, IMPLAUSIBLE) if self.scaling is None else self.scaling.scale(given, at)
            if Z is not given:
                if vectors is Y:
                    vectors = self._vectors
                    vectors[...] = Y
                vectors[at] = Z
            self._projections[at] = self.embedding.project(Z, at)
            self.embedding.keep(Z, at)
        return vectors

    def _each(self, value: Array | float) -> Array:
        value = np.asarray(value, dtype=np.float64)
        return value if value.shape == (self.nodes,) else np.broadcast_to(value, (self.nodes,))

    def subspace(self, node: int) -> Subspace | None:
        """Return the subspace of one node."""
        return self.embedding.subspace(node)

    def kept(self, node: int) -> Subspace | None:
        """Return the subspace of one node with its spare directions."""
        return self.embedding.kept(node)

    def reason(self, node: int) -> str:
        """Say why `node` was decided as it was at the last timestep."""
        return self.signal.reason(node)


def _parts(whole: At) -> Iterator[At]:
    """Yield nodes in passes that fit the cache."""
    if isinstance(whole, slice):
        for start in range(0, whole.stop, CHUNK):
            yield slice(start, min(start + CHUNK, whole.stop))
        return
    for start in range(0, whole.size, CHUNK):
        yield whole[start : start + CHUNK]
