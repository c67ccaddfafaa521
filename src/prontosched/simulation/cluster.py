"""Nodes with cores and processor sharing, and the jobs on them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prontosched.subspace import Array

# A job that loads its input asks for this share of its width.
PRELUDE_DEMAND = 0.1
SMALLEST_WORK, LARGEST_WORK, TAIL = 10.0, 3000.0, 1.3


class Job(NamedTuple):
    """What arrives: CPUs wanted, CPU seconds of work, seconds of loading before it, and when."""

    width: float
    work: float
    prelude: float
    arrival: float

    @property
    def ideal(self) -> float:
        """Seconds it takes on an idle node."""
        return self.prelude + self.work / self.width


class Finished(NamedTuple):
    """A job that is done: when it arrived, started and ended, and how long it would take alone."""

    arrival: float
    start: float
    end: float
    ideal: float

    @property
    def slowdown(self) -> float:
        """Time from arrival to end, over the ideal."""
        return (self.end - self.arrival) / self.ideal


class Cluster:
    """Jobs and tenants share the CPUs of their node; time goes on in steps of a second.

    Within a step every node shares its CPUs in proportion to what is asked for; the
    moment a job ends inside a step is interpolated.

    Notes
    -----
    Memory: six numbers a running job, and a handful a node.
    """

    def __init__(self, nodes: int, cores: float) -> None:
        self.nodes = nodes
        self.cores = cores
        self.time = 0.0
        self.tenants: Array = np.zeros(nodes)
        self.allocated: Array = np.zeros(nodes)
        self.demand: Array = np.zeros(nodes)
        self.loading: Array = np.zeros(nodes)
        self.started = np.zeros(nodes)
        self.busy_seconds = 0.0
        # Columns of running jobs: node, width, work left, prelude left, arrival, start, ideal.
        self._jobs = np.zeros((0, 7))
        self._new: list[tuple[float, ...]] = []

    @property
    def running(self) -> int:
        """Jobs that are running."""
        return len(self._jobs) + len(self._new)

    def place(self, job: Job, node: int) -> None:
        """Start a job on a node."""
        row = (node, job.width, job.work, job.prelude, job.arrival, self.time, job.ideal)
        self._new.append(tuple(float(value) for value in row))
        self.allocated[node] += job.width
        self.started[node] += 1

    def step(self, tenants: Array) -> list[Finished]:
        """Let a second pass; return the jobs that ended in it."""
        if self._new:
            self._jobs = np.vstack([self._jobs, np.array(self._new)])
            self._new.clear()
        jobs = self._jobs
        self.tenants = tenants
        node = jobs[:, 0].astype(np.intp)
        loading = jobs[:, 3] > 0
        wants = np.where(loading, PRELUDE_DEMAND, 1.0) * jobs[:, 1]
        self.demand = tenants + np.bincount(node, wants, self.nodes)
        self.loading = np.asarray(np.bincount(node, loading * jobs[:, 1], self.nodes), np.float64)
        rate = np.minimum(1.0, self.cores / np.maximum(self.demand, 1e-9))
        self.busy_seconds += float(np.minimum(self.demand, self.cores).sum())
        # Loading takes its time whatever the CPUs do; the rest of the second is for work.
        loaded = np.minimum(jobs[:, 3], 1.0)
        jobs[:, 3] -= loaded
        speed = jobs[:, 1] * rate[node]
        needed = loaded + np.divide(jobs[:, 2], speed, out=np.full(len(jobs), np.inf), where=speed > 0)
        jobs[:, 2] -= speed * (1.0 - loaded)
        done = needed <= 1.0
        finished: list[Finished] = []
        if done.any():
            ends = self.time + needed[done]
            for row, end in zip(jobs[done].tolist(), ends.tolist(), strict=True):
                finished.append(Finished(row[4], row[5], end, row[6]))
            np.subtract.at(self.allocated, node[done], jobs[done, 1])
            self._jobs = jobs[~done]
        self.time += 1.0
        return finished

    def ready(self) -> Array:
        """CPU Ready of each node: tasks that wait, in percent per CPU."""
        return np.asarray(100.0 * np.maximum(self.demand - self.cores, 0.0) / self.cores)

    def utilisation(self) -> Array:
        """CPU utilisation of each node in percent."""
        return np.asarray(100.0 * np.minimum(self.demand / self.cores, 1.0))

    def left_over(self) -> list[Finished]:
        """Return the jobs still running, as if they ended now: their slowdown so far."""
        rows = [*self._jobs.tolist(), *self._new]
        return [Finished(row[4], row[5], self.time, row[6]) for row in rows]


class Arrivals:
    """Jobs arriving at random, with heavy-tailed work, some wide, each with a prelude.

    Parameters
    ----------
    load
        CPU seconds of work arriving a second, in CPUs.
    rng
        Source of everything random.
    """

    WIDTHS: NDArray[np.float64] = np.array([1.0, 2.0, 4.0])
    SHARES: NDArray[np.float64] = np.array([0.6, 0.3, 0.1])

    def __init__(self, load: float, rng: np.random.Generator) -> None:
        self.rng = rng
        self.rate = load / bounded_pareto_mean(SMALLEST_WORK, LARGEST_WORK, TAIL)

    def step(self, now: float) -> list[Job]:
        """Return the jobs of one second."""
        count = int(self.rng.poisson(self.rate))
        if not count:
            return []
        width = self.rng.choice(self.WIDTHS, count, p=self.SHARES)
        uniform = self.rng.random(count)
        low, high = SMALLEST_WORK**-TAIL, LARGEST_WORK**-TAIL
        work = (low - uniform * (low - high)) ** (-1.0 / TAIL)
        prelude = np.minimum(np.ceil(self.rng.exponential(3.0, count)), 15.0)
        return [Job(*row, now) for row in zip(width.tolist(), work.tolist(), prelude.tolist(), strict=True)]


def bounded_pareto_mean(smallest: float, largest: float, tail: float) -> float:
    """Return the mean of a Pareto distribution cut off at both ends."""
    norm = 1.0 - (smallest / largest) ** tail
    inner = smallest ** (1.0 - tail) - largest ** (1.0 - tail)
    return float(smallest**tail / norm * tail / (tail - 1.0) * inner)
