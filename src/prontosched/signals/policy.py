"""What the operator asks for, and what follows from a chance of contention.

`Policy` holds the settings, checked once. `Tolerance` says what counts as contention. `Admission` decides:
hysteresis, the present value, caps and exceptions. `Budget` and `HourLimit` bound how much is refused.

A node refuses from `likelihood` on, for at least `hold` seconds, and accepts again once the
chance has been below `reopen` for `calm` seconds. A chance between the two is waited out
for ten times as long. CPU Ready at or above the tolerance now is refused whatever the
forecast says. Only a forecast whose record of foreseeing the end of contention is good may
accept there, for at most `EARLY_SHARE` of such steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from prontosched.errors import SettingsError
from prontosched.signals.arithmetic import Component, Operations, Value
from prontosched.signals.inputs import StepClock
from prontosched.signals.quantiles import WHOLE_PAST, samples
from prontosched.telemetry.scaling import weight_of

# Values from which a percentile of the past is told, and how many of them are kept.
FIRST_VALUES = 20
TOLERANCE_VALUES = 4096
DOWNTIME_WEIGHT = weight_of(5000.0)
# Unspent budget is kept for a bad day, up to what this many steps earn.
SAVED_STEPS = 7200.0
# From here on a threshold is more than a guess.
FIRST_SCORES = 20
MINUTES = 61
# Of the steps with contention now, at most this share is ever accepted.
EARLY_SHARE = 0.05
# A chance between `reopen` and `likelihood` opens a node after this many times `calm`.
UNLIKELY_TIMES = 10.0


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings of the learned signal.

    Parameters
    ----------
    budget
        Largest share of the long run to refuse, in (0, 1); None sets no cap.
    tolerance
        CPU Ready from which a step counts as contention: `"5%"` or a number in the
        unit CPU Ready is measured in, or `"p95"` for a percentile of the node's past.
    horizon
        Steps ahead in which contention counts.
    likelihood
        Chance of contention from which the node refuses, in (0, 1).
    reopen
        Chance of contention below which it may accept again; never above `likelihood`.
    calm
        Seconds for which the chance must have been below `reopen` before it accepts again;
        ten times as many below `likelihood` do as well.
    hold
        Fewest seconds for which a refusal is kept up.
    hourly_limit
        Largest share of any one hour to refuse; None sets no limit.
    quota
        Spend the whole budget, on the highest scores whatever they are, without hysteresis
        or limits. For comparing methods at equal downtime.
    explore
        Share of would-be refusals accepted all the same while `enforcing`.
    seed
        Start of the random numbers that pick those.
    """

    tolerance: str | float = "5%"
    horizon: int = 5
    likelihood: float = 0.5
    reopen: float = 0.35
    calm: float = 3.0
    hold: float = 5.0
    budget: float | None = None
    hourly_limit: float | None = None
    quota: bool = False
    explore: float = 0.02
    seed: int = 0

    def __post_init__(self) -> None:
        if self.budget is not None and not 0.0 < self.budget < 1.0:
            raise SettingsError(
                f"budget must lie between 0 and 1, got {self.budget!r}: leave it out to set no cap"
            )
        if self.quota and self.budget is None:
            raise SettingsError("quota must come with a budget to spend, got none: set a budget such as 0.1")
        for name in ("likelihood", "reopen"):
            if not 0.0 < getattr(self, name) < 1.0:
                raise SettingsError(f"{name} must lie between 0 and 1, got {getattr(self, name)!r}")
        if self.hourly_limit is not None and not 0.0 <= self.hourly_limit <= 1.0:
            raise SettingsError(f"hourly_limit must be from 0 to 1, got {self.hourly_limit!r}")
        if not 0.0 <= self.explore <= 1.0:
            raise SettingsError(f"explore must be from 0 to 1, got {self.explore!r}")
        if not 1 <= self.horizon <= 1000 or self.horizon != int(self.horizon):
            raise SettingsError(
                f"horizon must be from 1 to 1000 steps, got {self.horizon!r}: give a whole number"
            )
        if not 0 <= self.seed < 1 << 62:
            raise SettingsError(f"seed must be from 0 to below 2**62, got {self.seed!r}")
        for name in ("hold", "calm"):
            if not 0.0 <= getattr(self, name) <= 86_400.0:
                raise SettingsError(f"{name} must be from 0 to 86400 seconds, got {getattr(self, name)!r}")
        read_tolerance(self.tolerance)

    @property
    def unit(self) -> str:
        """The unit CPU Ready is spoken of in, after a space; empty where it is not known to be percent."""
        return " %" if isinstance(self.tolerance, str) and self.tolerance.endswith("%") else ""


