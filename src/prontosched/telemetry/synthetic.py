"""Generated machines with planted contention: `--source generated`, `--synthetic N`, replay and tests.

Their telemetry follows a few hidden loads. Bursts of demand exceed the CPUs and so make
tasks wait; other metrics announce a burst beforehand, or not. The same seed gives the
same stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prontosched.subspace import Array
from prontosched.telemetry.source import Sample

FACTORS = 5
# Where the hidden loads act: names cycle through these, numbered.
KINDS = ("cpu", "run_queue", "fork_rate", "memory", "disk_io", "network", "interrupts", "cache_misses")
RACK = 32
# Timesteps for which a burst of a live source is announced.
ANNOUNCED = 5
ALONE = "generated"


class SyntheticStep(NamedTuple):
    """One timestep of all machines: vectors `(M, d)`, CPU Ready and utilisation `(M,)` in percent."""

    vectors: Array
    ready: Array
    utilisation: Array
    bursting: NDArray[np.bool_]


class SyntheticFleet:
    """Machines whose metrics follow hidden loads, with bursts of contention.

    Bursts of a machine come every `burst_every` timesteps on average (0 for none) and last `burst_length` on
    average. Memory and fork metrics ramp up for `announced` timesteps before each. Memory:
    `nodes * features * 8` floats.

    Examples
    --------
    >>> fleet = SyntheticFleet(nodes=2, features=16, seed=1)
    >>> fleet.step().vectors.shape
    (2, 16)
    """

    def __init__(
        self,
        nodes: int = 1,
        features: int = 64,
        *,
        seed: int = 0,
        burst_every: float = 150.0,
        burst_length: float = 12.0,
        announced: int = 0,
    ) -> None:
        if nodes < 1 or features < FACTORS:
            raise ValueError(
                f"nodes must be at least 1 and features at least {FACTORS}, got {nodes} and {features}"
            )
        self.nodes = nodes
        self.features = features
        self.burst_every = burst_every
        self.burst_length = burst_length
        self.announced = announced
        self.metrics = tuple(f"{KINDS[i % len(KINDS)]}_{i // len(KINDS)}" for i in range(features))
        self._rng = np.random.default_rng(seed)
        self._loads = np.zeros((nodes, FACTORS))
        self._base = self._rng.uniform(0.25, 0.55, nodes)
        kinds = np.arange(features) % len(KINDS)
        # Machines of a fleet resemble each other: what they share outweighs what is their own.
        shared = self._rng.standard_normal((features, FACTORS)) * (
            kinds[:, None] % FACTORS == np.arange(FACTORS)
        )
        own = 0.25 * self._rng.standard_normal((nodes, features, FACTORS))
        self._loadings = shared[None] * 2.0 + own
        self._follows_cpu = np.where(kinds <= 1, 3.0, 0.0) * self._rng.uniform(0.5, 1.0, features)
        self._announces = np.where((kinds == 2) | (kinds == 3), 2.5, 0.0)
        self._units = 10.0 ** self._rng.uniform(-1, 6, features)
        self._levels = self._rng.uniform(2.0, 20.0, features)
        self._left = np.zeros(nodes)
        self._height = np.zeros(nodes)
        self._until = self._wait()
        self.timestep = 0

    def _wait(self) -> Array:
        if not self.burst_every:
            return np.full(self.nodes, np.inf)
        return np.ceil(self._rng.exponential(self.burst_every, self.nodes)) + self.announced

    def step(self) -> SyntheticStep:
        """Return the next timestep of all machines."""
        rng, nodes = self._rng, self.nodes
        self._loads = 0.9 * self._loads + 0.43 * rng.standard_normal((nodes, FACTORS))
        self._until -= 1
        starting = (self._until <= 0) & (self._left <= 0)
        if starting.any():
            self._left = np.where(starting, np.ceil(rng.exponential(self.burst_length, nodes)), self._left)
            self._height = np.where(starting, rng.uniform(0.5, 1.5, nodes), self._height)
        bursting = self._left > 0
        ending = bursting & (self._left <= 1)
        self._left = np.maximum(self._left - 1, 0)
        self._until = np.where(ending, self._wait(), np.where(bursting, np.inf, self._until))
        demand = self._base + 0.06 * self._loads[:, 0] + self._height * bursting
        busy = np.clip(demand, 0.02, 1.0)
        ready = 100.0 * np.maximum(demand - 1.0, 0.0) / np.maximum(demand, 1.0)
        ready += np.abs(rng.normal(0.0, 0.25, nodes)) + 0.8 * busy**4
        coming = self._until <= self.announced if self.announced else np.zeros(nodes, np.bool_)
        ramp = np.where(coming, 1.0 - self._until / (self.announced + 1.0), 0.0)
        hidden = np.einsum("mdf,mf->md", self._loadings, self._loads)
        hidden += self._follows_cpu * (demand * 2.0)[:, None] + self._announces * (2.0 * ramp)[:, None]
        hidden += 0.6 * rng.standard_normal((nodes, self.features))
        self.timestep += 1
        vectors = (self._levels + hidden) * self._units
        return SyntheticStep(vectors, ready, 100.0 * busy, bursting)


def names_of(nodes: int, node: str = ALONE) -> list[str]:
    """Return the names of generated nodes; more than two racks hold are spread over racks.

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


class SyntheticSource:
    """A source of generated machines, called `node-0`, `node-1` … by default.

    It ends after `steps` timesteps, if they are given. Without a `clock` time starts at 0 and goes by
    `interval_seconds`.
    """

    name = "generated"

    def __init__(
        self,
        fleet: SyntheticFleet,
        *,
        steps: int | None = None,
        interval_seconds: float = 1.0,
        names: Sequence[str] | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.fleet = fleet
        self.steps = steps
        self.interval_seconds = interval_seconds
        digits = len(str(fleet.nodes - 1))
        self._names = tuple(names or (f"node-{i:0{digits}d}" for i in range(fleet.nodes)))
        self._clock = clock

    @classmethod
    def live(
        cls,
        nodes: int = 1,
        *,
        seed: int = 7,
        features: int = 40,
        interval_seconds: float = 1.0,
        node: str = ALONE,
        clock: Callable[[], float],
    ) -> SyntheticSource:
        """Make an endless source with a burst on each node every other minute, announced by other metrics.

        `node` is the name of the only node, or what the names of several begin with; many stand in racks.
        """
        fleet = SyntheticFleet(
            nodes, features, seed=seed, burst_every=100.0, burst_length=37.0, announced=ANNOUNCED
        )
        return cls(fleet, interval_seconds=interval_seconds, names=names_of(nodes, node), clock=clock)

    def read(self) -> list[Sample]:
        """Read every machine once."""
        timestep = self.fleet.timestep
        if self.steps is not None and timestep >= self.steps:
            raise EOFError
        now = self._clock() if self._clock else timestep * self.interval_seconds
        step, metrics = self.fleet.step(), self.fleet.metrics
        each = zip(self._names, step.vectors, step.ready.tolist(), step.utilisation.tolist(), strict=True)
        return [Sample(node, metrics, vector, now, ready, busy) for node, vector, ready, busy in each]

    def close(self) -> None:
        """Nothing to let go of."""
