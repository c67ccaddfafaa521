"""From a chance of contention to a decision: hysteresis, the present value, caps and exceptions.

Covers: what is refused, given a forecast. Does not cover: the forecast; see `learner`.

A node refuses from `likelihood` on, for at least `hold` seconds, and accepts again once the
chance has been below `reopen` for `calm` seconds. A chance between the two is waited out
for ten times as long. CPU Ready at or
above the tolerance now is refused whatever the forecast says, as the plain rule "refuse
while CPU Ready is above the tolerance" would. Only a forecast whose record of foreseeing
the end of contention is good may accept there, for at most `EARLY_SHARE` of such steps.
"""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple

from prontosched.signals.arithmetic import Operations, Value
from prontosched.signals.budget import Budget, HourLimit
from prontosched.signals.held import Held
from prontosched.signals.policy import Policy, log_odds
from prontosched.signals.profiles import Clock

# Of the steps with contention now, at most this share is ever accepted.
EARLY_SHARE = 0.05
# A chance between `reopen` and `likelihood` opens a node after this many times `calm`.
UNLIKELY_TIMES = 10.0


class Verdict(NamedTuple):
    """What is decided of one step.

    Attributes
    ----------
    raised
        Whether the step is refused.
    contended
        Whether it would be refused if no cap or exception held the node open.
    wanted
        Whether it would be refused if no exception did.
    threshold
        The score above which the step is refused.
    counts
        How many steps the step's label stands for; 0 when it was really refused.
    early
        Whether the forecast expects present contention to end at once.
    """

    raised: Value
    contended: Value
    wanted: Value
    threshold: Value
    counts: Value
    early: Value