def log_odds(chance: float) -> float:
    """Return the logarithm of the odds of a chance."""
    return math.log(chance / (1.0 - chance))


def read_tolerance(text: str | float) -> tuple[str, float]:
    """Return the kind of a tolerance, "absolute" or "percentile", and its value.

    Examples
    --------
    >>> read_tolerance("5%"), read_tolerance("p95"), read_tolerance(0.7)
    (('absolute', 5.0), ('percentile', 0.95), ('absolute', 0.7))
    """
    wrong = SettingsError(
        f"tolerance must be like 5%, p95 or a positive number, got {text!r}: "
        "5% is CPU Ready per CPU, p95 is learned from the node's own past"
    )
    word = str(text).strip()
    percentile = word[:1] in ("p", "P")
    try:
        value = float(word[1:] if percentile else word.removesuffix("%"))
    except ValueError:
        raise wrong from None
    if percentile:
        if not 50.0 <= value < 100.0:
            raise SettingsError(f"a percentile tolerance must be from p50 to below p100, got {text!r}")
        return "percentile", value / 100.0
    if not (math.isfinite(value) and value > 0.0):
        raise wrong
    return "absolute", value


# What holds where nothing is said.
DEFAULTS = Policy()


class Tolerance(Component):
    """What counts as contention: a fixed value, or a percentile of the node's own past.

    Memory: nothing for a fixed value; two rows of 4,096 floats for a percentile, of the whole past.
    """

    STATE = ("level", "sample")
    __slots__ = ("kind", "value", *STATE)

    def __init__(self, ops: Operations, text: str | float) -> None:
        self.ops = ops
        self.kind, self.value = read_tolerance(text)
        self.level = ops.full(self.value if self.kind == "absolute" else math.inf)
        if self.kind == "percentile":
            self.sample = samples(ops, TOLERANCE_VALUES, longest_stride=WHOLE_PAST)

    def learn(self, ready: Value) -> None:
        """Take in one value; a percentile of the past changes with it from the next step on."""
        if self.kind == "absolute":
            return
        changed = self.sample.add(ready)
        if self.ops.any(changed):
            enough = self.sample.seen >= FIRST_VALUES
            if self.ops.any(enough):
                self.level = self.ops.where(enough, self.sample.exceeding(self.value), math.inf)


def level_for(ops: Operations, downtime: Value, share: Value) -> Value:
    """Return the share of past scores a threshold must leave below it, for downtime to come to `share`.

    What is to be refused moves against what has been: `share * exp(-4 (downtime - share) / share)`,
    kept between a quarter of the share and four times it.
    """
    wanted = share * ops.exp(-4.0 * (downtime - share) / share)
    return 1.0 - ops.clip(wanted, share / 4.0, ops.minimum(share * 4.0, 1.0))


class Budget(Component):
    """A threshold on the score, from a long sample of past scores and the downtime so far.

    The threshold is the score's own quantile, moved when downtime runs above or below
    its share. Its memory is long on purpose: contention comes in bad days, and a
    controller that evens out every hour refuses on the good ones instead.

    Memory: two rows of 1,024 floats per node.
    """

    STATE = ("sample", "downtime", "saved")
    __slots__ = ("share", *STATE)

    def __init__(self, ops: Operations, share: float) -> None:
        self.ops = ops
        self.share = share
        self.sample = samples(ops)
        # As if the budget had been spent so far: neither thrift nor debt to begin with.
        self.downtime = ops.full(share)
        self.saved = ops.full(0.5 * share * SAVED_STEPS)

    def threshold(self) -> Value:
        """Return the score above which a step is refused; infinite before there are any."""
        ops = self.ops
        enough = self.sample.seen >= FIRST_SCORES
        if not ops.any(enough):
            return ops.full(math.inf)
        level = level_for(ops, self.downtime, self.share)
        return ops.where(enough, self.sample.quantile(level), math.inf)

    def learn(self, score: Value) -> None:
        """Take in the score of a step."""
        self.sample.add(score)

    def affords(self) -> Value:
        """Tell whether enough is saved to refuse one more step.

        The threshold aims at the budget; this holds to it, even where the score only
        ever rises and so is always above its past.
        """
        return self.saved >= 1.0

    def spend(self, raised: Value) -> None:
        """Take in whether the step was refused."""
        self.saved = self.ops.minimum(self.saved + self.share - raised, self.share * SAVED_STEPS)
        self.downtime = self.downtime + DOWNTIME_WEIGHT * (raised * 1.0 - self.downtime)


