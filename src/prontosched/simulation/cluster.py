"""Nodes with CPUs and processor sharing, the jobs that arrive, and what the nodes show as telemetry."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prontosched.subspace import Array

SMALLEST_WORK, LARGEST_WORK, TAIL = 10.0, 3000.0, 1.3
WIDTHS: Array = np.array([1.0, 2.0, 4.0])
SHARES: Array = np.array([0.6, 0.3, 0.1])
# A job of fixed length loads its input for this share of it.
PRELUDE_SHARE = 0.1
# A job that loads its input asks for this share of its width.
PRELUDE_DEMAND = 0.1
NODE, WIDTH, WORK, PRELUDE, NUMBER = range(5)
# Metrics per kind of state they follow.
KINDS = ("cpu", "run_queue", "context_switches", "memory", "disk_io", "fork_rate", "network", "interrupts")
EACH = 4


class Jobs(NamedTuple):
    """Jobs in order of arrival, one array each."""

    arrival: NDArray[np.int64]
    width: Array
    work: Array
    prelude: Array  # seconds of loading before the work, with little CPU

    @property
    def ideal(self) -> Array:
        """Seconds that each takes on an idle node."""
        return self.prelude + self.work / self.width


def draw_jobs(
    load: float, steps: int, rng: np.random.Generator, *, length: float | None = None, widths: Array = WIDTHS
) -> Jobs:
    """Draw all jobs of a run, so that `load` CPU seconds of work arrive a second.

    Jobs take `length` seconds on average, from half to one and a half times it; by default work is heavy-tailed
    (bounded Pareto, 10 to 3,000 CPU seconds, tail 1.3).
    """
    mean_width = float(widths @ SHARES)
    mean_work = (
        bounded_pareto_mean(SMALLEST_WORK, LARGEST_WORK, TAIL)
        if length is None
        else mean_width * length * (1.0 - PRELUDE_SHARE)
    )
    counts = rng.poisson(load / mean_work, steps)
    total = int(counts.sum())
    arrival = np.repeat(np.arange(steps), counts)
    width = rng.choice(widths, total, p=SHARES)
    uniform = rng.random(total)
    if length is None:
        low, high = SMALLEST_WORK**-TAIL, LARGEST_WORK**-TAIL
        work = (low - uniform * (low - high)) ** (-1.0 / TAIL)
        prelude = np.minimum(np.ceil(rng.exponential(3.0, total)), 15.0)
    else:
        seconds = length * (0.5 + uniform)
        prelude = PRELUDE_SHARE * seconds
        work = width * (seconds - prelude)
    return Jobs(arrival, width, work, prelude)


def bounded_pareto_mean(smallest: float, largest: float, tail: float) -> float:
    """Return the mean of a Pareto distribution cut off at both ends."""
    norm = 1.0 - (smallest / largest) ** tail
    inner = smallest ** (1.0 - tail) - largest ** (1.0 - tail)
    return float(smallest**tail / norm * tail / (tail - 1.0) * inner)


class Cluster:
    """Jobs and tenants share the CPUs of their node; time goes on in steps of a second.

    Within a step every node shares its CPUs in proportion to what is asked for; the moment a job ends inside a step
    is interpolated. Several clusters can be carried as one: nodes of all of them in a row. `start` and `end` of a job
    are NaN until then.
    """

    def __init__(self, cores: Array, jobs: Jobs, *, overcommit: float = 1.0) -> None:
        self.cores = cores
        self.nodes = cores.size
        self.jobs = jobs
        self.capacity = cores * overcommit
        self.time = 0.0
        self.tenants, self.allocated, self.demand, self.loading, self.started = np.zeros((5, self.nodes))
        self.start, self.end = np.full((2, jobs.arrival.size), np.nan)
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


class NodeTelemetry(NamedTuple):
    """Telemetry of all nodes at one timestep: vectors `(N, d)`, the others `(N,)`."""

    vectors: Array
    ready: Array
    utilisation: Array


class Sensors:
    """Read a cluster as its nodes would: many metrics of a few causes, with noise, late by `delay` seconds.

    Without `vectors` only CPU Ready and utilisation are read, for rules that look at nothing else. `own` names the
    metrics that tenants bring with them.
    """

    def __init__(
        self,
        nodes: int,
        rng: np.random.Generator,
        *,
        delay: int = 1,
        vectors: bool = True,
        own: tuple[str, ...] = (),
    ) -> None:
        self.metrics = own + tuple(f"{kind}_{i}" for kind in KINDS for i in range(EACH))
        # CPU Ready is the same whether vectors are read or not.
        self._ready, self._noise = rng.spawn(2)
        size = (nodes, len(KINDS) * EACH)
        self._gains = self._noise.uniform(0.5, 2.0, size)
        self._drift = np.zeros(size)
        self.vectors = vectors
        self._nothing = np.zeros((nodes, 0))
        self._late: deque[NodeTelemetry] = deque(maxlen=delay + 1)

    def read(self, cluster: Cluster, announced: Array, own: Array | None = None) -> NodeTelemetry:
        """Return what the nodes show now; `announced` says how far a burst of their tenants is, 0 to 1."""
        ready = cluster.ready() + np.abs(self._ready.normal(0.0, 0.3, cluster.nodes))
        vectors = self._read_vectors(cluster, announced) if self.vectors else self._nothing
        if own is not None and self.vectors:
            vectors = np.hstack([own, vectors])
        cluster.started[:] = 0.0
        self._late.append(NodeTelemetry(vectors, ready, cluster.utilisation()))
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
        noise = 0.1 * self._noise.standard_normal(state.shape)
        return np.asarray(self._gains * (state + self._drift + noise))
