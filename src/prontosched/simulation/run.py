"""One cell of a study: a placer and a rule in a loop with clusters, one for each seed.

The clusters of all seeds go on side by side, as one row of nodes, because signals step
many nodes at once for little more than one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prontosched.errors import SettingsError
from prontosched.simulation.cluster import WIDTHS, Cluster, Jobs, Sensors, draw_jobs
from prontosched.simulation.placers import DRAWING, PLACERS, Choice, Loads, View
from prontosched.simulation.rules import Oracle, Rule, RuleContext, RuleDecision, make_rule
from prontosched.simulation.tenants import BEYOND, TENANTS, RecordedTenants, Tenants, join, replayed
from prontosched.subspace import Array

# A job met contention if it ran this much longer than alone.
CONTENDED = 1.05
LEAST_LOAD = 0.02
# Sizes of unequal nodes.
UNEQUAL: Array = np.array([0.5, 1.0, 2.0])
# Seconds for which a job counts in a score before telemetry shows it.
UNSEEN_SECONDS = 4


@dataclass(frozen=True)
class Scenario:
    """What is simulated."""

    nodes: int = 60
    cores: float = 8.0
    steps: int = 2400
    busy: float = 0.66  # share of all CPUs in use, by jobs and tenants: jobs come as often as that takes
    tenants: str = "bursty"  # one of `TENANTS`, or `trace` for those of `background`
    length: float | None = None  # mean seconds of a job; None for heavy-tailed work
    unequal: bool = False  # nodes have half, once and twice `cores` CPUs, a third of them each
    overcommit: float = 1.0  # widths of jobs on a node may add up to its CPUs times this; beyond it they wait
    warm_up: float = 0.4  # share of the steps at the start whose jobs are not counted: signals learn in it
    delay: int = 1
    budget: float = 0.1  # share of time that a node refuses under equal downtime
    equal_downtime: bool = False  # every rule is a veto that refuses the same share of time
    background: RecordedTenants | None = field(default=None, compare=False, repr=False)

    @property
    def begin(self) -> int:
        """The first step whose jobs are counted."""
        return int(self.warm_up * self.steps)

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name != "background"}


@dataclass(frozen=True)
class RunOutcome:
    """What came of one run; times in seconds, shares from 0 to 1.

    The same jobs are counted for every placer and rule: those that arrive after the
    warm-up and early enough to end, at twice the time they need alone, within the run. One
    that has not ended by then counts as if it did.
    """

    placer: str
    rule: str
    seed: int
    jobs: int
    slowdown_mean: float  # time from arrival to end over the time the job takes alone; queueing counts
    slowdown_p50: float
    slowdown_p99: float
    slowdown_by_work: float  # the mean, each job weighted by its work
    contended: float  # share of jobs that ran over 5 % longer than alone
    queueing_mean: float
    throughput: float  # counted jobs that ended, a second
    utilisation: float  # share of all CPUs in use by jobs and tenants
    downtime: float  # share of node time closed
    changes: float  # times that a node closed or opened, an hour and node

    @property
    def excess(self) -> float:
        """What jobs lose: mean slowdown beyond 1."""
        return self.slowdown_mean - 1.0


class _Recent:
    """CPUs of jobs placed in the last seconds, which telemetry does not show yet, in shares of the node's."""

    def __init__(self, nodes: int) -> None:
        self.total: Array = np.zeros(nodes)
        self._seconds: deque[Array] = deque(np.zeros((UNSEEN_SECONDS, nodes)))

    def add(self, node: int, share: float) -> None:
        """Count a job just placed."""
        self.total[node] += share
        self._seconds[-1][node] += share

    def pass_second(self) -> None:
        """Forget what is old."""
        old = self._seconds.popleft()
        self.total = np.maximum(self.total - old, 0.0)
        old[:] = 0.0
        self._seconds.append(old)


