"""Rules: what each node's telemetry says about placing another job there.

A rule gives, every second and for all nodes, a score (a preference: lower is better) or a veto (a mask of nodes that
get no jobs), or both. Pronto's rule passes through the gates' own levels and bounded veto, with the defaults of
`prontosched.gates.policy`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from prontosched.evaluation.competitors import COMPETITORS, SOURCES, Competitor
from prontosched.gates.floor import closable, places
from prontosched.gates.policy import Rules
from prontosched.gates.preference import level_of
from prontosched.pipeline.fleet import Fleet
from prontosched.pipeline.node_fleet import NodeFleet
from prontosched.pipeline.presets import make_fleet
from prontosched.signals.arithmetic import Many
from prontosched.signals.policy import Budget
from prontosched.simulation.cluster import Cluster, Reading
from prontosched.simulation.tenants import Tenants
from prontosched.subspace import Array

Mask = NDArray[np.bool_]
Levels = NDArray[np.intp]


class ClusterGate:
    """Preference and veto over the nodes of one cluster, with hysteresis, holds and a floor.

    Parameters
    ----------
    rules
        Share of the nodes that may be closed, and how long they stay closed and open at least.
    """

    def __init__(self, nodes: int, rules: Rules | None = None) -> None:
        self.rules = rules or Rules()
        self.levels: Levels | None = None
        self.closed: Mask = np.zeros(nodes, np.bool_)
        self._since = np.full(nodes, np.inf)

    def prefer(self, probability: Array) -> Levels:
        """Return the level of each node."""
        chances = probability.tolist()
        before = [None] * len(chances) if self.levels is None else self.levels.tolist()
        self.levels = np.array([level_of(p, old) for p, old in zip(chances, before, strict=True)], np.intp)
        return self.levels

    def close(self, refusing: Mask, probability: Array, *, starved: bool) -> Mask:
        """Return which nodes are closed until the next second.

        Parameters
        ----------
        refusing, probability
            The nodes' own words.
        starved
            Whether jobs wait that no open node can take: then all open, whatever the holds.
        """
        share = self.rules.max_refusing
        closed = closable(refusing, probability, share=share, starved=starved, held=self.closed)
        if not starved:
            least = np.where(self.closed, self.rules.min_hold_seconds, self.rules.min_accept_seconds)
            closed = np.where(self._since < least, self.closed, closed)
            closed = _within(closed, probability, places(closed.size, share))
        self._since = np.where(closed == self.closed, self._since + 1.0, 1.0)
        self.closed = closed
        return closed


def _within(closed: Mask, probability: Array, most: int) -> Mask:
    """Open the calmest where more are closed than may be."""
    at = np.flatnonzero(closed)
    if at.size <= most:
        return closed
    opened = closed.copy()
    opened[at[np.argsort(probability[at], kind="stable")[: at.size - most]]] = False
    return opened


# Moments of a job's life that the oracle looks at.
MOMENTS = 48


class Word(NamedTuple):
    """What a rule says of all nodes, `(N,)` each: a score or none, who gets no jobs, and levels or none."""

    score: Array | None
    closed: Mask
    levels: Levels | None = None


class World(NamedTuple):
    """What rules are made for: clusters in a row, their tenants, and what is measured of them.

    Attributes
    ----------
    draws
        Whether the placer draws at random: then it goes by levels.
    """

    cluster: Cluster
    tenants: Tenants
    clusters: int
    metrics: tuple[str, ...]
    budget: float
    rng: np.random.Generator
    draws: bool = True


class Rule(Protocol):
    """Speak for all nodes at once, every second.

    Attributes
    ----------
    vectors
        Whether it looks at more than CPU Ready and utilisation.
    """

    vectors: bool

    def decide(self, reading: Reading, time: float, starved: Mask) -> Word:
        """Return what holds until the next second.

        Parameters
        ----------
        time
            Clock time in seconds.
        starved
            For each cluster, whether jobs wait that no open node can take.
        """
        ...


class Nothing:
    """Say nothing: the placer alone."""

    vectors = False

    def __init__(self, world: World) -> None:
        self._word = Word(None, np.zeros(world.cluster.nodes, np.bool_))

    def decide(self, reading: Reading, time: float, starved: Mask) -> Word:
        """Return no score and no veto."""
        return self._word


class Published:
    """A competitor's rule, as a veto as it was published or as a score."""

    vectors = False

    def __init__(self, world: World, name: str, *, as_score: bool) -> None:
        cores = {"cores": world.cluster.cores} if name == "psi" else {}
        self.rule: Competitor = COMPETITORS[name](world.cluster.nodes, **cores)
        self.as_score = as_score
        self._open = np.zeros(world.cluster.nodes, np.bool_)

    def decide(self, reading: Reading, time: float, starved: Mask) -> Word:
        """Ask the rule."""
        score, refuse = self.rule.step(reading.ready, reading.utilisation)
        return Word(np.nan_to_num(score), self._open) if self.as_score else Word(None, refuse)


