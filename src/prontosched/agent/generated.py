"""Telemetry made up on the spot, for machines without any and for fleets that do not exist.

Each node has a tenant whose load wanders and now and then bursts beyond the node's
CPUs. Queues and switches rise some seconds before CPU Ready does, as they do on real
machines. Endless, seeded, and without a file.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from prontosched.subspace import Array
from prontosched.telemetry.source import Sample

NAMES = (
    "cpu.user", "cpu.system", "cpu.idle", "load.running", "load.blocked", "switches", "interrupts",
    "forks", "memory.used", "memory.cached", "disk.reads", "disk.writes", "net.received", "net.sent",
)  # fmt: skip
RISE = 0.25
RACK = 32
ALONE = "generated"


def names_of(nodes: int, node: str = ALONE) -> list[str]:
    """Return the names of made-up nodes; more than a rack holds are spread over racks.

    Examples
    --------
    >>> names_of(1, "n"), names_of(2, "n"), names_of(100)[99], names_of(100, "paris")[99]
    (['n'], ['n-0', 'n-1'], 'rack-03/n99', 'paris/rack-03/n99')
    """
    if nodes == 1:
        return [node]
    digits = len(str(nodes - 1))
    if nodes <= 2 * RACK:
        return [f"{node}-{i:0{digits}d}" for i in range(nodes)]
    site = "" if node == ALONE else f"{node}/"
    width = max(2, len(str((nodes - 1) // RACK)))
    return [f"{site}rack-{i // RACK:0{width}d}/n{i:0{digits}d}" for i in range(nodes)]


class GeneratedSource:
    """A source of made-up nodes.

    Parameters
    ----------
    nodes
        How many.
    features
        Metrics per node, at least the named ones.
    rng
        Where chance comes from.
    node
        Name of the only node, or what the names of several begin with; many stand in racks.

    Notes
    -----
    Memory: a dozen numbers per node and one vector each.
    """

    name = "generated"

    def __init__(
        self,
        nodes: int = 1,
        *,
        rng: np.random.Generator,
        features: int = 40,
        interval_seconds: float = 1.0,
        node: str = ALONE,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.interval_seconds = interval_seconds
        width = max(features, len(NAMES))
        self.metrics = NAMES + tuple(f"other.{i}" for i in range(width - len(NAMES)))
        self.names = names_of(nodes, node)
        self._rng = rng
        self._clock = clock
        self._load = rng.uniform(0.2, 0.6, nodes)
        self._mean = rng.uniform(0.2, 0.6, nodes)
        self._burst = np.zeros(nodes)
        self._left = np.zeros(nodes, dtype=np.int64)
        self._weights = rng.normal(0.0, 1.0, (3, width))
        self._level = rng.uniform(5.0, 100.0, width)

    def read(self) -> list[Sample]:
        """Advance every node by one timestep."""
        load, pressure, ready = self._advance()
        noise = self._rng.normal(0.0, 1.0, (len(self.names), len(self.metrics)))
        drivers = np.stack([load, pressure, np.minimum(ready / 20.0, 2.0)], axis=1)
        vectors = self._level * (1.0 + 0.3 * drivers @ np.abs(self._weights)) + 0.05 * self._level * noise
        used = 100.0 * np.minimum(load, 1.0)
        vectors[:, 0] = 0.8 * used
        vectors[:, 1] = 0.2 * used
        vectors[:, 2] = 100.0 - used
        vectors[:, 3] = 8.0 * pressure + noise[:, 3] * 0.3
        now = self._clock()
        return [
            Sample(name, self.metrics, vector, now, float(wait), float(busy))
            for name, vector, wait, busy in zip(self.names, vectors, ready, used, strict=True)
        ]

    def close(self) -> None:
        """Do nothing: there is nothing to let go."""

    def _advance(self) -> tuple[Array, Array, Array]:
        rng, count = self._rng, len(self.names)
        self._load += 0.05 * (self._mean - self._load) + rng.normal(0.0, 0.02, count)
        starting = (self._left <= 0) & (rng.random(count) < 0.01)
        self._left = np.where(starting, rng.integers(15, 60, count), self._left - 1)
        target = np.where(self._left > 0, 1.2, 0.0)
        # Pressure leads: the load follows it, and waiting for CPUs follows the load.
        self._burst += RISE * (target - self._burst)
        load = np.clip(self._load, 0.02, 1.0) + np.maximum(self._burst - 0.3, 0.0)
        ready = 60.0 * np.maximum(load - 1.0, 0.0) + np.abs(rng.normal(0.0, 0.3, count))
        return load, self._burst, ready
