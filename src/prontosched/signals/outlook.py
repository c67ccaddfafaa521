"""Chances of contention within further horizons, from seconds to minutes ahead.

Covers: `Outlook`, one logistic head for each of `HORIZONS`, over a part of the
learner's inputs, for one node. The decision itself goes by the learner's own horizon, so
a fleet has none.

Labels of a long horizon overlap, so only every fifth of a horizon is one taken. Where
labels are still few, each head says what the present value alone would.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from prontosched.signals.arithmetic import Component, One, ring
from prontosched.signals.heads import CURVATURE_FLOOR, Heads
from prontosched.signals.inputs import HISTORY_INPUTS, Profiles, StepClock
from prontosched.subspace import Array

HORIZONS = (5, 30, 120, 600)
# Labels taken in one horizon.
PARTS = 5
BATCH = 4
RIDGE = 10.0
# Larger than the other inputs, so that how often contention comes at all is learned first.
CONSTANT = 4.0
# A label counts if CPU Ready was known for this share of its horizon.
KNOWN_SHARE = 0.9
USED = (
    "always",
    "CPU Ready now",
    "level over 15",
    "level over 60",
    "level over 240",
    "level over 1440",
    "highest of 15",
    "spike rate over 10",
    "spike rate over 60",
    "spike rate over 1440",
    "time since a spike",
    "utilisation now",
    "utilisation over 240",
    "contention now",
    "CPU Ready up to 3 tolerances",
)
PLACES = np.array([HISTORY_INPUTS.index(name) for name in USED])
PROFILES = 6


class OutlookHead(Component):
    """The chance of contention within one horizon.

    Notes
    -----
    Memory: about 900 floats.
    """

    SETTINGS: ClassVar[tuple[str, ...]] = ("horizon", "stride")

    def __init__(self, ops: One, horizon: int) -> None:
        self.ops = ops
        self.horizon = horizon
        self.stride = horizon // PARTS
        size = len(USED) + PROFILES
        prior = np.zeros((1, size))
        prior[0, 0] = -0.3 / CONSTANT
        # The farther ahead, the less the present value tells.
        prior[0, 1] = 2.5 - 0.32 * float(np.log(horizon / PARTS))
        self.heads = Heads(ops, prior, ridge=RIDGE, batch=BATCH)
        self.steps = 0
        # Highest contention and known steps since the last label was taken, and of the parts before.
        self.block = -1.0
        self.known = 0
        self.blocks = ring([-1.0] * PARTS)
        self.knowns = ring([0] * PARTS)
        self.inputs = ring([np.zeros(size)] * PARTS)
        self.learns = ring([False] * PARTS)

    def chance(self, x: Array) -> float:
        """Return the chance of contention within the horizon, from the inputs of `Outlook`."""
        return 1.0 / (1.0 + self.ops.exp(-self.heads.predict(x)[0]))  # type: ignore[no-any-return]

    def learn(self, x: Array, u: float, counts: float) -> None:
        """Take in one step: its inputs, its contention (below 0: unknown), and whether it may be learned from."""
        self.block = u if u > self.block else self.block
        self.known += u >= 0.0
        self.steps += 1
        if self.steps % self.stride:
            return
        self.blocks.appendleft(self.block)
        self.knowns.appendleft(self.known)
        hit = max(self.blocks) >= 1.0
        if self.learns[-1] and (hit or sum(self.knowns) >= KNOWN_SHARE * self.horizon):
            past = self.inputs[-1]
            p = self.chance(past)
            self.heads.learn(past, [hit - p], [max(p * (1.0 - p), CURVATURE_FLOOR)], True)
        self.inputs.appendleft(x)
        self.learns.appendleft(counts > 0.0)
        self.block, self.known = -1.0, 0


class Outlook(Component):
    """The chances of contention within each of `HORIZONS`, the learner's own left out.

    Notes
    -----
    Memory: about 900 floats per horizon.
    """

    SETTINGS: ClassVar[tuple[str, ...]] = ("horizons",)

    def __init__(self, ops: One, horizon: int) -> None:
        self.ops = ops
        self.horizons = tuple(h for h in HORIZONS if h != horizon)
        for h in self.horizons:
            setattr(self, f"within_{h}", OutlookHead(ops, h))

    def step(self, x: Array, u: float, counts: float, clock: StepClock, profiles: Profiles) -> list[float]:
        """Learn from one step, and return the chance within each horizon."""
        shared = x[PLACES]
        shared[0] = CONSTANT
        chances: list[float] = []
        for horizon in self.horizons:
            head: OutlookHead = getattr(self, f"within_{horizon}")
            inputs = np.concatenate([shared, profiles.ahead(clock, horizon)])
            head.learn(inputs, u, counts)
            chances.append(head.chance(inputs))
        return chances
