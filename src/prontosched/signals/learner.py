"""The learned signal's one step, for one node or for many.

Labels that have come due are learned, the present is turned into inputs, the inputs into a score, the
score into a decision. `share` and `start_from` exchange what the two heads over contention history
learned: their inputs mean the same on every node. The correction is not shared: each node's directions
are its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import numpy as np

from prontosched.errors import StateError
from prontosched.signals.arithmetic import Component, One, Operations, Value, push
from prontosched.signals.heads import (
    BATCH,
    CORRECTION_INPUTS,
    CURVATURE_FLOOR,
    Correction,
    Heads,
    Outlook,
    overlap,
)
from prontosched.signals.inputs import (
    HISTORY_INPUTS,
    OFFSET,
    PROFILE_INPUTS,
    History,
    Profiles,
    StepClock,
)
from prontosched.signals.policy import Admission, AdmissionResult, Policy, Tolerance
from prontosched.signals.record import SignalRecord
from prontosched.subspace import Array
from prontosched.telemetry.scaling import weight_of

INPUTS = HISTORY_INPUTS + PROFILE_INPUTS
LEVEL_1440 = 5
# Without labels contention is expected to go on as it is: log odds 2.5 v - 0.3, greatest value v.
PERSISTENCE = (2.5, -0.3)
MOST_EXPECTED = 3.0
LEAST_SQUARES_TOP = math.log(MOST_EXPECTED)
LEAST_SQUARES_EDGE = math.log(1.0 + OFFSET)
ERROR_WEIGHT = weight_of(500.0)
ERROR_TO_LOGIT = 1.7
SCORE_LIMIT = 12.0
# Contention beyond this many tolerances is all the same, and would bend the heads.
MOST_CONTENTION = 100.0
# Bad days come in a row, so an offset common to all scores follows surprises: the information it
# starts with, and the most that it remembers.
OFFSET_PRIOR, OFFSET_KNOWN = 2.0, 100.0
USUAL_EVERY = 8
USUAL_WEIGHT = weight_of(1440.0 / USUAL_EVERY)
# The learned score takes over between these numbers of labels, positives counted twenty-fold.
FIRST_LABELS, ENOUGH_LABELS, LABELS_PER_SPIKE = 300.0, 1000.0, 20.0


# A fleet's labels count as at most this many of one's own, so that a node still learns what is different on it.
TRUSTED_LABELS = 2000.0


class StepInput(NamedTuple):
    """What a step brings, as floats for one node and arrays for many."""

    time: Value
    ready: Value
    utilisation: Value
    directions: list[Value]
    t_squared: Value
    spe: Value
    embedded: Value
    vector: Array


class ContentionLearner(Component):
    """Everything the learned signal holds of one node or of many.

    Memory: about 14,000 floats and `d * (horizon + 1)` of one node, 10,000 of each of many; 8,200 more for a
    percentile tolerance.
    """

    STATE = (
        "tolerance", "clock", "history", "profiles", "heads", "correction", "admission", "record",
        "outlook", "error", "positives", "contention", "inputs", "correction_inputs", "vectors", "logits",
        "decided_logits", "offsets", "offset_known", "during", "wanted", "early", "counts", "unknown",
        "level", "learned", "logit", "forecast", "expected", "usual",
    )  # fmt: skip
    __slots__ = ("policy", "unit", *STATE)
    SAVED_AS: ClassVar[Mapping[str, str]] = {
        "correction": "sight",
        "correction_inputs": "sights",
        "decided_logits": "said",
    }

    def __init__(self, ops: Operations, policy: Policy) -> None:
        self.ops = ops
        self.policy = policy
        self.unit = policy.unit
        horizon = policy.horizon
        self.tolerance = Tolerance(ops, policy.tolerance)
        self.clock = StepClock(ops)
        self.history = History(ops)
        self.profiles = Profiles(ops, horizon)
        prior = np.zeros((2, len(INPUTS)))
        prior[0, 1], prior[0, 0] = PERSISTENCE
        prior[1, 1] = 1.0
        self.heads = Heads(ops, prior, overlap=overlap(horizon))
        self.correction = Correction(ops, horizon)
        self.admission = Admission(ops, policy)
        self.record = SignalRecord(ops, horizon)
        if isinstance(ops, One):
            self.outlook = Outlook(ops, horizon)
        self.error = ops.full(0.25)
        self.positives = ops.full(0)
        # What was so at each of the last `horizon` steps, newest first. Contention below 0 is unknown.
        self.contention = [ops.full(-1.0) for _ in range(horizon)]
        self.inputs = [np.zeros((*ops.lead, len(INPUTS))) for _ in range(horizon)]
        self.correction_inputs = [np.zeros((*ops.lead, len(CORRECTION_INPUTS))) for _ in range(horizon)]
        self.vectors = [np.zeros((*ops.lead, 0)) for _ in range(horizon)]
        self.logits = [ops.full(0.0) for _ in range(horizon)]
        self.decided_logits = [ops.full(0.0) for _ in range(horizon)]
        self.offsets = [ops.full(0.0), ops.full(0.0)]
        self.offset_known = [ops.full(OFFSET_PRIOR), ops.full(OFFSET_PRIOR)]
        self.during = [ops.full(0.0) for _ in range(horizon)]
        self.wanted = [ops.full(False) for _ in range(horizon)]
        self.early = [ops.full(False) for _ in range(horizon)]
        self.counts = [ops.full(0.0) for _ in range(horizon)]  # how many steps its label stands for
        self.unknown = ops.full(0)
        # Of the last step: the score, the log odds of contention within the horizon, and the CPU Ready expected.
        self.level = ops.full(math.log(OFFSET))
        self.learned = ops.full(0.0)
        self.logit = ops.full(-9.0)
        self.forecast = ops.full(-9.0)
        self.expected = ops.full(0.0)
        self.usual = np.zeros((*ops.lead, len(INPUTS)))

    def grow(self, features: int) -> None:
        """Make room for the metrics, whose number is known with the first vector."""
        self.correction.grow(features)
        self.vectors = [np.zeros((*self.ops.lead, features)) for _ in self.vectors]

    def step(self, now: StepInput, *, known: bool, enforcing: bool) -> AdmissionResult:
        """Learn what has come due, and decide. CPU Ready is `known` of all nodes or of none."""
        ops = self.ops
        self.clock.advance(now.time)
        u = self._contention(now.ready) if known else ops.full(-1.0)
        spike = u >= 1.0
        push(self.contention, u)
        self._learn(spike)
        if known:
            self.unknown = ops.full(0)
            self._score(now, u, spike)
        else:
            # A missing value or two is no reason to change one's mind; more than a horizon of them is.
            self.unknown = self.unknown + 1
            stale = self.unknown > self.policy.horizon
            self.learned = ops.where(stale, -SCORE_LIMIT, self.learned)
            self.logit = ops.where(stale, -9.0, self.logit)
            self.forecast = ops.where(stale, -9.0, self.forecast)
            self._remember(self.inputs[0], self.correction_inputs[0], self.logits[0], now.vector)
        early = self.record.trusted_early
        result = self.admission.decide(
            self.learned, self.logit, u, self.clock, early, known=known, enforcing=enforcing
        )
        push(self.decided_logits, self.logit)
        push(self.during, spike * 1.0)
        # A forecast that has given way is judged by what it would have decided.
        own = self.forecast >= self.admission.close_at
        push(self.wanted, ops.where(self.record.demoted, own, result.wanted))
        push(self.early, result.early)
        push(self.counts, result.counts if known else ops.full(0.0))
        return result

    def chance(self) -> Value:
        """Return the chance of contention within the horizon."""
        return 1.0 / (1.0 + self.ops.exp(-self.logit))

    def _contention(self, ready: Value) -> Value:
        """Return CPU Ready in units of the tolerance."""
        ops = self.ops
        u = ops.clip(ready / self.tolerance.level, 0.0, MOST_CONTENTION)
        self.tolerance.learn(ready)
        return u

    def _learn(self, spike: Value) -> None:
        """Learn from the inputs of a horizon ago, whose label is complete now."""
        ops = self.ops
        highest = ops.largest(self.contention)
        hit = highest >= 1.0
        complete = hit | (ops.smallest(self.contention) >= 0.0)
        counts = ops.where(complete, self.counts[-1], 0.0)
        learns = counts > 0.0
        if ops.any(spike):
            self._learn_onset(spike)
        self.record.learn(self.wanted[-1], hit, counts)
        if ops.any(self.early[-1]):
            self.record.learn_early(self.early[-1], hit, counts)
        if not ops.any(learns):
            return
        x = self.inputs[-1]
        logit, level = self.heads.predict(x)
        p = 1.0 / (1.0 + ops.exp(-logit))
        off = ops.log(ops.clip(OFFSET + highest, OFFSET, MOST_EXPECTED)) - level
        self.error = self.error + learns * ERROR_WEIGHT * (off * off - self.error)
        happened = hit * 1.0
        self._learn_offsets(happened, learns)
        curvature = ops.maximum(p * (1.0 - p), CURVATURE_FLOOR)
        self.correction.learn(self.correction_inputs[-1], self.vectors[-1], self.logits[-1], hit, learns)
        self.heads.learn(x, [happened - p, off], [curvature, ops.full(1.0)], learns)
        self.positives = self.positives + (learns & hit)

    def _learn_offsets(self, happened: Value, learns: Value) -> None:
        """Move the offset of quiet or of contended steps by a Newton step on this label."""
        ops = self.ops
        chance = 1.0 / (1.0 + ops.exp(-self.decided_logits[-1]))
        part = learns / self.heads.overlap
        during = self.during[-1]
        for i, here in enumerate((part * (1.0 - during), part * during)):
            known = ops.minimum(self.offset_known[i] + here * chance * (1.0 - chance), OFFSET_KNOWN)
            self.offset_known[i] = known
            self.offsets[i] = ops.clip(self.offsets[i] + here * (happened - chance) / known, -4.0, 4.0)

    def _learn_onset(self, spike: Value) -> None:
        ops = self.ops
        onset = spike & (ops.largest(self.during) < 1.0)
        if not ops.any(onset):
            return
        lead = ops.full(0)
        undisturbed = ops.full(True)
        for back, (wanted, counts) in enumerate(zip(self.wanted, self.counts, strict=True), start=1):
            lead = ops.where(wanted, back, lead)
            undisturbed = undisturbed & (counts > 0.0)
        self.record.learn_onset(lead, onset & undisturbed)

    def _score(self, now: StepInput, u: Value, spike: Value) -> None:
        """Find the score, the log odds and the CPU Ready expected: `learned`, `logit` and `expected`."""
        ops = self.ops
        v = ops.log(OFFSET + u)
        self.level = v
        self.history.learn(v, spike, now.utilisation)
        returning = self.profiles.learn(self.clock, v - self.history.levels[LEVEL_1440], spike)
        x = ops.stack(self.history.inputs() + returning)
        seen = self.correction.inputs(
            now.directions, now.t_squared, now.spe, self.correction.project(now.vector), now.embedded
        )
        self._learn_usual(x)
        logit, level = self.heads.predict(x)
        self._remember(x, seen, logit, now.vector)
        correction = self.correction.correction(seen)
        apart = (level - LEAST_SQUARES_EDGE) / ops.sqrt(self.error + 1e-6)
        second = ops.clip(ERROR_TO_LOGIT * apart, -SCORE_LIMIT, SCORE_LIMIT)
        learned = 0.5 * (ops.clip(logit, -30.0, 30.0) + second) + correction
        trust = self.trust()
        quiet, busy = self.offsets
        offset = ops.where(spike, busy, quiet)
        present = PERSISTENCE[0] * v + PERSISTENCE[1]
        self.learned = present + trust * (learned - present)
        present, logit = present + offset, logit + offset
        self.forecast = ops.clip(present + trust * (logit + correction - present), -30.0, 30.0)
        self.logit = ops.where(self.record.demoted, ops.clip(present, -30.0, 30.0), self.forecast)
        self.expected = self._expected(u, v + trust * (level - v))

    def _learn_usual(self, x: Array) -> None:
        """Keep what the inputs usually are, to tell in words what is different now."""
        steps = self.history.steps
        due = steps % USUAL_EVERY == 1.0
        if self.ops.any(due):
            k = self.ops.where(due, self.ops.maximum(USUAL_WEIGHT, USUAL_EVERY / (steps + USUAL_EVERY)), 0.0)
            self.usual += (x - self.usual) * self.ops.column(k)

    def _expected(self, u: Value, level: Value) -> Value:
        ops = self.ops
        # The second head's target ends at three tolerances; what lies above is expected to stay.
        above = ops.maximum(u + OFFSET - MOST_EXPECTED, 0.0)
        units = ops.maximum(ops.exp(ops.minimum(level, LEAST_SQUARES_TOP)) - OFFSET, 0.0) + above
        # Two heads may disagree. What is expected lies on that side of the tolerance which the chance says.
        units = ops.where(self.logit >= 0.0, ops.maximum(units, 1.0), ops.minimum(units, 1.0))
        tolerance = self.tolerance.level
        return units * ops.where(tolerance < math.inf, tolerance, 0.0)

    def trust(self) -> Value:
        """Return how far the learned score has taken over from the present value, from 0 to 1."""
        ops = self.ops
        labels = ops.minimum(self.heads.labels, LABELS_PER_SPIKE * self.positives) / self.heads.overlap
        return ops.clip((labels - FIRST_LABELS) / (ENOUGH_LABELS - FIRST_LABELS), 0.0, 1.0)

    def _remember(self, x: Array, seen: Array, logit: Value, vector: Array) -> None:
        push(self.inputs, x)
        push(self.correction_inputs, seen)
        push(self.logits, logit)
        # Copied: a source may reuse its buffer.
        push(self.vectors, vector.copy())

    def share(self) -> dict[str, Array]:
        """Return what one node adds to a fleet's heads.

        Summed entry by entry over nodes, the least-squares part is exactly what one head
        over all of their labels would hold, and the logistic part the sum of each node's
        quadratic approximation. All zero until a first batch of labels has been learned.
        """
        heads = self.heads
        labels = np.array([heads.labels, self.positives]) - heads.fleet_labels
        if labels[0] < BATCH:
            information, weighted = (np.zeros(shape) for shape in self._shapes())
            labels[:] = 0
        else:
            information, weighted = heads.share()
        return {"information": information, "weighted": weighted, "labels": labels.astype(np.float64)}

    def start_from(self, shared: Mapping[str, Array]) -> None:
        """Go on, on one node, from own labels and the sum of what others shared."""
        heads = self.heads
        information, weighted, labels = (
            np.asarray(shared[name]) for name in ("information", "weighted", "labels")
        )
        if (information.shape, weighted.shape) != self._shapes() or labels.shape != (2,):
            raise StateError(
                f"shared statistics must be over 2 heads and {len(INPUTS)} inputs, got {information.shape}: "
                "they come from another version"
            )
        if not all(np.isfinite(values).all() for values in (information, weighted, labels)):
            raise StateError("shared statistics must be finite, got NaN or infinity: ignore this sender")
        # The least-squares information in the constant input counts labels, faded as the heads fade them.
        remembered = max(float(information[1, 0, 0]), 1e-9)
        scale = min(1.0, TRUSTED_LABELS / remembered)
        try:
            np.linalg.cholesky(scale * information + heads.ridge * heads.identity)
        except np.linalg.LinAlgError:
            raise StateError(
                "shared information must be a sum of squares, got one with negative directions: ignore this sender"
            ) from None
        heads.start_from(information, weighted, scale)
        # The labels of others count as own ones, as far as they are more.
        own = np.array([heads.labels, self.positives]) - heads.fleet_labels
        wanted = np.minimum(labels, [ENOUGH_LABELS, ENOUGH_LABELS / LABELS_PER_SPIKE])
        credit = np.maximum(np.floor(wanted) - own, 0).astype(np.int64)
        # In whole batches, so that labels that wait to be learned keep their places.
        credit[0] += -credit[0] % BATCH
        heads.fleet_labels = credit
        heads.labels, self.positives = (own + credit).tolist()

    def _shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        heads, inputs = self.heads.prior.shape
        return (heads, inputs, inputs), (heads, inputs)
