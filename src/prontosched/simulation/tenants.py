"""Hidden tenants: the load on a node that no scheduler placed there."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from prontosched.subspace import Array

# CPUs a burst wants, as a share of the node's.
HEIGHTS = (0.6, 2.5)


class Tenants(Protocol):
    """Anything that loads nodes behind the scheduler's back."""

    def step(self) -> tuple[Array, Array]:
        """Return the CPUs wanted now by the tenants of each node `(M,)`, and how far a burst is announced, 0 to 1."""
        ...

    def ahead(self, steps: int) -> Array:
        """Return the most CPUs that will be wanted within the next `steps`, `(M,)`: for an oracle only."""
        ...


class BurstyTenants:
    """Tenants with a slow base load and bursts, some of them announced by other metrics.

    Parameters
    ----------
    nodes, cores
        Nodes, and CPUs of each.
    rng
        Source of everything random.
    base
        Mean share of the CPUs that tenants take when they do not burst.
    burst_every, burst_length
        Mean seconds between the bursts of a node, and their mean length (heavy-tailed).
    announced
        Share of bursts that show in memory and fork rate `prelude` seconds before.

    Notes
    -----
    Memory: `nodes * 72` floats.
    """

    HORIZON = 64

    def __init__(
        self,
        nodes: int,
        cores: float,
        rng: np.random.Generator,
        *,
        base: float = 0.25,
        burst_every: float = 200.0,
        burst_length: float = 25.0,
        announced: float = 0.5,
        prelude: int = 8,
    ) -> None:
        self.nodes = nodes
        self.cores = cores
        self.rng = rng
        self.base = np.clip(rng.normal(base, 0.08, nodes), 0.05, 0.6)
        self.burst_every = burst_every * rng.uniform(0.5, 2.0, nodes)
        self.burst_length = burst_length
        self.announced = announced
        self.prelude = prelude
        self._level = np.zeros(nodes)
        self._until = np.ceil(rng.exponential(self.burst_every))
        self._left = np.zeros(nodes)
        self._height = rng.uniform(*HEIGHTS, nodes)
        self._shown = rng.random(nodes) < announced
        first = [self._draw() for _ in range(self.HORIZON)]
        # The future is drawn ahead, so that an oracle can be asked about it.
        self._wanted = [wanted for wanted, _ in first]
        self._signs = [sign for _, sign in first]

    def _draw(self) -> tuple[Array, Array]:
        rng = self.rng
        self._level = 0.95 * self._level + 0.31 * rng.standard_normal(self.nodes)
        bursting = self._left > 0
        self._left -= bursting
        self._until -= ~bursting
        starting = (self._until <= 0) & (self._left <= 0)
        if starting.any():
            length = np.ceil(0.4 * self.burst_length * (1.0 + rng.pareto(1.7, self.nodes)))
            self._left = np.where(starting, np.minimum(length, 40 * self.burst_length), self._left)
            self._until = np.where(
                starting, np.ceil(rng.exponential(self.burst_every)) + self.prelude, self._until
            )
            self._height = np.where(starting, rng.uniform(*HEIGHTS, self.nodes), self._height)
        share = np.clip(self.base + 0.05 * self._level, 0.0, 1.0) + self._height * (self._left > 0)
        coming = self._shown & (self._left <= 0) & (self._until <= self.prelude)
        sign = np.where(coming, 1.0 - self._until / (self.prelude + 1.0), 0.0)
        if starting.any():
            self._shown = np.where(starting, rng.random(self.nodes) < self.announced, self._shown)
        return share * self.cores, sign

    def step(self) -> tuple[Array, Array]:
        """Return the CPUs wanted now, and how far a burst is announced."""
        wanted, sign = self._draw()
        self._wanted.append(wanted)
        self._signs.append(sign)
        return self._wanted.pop(0), self._signs.pop(0)

    def ahead(self, steps: int) -> Array:
        """Return the most CPUs that will be wanted within the next steps."""
        return np.asarray(np.max(self._wanted[: min(steps, self.HORIZON)], axis=0))


class TraceTenants:
    """A recorded utilisation replayed on every node, each from another moment of it.

    Parameters
    ----------
    utilisation
        Percent of all CPUs, one value a second.
    scale
        Times the recorded load.
    """

    def __init__(
        self, nodes: int, cores: float, utilisation: Array, rng: np.random.Generator, *, scale: float = 1.0
    ) -> None:
        known = utilisation[np.isfinite(utilisation)]
        if known.size < 10:
            raise ValueError(f"a background trace must have at least 10 known values, got {known.size}")
        self._wanted = known / 100.0 * cores * scale
        self._at = rng.integers(0, known.size, nodes)

    def step(self) -> tuple[Array, Array]:
        """Return the CPUs wanted now; nothing is announced."""
        wanted = self._wanted[self._at]
        self._at = (self._at + 1) % self._wanted.size
        return wanted, np.zeros(wanted.size)

    def ahead(self, steps: int) -> Array:
        """Return the most CPUs that will be wanted within the next steps."""
        moments = (self._at[:, None] + np.arange(steps)) % self._wanted.size
        return np.asarray(self._wanted[moments].max(axis=1))
