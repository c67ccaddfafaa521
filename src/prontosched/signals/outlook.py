"""Chances of contention within further horizons, from seconds to minutes ahead.

Covers: `Outlook`, one logistic head for each of `HORIZONS`, over a part of the
learner's inputs. The decision itself goes by the learner's own horizon.

Labels of a long horizon overlap, so only every fifth of a horizon is one taken. Where
labels are still few, each head says what the present value alone would.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from prontosched.signals.arithmetic import Component, One, Operations, Value
from prontosched.signals.heads import Heads
from prontosched.signals.inputs import HISTORY_INPUTS, Profiles, StepClock
from prontosched.subspace import Array

HORIZONS = (5, 30, 120, 600)
# Labels taken in one horizon.
PARTS = 5
BATCH = 4
RIDGE = 10.0
# Larger than the other inputs, so that how often contention comes at all is learned first.
CONSTANT = 4.0
CURVATURE_FLOOR = 0.02
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


def rising(chances: Mapping[int, Value]) -> dict[int, Value]:
    """Return chances by steps ahead, shortest first, none below that of a shorter horizon.

    Examples
    --------
    >>> {horizon: float(chance) for horizon, chance in rising({30: 0.4, 5: 0.5, 120: 0.9}).items()}
    {5: 0.5, 30: 0.5, 120: 0.9}
    """
    found: dict[int, Value] = {}
    highest: Value = 0.0
    for horizon in sorted(chances):
        highest = found[horizon] = np.maximum(highest, chances[horizon])
    return found


class OutlookHead(Component):
    """The chance of contention within one horizon.

    Notes
    -----
    Memory: about 900 floats per node.
    """

    SETTINGS: ClassVar[tuple[str, ...]] = ("horizon", "stride")

    def __init__(self, ops: Operations, horizon: int) -> None:
        self.ops = ops
        self.horizon = horizon
        self.stride = horizon // PARTS
        size = len(USED) + PROFILES
        prior = np.zeros((1, size))
        prior[0, 0] = -0.3 / CONSTANT
        # The farther ahead, the less the present value tells.
        prior[0, 1] = 2.5 - 0.32 * float(np.log(horizon / PARTS))
        self.heads = Heads(ops, prior, ridge=RIDGE, batch=BATCH)
        self.steps = ops.full(0)
        # Highest contention and known steps since the last label was taken, and of the parts before.
        self.block = ops.full(-1.0)
        self.known = ops.full(0)
        self.blocks = [ops.full(-1.0) for _ in range(PARTS)]
        self.knowns = [ops.full(0) for _ in range(PARTS)]
        self.inputs = [np.zeros((*ops.lead, size)) for _ in range(PARTS)]
        self.learns = [ops.full(False) for _ in range(PARTS)]

    def chance(self, x: Array) -> Value:
        """Return the chance of contention within the horizon, from the inputs of `Outlook`."""
        return 1.0 / (1.0 + self.ops.exp(-self.heads.predict(x)[0]))

    def learn(self, x: Array, u: Value, counts: Value) -> None:
        """Take in one step: its inputs, its contention (below 0: unknown), and whether it may be learned from."""
        ops = self.ops
        self.block = ops.maximum(self.block, u)
        self.known = self.known + (u >= 0.0)
        self.steps = self.steps + 1
        due = self.steps % self.stride == 0
        if not ops.any(due):
            return
        self.blocks = self._shifted(self.blocks, self.block, due)
        self.knowns = self._shifted(self.knowns, self.known, due)
        hit = ops.largest(self.blocks) >= 1.0
        complete = ops.either(hit, sum(self.knowns) >= KNOWN_SHARE * self.horizon)
        learns = ops.both(due, ops.both(complete, self.learns[-1]))
        if ops.any(learns):
            past = self.inputs[-1]
            p = self.chance(past)
            self.heads.learn(past, [hit - p], [ops.maximum(p * (1.0 - p), CURVATURE_FLOOR)], learns)
        self.inputs = self._shifted(self.inputs, x, due)
        self.learns = self._shifted(self.learns, counts > 0.0, due)
        self.block = ops.where(due, -1.0, self.block)
        self.known = ops.where(due, 0, self.known)

    def _shifted(self, old: list[Value], new: Value, due: Value) -> list[Value]:
        """Put `new` in front of a list where a label is due."""
        ops = self.ops
        if isinstance(ops, One):
            return [new, *old[:-1]]
        where = due if np.ndim(new) == 1 else due[:, None]
        return [ops.where(where, a, b) for a, b in zip([new, *old[:-1]], old, strict=True)]


class Outlook(Component):
    """The chances of contention within each of `HORIZONS`, the learner's own left out.

    Notes
    -----
    Memory: about 900 floats per horizon and node.
    """

    SETTINGS: ClassVar[tuple[str, ...]] = ("horizons",)

    def __init__(self, ops: Operations, horizon: int) -> None:
        self.ops = ops
        self.horizons = tuple(h for h in HORIZONS if h != horizon)
        for h in self.horizons:
            setattr(self, f"within_{h}", OutlookHead(ops, h))

    def step(self, x: Array, u: Value, counts: Value, clock: StepClock, profiles: Profiles) -> list[Value]:
        """Learn from one step, and return the chance within each horizon."""
        ops = self.ops
        shared = x[..., PLACES]
        shared[..., 0] = CONSTANT
        chances: list[Value] = []
        for horizon in self.horizons:
            head: OutlookHead = getattr(self, f"within_{horizon}")
            inputs = np.concatenate([shared, ops.stack(profiles.ahead(clock, horizon))], axis=-1)
            head.learn(inputs, u, counts)
            chances.append(head.chance(inputs))
        return chances
