"""What nodes show of themselves: telemetry derived from their state, noisy and late."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from prontosched.simulation.cluster import Cluster
from prontosched.subspace import Array

# Metrics per kind of state they follow.
KINDS = ("cpu", "run_queue", "context_switches", "memory", "disk_io", "fork_rate", "network", "interrupts")
EACH = 4


class Reading(NamedTuple):
    """Telemetry of all nodes at one timestep: vectors `(M, d)`, CPU Ready and utilisation `(M,)`."""

    vectors: Array
    ready: Array
    utilisation: Array


class Sensors:
    """Read a cluster as its nodes would: many metrics of a few causes, with noise, late by `delay` seconds."""

    def __init__(self, nodes: int, rng: np.random.Generator, *, delay: int = 1, noise: float = 0.1) -> None:
        self.metrics = tuple(f"{kind}_{i}" for kind in KINDS for i in range(EACH))
        self.rng = rng
        self.delay = delay
        self.noise = noise
        self._gains = rng.uniform(0.5, 2.0, (nodes, len(self.metrics)))
        self._drift = np.zeros((nodes, len(self.metrics)))
        self._late: list[Reading] = []

    def read(self, cluster: Cluster, announced: Array) -> Reading:
        """Return what the nodes show now."""
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
            0.5 * busy + self.rng.standard_normal(cluster.nodes) * 0.2,
            queue,
        )
        state = np.repeat(np.stack(causes, axis=1), EACH, axis=1)
        self._drift = 0.98 * self._drift + 0.02 * self.rng.standard_normal(state.shape)
        vectors = self._gains * (state + self._drift + self.noise * self.rng.standard_normal(state.shape))
        ready = cluster.ready() + np.abs(self.rng.normal(0.0, 0.3, cluster.nodes))
        cluster.started = np.zeros(cluster.nodes)
        self._late.append(Reading(vectors, ready, cluster.utilisation()))
        return self._late.pop(0) if len(self._late) > self.delay else self._late[0]
