"""What a node's own contention has been doing: the inputs any node can give.

Covers: levels, trends, spike rates and restlessness of CPU Ready, and utilisation.
Does not cover: what returns with the clock (`profiles`), what the embedding sees
(`sight`).
"""

from __future__ import annotations

from typing import ClassVar

from prontosched.signals.arithmetic import Operations, Value
from prontosched.signals.held import Held

SHORT, LONG = (2.0, 5.0, 15.0), (60.0, 240.0, 1440.0)
RATES = (10.0, 60.0, 1440.0)
RESTLESS = (5.0, 240.0)
USED = (2.0, 15.0, 240.0)
WEEK_OF_MINUTES = 7 * 1440.0
OFFSET = 0.05


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
        first = self.steps == 0.0
        self.steps = self.steps + 1.0
        plain = 1.0 / self.steps
        step = ops.where(first, 0.0, v - self.recent[0])
        self.recent.insert(0, v)
        self.recent.pop()
        if ops.any(first):
            self.recent = [ops.where(first, v, old) for old in self.recent]
        hit = spike * 1.0
        size = abs(step)
        # Until an average is as long as its memory it is a plain mean.
        young = ops.any(plain > LEVEL_WEIGHTS[-1])
        for values, weights, new in (
            (self.levels, LEVEL_WEIGHTS, v),
            (self.rates, RATE_WEIGHTS, hit),
            (self.restless, RESTLESS_WEIGHTS, size),
        ):
            for i, k in enumerate(weights):
                old = values[i]
                values[i] = old + (ops.maximum(k, plain) if young else k) * (new - old)
        self.since = ops.where(spike, 0.0, self.since + 1.0)
        self._learn_utilisation(utilisation)

    def _learn_utilisation(self, utilisation: Value) -> None:
        ops = self.ops
        known = ops.known(utilisation)
        if not ops.any(known):
            return
        value = ops.where(known, utilisation, self.used_mean)
        self.used_steps = self.used_steps + ops.where(known, 1.0, 0.0)
        plain = 1.0 / ops.maximum(self.used_steps, 1.0)
        k = ops.where(known, ops.maximum(WEEK_WEIGHT, plain), 0.0)
        apart = value - self.used_mean
        self.used_mean = self.used_mean + k * apart
        self.used_square = (1.0 - k) * (self.used_square + k * apart * apart)
        # The floor keeps a utilisation that hardly moves from filling the scale with its rounding.
        scale = ops.sqrt(self.used_square) + 0.01 * abs(self.used_mean) + 1e-9
        z = ops.clip((value - self.used_mean) / scale, -8.0, 8.0)
        self.used_now = ops.where(known, z, self.used_now)
        for i, w in enumerate(USED_WEIGHTS):
            used = self.used[i]
            self.used[i] = used + ops.where(known, ops.maximum(w, plain), 0.0) * (z - used)

    def inputs(self) -> list[Value]:
        """Return the inputs, in the order of `NAMES`."""
        ops = self.ops
        v = self.recent[0]
        levels = self.levels
        five = self.recent[:5]
        z = self.used_now
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
            ops.largest(self.recent) - v,
            ops.smallest(five) - v,
            ops.sqrt(self.rates[0]),
            ops.sqrt(self.rates[1]),
            ops.sqrt(self.rates[2]),
            0.25 * ops.log(1.0 + self.since),
            self.restless[0],
            self.restless[1],
            z,
            self.used[0] - z,
            self.used[1] - z,
            self.used[2],
        ]


LEVEL_WEIGHTS = tuple(weight(k) for k in SHORT + LONG)
RATE_WEIGHTS = tuple(weight(k) for k in RATES)
RESTLESS_WEIGHTS = tuple(weight(k) for k in RESTLESS)
USED_WEIGHTS = tuple(weight(k) for k in USED)
WEEK_WEIGHT = weight(WEEK_OF_MINUTES)
