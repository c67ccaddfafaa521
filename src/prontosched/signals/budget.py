"""How much may be refused: a downtime budget, a limit for any hour, hold times.

Covers: `Budget`, the score from which a node refuses so that its downtime stays
within a share of the long run, and `HourLimit`, so that no single hour carries it all.
"""

from __future__ import annotations

import math
from typing import ClassVar

from prontosched.signals.arithmetic import Operations, Value
from prontosched.signals.held import Held
from prontosched.signals.history import weight
from prontosched.signals.quantiles import samples

DOWNTIME_WEIGHT = weight(5000.0)
# Unspent budget is kept for a bad day, up to what this many steps earn.
SAVED_STEPS = 7200.0
# From here on a threshold is more than a guess.
FIRST_SCORES = 20
MINUTES = 61


def level_for(ops: Operations, downtime: Value, share: Value) -> Value:
    """Return the share of past scores a threshold must leave below it, for downtime to come to `share`.

    What is to be refused moves against what has been: `share * exp(-4 (downtime - share) / share)`,
    kept between a quarter of the share and four times it.
    """
    wanted = share * ops.exp(-4.0 * (downtime - share) / share)
    return 1.0 - ops.clip(wanted, share / 4.0, ops.minimum(share * 4.0, 1.0))


class Budget(Held):
    """A threshold on the score, from a long sample of past scores and the downtime so far.

    The threshold is the score's own quantile, moved when downtime runs above or below
    its share. Its memory is long on purpose: contention comes in bad days, and a
    controller that evens out every hour refuses on the good ones instead.

    Notes
    -----
    Memory: two rows of 1,024 floats per node.
    """

    HELD: ClassVar[tuple[str, ...]] = ("sample", "downtime", "saved")

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


class HourLimit(Held):
    """Refused time of the last hour, counted by the minute.

    A minute that has partly left the hour still counts in full, so the limit holds
    for every stretch of sixty minutes, not only for hours of the clock.

    Notes
    -----
    Memory: 61 floats per node.
    """

    HELD: ClassVar[tuple[str, ...]] = ("minutes", "minute", "refused")

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
        for i in range(min(ops.top(passed), MINUTES)):
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
