"""What returns with the clock: profiles of the hour, the day and the week.

Covers: the clock a signal goes by, and what CPU Ready usually does at the time of
day and week that the next steps fall on. Where no clock time comes with the
telemetry a step counts as a minute.
"""

from __future__ import annotations

from typing import ClassVar

from prontosched.signals.arithmetic import Operations, Value
from prontosched.signals.held import Held

MINUTE = 60.0
# Name, seconds per bin, bins, weight of the newest visit, visits that count as much as knowing nothing.
PERIODS = (
    ("hour", 60.0, 60, 0.1, 5.0),
    ("day", 300.0, 288, 0.15, 3.0),
    ("week", 1800.0, 336, 0.3, 2.0),
)
BINS = sum(bins for _, _, bins, _, _ in PERIODS)
FIRST_BINS = tuple(sum(bins for _, _, bins, _, _ in PERIODS[:i]) for i in range(len(PERIODS)))

NAMES = tuple(
    f"{what} at this time of the {name}" for name, *_ in PERIODS for what in ("level", "spikes", "rise")
)


class Clock(Held):
    """Seconds on the clock, known or counted, and the usual interval between steps."""

    HELD: ClassVar[tuple[str, ...]] = ("now", "interval", "seen", "measured")

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
        counts = ops.both(ops.both(known, self.seen), step > 0.0)
        usual = self.interval + 0.05 * (ops.minimum(step, 3.0 * self.interval) - self.interval)
        self.interval = ops.where(counts, ops.where(self.measured, usual, step), self.interval)
        self.measured = ops.either(self.measured, counts)
        self.now = ops.where(known, time, self.now + self.interval)
        self.seen = ops.either(self.seen, known)


class Profiles(Held):
    """Usual level and spike rate for each bin of the hour, the day and the week.

    Levels are kept as distances from the day's average, and everything is drawn
    towards 0 by how seldom its bin was visited: a profile that knows nothing says
    nothing.

    Notes
    -----
    Memory: five floats for each of 684 bins.
    """

    HELD: ClassVar[tuple[str, ...]] = ("levels", "spikes", "trusted_levels", "trusted_spikes", "visits")

    def __init__(self, ops: Operations, horizon: int) -> None:
        self.ops = ops
        # An hour's bins are a minute wide; those of the day and the week hold many steps: one look does.
        middle = -(-horizon // 2)
        looks = (sorted({1, middle, horizon}), [middle], [middle])
        self.periods = [
            (width, bins, first, fast, unsure, ahead)
            for (_, width, bins, fast, unsure), first, ahead in zip(PERIODS, FIRST_BINS, looks, strict=True)
        ]
        self.levels = ops.table(BINS)
        self.spikes = ops.table(BINS)
        self.trusted_levels = ops.table(BINS)
        self.trusted_spikes = ops.table(BINS)
        self.visits = ops.table(BINS)

    def ahead(self, clock: Clock, steps: int) -> list[Value]:
        """Return the usual level and spike rate at half of the next `steps` and at their end, for each period."""
        ops = self.ops
        found: list[Value] = []
        for width, bins, first, *_ in self.periods:
            half, end = (
                ops.place((clock.now + part * steps * clock.interval) / width, bins, first)
                for part in (0.5, 1.0)
            )
            found.append(0.5 * (self.trusted_levels[half] + self.trusted_levels[end]))
            found.append(ops.sqrt(0.5 * (self.trusted_spikes[half] + self.trusted_spikes[end])))
        return found

    def learn(self, clock: Clock, apart: Value, spike: Value) -> list[Value]:
        """Take in one step, and return what may follow it.

        Parameters
        ----------
        apart, spike
            The distance of v from its slow average, and whether it is contention.

        Returns
        -------
        inputs
            Level, spike rate and greatest rise over the next steps, for each period.
        """
        ops = self.ops
        hit = spike * 1.0
        now, interval = clock.now, clock.interval
        visits_of, levels, spikes = self.visits, self.levels, self.spikes
        trusted_levels, trusted_spikes = self.trusted_levels, self.trusted_spikes
        found: list[Value] = []
        for width, bins, first, fast, unsure, ahead in self.periods:
            at = ops.place(now / width, bins, first)
            share = ops.minimum(interval / width, 1.0)
            visits = visits_of[at] + share
            k = share * ops.clip(1.0 / visits, fast, 1.0)
            trust = visits / (visits + unsure)
            level, rate = levels[at], spikes[at]
            level = level + k * (apart - level)
            rate = rate + k * (hit - rate)
            here = trust * level
            visits_of[at] = visits
            levels[at] = level
            spikes[at] = rate
            trusted_levels[at] = here
            trusted_spikes[at] = trust * rate
            at = ops.place((now + ahead[0] * interval) / width, bins, first)
            level = highest = trusted_levels[at]
            rate = trusted_spikes[at]
            for steps in ahead[1:]:
                at = ops.place((now + steps * interval) / width, bins, first)
                there = trusted_levels[at]
                level = level + there
                rate = rate + trusted_spikes[at]
                highest = ops.maximum(there, highest)
            part = 1.0 / len(ahead)
            found += [part * level, ops.sqrt(part * rate), highest - here]
        return found
