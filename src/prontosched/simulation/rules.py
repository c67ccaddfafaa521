"""Rules: what each node's telemetry says about placing another job there.

A rule gives, every second and for all nodes, a score (a preference: lower is better) or a veto (a mask of nodes that
get no jobs), or both. Pronto's rule passes through the gates' own levels and bounded veto, with the defaults of
`prontosched.gates.policy`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prontosched.decision import FleetDecision
from prontosched.evaluation.competitors import COMPETITORS, SOURCES, Competitor
from prontosched.gates.policy import Rules, closable, places
from prontosched.gates.preference import level_of
from prontosched.pipeline.fleet import Fleet
from prontosched.pipeline.presets import make_fleet
from prontosched.signals.arithmetic import Many
from prontosched.signals.policy import Budget
from prontosched.simulation.cluster import Cluster, NodeTelemetry
from prontosched.simulation.tenants import Tenants
from prontosched.subspace import Array

Mask = NDArray[np.bool_]
Levels = NDArray[np.intp]
# Moments of a job's life that the oracle looks at, and seconds ahead for its score.
MOMENTS = 48
HORIZON = 5


class ClusterGate:
    """Preference and veto over the nodes of one cluster, with hysteresis, holds and a floor."""

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
        """Return which nodes are closed until the next second; none where jobs starved of an open node wait."""
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


class RuleDecision(NamedTuple):
    """What a rule decides on all nodes, `(N,)` each: a score or none, who gets no jobs, and levels or none."""

    score: Array | None
    closed: Mask
    levels: Levels | None = None


class RuleContext(NamedTuple):
    """What rules are made for: clusters in a row, their tenants, and what is measured of them."""

    cluster: Cluster
    tenants: Tenants
    clusters: int
    metrics: tuple[str, ...]
    budget: float
    rng: np.random.Generator
    draws: bool = True  # whether the placer draws at random: then it goes by levels


class Rule:
    """Decide for all nodes at once, every second; this one neither prefers nor refuses any: the placer alone."""

    vectors = False  # whether it looks at more than CPU Ready and utilisation

    def __init__(self, context: RuleContext) -> None:
        self.context = context
        self._open: Mask = np.zeros(context.cluster.nodes, np.bool_)

    def decide(self, reading: NodeTelemetry, time: float, starved: Mask) -> RuleDecision:
        """Return what holds until the next second; `starved` says where jobs wait that no open node can take."""
        return RuleDecision(None, self._open)


class CompetitorRule(Rule):
    """A competitor's rule, as a veto as it was published or as a score."""

    def __init__(self, context: RuleContext, name: str, *, as_score: bool) -> None:
        super().__init__(context)
        cores = {"cores": context.cluster.cores} if name == "psi" else {}
        self.rule: Competitor = COMPETITORS[name](context.cluster.nodes, **cores)
        self.as_score = as_score

    def decide(self, reading: NodeTelemetry, time: float, starved: Mask) -> RuleDecision:
        """Ask the rule."""
        score, refuse = self.rule.step(reading.ready, reading.utilisation)
        return RuleDecision(np.nan_to_num(score), self._open) if self.as_score else RuleDecision(None, refuse)


def _fleet(preset: str, context: RuleContext, **options: Any) -> Fleet:
    metrics = context.metrics
    nodes = context.cluster.nodes
    return make_fleet(preset, nodes=nodes, features=len(metrics), metrics=metrics, **options)


def _step(fleet: Fleet, reading: NodeTelemetry, time: float) -> FleetDecision:
    return fleet.step(reading.vectors, ready=reading.ready, utilisation=reading.utilisation, time=time)


class Pronto(Rule):
    """Preference and a bounded veto, as agents and their gates run them where the veto is asked for.

    Placers that rank nodes add the chance of contention, as a scheduler extender's score; those that draw go by the
    gate's levels. Preference or veto can be left out.
    """

    vectors = True

    def __init__(
        self, context: RuleContext, *, levels: bool = True, prefer: bool = True, veto: bool = True
    ) -> None:
        super().__init__(context)
        nodes = context.cluster.nodes
        self.fleet = _fleet("default", context, enforcing=veto)
        self.levels = levels and prefer and context.draws
        self.prefer = prefer
        self.veto = veto
        each = nodes // context.clusters
        self._blocks = [slice(i * each, (i + 1) * each) for i in range(context.clusters)]
        self._gates = [ClusterGate(each) for _ in self._blocks]

    def decide(self, reading: NodeTelemetry, time: float, starved: Mask) -> RuleDecision:
        """Carry the reading through the nodes, and their decisions through the gates."""
        decision = _step(self.fleet, reading, time)
        chance = np.nan_to_num(decision.probability, nan=0.0)
        score, levels, closed = chance if self.prefer else None, None, self._open
        if self.levels:
            parts = zip(self._gates, self._blocks, strict=True)
            levels = np.concatenate([gate.prefer(chance[block]) for gate, block in parts])
        if self.veto:
            raised, each = decision.raised, zip(self._gates, self._blocks, starved.tolist(), strict=True)
            closed = np.concatenate(
                [g.close(raised[at], chance[at], starved=hungry) for g, at, hungry in each]
            )
        return RuleDecision(score, closed, levels)


