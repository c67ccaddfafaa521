"""Linear heads that learn from each label once: logistic and least squares.

Covers: `Heads`, any number of recursive Newton learners over the same inputs, and
what they share with other nodes.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from prontosched.signals.arithmetic import One, Operations, Value
from prontosched.signals.held import Held
from prontosched.subspace import Array

RIDGE = 10.0
FORGETTING = 0.9998
CHECKED_EVERY = 16


class Heads(Held):
    """Recursive Newton learners over the same inputs.

    For a least-squares head the curvature of every label is 1 and the recursion is
    exact; for a logistic head it is p (1 − p) at the prediction made. The past fades
    by `forgetting` per label. What was forgotten and not seen again would leave a
    head ever less sure and ever jumpier: the trace of the inverse information never
    exceeds its start.

    Parameters
    ----------
    prior
        Weights before any label, `(heads, k)`.
    ridge
        How many labels' worth the prior counts.

    Notes
    -----
    Memory: `heads * k * (k + 1)` floats per node, and as much again while learning.
    """

    HELD: ClassVar[tuple[str, ...]] = ("weights", "inverse", "prior_left", "labels")

    def __init__(
        self, ops: Operations, prior: Array, *, ridge: float = RIDGE, forgetting: float = FORGETTING
    ):
        self.ops = ops
        self.prior = prior
        self.ridge = ridge
        self.forgetting = forgetting
        heads, size = prior.shape
        self.weights = np.broadcast_to(prior, (*ops.lead, heads, size)).copy()
        self.inverse = np.broadcast_to(np.eye(size) / ridge, (*ops.lead, heads, size, size)).copy()
        self.prior_left = np.ones((*ops.lead, heads))
        self.labels = ops.full(0)
        self.cap = size / ridge

    def predict(self, x: Array) -> list[Value]:
        """Return one number per head for the inputs `(k,)`."""
        return self.ops.dot(self.weights, x)

    def learn(self, x: Array, errors: list[Value], curvatures: list[Value], learns: Value) -> None:
        """Learn from one label: how far each head was off, and how curved its loss is there."""
        ops = self.ops
        if not ops.any(learns):
            return
        self.labels = self.labels + ops.where(learns, 1, 0)
        if isinstance(ops, One):
            self.inverse *= 1.0 / self.forgetting
            self.prior_left *= self.forgetting
            error, curvature = np.array(errors), np.array(curvatures)
        else:
            fade = np.where(learns, self.forgetting, 1.0)
            self.inverse *= (1.0 / fade)[:, None, None, None]
            self.prior_left *= fade[:, None]
            error = np.where(learns[:, None], np.stack(errors, axis=-1), 0.0)
            curvature = np.where(learns[:, None], np.stack(curvatures, axis=-1), 0.0)
        gain = ops.times(self.inverse, x)
        reach = np.matmul(gain, x) if isinstance(ops, One) else np.matmul(gain, x[..., None])[..., 0]
        # Rounding can leave an inverse a hair below zero in a direction never seen.
        divisor = 1.0 + curvature * np.maximum(reach, 0.0)
        self.weights += gain * (error / divisor)[..., None]
        change = gain[..., :, None] * gain[..., None, :]
        change *= (curvature / divisor)[..., None, None]
        self.inverse -= change
        due = ops.both(learns, self.labels % CHECKED_EVERY == 0)
        if ops.any(due):
            self._hold_trace(due)

    def _hold_trace(self, due: Value) -> None:
        trace = np.trace(self.inverse, axis1=-2, axis2=-1)
        shrink = np.where(trace > self.cap, self.cap / trace, 1.0)
        if not isinstance(self.ops, One):
            shrink = np.where(due[:, None], shrink, 1.0)
        self.inverse *= shrink[..., None, None]
        self.prior_left /= shrink

    def share(self) -> tuple[Array, Array]:
        """Return information and information times weights, without the prior's part.

        They add up over nodes. For a least-squares head the sum is exactly what one
        head would hold that had learned from all of their labels; for a logistic head
        it is the sum of quadratic approximations, each around its own node's weights.
        """
        size = self.prior.shape[-1]
        information = np.linalg.inv(self.inverse)
        weighted = np.matmul(information, self.weights[..., None])[..., 0]
        prior = self.ridge * self.prior_left[..., None]
        information = information - prior[..., None] * np.eye(size)
        return information, weighted - prior * self.prior

    def start_from(self, information: Array, weighted: Array, scale: float) -> None:
        """Begin with shared information `(heads, k, k)`, each label counted `scale` times."""
        size = self.prior.shape[-1]
        total = scale * information + self.ridge * np.eye(size)
        right = scale * weighted + self.ridge * self.prior
        inverse = np.linalg.inv(total)
        self.inverse[...] = 0.5 * (inverse + np.swapaxes(inverse, -1, -2))
        self.weights[...] = np.matmul(self.inverse, right[..., None])[..., 0]
        self.prior_left[...] = 1.0