class HourLimit(Component):
    """Refused time of the last hour, counted by the minute.

    A minute that has partly left the hour still counts in full, so the limit holds
    for every stretch of sixty minutes, not only for hours of the clock.

    Memory: 61 floats per node.
    """

    STATE = ("minutes", "minute", "refused")
    __slots__ = ("allowed", *STATE)

    def __init__(self, ops: Operations, share: float) -> None:
        self.ops = ops
        self.allowed = share * 3600.0
        self.minutes = ops.table(MINUTES)
        self.minute = ops.full(0)
        self.refused = ops.full(0.0)

    def advance(self, now: Value) -> None:
        """Go to a clock time, in seconds; what lies over an hour back no longer counts."""
        ops = self.ops
        minute = ops.whole(now / 60.0)
        if not ops.any(minute != self.minute):
            return
        # A clock set back by more than the hour starts the count there.
        self.minute = ops.where(minute + MINUTES < self.minute, minute, self.minute)
        passed = ops.maximum(minute - self.minute, 0)
        if not ops.any(passed > 0):
            return
        for i in range(min(int(np.max(passed)), MINUTES)):
            slot = ops.place(self.minute + 1 + i, MINUTES)
            self.minutes[slot] = ops.where(passed > i, 0.0, self.minutes[slot])
        self.minute = self.minute + passed
        # Summed afresh: a running difference would never quite return to zero.
        total = self.minutes.sum(axis=1) if ops.lead else sum(self.minutes)
        self.refused = ops.where(passed > 0, total, self.refused)

    def allows(self, seconds: Value) -> Value:
        """Tell whether `seconds` more may be refused."""
        return self.refused + seconds <= self.allowed + 1e-6

    def spend(self, raised: Value, seconds: Value) -> None:
        """Take in whether the step, which lasts `seconds`, was refused."""
        ops = self.ops
        cost = raised * seconds
        self.minutes[ops.place(self.minute, MINUTES)] += cost
        self.refused = self.refused + cost


class AdmissionResult(NamedTuple):
    """What is decided of one step."""

    raised: Value
    contended: Value  # whether it would be refused if no cap or exception held the node open
    wanted: Value  # whether it would be refused if no exception did
    threshold: Value  # the score above which the step is refused
    counts: Value  # how many steps the step's label stands for; 0 when it was really refused
    early: Value  # whether the forecast expects present contention to end at once


