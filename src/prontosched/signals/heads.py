"""Linear heads that learn from each label once: logistic and least squares.

`Heads` are any number of recursive Newton learners over the same inputs, with what they share
with other nodes.

`Correction` is a second head over what the embedding gives: aligned projections, T², SPE and the
one direction of the metrics that has gone with contention so far. The heads over contention
history are learned without these. The correction learns what they miss. Each of its predictions is
compared with the label, once without and once with the correction, and it counts only as far as it
has earned it: where the metrics add nothing, nothing changes.

`Outlook` has one logistic head for each of `HORIZONS`, from seconds to minutes ahead, over a part
of the learner's inputs. The decision itself goes by the learner's own horizon, so a fleet has none.
Labels of a long horizon overlap, so only every fifth of a horizon is one taken. Where labels are
still few, each head says what the present value alone would.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from operator import itemgetter, mul
from typing import Any, ClassVar

import numpy as np

from prontosched.codec import pack_symmetric, unpack_symmetric
from prontosched.errors import StateError
from prontosched.signals.arithmetic import Component, One, Operations, Value, push
from prontosched.signals.inputs import BINS_OF, HISTORY_INPUTS, Profiles, StepClock
from prontosched.subspace import Array
from prontosched.telemetry.scaling import weight_of

# Labels' worth of the prior, and how far the past fades with each label.
RIDGE = 10.0
FORGETTING = 0.9998
# Labels overlap over a horizon, so learning from a few of them at a time loses nothing, and costs a tenth.
BATCH = 32
# Nodes of a fleet that take a Newton step together: their matrices then stay in the cache.
CHUNK = 32
# Labels of theirs that are solved for together: small systems and products of matrices are faster than a large system.
FEW = 16
USUAL_HORIZON = 5
# Where a logistic head is nearly certain its loss is flat: a label then counts as if curved this much.
CURVATURE_FLOOR = 0.02


def overlap(horizon: int) -> float:
    """Return how many labels of a horizon count as one, where those of `USUAL_HORIZON` count singly.

    Labels of neighbouring steps look at nearly the same future, the more so the longer it is.
    """
    return max(1.0, horizon / USUAL_HORIZON)


class Heads(Component):
    """Recursive Newton learners over the same inputs.

    Labels are learned from `batch` at a time. For a least-squares head the curvature of every label is 1
    and the recursion is exact; for a logistic head it is p (1 − p) at the prediction made. The past fades
    by `forgetting` per label. What was forgotten and not seen again would leave a head ever less sure
    and ever jumpier: the trace of the inverse information never exceeds its start.

    The weights before any label, `prior` `(heads, k)`, count as much as `ridge` labels. So many labels in a row
    as `overlap` says carry the same and count as one: against the prior, and for how fast the past fades.

    Memory: `heads * k * (k + 1)` floats per node, and as much again while learning; half of that for what was
    taken from a fleet.
    """

    STATE = (
        "weights", "inverse", "prior_left", "labels", "waiting", "waiting_errors", "waiting_curvatures",
        "fleet_prior", "fleet_labels",
    )  # fmt: skip
    __slots__ = ("prior", "overlap", "ridge", "batch", "fade", "cap", *STATE)
    SAVED_AS: ClassVar[Mapping[str, str]] = {"fleet_prior": "borrowed", "fleet_labels": "credit"}

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
        if isinstance(ops, One):
            # What a fleet had learned, if anything: upper triangles of information, and information times weights.
            self.fleet_prior = np.zeros((heads, 0))
            # How many of the labels, and of the positive ones, are the fleet's.
            self.fleet_labels = np.zeros(2, np.int64)
        self.cap = size / ridge

    @property
    def identity(self) -> Array:
        """The identity matrix `(k, k)`."""
        return _identity(self.prior.shape[-1])

    def predict(self, x: Array) -> list[Value]:
        """Return one number per head for the inputs `(k,)`."""
        return self.ops.dot(self.weights, x)

    def learn(self, x: Array, errors: list[Value], curvatures: list[Value], learns: Value) -> None:
        """Learn from one label: how far each head was off, and how curved its loss is there."""
        if isinstance(self.ops, One):
            if learns:
                place = self.labels % self.batch
                self.labels += 1
                self.waiting[place] = x
                for head, error in enumerate(errors):
                    self.waiting_errors[head, place] = error
                    self.waiting_curvatures[head, place] = curvatures[head]
                if place + 1 == self.batch:
                    self._newton(...)
            return
        rows = np.flatnonzero(learns)
        place = self.labels[rows] % self.batch
        full = rows[place + 1 == self.batch]
        at: Any = rows
        if rows.size == len(learns) and (place == place[0]).all():
            at, place = slice(None), int(place[0])
        self.labels[at] += 1
        self.waiting[at, place] = x[at]
        for head, (error, curvature) in enumerate(zip(errors, curvatures, strict=True)):
            self.waiting_errors[at, head, place] = error[at]
            self.waiting_curvatures[at, head, place] = curvature[at]
        for start in range(0, full.size, CHUNK):
            self._newton(full[start : start + CHUNK] if at is rows else slice(start, start + CHUNK))

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        # Earlier releases did not keep what they had taken from a fleet.
        heads, size = self.prior.shape
        taken = {"borrowed": np.zeros((heads, 0)), "credit": np.zeros_like(self.fleet_labels), **state}
        if np.shape(taken["borrowed"]) not in ((heads, 0), (heads, size * (size + 3) // 2)):
            raise StateError(f"saved 'borrowed' must be of {size} inputs, got {np.shape(taken['borrowed'])}")
        super().restore(taken)

    def _newton(self, at: Any) -> None:
        """Take one Newton step on the labels that wait, for the nodes `at`."""
        inputs = self.waiting[at][..., None, :, :]
        across = np.swapaxes(inputs, -1, -2)
        inverse = self.inverse[at] * (1.0 / self.fade)
        curvatures = self.waiting_curvatures[at]
        few = self.batch if isinstance(self.ops, One) else min(self.batch, FEW)
        if 2 * few < self.prior.shape[-1]:
            # A few labels X of curvatures C: (P⁻¹ + X'CX)⁻¹ = P - PX' (C⁻¹ + XPX')⁻¹ XP.
            for start in range(0, self.batch, few):
                some = slice(start, min(start + few, self.batch))
                part = np.matmul(inputs[..., some, :], inverse)
                own = (1.0 / curvatures[..., some])[..., None] * _identity(some.stop - start)
                small = np.matmul(part, across[..., some]) + own
                inverse -= np.matmul(np.swapaxes(part, -1, -2), np.linalg.solve(small, part))
        else:
            # (P⁻¹ + G)⁻¹ = (1 + P G)⁻¹ P, for the information G that the labels add.
            added = np.matmul(across * curvatures[..., None, :], inputs)
            inverse = np.linalg.solve(np.matmul(inverse, added) + self.identity, inverse)
        # Rounding would slowly make it lopsided.
        inverse = 0.5 * (inverse + np.swapaxes(inverse, -1, -2))
        slope = np.matmul(across, self.waiting_errors[at][..., None])
        self.weights[at] += np.matmul(inverse, slope)[..., 0]
        trace = inverse.trace(axis1=-2, axis2=-1)
        shrink = np.minimum(self.cap / np.maximum(trace, 1e-300), 1.0)
        self.inverse[at] = inverse * shrink[..., None, None]
        self.prior_left[at] = self.prior_left[at] * self.fade / shrink

    def share(self) -> tuple[Array, Array]:
        """Return information and information times weights of one node, of own labels alone.

        They add up over nodes. For a least-squares head the sum is exactly what one
        head would hold that had learned from all of their labels; for a logistic head
        it is the sum of quadratic approximations, each around its own node's weights.
        The prior's part is left out, and the fleet's, which others share themselves.
        """
        information = np.linalg.inv(self.inverse)
        weighted = np.matmul(information, self.weights[..., None])[..., 0]
        fleet, fleet_weighted = self._fleet_prior()
        left = self.prior_left[:, None]
        information = information - left[..., None] * (self.ridge * self.identity + fleet)
        return information, weighted - left * (self.ridge * self.prior + fleet_weighted)

    def start_from(self, information: Array, weighted: Array, scale: float) -> None:
        """Add shared information `(heads, k, k)` to that of one node, each label counted `scale` times.

        What was taken from a fleet before is replaced.
        """
        own, own_weighted = self.share()
        self.prior_left[:] = 1.0
        self.fleet_prior = np.concatenate([scale * pack_symmetric(information), scale * weighted], axis=-1)
        fleet, fleet_weighted = self._fleet_prior()
        inverse = np.linalg.inv(own + self.ridge * self.identity + fleet)
        self.inverse[:] = 0.5 * (inverse + np.swapaxes(inverse, -1, -2))
        right = own_weighted + self.ridge * self.prior + fleet_weighted
        self.weights = np.matmul(self.inverse, right[..., None])[..., 0]

    def _fleet_prior(self) -> tuple[Array, Array] | tuple[float, float]:
        size = self.prior.shape[-1]
        if not self.fleet_prior.size:
            return 0.0, 0.0
        return unpack_symmetric(self.fleet_prior[:, :-size], size), self.fleet_prior[:, -size:]


@lru_cache(maxsize=16)
def _identity(size: int) -> Array:
    return np.eye(size)


DIRECTIONS = 4
FARTHEST = 6.0
SCALE_WEIGHT = weight_of(1440.0)
TREND_WEIGHT = weight_of(4.0)
ALONG_WEIGHT = weight_of(2000.0)
EARNED_WEIGHT = weight_of(2000.0)
LARGE = 1e6
# Evidence for the correction, as a logarithm of odds: where it begins to count, and where it counts in full.
FIRST_EVIDENCE, ENOUGH_EVIDENCE = 2.0, 8.0

CORRECTION_INPUTS = (
    *(f"direction {i + 1}" for i in range(DIRECTIONS)),
    "T²",
    "SPE",
    "metrics that went with contention",
    *(f"direction {i + 1} lately" for i in range(DIRECTIONS)),
    "T² lately",
    "SPE lately",
    "metrics that went with contention lately",
)


class Correction(Component):
    """A second head, over what the embedding gives.

    Memory: about 300 floats per node, and `d * (horizon + 1)` for the metrics.
    """

    STATE = (
        "heads", "trends", "means", "squares", "seen", "gain", "gain_weight", "along", "along_weight",
        "along_scale",
    )  # fmt: skip
    __slots__ = ("horizon", *STATE)

    def __init__(self, ops: Operations, horizon: int) -> None:
        self.ops = ops
        self.horizon = horizon
        self.heads = Heads(ops, np.zeros((1, len(CORRECTION_INPUTS))), overlap=overlap(horizon))
        raw = DIRECTIONS + 3
        self.trends = [ops.full(0.0) for _ in range(raw)]
        self.means = [ops.full(0.0) for _ in range(3)]
        self.squares = [ops.full(0.0) for _ in range(3)]
        self.seen = ops.full(0.0)
        self.gain = ops.full(0.0)
        self.gain_weight = ops.full(0.0)
        self.along = np.zeros((*ops.lead, 0))
        self.along_weight = ops.full(0.0)
        self.along_scale = ops.full(1.0)

    def grow(self, features: int) -> None:
        """Make room for the metrics, whose number is known with the first vector."""
        self.along = np.zeros((*self.ops.lead, features))

    def inputs(
        self, directions: list[Value], t_squared: Value, spe: Value, along: Value, embedded: Value
    ) -> Array:
        """Return the inputs, in the order of `CORRECTION_INPUTS`; zero where there is no subspace yet.

        `directions` are `DIRECTIONS` projections in units of their usual size, within `FARTHEST`; `along` is the
        vector along the direction that went with contention.
        """
        ops = self.ops
        on = embedded * 1.0
        self.seen = seen = self.seen + on
        plain = 1.0 / ops.maximum(seen, 1.0)
        k = on * ops.maximum(SCALE_WEIGHT, plain)
        # The first values measure their own scale: they say nothing yet.
        warm = on * (seen > 30.0)
        raw = directions.copy()
        means, squares, kept = self.means, self.squares, 1.0 - k
        for i, value in enumerate((ops.log(0.05 + t_squared), ops.log(1e-6 + spe), along)):
            apart = value - means[i]
            moved = k * apart
            means[i] = means[i] + moved
            squares[i] = square = kept * (squares[i] + moved * apart)
            raw.append(warm * ops.clip(apart / (ops.sqrt(square) + 1e-3), -FARTHEST, FARTHEST))
        trend = on * ops.maximum(TREND_WEIGHT, plain)
        self.trends = [old + trend * (new - old) for old, new in zip(self.trends, raw, strict=True)]
        inputs: Array = ops.stack(raw + self.trends)
        return inputs

    def trust(self) -> Value:
        """Return how far the correction counts, from 0 to 1."""
        # Log-likelihood ratio over what is remembered. Labels overlap over a horizon, so that many count as one.
        evidence = self.gain * self.gain_weight / self.horizon
        return self.ops.clip((evidence - FIRST_EVIDENCE) / (ENOUGH_EVIDENCE - FIRST_EVIDENCE), 0.0, 1.0)

    def learn(self, x: Array, vector: Array, logit: Value, label: Value, learns: Value) -> None:
        """Learn from one label what the first head missed, and keep count of what it was worth.

        `x`, `vector` and `logit` are the inputs, the telemetry vector and the first head's prediction of that time.
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
        self.along += vector * ops.column(part)
        large = scale > LARGE
        if ops.any(large):
            shrink = ops.where(large, 1.0 / scale, 1.0)
            self.along *= ops.column(shrink)
            self.along_scale = scale * shrink

    def correction(self, x: Array) -> Value:
        """Return what to add to the first head's logit, as far as it counts."""
        trust = self.trust()
        if not self.ops.any(trust > 0.0):
            return self.ops.full(0.0)
        return trust * self.heads.predict(x)[0]

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


