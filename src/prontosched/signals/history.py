"""What a node's own contention has been doing: the inputs any node can give.

Covers: levels, trends, spike rates and restlessness of CPU Ready, and utilisation.
Does not cover: what returns with the clock (`profiles`), what the embedding sees
(`sight`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from prontosched.signals.arithmetic import Operations, Value
from prontosched.signals.held import Held

SHORT, LONG = (2.0, 5.0, 15.0), (60.0, 240.0, 1440.0)
RATES = (10.0, 60.0, 1440.0)
RESTLESS = (5.0, 240.0)
USED = (2.0, 15.0, 240.0)
WEEK_OF_MINUTES = 7 * 1440.0
OFFSET = 0.05
# Three tolerances: above it, more contention now says little about contention to come.
LEVEL_TOP = math.log(3.0 + OFFSET)


def weight(half_life: float) -> float:
    """Return the weight of the newest value in an average with this half-life in steps.

    Examples
    --------
    >>> weight(1.0)
    0.5
    """
    return float(1.0 - 0.5 ** (1.0 / half_life))


NAMES = (
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


class History(Held):
    """Averages, extremes and spike rates of one contention value, and of utilisation.

    All are of v = log(0.05 + u), where u is CPU Ready in units of the tolerance:
    equal ratios count alike, and an idle node stays finite. Averages start as plain
    means, so that the first value is not remembered for weeks.

    Notes
    -----
    Memory: some forty floats per node.
    """

    HELD: ClassVar[tuple[str, ...]] = (
        "recent",
        "levels",
        "rates",
        "restless",
        "since",
        "used",
        "used_mean",
        "used_square",
        "used_now",
        "steps",
        "used_steps",
    )

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
        first = self.steps == 0.0
        if ops.any(first):
            self.recent = recent = [ops.where(first, v, old) for old in recent]
        self.steps = self.steps + 1.0
        plain = 1.0 / self.steps
        size = abs(v - recent[0])
        recent.insert(0, v)
        recent.pop()
        # Until an average is as long as its memory it is a plain mean.
        weights = WEIGHTS
        if ops.any(plain > LEVEL_WEIGHTS[-1]):
            weights = tuple(tuple(ops.maximum(k, plain) for k in group) for group in WEIGHTS)
        level_weights, rate_weights, restless_weights = weights
        hit = spike * 1.0
        levels, rates, restless = self.levels, self.rates, self.restless
        for i, old in enumerate(levels):
            levels[i] = old + level_weights[i] * (v - old)
        for i, old in enumerate(rates):
            rates[i] = old + rate_weights[i] * (hit - old)
        for i, old in enumerate(restless):
            restless[i] = old + restless_weights[i] * (size - old)
        self.since = ops.where(spike, 0.0, self.since + 1.0)
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
        used = self.used
        for i, w in enumerate(USED_WEIGHTS):
            old = used[i]
            used[i] = old + on * ops.maximum(w, plain) * (z - old)

    def inputs(self) -> list[Value]:
        """Return the inputs, in the order of `NAMES`."""
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


LEVEL_WEIGHTS = tuple(weight(k) for k in SHORT + LONG)
RATE_WEIGHTS = tuple(weight(k) for k in RATES)
RESTLESS_WEIGHTS = tuple(weight(k) for k in RESTLESS)
WEIGHTS: tuple[Sequence[Value], ...] = (LEVEL_WEIGHTS, RATE_WEIGHTS, RESTLESS_WEIGHTS)
USED_WEIGHTS = tuple(weight(k) for k in USED)
WEEK_WEIGHT = weight(WEEK_OF_MINUTES)