class Pronto:
    """The default policy, as agents and their gates run it: preference and a bounded veto.

    Placers that rank nodes add the chance of contention, as a scheduler extender's score;
    those that draw go by the gate's levels.

    Parameters
    ----------
    levels
        Give levels of preference too.
    prefer, veto
        Either can be left out.
    """

    vectors = True

    def __init__(self, world: World, *, levels: bool = True, prefer: bool = True, veto: bool = True) -> None:
        nodes = world.cluster.nodes
        self.fleet: Fleet | NodeFleet = make_fleet(
            "default", nodes=nodes, features=len(world.metrics), metrics=world.metrics, enforcing=veto
        )
        self.levels = levels and prefer and world.draws
        self.prefer = prefer
        self.veto = veto
        each = nodes // world.clusters
        self._blocks = [slice(i * each, (i + 1) * each) for i in range(world.clusters)]
        self._gates = [ClusterGate(each) for _ in self._blocks]
        self._open = np.zeros(nodes, np.bool_)

    def decide(self, reading: Reading, time: float, starved: Mask) -> Word:
        """Carry the reading through the nodes, and their words through the gates."""
        decision = self.fleet.step(
            reading.vectors, ready=reading.ready, utilisation=reading.utilisation, time=time
        )
        chance = np.nan_to_num(decision.probability, nan=0.0)
        score, levels, closed = chance if self.prefer else None, None, self._open
        if self.levels:
            parts = zip(self._gates, self._blocks, strict=True)
            levels = np.concatenate([gate.prefer(chance[block]) for gate, block in parts])
        if self.veto:
            each = zip(self._gates, self._blocks, starved.tolist(), strict=True)
            closed = np.concatenate(
                [gate.close(decision.raised[at], chance[at], starved=hungry) for gate, at, hungry in each]
            )
        return Word(score, closed, levels)


class Paper:
    """The published signal, obeyed as it is."""

    vectors = True

    def __init__(self, world: World) -> None:
        self.fleet = make_fleet(
            "paper", nodes=world.cluster.nodes, features=len(world.metrics), metrics=world.metrics
        )

    def decide(self, reading: Reading, time: float, starved: Mask) -> Word:
        """Close the nodes that raise it."""
        raised = self.fleet.step(
            reading.vectors, ready=reading.ready, utilisation=reading.utilisation, time=time
        ).raised
        return Word(None, raised)


