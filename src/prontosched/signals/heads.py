"""Linear heads that learn from each label once: logistic and least squares.

Covers: `Heads`, any number of recursive Newton learners over the same inputs, and
what they share with other nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from prontosched.signals.arithmetic import One, Operations, Value
from prontosched.signals.held import Held
from prontosched.subspace import Array
from prontosched.symmetric import upper, whole

# Labels' worth of the prior, and how far the past fades with each label.
RIDGE = 10.0
FORGETTING = 0.9998
# Labels overlap over a horizon, so learning from a few of them at a time loses nothing, and costs a tenth.
BATCH = 32
USUAL_HORIZON = 5


def overlap(horizon: int) -> float:
    """Return how many labels of a horizon count as one, where those of `USUAL_HORIZON` count singly.

    Labels of neighbouring steps look at nearly the same future, the more so the longer it is.
    """
    return max(1.0, horizon / USUAL_HORIZON)


class Heads(Held):
    """Recursive Newton learners over the same inputs.

    Labels are learned from a few at a time. For a least-squares head the curvature of
    every label is 1 and the recursion is exact; for a logistic head it is p (1 − p) at
    the prediction made. The past fades by `forgetting` per label. What was forgotten and not seen again would leave a
    head ever less sure and ever jumpier: the trace of the inverse information never
    exceeds its start.

    Parameters
    ----------
    prior
        Weights before any label, `(heads, k)`.
    ridge
        How many labels' worth the prior counts.
    forgetting
        What is left of the past with each label.
    overlap
        How many labels in a row say the same and count as one: against the prior, and
        for how fast the past fades.
    batch
        Labels learned from at a time.

    Notes
    -----
    Memory: `heads * k * (k + 1)` floats per node, and as much again while learning; half
    of that for what was borrowed.
    """

    HELD: ClassVar[tuple[str, ...]] = (
        "weights",
        "inverse",
        "prior_left",
        "labels",
        "waiting",
        "waiting_errors",
        "waiting_curvatures",
        "borrowed",
        "credit",
    )
    ASIDE: ClassVar[tuple[str, ...]] = ("borrowed", "credit")

    def __init__(
        self,
        ops: Operations,
        prior: Array,
        *,
        ridge: float = RIDGE,
        forgetting: float = FORGETTING,
        overlap: float = 1.0,
        batch: int = BATCH,
    ) -> None:
        self.ops = ops
        self.prior = prior
        self.overlap = overlap
        self.ridge = ridge = ridge * overlap
        self.batch = batch
        self.fade = forgetting ** (batch / overlap)
        heads, size = prior.shape
        lead = ops.lead
        self.weights = np.broadcast_to(prior, (*lead, heads, size)).copy()
        self.inverse = np.broadcast_to(np.eye(size) / ridge, (*lead, heads, size, size)).copy()
        self.prior_left = np.ones((*lead, heads))
        self.labels = ops.full(0)
        self.waiting = np.zeros((*lead, batch, size))
        self.waiting_errors = np.zeros((*lead, heads, batch))
        self.waiting_curvatures = np.ones((*lead, heads, batch))
        # What others lent when it began: upper triangles of information, and information times weights.
        self.borrowed = np.zeros((*lead, heads, size * (size + 3) // 2))
        # How many of its labels, and of the positive ones, are theirs.
        self.credit = np.zeros((*lead, 2), np.int64)
        self.cap = size / ridge
        self.identity = np.eye(size)
        # Labels not yet written to the arrays above: one write a batch costs a tenth of one a label.
        self._late: list[Array] = []
        self._late_numbers: list[float] = []

    def predict(self, x: Array) -> list[Value]:
        """Return one number per head for the inputs `(k,)`."""
        return self.ops.dot(self.weights, x)

    def learn(self, x: Array, errors: list[Value], curvatures: list[Value], learns: Value) -> None:
        """Learn from one label: how far each head was off, and how curved its loss is there."""
        ops = self.ops
        if isinstance(ops, One):
            if not learns:
                return
            self._late.append(x)
            self._late_numbers += errors + curvatures
            self.labels += 1
            if self.labels % self.batch == 0:
                self._write()
                self._newton(...)
            return
        rows = np.flatnonzero(learns)
        place = self.labels[rows] % self.batch
        self.labels[rows] += 1
        self.waiting[rows, place] = x[rows]
        for head, (error, curvature) in enumerate(zip(errors, curvatures, strict=True)):
            self.waiting_errors[rows, head, place] = error[rows]
            self.waiting_curvatures[rows, head, place] = curvature[rows]
        full = rows[place + 1 == self.batch]
        if full.size:
            self._newton(full)

    def _write(self) -> None:
        """Write to the arrays the labels that have come since the last time."""
        count = len(self._late)
        if count:
            end = (self.labels - 1) % self.batch + 1
            places = slice(end - count, end)
            numbers = np.array(self._late_numbers).reshape(count, 2, -1).transpose(1, 2, 0)
            self.waiting[places] = self._late
            self.waiting_errors[:, places], self.waiting_curvatures[:, places] = numbers
            self._late.clear()
            self._late_numbers.clear()

    def state(self) -> dict[str, Any]:
        """Return everything held, by name: plain numbers and arrays."""
        self._write()
        return super().state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        self._late.clear()
        self._late_numbers.clear()
        # Earlier releases did not keep what they had borrowed.
        none = {"borrowed": np.zeros_like(self.borrowed), "credit": np.zeros_like(self.credit)}
        super().restore({**none, **state})

    def _newton(self, at: Any) -> None:
        """Take one Newton step on the labels that wait, for the nodes `at`."""
        inputs = self.waiting[at][..., None, :, :]
        across = np.swapaxes(inputs, -1, -2)
        inverse = self.inverse[at] * (1.0 / self.fade)
        # (P⁻¹ + G)⁻¹ = (1 + P G)⁻¹ P, for the information G that the labels add.
        added = np.matmul(across * self.waiting_curvatures[at][..., None, :], inputs)
        inverse = np.linalg.solve(np.matmul(inverse, added) + self.identity, inverse)
        # Rounding would slowly make it lopsided.
        inverse = 0.5 * (inverse + np.swapaxes(inverse, -1, -2))
        slope = np.matmul(across, self.waiting_errors[at][..., None])
        self.weights[at] += np.matmul(inverse, slope)[..., 0]
        trace = inverse.trace(axis1=-2, axis2=-1)
        shrink = np.minimum(self.cap / np.maximum(trace, 1e-300), 1.0)
        self.inverse[at] = inverse * shrink[..., None, None]
        self.prior_left[at] = self.prior_left[at] * self.fade / shrink

    def share(self, at: Any = ...) -> tuple[Array, Array]:
        """Return information and information times weights, of own labels alone.

        They add up over nodes. For a least-squares head the sum is exactly what one
        head would hold that had learned from all of their labels; for a logistic head
        it is the sum of quadratic approximations, each around its own node's weights.
        The prior's part is left out, and what others lent: it is theirs to tell.
        """
        information = np.linalg.inv(self.inverse[at])
        weighted = np.matmul(information, self.weights[at][..., None])[..., 0]
        lent, lent_weighted = self._lent(at)
        left = self.prior_left[at][..., None]
        information = information - left[..., None] * (self.ridge * self.identity + lent)
        return information, weighted - left * (self.ridge * self.prior + lent_weighted)

    def start_from(self, information: Array, weighted: Array, scale: float, at: Any = ...) -> None:
        """Add shared information `(heads, k, k)` to own, each label counted `scale` times.

        What was borrowed before is given back.
        """
        self._write()
        own, own_weighted = self.share(at)
        self.prior_left[at] = 1.0
        self.borrowed[at] = np.concatenate([scale * upper(information), scale * weighted], axis=-1)
        lent, lent_weighted = self._lent(at)
        inverse = np.linalg.inv(own + self.ridge * self.identity + lent)
        inverse = 0.5 * (inverse + np.swapaxes(inverse, -1, -2))
        right = own_weighted + self.ridge * self.prior + lent_weighted
        self.inverse[at] = inverse
        self.weights[at] = np.matmul(inverse, right[..., None])[..., 0]

    def _lent(self, at: Any) -> tuple[Array, Array]:
        """Return what was borrowed, as it was then: information, and information times weights."""
        size, borrowed = self.prior.shape[-1], self.borrowed[at]
        return whole(borrowed[..., :-size], size), borrowed[..., -size:]