HORIZONS = (5, 30, 120, 600)
# Labels taken in one horizon.
PARTS = 5
OUTLOOK_BATCH = 4
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
_used = itemgetter(*(HISTORY_INPUTS.index(name) for name in USED[1:]))
PROFILES = 6


class OutlookHead(Component):
    """The chance of contention within one horizon.

    Memory: about 900 floats.
    """

    STATE = ("heads", "steps", "block", "known", "blocks", "knowns", "inputs", "learns")
    __slots__ = ("horizon", "stride", "_weights", *STATE)

    def __init__(self, ops: One, horizon: int) -> None:
        self.ops = ops
        self.horizon = horizon
        self.stride = horizon // PARTS
        size = len(USED) + PROFILES
        prior = np.zeros((1, size))
        prior[0, 0] = -0.3 / CONSTANT
        # The farther ahead, the less the present value tells.
        prior[0, 1] = 2.5 - 0.32 * math.log(horizon / PARTS)
        self.heads = Heads(ops, prior, batch=OUTLOOK_BATCH)
        self.steps = 0
        # Highest contention and known steps since the last label was taken, and of the parts before.
        self.block = -1.0
        self.known = 0
        self.blocks = [-1.0] * PARTS
        self.knowns = [0] * PARTS
        self.inputs = [np.zeros(size)] * PARTS
        self.learns = [False] * PARTS
        # The head's weights as floats, until it learns again.
        self._weights: list[float] = []

    def note(self, u: float) -> bool:
        """Take in one step's contention (below 0: unknown); tell whether a part of the horizon ends with it."""
        if u > self.block:
            self.block = u
        if u >= 0.0:
            self.known += 1
        self.steps += 1
        return self.steps % self.stride == 0

    def end_part(self, x: list[float], counts: float) -> None:
        """Learn from the inputs of a horizon ago, and keep those of now for their label.

        `x` are the inputs of `Outlook`, and `counts` is 0 for a step that must not be learned from.
        """
        push(self.blocks, self.block)
        push(self.knowns, self.known)
        hit = max(self.blocks) >= 1.0
        if self.learns[-1] and (hit or sum(self.knowns) >= KNOWN_SHARE * self.horizon):
            past = self.inputs[-1]
            p = self.chance(past.tolist())
            self.heads.learn(past, [hit - p], [max(p * (1.0 - p), CURVATURE_FLOOR)], True)
            self._weights = []
        push(self.inputs, np.array(x))
        push(self.learns, counts > 0.0)
        self.block, self.known = -1.0, 0

    def chance(self, x: list[float]) -> float:
        """Return the chance of contention within the horizon."""
        if not self._weights:
            self._weights = self.heads.weights[0].tolist()
        chance: float = 1.0 / (1.0 + self.ops.exp(-sum(map(mul, self._weights, x))))
        return chance

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        super().restore(state)
        self._weights = []