class Paper(Rule):
    """The published signal, obeyed as it is."""

    vectors = True

    def __init__(self, context: RuleContext) -> None:
        super().__init__(context)
        self.fleet = _fleet("paper", context)

    def decide(self, reading: NodeTelemetry, time: float, starved: Mask) -> RuleDecision:
        """Close the nodes that raise it."""
        return RuleDecision(None, _step(self.fleet, reading, time).raised)


class Oracle(Rule):
    """Know the tenants' future: a score for each job, what it would wait over its life on each node."""

    def score_for(self, job: int, block: slice) -> Array:
        """Return the mean of what is wanted beyond the CPUs over the job's life, in shares of them."""
        cluster, wanted = self.context.cluster, self.context.tenants.wanted
        now, jobs = int(cluster.time), cluster.jobs
        life = max(1, round(float(jobs.prelude[job] + jobs.work[job] / jobs.width[job])))
        end = min(now + life, len(wanted))
        coming = wanted[now : end : max(1, (end - now) // MOMENTS), block]
        allocated = (cluster.allocated[block] + jobs.width[job]) / cluster.cores[block]
        return np.asarray(np.maximum(coming + (allocated - 1.0), 0.0).mean(axis=0))


class OracleScore(Rule):
    """What the tenants will want within the horizon, on top of the jobs that are there."""

    def decide(self, reading: NodeTelemetry, time: float, starved: Mask) -> RuleDecision:
        """Return the most CPUs wanted, in shares of the node's."""
        cluster = self.context.cluster
        now = int(cluster.time)
        jobs = (cluster.demand - cluster.tenants) / cluster.cores
        coming = self.context.tenants.wanted[now : now + HORIZON].max(axis=0)
        return RuleDecision(coming + jobs, self._open)


class RandomScore(Rule):
    """A score at random."""

    def decide(self, reading: NodeTelemetry, time: float, starved: Mask) -> RuleDecision:
        """Toss a coin for every node."""
        return RuleDecision(self.context.rng.random(reading.ready.size), self._open)


class BudgetedRule(Rule):
    """Another rule's score, refused at its highest values, as often as the budget says: equal downtime."""

    def __init__(self, context: RuleContext, rule: Rule) -> None:
        super().__init__(context)
        self.rule = rule
        self.vectors = rule.vectors
        self._budget = Budget(Many(context.cluster.nodes), context.budget)

    def decide(self, reading: NodeTelemetry, time: float, starved: Mask) -> RuleDecision:
        """Refuse above a threshold that follows the budget."""
        score = self.rule.decide(reading, time, starved).score
        assert score is not None  # those of `RATIONED` give one
        raised: Mask = np.asarray(score > self._budget.threshold())
        self._budget.learn(score)
        self._budget.spend(raised)
        return RuleDecision(None, raised)


MakeRule = Callable[[RuleContext], Rule]
RULES: dict[str, tuple[MakeRule, str]] = {
    "nothing": (Rule, "the placer alone"),
    "pronto": (Pronto, "Pronto: preference, and a bounded veto"),
    "pronto-prefer": (partial(Pronto, veto=False), "Pronto's preference alone"),
    "pronto-score": (
        partial(Pronto, levels=False, veto=False),
        "Pronto's chance of contention as a score, without levels or a veto",
    ),
    "pronto-veto": (partial(Pronto, prefer=False), "Pronto's bounded veto alone"),
    "paper": (Paper, "the published signal as a veto"),
    "oracle": (Oracle, "knows the tenants' future: a score over the job's life"),
}
for _name in COMPETITORS:
    if _name != "trimaran":
        RULES[_name] = (partial(CompetitorRule, name=_name, as_score=False), f"{SOURCES[_name]}: veto")
    _score = partial(CompetitorRule, name=_name, as_score=True)
    RULES[f"{_name}-score"] = (_score, f"{SOURCES[_name]}: as a score")
# Scores that can be refused at equal downtime.
RATIONED: dict[str, MakeRule] = {
    "coin": RandomScore,
    **{name: RULES[f"{name}-score"][0] for name in ("ready", "r1m", "trimaran", "koordinator", "pronto")},
    "oracle": OracleScore,
}


def make_rule(name: str, context: RuleContext, *, equal_downtime: bool = False) -> Rule:
    """Return a rule by its name; with `equal_downtime` as a veto that refuses the budget's share of time."""
    if equal_downtime and name != "nothing":
        return BudgetedRule(context, RATIONED[name](context))
    return RULES[name][0](context)
