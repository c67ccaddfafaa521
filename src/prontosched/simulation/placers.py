"""Placement: in which order a job asks nodes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from prontosched.simulation.cluster import Cluster, Job
from prontosched.simulation.sensors import Reading
from prontosched.subspace import Array

Nodes = NDArray[np.intp]
Mask = NDArray[np.bool_]


class Placer:
    """Give a job the nodes to ask, best first.

    Parameters
    ----------
    choose
        `choose(placer, job, count)` returns `count` nodes.
    age
        Seconds by which the load it looks at is old; 0 sees the cluster itself.
    """

    def __init__(
        self,
        cluster: Cluster,
        rng: np.random.Generator,
        choose: Callable[[Placer, Job, int], Nodes],
        *,
        age: int = 0,
    ) -> None:
        self.cluster = cluster
        self.rng = rng
        self.age = age
        self.turn = 0
        self.refusing = np.zeros(cluster.nodes, np.bool_)
        self._choose = choose
        self._seen: deque[Array] = deque(maxlen=age + 1)

    def observe(self, reading: Reading) -> None:
        """Take in what nodes reported this second."""
        self._seen.append(reading.utilisation)

    def load(self) -> Array:
        """Return the load of each node as this placer knows it, percent."""
        if not self.age or not self._seen:
            return 100.0 * self.cluster.demand / self.cluster.cores
        return self._seen[0]

    def candidates(self, job: Job, count: int, refusing: Mask) -> Nodes:
        """Return `count` nodes to ask, best first.

        Placers that rank all nodes have heard who refuses and rank those last, as a
        scheduler does with drained or tainted nodes; the others find out by asking.
        """
        self.refusing = refusing
        return self._choose(self, job, min(count, self.cluster.nodes))


def _random(placer: Placer, job: Job, count: int) -> Nodes:
    return placer.rng.integers(0, placer.cluster.nodes, count)


def _round_robin(placer: Placer, job: Job, count: int) -> Nodes:
    first = placer.turn
    placer.turn = (placer.turn + 1) % placer.cluster.nodes
    return np.arange(first, first + count) % placer.cluster.nodes


def _two_choices(placer: Placer, job: Job, count: int) -> Nodes:
    pairs = placer.rng.integers(0, placer.cluster.nodes, (count, 2))
    load = placer.load()
    return np.where(load[pairs[:, 0]] <= load[pairs[:, 1]], pairs[:, 0], pairs[:, 1])


def _least_loaded(placer: Placer, job: Job, count: int) -> Nodes:
    return _lowest(placer, placer.load(), count)


def _least_allocated(placer: Placer, job: Job, count: int) -> Nodes:
    return _lowest(placer, placer.cluster.allocated + 1e-6 * placer.rng.random(placer.cluster.nodes), count)


def _packer(placer: Placer, job: Job, count: int) -> Nodes:
    """Fill nodes up to a target load, the emptiest of those beyond it last."""
    target = 60.0
    after = placer.load() + 100.0 * job.width / placer.cluster.cores
    below = after <= target
    score = np.where(below, 50.0 + 50.0 * after / target, 50.0 * (100.0 - after) / (100.0 - target))
    return _lowest(placer, -score, count)


def _lowest(placer: Placer, values: Array, count: int) -> Nodes:
    values = np.where(placer.refusing, np.inf, values)
    if count >= values.size:
        return np.argsort(values)
    some = np.argpartition(values, count - 1)[:count]
    return np.asarray(some[np.argsort(values[some])])


STALE_SECONDS = 10
PLACERS: dict[str, tuple[Callable[[Placer, Job, int], Nodes], int]] = {
    "random": (_random, 0),
    "round-robin": (_round_robin, 0),
    "two-choices": (_two_choices, 0),
    "two-choices-stale": (_two_choices, STALE_SECONDS),
    "least-loaded": (_least_loaded, STALE_SECONDS),
    "least-allocated": (_least_allocated, 0),
    "packer": (_packer, STALE_SECONDS),
}


def make_placer(name: str, cluster: Cluster, rng: np.random.Generator) -> Placer:
    """Return a placer by its name."""
    choose, age = PLACERS[name]
    return Placer(cluster, rng, choose, age=age)
