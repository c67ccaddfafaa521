"""One run: a placer and a rule in a loop with a cluster."""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prontosched.simulation.cluster import Arrivals, Cluster, Finished, Job
from prontosched.simulation.placers import Placer, make_placer
from prontosched.simulation.rules import BySignal, make_rule
from prontosched.simulation.sensors import Sensors
from prontosched.simulation.tenants import BurstyTenants, Tenants, TraceTenants
from prontosched.subspace import Array


@dataclass(frozen=True)
class Scenario:
    """What is simulated.

    Attributes
    ----------
    nodes, cores, steps
        Size of the cluster, CPUs of a node, seconds to simulate.
    load
        CPU seconds of jobs arriving a second, as a share of all CPUs.
    warm_up
        Share of the steps at the start that counts for nothing: signals learn in it.
    budget
        Share of time a node may refuse.
    attempts
        Nodes a job asks in one second before it waits for the next.
    delay
        Seconds by which telemetry is late.
    background
        Utilisation in percent to replay as the tenants' load; bursty tenants when not given.
    """

    nodes: int = 100
    cores: float = 8.0
    steps: int = 3000
    load: float = 0.35
    warm_up: float = 0.4
    budget: float = 0.1
    attempts: int = 3
    delay: int = 1
    background: Array | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Outcome:
    """What came of a run; times in seconds, shares from 0 to 1."""

    placer: str
    rule: str
    seed: int
    jobs: int
    slowdown_mean: float
    slowdown_p50: float
    slowdown_p99: float
    waiting_share: float
    queueing_mean: float
    throughput: float
    utilisation: float
    downtime: float
    refusals_per_job: float
    unfinished: int
    record: dict[str, float]

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


class Queue:
    """Jobs that found no node yet, in order of arrival, and how often nodes said no."""

    def __init__(self, cluster: Cluster, placer: Placer, attempts: int) -> None:
        self.cluster = cluster
        self.placer = placer
        self.attempts = attempts
        self.refusals = 0
        self.waiting: deque[Job] = deque()

    def place(self, arrivals: list[Job], refusing: NDArray[np.bool_]) -> None:
        """Let every waiting job ask a few nodes, the oldest first."""
        self.waiting.extend(arrivals)
        refuses = refusing.tolist()
        for _ in range(len(self.waiting)):
            job = self.waiting.popleft()
            for node in self.placer.candidates(job, self.attempts, refusing).tolist():
                if not refuses[node]:
                    self.cluster.place(job, node)
                    break
                self.refusals += 1
            else:
                self.waiting.append(job)


def simulate(scenario: Scenario, placer: str, rule: str, seed: int) -> Outcome:
    """Simulate one placer with one rule.

    The same seed gives the same arrivals and tenants whatever the placer and the rule.
    """
    streams = np.random.default_rng(seed).spawn(5)
    cluster = Cluster(scenario.nodes, scenario.cores)
    tenants = _tenants(scenario, streams[0])
    arrivals = Arrivals(scenario.load * scenario.nodes * scenario.cores, streams[1])
    sensors = Sensors(scenario.nodes, streams[2], delay=scenario.delay)
    chooser = make_placer(placer, cluster, streams[3])
    decides = make_rule(
        rule,
        cluster=cluster,
        tenants=tenants,
        metrics=sensors.metrics,
        budget=scenario.budget,
        rng=streams[4],
    )
    queue = Queue(cluster, chooser, scenario.attempts)
    finished: list[Finished] = []
    refusing = np.zeros(scenario.nodes, np.bool_)
    begin = int(scenario.warm_up * scenario.steps)
    refused = busy_before = refusals_before = 0.0
    for step in range(scenario.steps):
        if step == begin:
            busy_before, refusals_before = cluster.busy_seconds, queue.refusals
        queue.place(arrivals.step(cluster.time), refusing)
        wanted, announced = tenants.step()
        finished += cluster.step(wanted)
        reading = sensors.read(cluster, announced)
        chooser.observe(reading)
        refusing = decides.decide(reading, cluster.time)
        if step >= begin:
            refused += float(refusing.sum())
    counted = [job for job in finished if job.arrival >= begin]
    left = [job for job in cluster.left_over() if job.arrival >= begin]
    left += [
        Finished(j.arrival, cluster.time, cluster.time, j.ideal) for j in queue.waiting if j.arrival >= begin
    ]
    # A job that is not done counts once it has already taken longer than it should.
    late = [job for job in left if job.slowdown > 1.0]
    busy = cluster.busy_seconds - busy_before
    span = scenario.steps - begin
    return _outcome(
        placer,
        rule,
        seed,
        counted + late,
        done=len(counted),
        span=span,
        utilisation=busy / (span * scenario.nodes * scenario.cores),
        downtime=refused / (span * scenario.nodes),
        refusals=queue.refusals - refusals_before,
        unfinished=len(left),
        record=decides.record() if isinstance(decides, BySignal) else {},
    )


def _tenants(scenario: Scenario, rng: np.random.Generator) -> Tenants:
    if scenario.background is None:
        return BurstyTenants(scenario.nodes, scenario.cores, rng)
    return TraceTenants(scenario.nodes, scenario.cores, scenario.background, rng)


def _outcome(
    placer: str,
    rule: str,
    seed: int,
    jobs: list[Finished],
    *,
    done: int,
    span: int,
    utilisation: float,
    downtime: float,
    refusals: float,
    unfinished: int,
    record: dict[str, float],
) -> Outcome:
    slowdown = np.array([job.slowdown for job in jobs]) if jobs else np.full(1, np.nan)
    ran = sum(job.end - job.start for job in jobs)
    ideal = sum(min(job.ideal, job.end - job.start) for job in jobs)
    queued = [job.start - job.arrival for job in jobs]
    return Outcome(
        placer=placer,
        rule=rule,
        seed=seed,
        jobs=len(jobs),
        slowdown_mean=float(slowdown.mean()),
        slowdown_p50=float(np.percentile(slowdown, 50)),
        slowdown_p99=float(np.percentile(slowdown, 99)),
        waiting_share=1.0 - ideal / ran if ran else 0.0,
        queueing_mean=float(np.mean(queued)) if queued else 0.0,
        throughput=done / span,
        utilisation=utilisation,
        downtime=downtime,
        refusals_per_job=refusals / max(len(jobs), 1),
        unfinished=unfinished,
        record=record,
    )