class _Queue:
    """Jobs of one cluster that wait for a node, in order of arrival."""

    def __init__(
        self,
        cluster: Cluster,
        block: slice,
        placer: str,
        numbers: NDArray[np.int64],
        rng: np.random.Generator,
    ) -> None:
        self.cluster, self.block = cluster, block
        self.waiting: deque[int] = deque()
        self.starved = False
        self._choose = PLACERS[placer]
        self._rng = rng
        self._coming: deque[int] = deque(numbers.tolist())

    def place(self, decision: RuleDecision, loads: Loads, recent: _Recent, oracle: Oracle | None) -> None:
        """Let every job that waits or has come ask for a node, the oldest first."""
        cluster, block = self.cluster, self.block
        arrival, widths = cluster.jobs.arrival, cluster.jobs.width
        while self._coming and arrival[self._coming[0]] <= cluster.time:
            self.waiting.append(self._coming.popleft())
        self.starved = False
        if not self.waiting:
            return
        view = View(cluster.cores[block], cluster.allocated[block], loads.fresh[block], loads.stale[block])
        closed = decision.closed[block]
        # A rule that closes every node closes none: no scheduler would stop for it.
        open_nodes = np.ones(closed.size, np.bool_) if closed.all() else ~closed
        score = None if decision.score is None else decision.score[block]
        levels = None if decision.levels is None else decision.levels[block]
        room = cluster.capacity[block] + 1e-9
        too_wide = np.inf
        for _ in range(len(self.waiting)):
            job = self.waiting.popleft()
            width = float(widths[job])
            able = open_nodes & (view.allocated + width <= room) if width < too_wide else None
            if able is None or not able.any():
                too_wide = min(too_wide, width)
                self.waiting.append(job)
                continue
            worth = score if oracle is None else oracle.score_for(job, block)
            choice = Choice(width, able, worth, levels, recent.total[block])
            node = block.start + self._choose(view, choice, self._rng)
            cluster.place(job, node)
            recent.add(node, width / cluster.cores[node])
        self.starved = bool(self.waiting)


def simulate(scenario: Scenario, placer: str, rule: str, seeds: Sequence[int]) -> list[RunOutcome]:
    """Simulate one placer with one rule, once for each seed.

    The same seed gives the same arrivals and tenants whatever the placer and the rule.
    """
    streams = [np.random.default_rng(seed).spawn(4) for seed in seeds]
    cores = [_cores(scenario, stream[0]) for stream in streams]
    parts = [_tenants(scenario, stream[1]) for stream in streams]
    each = zip(parts, cores, streams, strict=True)
    arrivals = [_arrivals(scenario, part, size, stream[2]) for part, size, stream in each]
    tenants = join(parts)
    jobs = Jobs(*(np.concatenate(columns) for columns in zip(*arrivals, strict=True)))
    cluster = Cluster(np.concatenate(cores), jobs, overcommit=scenario.overcommit)
    first = np.cumsum([0, *(one.arrival.size for one in arrivals)])
    blocks = [slice(i * scenario.nodes, (i + 1) * scenario.nodes) for i in range(len(seeds))]
    numbers = [np.arange(first[i], first[i + 1]) for i in range(len(seeds))]
    queues = [
        _Queue(cluster, block, placer, own, stream[3])
        for block, own, stream in zip(blocks, numbers, streams, strict=True)
    ]
    of_all = np.random.default_rng(list(seeds)).spawn(2)
    own = () if scenario.background is None or scenario.tenants != "trace" else scenario.background.metrics
    sensors = Sensors(cluster.nodes, of_all[0], delay=scenario.delay, own=own)
    about = (sensors.metrics, scenario.budget, of_all[1], placer in DRAWING)
    context = RuleContext(cluster, tenants, len(seeds), *about)
    decides = make_rule(rule, context, equal_downtime=scenario.equal_downtime)
    sensors.vectors = decides.vectors
    tally = _loop(scenario, cluster, tenants, queues, sensors, decides)
    return [
        _outcome(scenario, (placer, rule, seed), cluster, own_jobs, block, tally)
        for seed, own_jobs, block in zip(seeds, numbers, blocks, strict=True)
    ]


class _Tally(NamedTuple):
    """What is counted of the nodes, after the warm-up: seconds closed, changes, and CPU seconds in use."""

    closed: Array
    changed: Array
    busy: Array