class Outlook(Component):
    """The chances of contention within each of `HORIZONS`, the learner's own left out.

    Memory: about 900 floats per horizon.
    """

    STATE = tuple(f"within_{h}" for h in HORIZONS)
    __slots__ = ("_heads", "horizon", *STATE)

    def __init__(self, ops: One, horizon: int) -> None:
        self.ops = ops
        self.horizon = horizon
        for h in HORIZONS:
            if h != horizon:
                setattr(self, f"within_{h}", OutlookHead(ops, h))
        # Shortest first; None is the learner itself.
        ahead = sorted({*HORIZONS, horizon})
        self._heads: list[tuple[int, OutlookHead | None]]
        self._heads = [(h, None if h == horizon else getattr(self, f"within_{h}")) for h in ahead]

    def learn(self, x: Array, u: float, counts: float, clock: StepClock, profiles: Profiles) -> None:
        """Take in one step: its inputs, its contention, and how many steps its label stands for."""
        for steps, head in self._heads:
            if head is not None and head.note(u):
                head.end_part(_ahead(steps, _shared(x), clock, profiles), counts)

    def chances(
        self, x: Array, chance: float, clock: StepClock, profiles: Profiles
    ) -> tuple[tuple[int, float], ...]:
        """Return the chance within each horizon as of the last step, shortest first.

        `chance` is that of the learner's own horizon. Within longer there can only be more; heads that
        learn by themselves need not agree.
        """
        shared, highest, found = _shared(x), 0.0, []
        for steps, head in self._heads:
            within = chance if head is None else head.chance(_ahead(steps, shared, clock, profiles))
            highest = max(within, highest)
            found.append((steps, highest))
        return tuple(found)


def _shared(x: Array) -> list[float]:
    """Return the learner's inputs that every horizon uses."""
    return [CONSTANT, *_used(x.tolist())]


def _ahead(steps: int, shared: list[float], clock: StepClock, profiles: Profiles) -> list[float]:
    """Return the inputs for a horizon: those of all, and what is usual at half of it and at its end."""
    levels, spikes = profiles.trusted_levels, profiles.trusted_spikes
    end, half = clock.now + steps * clock.interval, clock.now + 0.5 * steps * clock.interval
    inputs = shared.copy()
    for width, bins, first in BINS_OF:
        i, j = first + int(half / width) % bins, first + int(end / width) % bins
        inputs += (0.5 * (levels[i] + levels[j]), math.sqrt(0.5 * (spikes[i] + spikes[j])))
    return inputs
