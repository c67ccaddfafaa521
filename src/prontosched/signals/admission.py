"""From a score to a decision: budget, limits, hold times and exceptions.

Covers: what is refused, given a score. Does not cover: the score; see `learner`.
"""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple

from prontosched.signals.arithmetic import Operations, Value
from prontosched.signals.budget import Budget, HourLimit
from prontosched.signals.held import Held
from prontosched.signals.policy import Policy
from prontosched.signals.profiles import Clock


class Verdict(NamedTuple):
    """What is decided of one step.

    Attributes
    ----------
    raised
        Whether the step is refused.
    wanted
        Whether the learned rule refuses it, before exceptions; kept up while it has given way.
    threshold
        The score above which the learned rule refuses.
    counts
        How many steps the step's label stands for; 0 when it was really refused.
    """

    raised: Value
    wanted: Value
    threshold: Value
    counts: Value


class Admission(Held):
    """Decide from scores, within the policy.

    Attributes
    ----------
    limited, exempt, held
        Why the last decision is not what the score alone says.
    """

    HELD: ClassVar[tuple[str, ...]] = (
        "budget",
        "limit",
        "holding",
        "excepting",
        "seed",
        "counter",
        "exceptions",
        "excepted",
        "limited",
        "exempt",
        "held",
    )

    def __init__(self, ops: Operations, policy: Policy) -> None:
        self.ops = ops
        self.policy = policy
        self.least_score = policy.least_score
        self.budget = Budget(ops, policy.budget)
        self.limit = HourLimit(ops, policy.hourly_limit)
        self.holding = ops.full(0)
        self.excepting = ops.full(0)
        self.seed = ops.counted(policy.seed)
        self.counter = ops.full(0)
        self.exceptions = ops.full(0.0)
        self.excepted = ops.full(0.0)
        self.limited = ops.full(False)
        self.exempt = ops.full(False)
        self.held = ops.full(False)

    def decide(
        self, score: Value, u: Value, clock: Clock, demoted: Value, *, known: bool, enforcing: bool
    ) -> Verdict:
        """Decide for one step.

        Parameters
        ----------
        u
            CPU Ready in units of the tolerance; below 0 where unknown.
        demoted
            Whether the learned rule gave way to the present value.
        """
        ops, policy = self.ops, self.policy
        threshold = self._threshold()
        if known:
            self.budget.learn(score)
        wanted = score > threshold
        act = wanted
        if not policy.quota:
            act = ops.both(ops.where(demoted, u >= 1.0, wanted), self.budget.affords())
        if policy.hold:
            self.held = ops.both(self.holding > 0, ops.no(act))
            fresh = act
            act = ops.either(act, self.held)
            self.holding = ops.where(fresh, policy.hold, ops.maximum(self.holding - 1, 0))
        if not policy.quota:
            self.limit.advance(clock.now)
            allowed = ops.both(act, self.limit.allows(clock.interval))
            self.limited = act != allowed
            act = allowed
        counts = ops.full(1.0)
        raised = act
        if enforcing:
            self._except(act)
            raised = ops.both(act, ops.no(self.exempt))
            share = max(policy.explore, 1e-9)
            counts = ops.where(raised, 0.0, ops.where(self.exempt, 1.0 / share, 1.0))
        elif ops.any(self.exempt):
            self.exempt = ops.full(False)
        self.budget.spend(raised)
        if not policy.quota and ops.any(raised):
            self.limit.spend(raised, clock.interval)
        return Verdict(raised, ops.where(demoted, wanted, act), threshold, counts)

    def _threshold(self) -> Value:
        """Return the score above which to refuse: what the budget affords, but nothing unlikely."""
        ops = self.ops
        affordable = self.budget.threshold()
        if self.policy.quota:
            return affordable
        # With hardly a score seen there is nothing to rank: what is likely is refused.
        return ops.where(affordable < math.inf, ops.maximum(affordable, self.least_score), self.least_score)

    def _except(self, act: Value) -> None:
        """Pick exceptions: a would-be refusal accepted, and those of the next horizon with it.

        One horizon each, so that what follows the first is not the work of a refusal
        after it. How many would-be refusals that lets through is learned, so that the
        share comes out as asked.
        """
        ops, policy = self.ops, self.policy
        within = self.excepting > 0
        each = (policy.horizon + self.excepted) / (1.0 + self.exceptions)
        draw = ops.uniform(self.seed, self.counter)
        self.counter = self.counter + ops.where(act, 1, 0)
        starts = ops.both(ops.both(act, ops.no(within)), draw * each < policy.explore)
        self.excepting = ops.where(starts, policy.horizon - 1, ops.maximum(self.excepting - 1, 0))
        self.exempt = ops.both(act, ops.either(starts, within))
        self.exceptions = self.exceptions + ops.where(starts, 1.0, 0.0)
        self.excepted = self.excepted + ops.where(self.exempt, 1.0, 0.0)
