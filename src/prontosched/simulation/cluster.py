"""Nodes with CPUs and processor sharing, and the jobs on them."""

from __future__ import annotations

import numpy as np

from prontosched.simulation.jobs import Jobs
from prontosched.subspace import Array

# A job that loads its input asks for this share of its width.
PRELUDE_DEMAND = 0.1
NODE, WIDTH, WORK, PRELUDE, NUMBER = range(5)


class Cluster:
    """Jobs and tenants share the CPUs of their node; time goes on in steps of a second.

    Within a step every node shares its CPUs in proportion to what is asked for; the
    moment a job ends inside a step is interpolated. Several clusters can be carried as
    one: nodes of all of them in a row.

    Parameters
    ----------
    cores
        CPUs of each node, `(N,)`.
    jobs
        All jobs that will come, by number.
    overcommit
        Widths of the jobs on a node may add up to its CPUs times this.

    Attributes
    ----------
    start, end
        When each job started and ended, NaN until then.
    work_done
        CPU seconds given to jobs so far.

    Notes
    -----
    Memory: five numbers a running job, two for each that comes, and a handful a node.
    """

    def __init__(self, cores: Array, jobs: Jobs, *, overcommit: float = 1.0) -> None:
        self.cores = cores
        self.nodes = cores.size
        self.jobs = jobs
        self.capacity = cores * overcommit
        self.time = 0.0
        self.tenants: Array = np.zeros(self.nodes)
        self.allocated: Array = np.zeros(self.nodes)
        self.demand: Array = np.zeros(self.nodes)
        self.loading: Array = np.zeros(self.nodes)
        self.started: Array = np.zeros(self.nodes)
        self.start: Array = np.full(jobs.arrival.size, np.nan)
        self.end: Array = np.full(jobs.arrival.size, np.nan)
        self.work_done = 0.0
        self._running: Array = np.zeros((0, 5))
        self._new: list[tuple[float, float, float, float, float]] = []

    @property
    def running(self) -> int:
        """Jobs that are running."""
        return len(self._running) + len(self._new)

    def place(self, job: int, node: int) -> None:
        """Start a job on a node; it must have room."""
        jobs = self.jobs
        width = float(jobs.width[job])
        if self.allocated[node] + width > self.capacity[node] + 1e-9:
            raise ValueError(
                f"node {node} must have {width:g} CPUs left, got "
                f"{self.capacity[node] - self.allocated[node]:g}: place the job elsewhere or let it wait"
            )
        self._new.append((float(node), width, float(jobs.work[job]), float(jobs.prelude[job]), float(job)))
        self.start[job] = self.time
        self.allocated[node] += width
        self.started[node] += 1.0

    def step(self, tenants: Array) -> None:
        """Let a second pass."""
        if self._new:
            self._running = np.vstack([self._running, np.array(self._new)])
            self._new.clear()
        rows = self._running
        self.tenants = tenants
        node = rows[:, NODE].astype(np.intp)
        width = rows[:, WIDTH]
        loading = rows[:, PRELUDE] > 0
        wants = np.where(loading, PRELUDE_DEMAND * width, width)
        self.demand = tenants + np.bincount(node, wants, self.nodes)
        self.loading = np.asarray(np.bincount(node, loading * width, self.nodes), np.float64)
        rate = np.minimum(1.0, self.cores / np.maximum(self.demand, 1e-9))
        # Loading takes its time whatever the CPUs do; the rest of the second is for work.
        loaded = np.minimum(rows[:, PRELUDE], 1.0)
        rows[:, PRELUDE] -= loaded
        speed = width * rate[node]
        needed = loaded + np.divide(rows[:, WORK], speed, out=np.full(len(rows), np.inf), where=speed > 0)
        given = np.minimum(rows[:, WORK], speed * (1.0 - loaded))
        rows[:, WORK] -= given
        self.work_done += float(given.sum())
        done = needed <= 1.0
        if done.any():
            self.end[rows[done, NUMBER].astype(np.intp)] = self.time + needed[done]
            np.subtract.at(self.allocated, node[done], width[done])
            # Sums of widths leave nothing behind.
            self.allocated[np.abs(self.allocated) < 1e-9] = 0.0
            self._running = rows[~done]
        self.time += 1.0

    def ready(self) -> Array:
        """CPU Ready of each node: tasks that wait, in percent per CPU."""
        return np.asarray(100.0 * np.maximum(self.demand - self.cores, 0.0) / self.cores)

    def utilisation(self) -> Array:
        """CPU utilisation of each node in percent."""
        return np.asarray(100.0 * np.minimum(self.demand / self.cores, 1.0))
