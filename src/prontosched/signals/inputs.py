"""The inputs of the learned signal that any node can give: its own contention, and the clock.

`History` has levels, trends, spike rates and restlessness of CPU Ready, and utilisation. `Profiles` has
what CPU Ready usually does at the time of the hour, day and week that the next steps fall on, by the
`StepClock`. Where no clock time comes with the telemetry a step counts as a minute. Inputs from the
embedding are in `heads.Correction`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from prontosched.signals.arithmetic import Component, Operations, Value
from prontosched.telemetry.scaling import weight_of

SHORT, LONG = (2.0, 5.0, 15.0), (60.0, 240.0, 1440.0)
RATES = (10.0, 60.0, 1440.0)
RESTLESS = (5.0, 240.0)
USED = (2.0, 15.0, 240.0)
WEEK_OF_MINUTES = 7 * 1440.0
OFFSET = 0.05
# Three tolerances: above it, more contention now says little about contention to come.
LEVEL_TOP = math.log(3.0 + OFFSET)


HISTORY_INPUTS = (
    "always",
    "CPU Ready now",
    *(f"change over {k}" for k in (1, 2, 3, 4)),
    *(f"level over {k:.0f}" for k in SHORT + LONG),
    "highest of 5",
    "highest of 15",
    "lowest of 5",
    *(f"spike rate over {k:.0f}" for k in RATES),
    "time since a spike",
    *(f"restlessness over {k:.0f}" for k in RESTLESS),
    "utilisation now",
    *(f"utilisation over {k:.0f}" for k in USED),
    "contention now",
    "CPU Ready during contention",
    "CPU Ready up to 3 tolerances",
)


class History(Component):
    """Averages, extremes and spike rates of one contention value, and of utilisation.

    All are of v = log(0.05 + u), where u is CPU Ready in units of the tolerance:
    equal ratios count alike, and an idle node stays finite. Averages start as plain
    means, so that the first value is not remembered for weeks.

    Memory: some forty floats per node.
    """

    STATE = (
        "recent", "levels", "rates", "restless", "since", "used", "used_mean", "used_square", "used_now",
        "steps", "used_steps",
    )  # fmt: skip
    __slots__ = STATE

    def __init__(self, ops: Operations) -> None:
        self.ops = ops
        self.recent = [ops.full(0.0) for _ in range(15)]  # newest first
        self.levels = [ops.full(0.0) for _ in SHORT + LONG]
        self.rates = [ops.full(0.0) for _ in RATES]
        self.restless = [ops.full(0.0) for _ in RESTLESS]
        self.since = ops.full(0.0)
        self.used = [ops.full(0.0) for _ in USED]
        self.used_mean = ops.full(0.0)
        self.used_square = ops.full(0.0)
        self.used_now = ops.full(0.0)
        self.steps = ops.full(0.0)
        self.used_steps = ops.full(0.0)

    def learn(self, v: Value, spike: Value, utilisation: Value) -> None:
        """Take in one step: v, whether it is contention, and utilisation (NaN: unknown)."""
        ops = self.ops
        recent = self.recent
        self.steps = steps = self.steps + 1.0
        plain = 1.0 / steps
        level_weights, rate_weights, restless_weights = WEIGHTS
        if ops.any(plain > LEVEL_WEIGHTS[-1]):
            # Until an average is as long as its memory it is a plain mean.
            level_weights, rate_weights, restless_weights = (
                [ops.maximum(k, plain) for k in group] for group in WEIGHTS
            )
            first = steps == 1.0
            if ops.any(first):
                self.recent = recent = [ops.where(first, v, old) for old in recent]
        size = abs(v - recent[0])
        recent.insert(0, v)
        recent.pop()
        hit = spike * 1.0
        self.levels = _followed(self.levels, level_weights, v)
        self.rates = _followed(self.rates, rate_weights, hit)
        self.restless = _followed(self.restless, restless_weights, size)
        self.since = (self.since + 1.0) * (1.0 - hit)
        self._learn_utilisation(utilisation)

    def _learn_utilisation(self, utilisation: Value) -> None:
        ops = self.ops
        known = ops.known(utilisation)
        if not ops.any(known):
            return
        on = known * 1.0
        mean = self.used_mean
        self.used_steps = self.used_steps + on
        plain = 1.0 / ops.maximum(self.used_steps, 1.0)
        k = on * ops.maximum(WEEK_WEIGHT, plain)
        value = ops.where(known, utilisation, mean)
        apart = value - mean
        self.used_mean = mean = mean + k * apart
        self.used_square = square = (1.0 - k) * (self.used_square + k * apart * apart)
        # The floor keeps a utilisation that hardly moves from filling the scale with its rounding.
        scale = ops.sqrt(square) + 0.01 * abs(mean) + 1e-9
        z = ops.clip((value - mean) / scale, -8.0, 8.0)
        self.used_now = ops.where(known, z, self.used_now)
        self.used = _followed(self.used, [on * ops.maximum(w, plain) for w in USED_WEIGHTS], z)

    def inputs(self) -> list[Value]:
        """Return the inputs, in the order of `HISTORY_INPUTS`."""
        ops = self.ops
        sqrt = ops.sqrt
        recent, levels, rates, used = self.recent, self.levels, self.rates, self.used
        five = recent[:5]
        v = five[0]
        z = self.used_now
        now = (self.since == 0.0) * 1.0
        return [
            ops.full(1.0),
            v,
            v - five[1],
            v - five[2],
            v - five[3],
            v - five[4],
            levels[0] - v,
            levels[1] - v,
            levels[2] - v,
            levels[3],
            levels[4],
            levels[5],
            ops.largest(five) - v,
            ops.largest(recent) - v,
            ops.smallest(five) - v,
            sqrt(rates[0]),
            sqrt(rates[1]),
            sqrt(rates[2]),
            0.25 * ops.log(1.0 + self.since),
            self.restless[0],
            self.restless[1],
            z,
            used[0] - z,
            used[1] - z,
            used[2],
            now,
            now * v,
            ops.minimum(v, LEVEL_TOP),
        ]


def _followed(averages: list[Value], weights: Sequence[Value], value: Value) -> list[Value]:
    """Return the averages, each moved towards the value by its weight."""
    return [old + weight * (value - old) for old, weight in zip(averages, weights, strict=True)]


LEVEL_WEIGHTS = tuple(weight_of(k) for k in SHORT + LONG)
RATE_WEIGHTS = tuple(weight_of(k) for k in RATES)
RESTLESS_WEIGHTS = tuple(weight_of(k) for k in RESTLESS)
WEIGHTS: tuple[Sequence[Value], ...] = (LEVEL_WEIGHTS, RATE_WEIGHTS, RESTLESS_WEIGHTS)
USED_WEIGHTS = tuple(weight_of(k) for k in USED)
WEEK_WEIGHT = weight_of(WEEK_OF_MINUTES)


MINUTE = 60.0
# Name, seconds per bin, bins, weight of the newest visit, visits that count as much as knowing nothing.
PERIODS = (
    ("hour", 60.0, 60, 0.1, 5.0),
    ("day", 300.0, 288, 0.15, 3.0),
    ("week", 1800.0, 336, 0.3, 2.0),
)
BINS = sum(bins for _, _, bins, _, _ in PERIODS)
# Of each period: seconds per bin, bins, and where they begin in a table of all.
BINS_OF = tuple(
    (width, bins, sum(before[2] for before in PERIODS[:i]))
    for i, (_, width, bins, _, _) in enumerate(PERIODS)
)

PROFILE_INPUTS = tuple(
    f"{what} at this time of the {name}" for name, *_ in PERIODS for what in ("level", "spikes", "rise")
)


class StepClock(Component):
    """Seconds on the clock, known or counted, and the usual interval between steps."""

    STATE = ("now", "interval", "seen", "measured")
    __slots__ = STATE

    def __init__(self, ops: Operations) -> None:
        self.ops = ops
        self.now = ops.full(-MINUTE)
        self.interval = ops.full(MINUTE)
        self.seen = ops.full(False)
        self.measured = ops.full(False)

    def advance(self, time: Value) -> None:
        """Go to `time`, or on by one interval where it is unknown."""
        ops = self.ops
        known = ops.known(time)
        if not ops.any(known):
            self.now = self.now + self.interval
            return
        step = time - self.now
        # `seen`: two real times are needed to tell an interval. Pauses are not intervals.
        counts = known & self.seen & (step > 0.0)
        usual = self.interval + 0.05 * (ops.minimum(step, 3.0 * self.interval) - self.interval)
        # A clock that jumped between the first two times has measured years: halve it until it fits again.
        usual = ops.where(step < 0.1 * self.interval, 0.5 * self.interval, usual)
        self.interval = ops.where(counts, ops.where(self.measured, usual, step), self.interval)
        self.measured = self.measured | counts
        self.now = ops.where(known, time, self.now + self.interval)
        self.seen = self.seen | known


class Profiles(Component):
    """Usual level and spike rate for each bin of the hour, the day and the week.

    Levels are kept as distances from the day's average, and everything is drawn
    towards 0 by how seldom its bin was visited: a profile that knows nothing says
    nothing.

    Memory: five floats for each of 684 bins.
    """

    STATE = ("levels", "spikes", "trusted_levels", "trusted_spikes", "visits")
    __slots__ = ("periods", *STATE)

    def __init__(self, ops: Operations, horizon: int) -> None:
        self.ops = ops
        # An hour's bins are a minute wide; those of the day and the week hold many steps: one look does.
        middle = -(-horizon // 2)
        looks = (sorted({1, middle, horizon}), [middle], [middle])
        self.periods = [
            (*bins_of, fast, unsure, ahead[0], ahead[1:], 1.0 / len(ahead))
            for bins_of, (*_, fast, unsure), ahead in zip(BINS_OF, PERIODS, looks, strict=True)
        ]
        self.levels = ops.table(BINS)
        self.spikes = ops.table(BINS)
        self.trusted_levels = ops.table(BINS)
        self.trusted_spikes = ops.table(BINS)
        self.visits = ops.table(BINS)

    def learn(self, clock: StepClock, apart: Value, spike: Value) -> list[Value]:
        """Take in one step: how far v is from its slow average, and whether it is contention.

        Returned are level, spike rate and greatest rise over the next steps, for each period.
        """
        ops = self.ops
        place, sqrt = ops.place, ops.sqrt
        hit = spike * 1.0
        now, interval = clock.now, clock.interval
        visits_of, levels, spikes = self.visits, self.levels, self.spikes
        trusted_levels, trusted_spikes = self.trusted_levels, self.trusted_spikes
        found: list[Value] = []
        for width, bins, first, fast, unsure, next_look, further, part in self.periods:
            at = place(now / width, bins, first)
            share = ops.minimum(interval / width, 1.0)
            visits_of[at] = visits = visits_of[at] + share
            k = share * ops.clip(1.0 / visits, fast, 1.0)
            trust = visits / (visits + unsure)
            level, rate = levels[at], spikes[at]
            levels[at] = level = level + k * (apart - level)
            spikes[at] = rate = rate + k * (hit - rate)
            trusted_levels[at] = here = trust * level
            trusted_spikes[at] = trust * rate
            at = place((now + next_look * interval) / width, bins, first)
            level = highest = trusted_levels[at]
            rate = trusted_spikes[at]
            for steps in further:
                at = place((now + steps * interval) / width, bins, first)
                there = trusted_levels[at]
                level = level + there
                rate = rate + trusted_spikes[at]
                highest = ops.maximum(there, highest)
            found += (part * level, sqrt(part * rate), highest - here)
        return found