def _loop(
    scenario: Scenario, cluster: Cluster, tenants: Tenants, queues: list[_Queue], sensors: Sensors, rule: Rule
) -> _Tally:
    """Let time go on until the end."""
    tally, loads, recent = _Tally(*np.zeros((3, cluster.nodes))), Loads(cluster.nodes), _Recent(cluster.nodes)
    oracle = rule if isinstance(rule, Oracle) else None
    decision = RuleDecision(None, np.zeros(cluster.nodes, np.bool_))
    begin = scenario.begin
    for step in range(scenario.steps):
        for queue in queues:
            queue.place(decision, loads, recent, oracle)
        recent.pass_second()
        cluster.step(tenants.wanted[step] * cluster.cores)
        reading = sensors.read(cluster, tenants.announced[step], tenants.own(step) if rule.vectors else None)
        loads.observe(cluster.demand / cluster.cores)
        before = decision.closed
        starved = np.array([queue.starved for queue in queues])
        decision = rule.decide(reading, tenants.clock * cluster.time, starved)
        if step >= begin:
            counted = (decision.closed, decision.closed != before, np.minimum(cluster.demand, cluster.cores))
            for total, now in zip(tally, counted, strict=True):
                total += now
    return tally


def _cores(scenario: Scenario, rng: np.random.Generator) -> Array:
    if not scenario.unequal:
        return np.full(scenario.nodes, scenario.cores)
    return np.asarray(rng.permutation(np.resize(UNEQUAL * scenario.cores, scenario.nodes)))


def _tenants(scenario: Scenario, rng: np.random.Generator) -> Tenants:
    steps = scenario.steps + BEYOND
    if scenario.tenants != "trace":
        return TENANTS[scenario.tenants][0](scenario.nodes, steps, rng)
    if scenario.background is None:
        raise SettingsError("tenants of a trace must have one, got none: name it with --background")
    return replayed(scenario.nodes, steps, rng, scenario.background)


def _arrivals(scenario: Scenario, tenants: Tenants, cores: Array, rng: np.random.Generator) -> Jobs:
    """Draw jobs that bring the CPUs in use to what is asked for."""
    taken = np.minimum(tenants.wanted[: scenario.steps], 1.0).mean(axis=0) @ cores / cores.sum()
    load = max(scenario.busy - float(taken), LEAST_LOAD)
    widths = np.minimum(WIDTHS, cores.min())
    return draw_jobs(load * float(cores.sum()), scenario.steps, rng, length=scenario.length, widths=widths)


def _outcome(
    scenario: Scenario,
    names: tuple[str, str, int],
    cluster: Cluster,
    numbers: Any,
    block: slice,
    tally: _Tally,
) -> RunOutcome:
    begin, steps, jobs = scenario.begin, scenario.steps, cluster.jobs
    late = (jobs.arrival[numbers] >= begin) & (jobs.arrival[numbers] + 2.0 * jobs.ideal[numbers] <= steps)
    of_jobs = (jobs.arrival, jobs.ideal, jobs.work, cluster.start, cluster.end)
    arrival, ideal, work, start, end = (values[numbers[late]] for values in of_jobs)
    ended = np.isfinite(end)
    start = np.where(np.isfinite(start), start, steps)
    end = np.where(ended, end, steps)
    slowdown = (end - arrival) / ideal if arrival.size else np.full(1, np.nan)
    span = (steps - begin) * (block.stop - block.start)
    return RunOutcome(
        *names,
        jobs=int(arrival.size),
        slowdown_mean=float(slowdown.mean()),
        slowdown_p50=float(np.percentile(slowdown, 50)),
        slowdown_p99=float(np.percentile(slowdown, 99)),
        slowdown_by_work=float(slowdown @ work / work.sum()) if arrival.size else float("nan"),
        contended=float(((end - start) > CONTENDED * ideal).mean()) if arrival.size else float("nan"),
        queueing_mean=float((start - arrival).mean()) if arrival.size else float("nan"),
        throughput=float(ended.sum()) / (steps - begin),
        utilisation=float(tally.busy[block].sum() / (cluster.cores[block].sum() * (steps - begin))),
        downtime=float(tally.closed[block].sum() / span),
        changes=float(tally.changed[block].sum() / span * 3600.0),
    )
