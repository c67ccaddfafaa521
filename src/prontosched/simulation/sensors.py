"""What nodes show of themselves: telemetry derived from their state, noisy and late."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from prontosched.simulation.cluster import Cluster
from prontosched.subspace import Array

# Metrics per kind of state they follow.
KINDS = ("cpu", "run_queue", "context_switches", "memory", "disk_io", "fork_rate", "network", "interrupts")
EACH = 4


class Reading(NamedTuple):
    """Telemetry of all nodes at one timestep: vectors `(N, d)`, the others `(N,)`."""

    vectors: Array
    ready: Array
    utilisation: Array


class Sensors:
    """Read a cluster as its nodes would: many metrics of a few causes, with noise, late by `delay` seconds.

    Parameters
    ----------
    vectors
        False reads CPU Ready and utilisation only, for rules that look at nothing else.
    own
        Names of metrics that the tenants bring with them.
    """

    def __init__(
        self,
        nodes: int,
        rng: np.random.Generator,
        *,
        delay: int = 1,
        noise: float = 0.1,
        vectors: bool = True,
        own: tuple[str, ...] = (),
    ) -> None:
        self.metrics = own + tuple(f"{kind}_{i}" for kind in KINDS for i in range(EACH))
        self.noise = noise
        # CPU Ready is the same whether vectors are read or not.
        self._ready, self._noise = rng.spawn(2)
        size = (nodes, len(KINDS) * EACH)
        self._gains = self._noise.uniform(0.5, 2.0, size)
        self._drift = np.zeros(size)
        self.vectors = vectors
        self._nothing = np.zeros((nodes, 0))
        self._late: deque[Reading] = deque(maxlen=delay + 1)

    def read(self, cluster: Cluster, announced: Array, own: Array | None = None) -> Reading:
        """Return what the nodes show now.

        Parameters
        ----------
        announced
            How far a burst of the tenants is announced, 0 to 1.
        own
            The tenants' own metrics, `(N, k)`.
        """
        ready = cluster.ready() + np.abs(self._ready.normal(0.0, 0.3, cluster.nodes))
        vectors = self._read_vectors(cluster, announced) if self.vectors else self._nothing
        if own is not None and self.vectors:
            vectors = np.hstack([own, vectors])
        cluster.started[:] = 0.0
        self._late.append(Reading(vectors, ready, cluster.utilisation()))
        return self._late[0]

    def _read_vectors(self, cluster: Cluster, announced: Array) -> Array:
        busy = cluster.utilisation() / 100.0
        queue = cluster.demand / cluster.cores
        started = cluster.started
        causes = (
            busy,
            queue,
            0.5 * queue + 0.5 * started,
            0.4 * busy + 1.5 * announced,
            cluster.loading / cluster.cores * 4.0,
            0.3 * started + 1.5 * announced,
            0.5 * busy + self._noise.standard_normal(cluster.nodes) * 0.2,
            queue,
        )
        state = np.repeat(np.stack(causes, axis=1), EACH, axis=1)
        self._drift = 0.98 * self._drift + 0.02 * self._noise.standard_normal(state.shape)
        noise = self.noise * self._noise.standard_normal(state.shape)
        return np.asarray(self._gains * (state + self._drift + noise))