class Admission(Component):
    """Decide from chances of contention, within the policy.

    Memory: twelve numbers per node; with a budget two rows of 1,024 floats more, with an
    hourly limit 61 floats.
    """

    STATE = (
        "refusing", "refused", "unlikely", "calm", "present_steps", "present_accepted", "excepting", "seed",
        "counter", "exceptions", "excepted", "spent", "limited", "exempt", "budget", "limit",
    )  # fmt: skip
    __slots__ = ("policy", "close_at", "open_at", *STATE)

    def __init__(self, ops: Operations, policy: Policy) -> None:
        self.ops = ops
        self.policy = policy
        self.close_at = log_odds(policy.likelihood)
        self.open_at = log_odds(min(policy.reopen, policy.likelihood))
        # Whether the node refuses, caps and exceptions aside; for how many seconds on end it has done so, the
        # chance has been below `likelihood`, and below `reopen`.
        self.refusing = ops.full(False)
        self.refused = ops.full(0.0)
        self.unlikely = ops.full(0.0)
        self.calm = ops.full(0.0)
        # Steps with contention at the time, and how many of those were accepted.
        self.present_steps = ops.full(0)
        self.present_accepted = ops.full(0)
        self.excepting = ops.full(0)
        self.seed = ops.counted(policy.seed)
        self.counter = ops.full(0)
        self.exceptions = ops.full(0.0)
        self.excepted = ops.full(0.0)
        # Whether the last decision accepts for want of budget, for the hour's limit, or as an exception.
        self.spent = ops.full(False)
        self.limited = ops.full(False)
        self.exempt = ops.full(False)
        if policy.budget is not None:
            self.budget = Budget(ops, policy.budget)
        if policy.hourly_limit is not None:
            self.limit = HourLimit(ops, policy.hourly_limit)

    def decide(
        self,
        score: Value,
        logit: Value,
        u: Value,
        clock: StepClock,
        trusted: Value,
        *,
        known: bool,
        enforcing: bool,
    ) -> AdmissionResult:
        """Decide for one step.

        `score` is what a budget ranks steps by, `logit` the log odds of contention within the horizon, `u` CPU
        Ready in units of the tolerance (below 0 where not `known`). `trusted` tells whether the forecast has
        earned to accept during contention, `enforcing` whether the decision will be obeyed.
        """
        ops, policy = self.ops, self.policy
        if policy.quota:
            return self._spend_quota(score, known=known, enforcing=enforcing)
        present = u >= 1.0
        early = present & (logit < self.open_at)
        self.present_steps = self.present_steps + present
        may_accept = self.present_accepted + 1 <= EARLY_SHARE * self.present_steps
        opens = early & trusted & may_accept
        self._advance(logit, present, opens, clock.interval)
        act = self.refusing
        threshold = ops.full(self.close_at)
        if policy.budget is not None:
            affordable = self.budget.threshold()
            # With hardly a score seen there is nothing to rank: what is likely is refused.
            affordable = ops.where(affordable < math.inf, affordable, -math.inf)
            threshold = ops.maximum(affordable, self.close_at)
            if known:
                self.budget.learn(score)
            allowed = act & self.budget.affords() & (score > threshold)
            self.spent = act != allowed
            act = allowed
        if policy.hourly_limit is not None:
            self.limit.advance(clock.now)
            allowed = act & self.limit.allows(clock.interval)
            self.limited = act != allowed
            act = allowed
        raised, counts = self._explore(act, enforcing=enforcing)
        self.present_accepted = self.present_accepted + (present & ops.no(raised))
        if policy.budget is not None:
            self.budget.spend(raised)
        if policy.hourly_limit is not None and ops.any(raised):
            self.limit.spend(raised, clock.interval)
        return AdmissionResult(raised, self.refusing, act, threshold, counts, early)

    def _advance(self, logit: Value, present: Value, opens: Value, seconds: Value) -> None:
        """Close or open: at once where contention is likely or there, late where it has passed."""
        ops, policy = self.ops, self.policy
        closes = (logit >= self.close_at) | (present & ops.no(opens))
        self.unlikely = ops.where(closes, 0.0, self.unlikely + seconds)
        self.calm = ops.where(closes | (logit >= self.open_at), 0.0, self.calm + seconds)
        passed = (self.calm >= policy.calm) | (self.unlikely >= UNLIKELY_TIMES * policy.calm)
        over = passed & (self.refused >= policy.hold)
        # While contention is there, waiting for calm would only repeat what was earned.
        stays = self.refusing & ops.no(over | opens)
        self.refusing = closes | stays
        self.refused = ops.where(self.refusing, self.refused + seconds, 0.0)

    def _spend_quota(self, score: Value, *, known: bool, enforcing: bool) -> AdmissionResult:
        ops = self.ops
        threshold = self.budget.threshold()
        if known:
            self.budget.learn(score)
        act = score > threshold
        raised, counts = self._explore(act, enforcing=enforcing)
        self.budget.spend(raised)
        self.refusing = act
        return AdmissionResult(raised, act, act, threshold, counts, ops.full(False))

    def _explore(self, act: Value, *, enforcing: bool) -> tuple[Value, Value]:
        """Return what is refused once exceptions are made, and how many steps each label stands for."""
        ops = self.ops
        counts = ops.full(1.0)
        if not enforcing:
            if ops.any(self.exempt):
                self.exempt = ops.full(False)
            return act, counts
        self._except(act)
        raised = act & ops.no(self.exempt)
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
        # Between two exceptions lie `each * (1 - share) / share` refusals on average.
        share = policy.explore
        starts = act & ops.no(within) & (draw * (share + each * (1.0 - share)) < share)
        self.excepting = ops.where(starts, policy.horizon - 1, ops.maximum(self.excepting - 1, 0))
        self.exempt = act & (starts | within)
        self.exceptions = self.exceptions + ops.where(starts, 1.0, 0.0)
        self.excepted = self.excepted + ops.where(self.exempt, 1.0, 0.0)
