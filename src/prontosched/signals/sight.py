"""What the embedding sees, and whether it is worth listening to.

Covers: aligned projections, T² and SPE as inputs, the one direction of the metrics
that has gone with contention so far, and `Sight`, a second head over these that
corrects the first only as far as its own record warrants.
Does not cover: the projections themselves; see `prontosched.pipeline.projection`.

The heads over contention history are learned without these inputs. A second head
learns what they miss. Every prediction of it is compared with the label, once
without and once with the correction, and it is listened to only while it has
earned it: where the metrics say nothing, nothing changes.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from prontosched.signals.arithmetic import One, Operations, Value
from prontosched.signals.heads import Heads, overlap
from prontosched.signals.held import Held
from prontosched.signals.history import weight
from prontosched.subspace import Array

DIRECTIONS = 4
FARTHEST = 6.0
SCALE_WEIGHT = weight(1440.0)
TREND_WEIGHT = weight(4.0)
ALONG_WEIGHT = weight(2000.0)
EARNED_WEIGHT = weight(2000.0)
CURVATURE_FLOOR = 0.02
LARGE = 1e6
# Evidence for the correction, as a logarithm of odds: from here it is listened to, to here fully.
HEARD, TRUSTED = 2.0, 8.0

NAMES = (
    *(f"direction {i + 1}" for i in range(DIRECTIONS)),
    "T²",
    "SPE",
    "metrics that went with contention",
    *(f"direction {i + 1} lately" for i in range(DIRECTIONS)),
    "T² lately",
    "SPE lately",
    "metrics that went with contention lately",
)


class Sight(Held):
    """A second head over what the embedding sees.

    Notes
    -----
    Memory: about 300 floats per node, and `d * (horizon + 1)` for the metrics.
    """

    HELD: ClassVar[tuple[str, ...]] = (
        "heads",
        "trends",
        "means",
        "squares",
        "seen",
        "gain",
        "gain_weight",
        "along",
        "along_weight",
        "along_scale",
    )

    def __init__(self, ops: Operations, horizon: int) -> None:
        self.ops = ops
        self.horizon = horizon
        self.heads = Heads(ops, np.zeros((1, len(NAMES))), overlap=overlap(horizon))
        raw = DIRECTIONS + 3
        self.trends = [ops.full(0.0) for _ in range(raw)]
        self.means = [ops.full(0.0) for _ in range(3)]
        self.squares = [ops.full(0.0) for _ in range(3)]
        self.seen = ops.full(0.0)
        self.gain = ops.full(0.0)
        self.gain_weight = ops.full(0.0)
        self.along = np.zeros((*ops.lead, 0))
        self._part = np.zeros(0)  # room for one node's part of a label
        self.along_weight = ops.full(0.0)
        self.along_scale = ops.full(1.0)

    def grow(self, features: int) -> None:
        """Make room for the metrics, whose number is known with the first vector."""
        self.along = np.zeros((*self.ops.lead, features))
        self._part = np.zeros(features)

    def inputs(
        self, directions: list[Value], t_squared: Value, spe: Value, along: Value, sees: Value
    ) -> Array:
        """Return the inputs, in the order of `NAMES`; zero where there is no subspace yet.

        Parameters
        ----------
        directions
            Projections in units of their usual size, `DIRECTIONS` of them within `FARTHEST`; 0 where there are none.
        along
            The vector along the direction that went with contention.
        sees
            Whether there is a subspace.
        """
        ops = self.ops
        on = sees * 1.0
        self.seen = seen = self.seen + on
        plain = 1.0 / ops.maximum(seen, 1.0)
        k = on * ops.maximum(SCALE_WEIGHT, plain)
        # The first values measure their own scale: they say nothing yet.
        warm = on * (seen > 30.0)
        raw = directions.copy()
        means, squares, trends = self.means, self.squares, self.trends
        for i, value in enumerate((ops.log(0.05 + t_squared), ops.log(1e-6 + spe), along)):
            apart = value - means[i]
            means[i] = means[i] + k * apart
            squares[i] = square = (1.0 - k) * (squares[i] + k * apart * apart)
            raw.append(warm * ops.clip(apart / (ops.sqrt(square) + 1e-3), -FARTHEST, FARTHEST))
        trend = on * ops.maximum(TREND_WEIGHT, plain)
        for i, old in enumerate(trends):
            trends[i] = old + trend * (raw[i] - old)
        return ops.stack(raw + trends)

    def heard(self) -> Value:
        """Return how far the correction is listened to, from 0 to 1."""
        # Log-likelihood ratio over what is remembered. Labels overlap over a horizon, so that many count as one.
        evidence = self.gain * self.gain_weight / self.horizon
        return self.ops.clip((evidence - HEARD) / (TRUSTED - HEARD), 0.0, 1.0)

    def learn(self, x: Array, vector: Array, logit: Value, label: Value, learns: Value) -> None:
        """Learn from one label what the first head missed, and keep count of what it was worth.

        Parameters
        ----------
        x, vector, logit
            The inputs, the telemetry vector and the first head's prediction of that time.
        """
        ops = self.ops
        # The correction of today's weights, not of that time's: neither has seen this label.
        without = 1.0 / (1.0 + ops.exp(-logit))
        p = 1.0 / (1.0 + ops.exp(-(logit + self.heads.predict(x)[0])))
        hit = label * 1.0
        better = ops.log((1e-9 + 1.0 - abs(hit - p)) / (1e-9 + 1.0 - abs(hit - without)))
        self.gain_weight = self.gain_weight + learns * (1.0 - EARNED_WEIGHT * self.gain_weight)
        k = learns / ops.maximum(self.gain_weight, 1.0)
        self.gain = self.gain + k * (better - self.gain)
        self.heads.learn(x, [hit - p], [ops.maximum(p * (1.0 - p), CURVATURE_FLOOR)], learns)
        self._learn_along(vector, hit - without, learns)

    def _learn_along(self, vector: Array, missed: Value, learns: Value) -> None:
        """Let the direction that went with contention fade, and add this label's part to it.

        Only where it points matters, so instead of it the new parts are scaled.
        """
        ops = self.ops
        self.along_weight = self.along_weight + learns
        k = learns * ops.clip(1.0 / ops.maximum(self.along_weight, 1.0), ALONG_WEIGHT, 0.5)
        self.along_scale = scale = self.along_scale / (1.0 - k)
        part = k * scale * missed
        if isinstance(ops, One):
            self.along += np.multiply(vector, part, self._part)
        else:
            self.along += part[:, None] * vector
        large = scale > LARGE
        if ops.any(large):
            shrink = ops.where(large, 1.0 / scale, 1.0)
            self.along *= shrink if isinstance(ops, One) else shrink[:, None]
            self.along_scale = scale * shrink

    def correction(self, x: Array) -> Value:
        """Return what to add to the first head's logit, as far as it is listened to."""
        heard = self.heard()
        if not self.ops.any(heard > 0.0):
            return self.ops.full(0.0)
        return heard * self.heads.predict(x)[0]

    def project(self, vector: Array) -> Value:
        """Return the vector along the direction that went with contention, in its own units."""
        if not vector.size:
            return self.ops.full(0.0)
        if isinstance(self.ops, One):
            along = self.along
            length = math.sqrt(along.dot(along))
            return float(along.dot(vector)) / length if length > 0.0 else 0.0
        length = np.sqrt(np.einsum("md,md->m", self.along, self.along))
        along = np.einsum("md,md->m", self.along, vector)
        return np.where(length > 0.0, along / np.maximum(length, 1e-300), 0.0)