class Admission(Held):
    """Decide from chances of contention, within the policy.

    Attributes
    ----------
    refusing
        Whether the node refuses, caps and exceptions aside.
    refused, unlikely, calm
        For how many seconds on end it has refused, the chance has been below `likelihood`,
        and below `reopen`.
    present_steps, present_accepted
        Steps with contention at the time, and how many of those were accepted.
    spent, limited, exempt
        Whether the last decision accepts for want of budget, for the hour's limit, or as an exception.

    Notes
    -----
    Memory: twelve numbers per node; with a budget two rows of 1,024 floats more, with an
    hourly limit 61 floats.
    """

    HELD: ClassVar[tuple[str, ...]] = (
        "refusing",
        "refused",
        "unlikely",
        "calm",
        "present_steps",
        "present_accepted",
        "excepting",
        "seed",
        "counter",
        "exceptions",
        "excepted",
        "spent",
        "limited",
        "exempt",
    )

    def __init__(self, ops: Operations, policy: Policy) -> None:
        self.ops = ops
        self.policy = policy
        self.close_at = log_odds(policy.likelihood)
        self.open_at = log_odds(min(policy.reopen, policy.likelihood))
        self.refusing = ops.full(False)
        self.refused = ops.full(0.0)
        self.unlikely = ops.full(0.0)
        self.calm = ops.full(0.0)
        self.present_steps = ops.full(0)
        self.present_accepted = ops.full(0)
        self.excepting = ops.full(0)
        self.seed = ops.counted(policy.seed)
        self.counter = ops.full(0)
        self.exceptions = ops.full(0.0)
        self.excepted = ops.full(0.0)
        self.spent = ops.full(False)
        self.limited = ops.full(False)
        self.exempt = ops.full(False)
        held = list(self.HELD)
        if policy.budget is not None:
            self.budget = Budget(ops, policy.budget)
            held.append("budget")
        if policy.hourly_limit is not None:
            self.limit = HourLimit(ops, policy.hourly_limit)
            held.append("limit")
        self.HELD = tuple(held)  # type: ignore[misc]

    def decide(
        self,
        score: Value,
        logit: Value,
        u: Value,
        clock: Clock,
        trusted: Value,
        *,
        known: bool,
        enforcing: bool,
    ) -> Verdict:
        """Decide for one step.

        Parameters
        ----------
        score
            What a budget ranks steps by.
        logit
            Log odds of contention within the horizon.
        u
            CPU Ready in units of the tolerance; below 0 where unknown.
        trusted
            Whether the forecast has earned to accept during contention.
        known
            Whether CPU Ready is known.
        enforcing
            Whether the decision will be obeyed.
        """
        ops, policy = self.ops, self.policy
        if policy.quota:
            return self._spend_quota(score, known=known, enforcing=enforcing)
        present = u >= 1.0
        early = ops.both(present, logit < self.open_at)
        self.present_steps = self.present_steps + present
        opens = ops.both(early, ops.both(trusted, self._may_accept()))
        self._advance(logit, present, opens, clock.interval)
        act = self.refusing
        threshold = ops.full(self.close_at)
        if policy.budget is not None:
            threshold = ops.maximum(self._affordable(), self.close_at)
            if known:
                self.budget.learn(score)
            allowed = ops.both(act, ops.both(self.budget.affords(), score > threshold))
            self.spent = act != allowed
            act = allowed
        if policy.hourly_limit is not None:
            self.limit.advance(clock.now)
            allowed = ops.both(act, self.limit.allows(clock.interval))
            self.limited = act != allowed
            act = allowed
        raised, counts = self._explore(act, enforcing=enforcing)
        self.present_accepted = self.present_accepted + ops.both(present, ops.no(raised))
        if policy.budget is not None:
            self.budget.spend(raised)
        if policy.hourly_limit is not None and ops.any(raised):
            self.limit.spend(raised, clock.interval)
        return Verdict(raised, self.refusing, act, threshold, counts, early)

    def _advance(self, logit: Value, present: Value, opens: Value, seconds: Value) -> None:
        """Close or open: at once where contention is likely or there, late where it has passed."""
        ops, policy = self.ops, self.policy
        closes = ops.either(logit >= self.close_at, ops.both(present, ops.no(opens)))
        self.unlikely = ops.where(closes, 0.0, self.unlikely + seconds)
        self.calm = ops.where(ops.either(closes, logit >= self.open_at), 0.0, self.calm + seconds)
        passed = ops.either(self.calm >= policy.calm, self.unlikely >= UNLIKELY_TIMES * policy.calm)
        over = ops.both(passed, self.refused >= policy.hold)
        # While contention is there, waiting for calm would only repeat what was earned.
        stays = ops.both(self.refusing, ops.no(ops.either(over, opens)))
        self.refusing = ops.either(closes, stays)
        self.refused = ops.where(self.refusing, self.refused + seconds, 0.0)

    def _may_accept(self) -> Value:
        """Tell whether one more step with contention may be accepted."""
        return self.present_accepted + 1 <= EARLY_SHARE * self.present_steps

    def _affordable(self) -> Value:
        """Return the score above which the budget affords to refuse."""
        affordable = self.budget.threshold()
        # With hardly a score seen there is nothing to rank: what is likely is refused.
        return self.ops.where(affordable < math.inf, affordable, -math.inf)

    def _spend_quota(self, score: Value, *, known: bool, enforcing: bool) -> Verdict:
        ops = self.ops
        threshold = self.budget.threshold()
        if known:
            self.budget.learn(score)
        act = score > threshold
        raised, counts = self._explore(act, enforcing=enforcing)
        self.budget.spend(raised)
        self.refusing = act
        return Verdict(raised, act, act, threshold, counts, ops.full(False))

    def _explore(self, act: Value, *, enforcing: bool) -> tuple[Value, Value]:
        """Return what is refused once exceptions are made, and how many steps each label stands for."""
        ops = self.ops
        counts = ops.full(1.0)
        if not enforcing:
            if ops.any(self.exempt):
                self.exempt = ops.full(False)
            return act, counts
        self._except(act)
        raised = ops.both(act, ops.no(self.exempt))
        share = max(self.policy.explore, 1e-9)
        return raised, ops.where(raised, 0.0, ops.where(self.exempt, 1.0 / share, counts))

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