class Oracle(Nothing):
    """Know the tenants' future: a score for each job, what it would wait over its life on each node."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._cluster = world.cluster
        self._wanted = world.tenants.wanted

    def score_for(self, job: int, block: slice) -> Array:
        """Return the mean of what is wanted beyond the CPUs over the job's life, in shares of them."""
        cluster = self._cluster
        now = int(cluster.time)
        life = max(
            1, round(float(cluster.jobs.prelude[job] + cluster.jobs.work[job] / cluster.jobs.width[job]))
        )
        end = min(now + life, len(self._wanted))
        coming = self._wanted[now : end : max(1, (end - now) // MOMENTS), block]
        jobs = (cluster.allocated[block] + cluster.jobs.width[job]) / cluster.cores[block]
        return np.asarray(np.maximum(coming + (jobs - 1.0), 0.0).mean(axis=0))


class Rationed:
    """Another rule's score, refused at its highest values, as often as the budget says: equal downtime."""

    def __init__(self, world: World, rule: Rule) -> None:
        self.rule = rule
        self.vectors = rule.vectors
        self._budget = Budget(Many(world.cluster.nodes), world.budget)

    def decide(self, reading: Reading, time: float, starved: Mask) -> Word:
        """Refuse above a threshold that follows the budget."""
        score = self.rule.decide(reading, time, starved).score
        if score is None:
            raise ValueError("a rationed rule must give a score, got none: name another")
        raised: Mask = np.asarray(score > self._budget.threshold())
        self._budget.learn(score)
        self._budget.spend(raised)
        return Word(None, raised)


class _Coin(Nothing):
    """A score at random."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._rng = world.rng

    def decide(self, reading: Reading, time: float, starved: Mask) -> Word:
        """Toss."""
        return Word(self._rng.random(reading.ready.size), self._word.closed)


class _Coming(Nothing):
    """What the tenants will want within the horizon, on top of the jobs that are there."""

    HORIZON = 5

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._cluster = world.cluster
        self._wanted = world.tenants.wanted

    def decide(self, reading: Reading, time: float, starved: Mask) -> Word:
        """Return the most CPUs wanted, in shares of the node's."""
        cluster = self._cluster
        now = int(cluster.time)
        jobs = (cluster.demand - cluster.tenants) / cluster.cores
        return Word(self._wanted[now : now + self.HORIZON].max(axis=0) + jobs, self._word.closed)


MakeRule = Callable[[World], Rule]
RULES: dict[str, tuple[MakeRule, str]] = {
    "nothing": (Nothing, "the placer alone"),
    "pronto": (Pronto, "Pronto's default: preference, and a bounded veto"),
    "pronto-prefer": (lambda world: Pronto(world, veto=False), "Pronto's preference alone"),
    "pronto-score": (
        lambda world: Pronto(world, levels=False, veto=False),
        "Pronto's chance of contention as a score, without levels or a veto",
    ),
    "pronto-veto": (lambda world: Pronto(world, prefer=False), "Pronto's bounded veto alone"),
    "paper": (Paper, "the published signal as a veto"),
    "oracle": (Oracle, "knows the tenants' future: a score over the job's life"),
}
for _name in COMPETITORS:

    def _veto(world: World, name: str = _name) -> Rule:
        return Published(world, name, as_score=False)

    def _score(world: World, name: str = _name) -> Rule:
        return Published(world, name, as_score=True)

    if _name != "trimaran":
        RULES[_name] = (_veto, f"{SOURCES[_name]}: veto")
    RULES[f"{_name}-score"] = (_score, f"{SOURCES[_name]}: as a score")
RATIONED: dict[str, MakeRule] = {
    "coin": lambda world: Rationed(world, _Coin(world)),
    "ready": lambda world: Rationed(world, Published(world, "ready", as_score=True)),
    "r1m": lambda world: Rationed(world, Published(world, "r1m", as_score=True)),
    "trimaran": lambda world: Rationed(world, Published(world, "trimaran", as_score=True)),
    "koordinator": lambda world: Rationed(world, Published(world, "koordinator", as_score=True)),
    "pronto": lambda world: Rationed(world, Pronto(world, levels=False, veto=False)),
    "oracle": lambda world: Rationed(world, _Coming(world)),
}


def make_rule(name: str, world: World, *, equal_downtime: bool = False) -> Rule:
    """Return a rule by its name; with `equal_downtime` as a veto that refuses the budget's share of time."""
    if equal_downtime and name != "nothing":
        return RATIONED[name](world)
    return RULES[name][0](world)
