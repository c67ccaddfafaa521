"""The default signal: what a node has learned about its own contention, and why it decided so in words.

`LearnedSignal` is for one node, `LearnedFleet` for many at once with the same decisions. Both carry a
step's evidence to `learner.ContentionLearner` and its result back; `reason` makes a sentence of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from operator import mul
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prontosched.decision import Decision, Evidence, FleetDecision, FleetEvidence, one_line
from prontosched.errors import StateError
from prontosched.signals.arithmetic import Many, One, Operations
from prontosched.signals.heads import DIRECTIONS, FARTHEST
from prontosched.signals.inputs import OFFSET, PROFILE_INPUTS
from prontosched.signals.learner import INPUTS, ContentionLearner, StepInput
from prontosched.signals.policy import DEFAULTS, Policy
from prontosched.signals.record import SignalFigures
from prontosched.subspace import Array, Subspace

# A time, a CPU Ready or a utilisation from here on is no number: what is computed from it would not be one.
LARGEST = 1e12
NOTHING = np.zeros(0)
NO_DIRECTIONS = [0.0] * DIRECTIONS
# Inputs that are one thing to a reader: from which of `INPUTS` on, in their order, they have which name.
SUBJECTS = {
    "CPU Ready now": "CPU Ready now",
    "level over 60": "its level lately",
    "highest of 5": "its recent peaks",
    "utilisation now": "utilisation",
    "contention now": "CPU Ready now",
    PROFILE_INPUTS[0]: "the time of day",
}
NAMES = tuple(dict.fromkeys(SUBJECTS.values()))
# Which input belongs to which name: `(inputs, names)`, 1 or 0.
BELONGS = np.zeros((len(INPUTS), len(NAMES)))
for first, subject in SUBJECTS.items():
    BELONGS[INPUTS.index(first) :] = [subject == other for other in NAMES]
NAMED = 2
# The logarithm of CPU Ready at the tolerance, as the learner keeps it.
CONTENDED = math.log(1.0 + OFFSET)
# A subject is named if it adds at least this share of the largest contribution.
WORTH_NAMING = 0.4


class _LearnedForm:
    """A learner and the policy it follows."""

    name = "learned"

    def __init__(self, ops: Operations, policy: Policy, *, enforcing: bool) -> None:
        self.policy = policy
        self.enforcing = enforcing
        self.learner = ContentionLearner(ops, policy)
        self.features = 0

    def expect(self, features: int) -> None:
        """Make room for the metrics of the first vector; raise if a later one has another number."""
        if self.features:
            raise ValueError(f"vectors must have {self.features} metrics, got {features}")
        self._grow(features)

    def _grow(self, features: int) -> None:
        self.features = features
        self.learner.grow(features)


class LearnedSignal(_LearnedForm):
    """Refuse while contention is there, or likely within the horizon.

    The node learns from its own CPU Ready, a horizon late, whether contention
    followed, and predicts it for the next one. Until it has seen enough it acts on
    the present value.

    Parameters
    ----------
    tolerance, horizon, likelihood, reopen, calm, hold, budget, hourly_limit, quota, explore, seed
        See `prontosched.signals.policy.Policy`.
    enforcing
        Whether decisions are obeyed; may be changed at any time.

    Notes
    -----
    Memory: about 112 kB and `8 d (horizon + 1)` bytes, 66 kB more for a percentile
    tolerance, however long the stream.

    Examples
    --------
    >>> signal = LearnedSignal(tolerance="5%")
    >>> for t in range(30):
    ...     decision = signal.decide(Evidence(t, ready=0.5))
    >>> decision.raised, decision.probability < 0.1
    (False, True)
    """

    def __init__(
        self,
        *,
        tolerance: str | float = DEFAULTS.tolerance,
        horizon: int = DEFAULTS.horizon,
        likelihood: float = DEFAULTS.likelihood,
        reopen: float = DEFAULTS.reopen,
        calm: float = DEFAULTS.calm,
        hold: float = DEFAULTS.hold,
        budget: float | None = DEFAULTS.budget,
        hourly_limit: float | None = DEFAULTS.hourly_limit,
        quota: bool = DEFAULTS.quota,
        explore: float = DEFAULTS.explore,
        seed: int = DEFAULTS.seed,
        enforcing: bool = False,
    ) -> None:
        policy = Policy(
            tolerance, horizon, likelihood, reopen, calm, hold, budget, hourly_limit, quota, explore, seed
        )
        super().__init__(One(), policy, enforcing=enforcing)
        # What brings projections to units of their usual size, of the subspace and samples that it was made for.
        self._subspace: Subspace | None = None
        self._samples = 0.0
        self._scales: list[float] = []

    def decide(self, evidence: Evidence) -> Decision:
        """Answer for one timestep."""
        now, learner = self._input(evidence), self.learner
        known = -LARGEST < evidence.ready < LARGEST
        result = learner.step(now, known=known, enforcing=self.enforcing)
        learner.outlook.learn(
            learner.inputs[0], learner.contention[0], learner.counts[0], learner.clock, learner.profiles
        )
        return Decision(
            result.raised,
            learner.learned,
            result.threshold,
            reason(learner, evidence, raised=result.raised),
            evidence.timestep,
            learner.chance(),
            learner.expected,
            result.contended,
        )

    def outlook(self) -> tuple[tuple[int, float], ...]:
        """Return the chance of contention within several horizons, as of the last step.

        Pairs of steps ahead and chance, shortest first; nothing before the first step and while CPU Ready is unknown.
        """
        learner = self.learner
        if not learner.history.steps or learner.unknown > self.policy.horizon:
            return ()
        return learner.outlook.chances(learner.inputs[0], learner.chance(), learner.clock, learner.profiles)

    def _input(self, evidence: Evidence) -> StepInput:
        vector = NOTHING if evidence.vector is None else evidence.vector
        if vector.size != self.features:
            self.expect(vector.size)
        subspace, samples = evidence.subspace, evidence.samples
        embedded = subspace is not None and samples > 0
        directions, t_squared, spe = NO_DIRECTIONS, 0.0, 0.0
        if subspace is not None and embedded:
            if subspace is not self._subspace or samples != self._samples:
                self._subspace, self._samples, root = subspace, samples, math.sqrt(samples)
                self._scales = [root / s if s > 0.0 else 0.0 for s in subspace.singular_values.tolist()]
            along = evidence.projections
            units = list(map(mul, along, self._scales))
            t_squared, inside = sum(map(mul, units, units)), sum(map(mul, along, along))
            directions = [u if -FARTHEST < u < FARTHEST else math.copysign(FARTHEST, u) for u in units]
            if len(directions) != DIRECTIONS:
                directions = (directions + NO_DIRECTIONS)[:DIRECTIONS]
            outside = float(vector.dot(vector)) - inside
            spe = outside if outside > 0.0 else 0.0
        # As Python floats: a number out of an array would slow down everything computed from it.
        time, ready = float(evidence.time), float(evidence.ready)
        utilisation = float(evidence.utilisation)
        time = time if -LARGEST < time < LARGEST else math.nan
        ready = ready if -LARGEST < ready < LARGEST else math.nan
        utilisation = utilisation if -LARGEST < utilisation < LARGEST else math.nan
        return StepInput(time, ready, utilisation, directions, t_squared, spe, embedded, vector)

    def settings(self) -> dict[str, Any]:
        """Return the constructor arguments, by name: plain numbers and strings."""
        return {**asdict(self.policy), "enforcing": self.enforcing}

    def __repr__(self) -> str:
        found = self.standing()
        state = f"{found.steps:.0f} labelled steps, {found.base_rate:.1%} before contention"
        return one_line(self, self.settings(), state if found.steps else "no labelled step yet")

    def state(self) -> dict[str, Any]:
        """Return everything held, by name: plain numbers, strings and arrays."""
        return {"features": self.features, **self.learner.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        features = int(state["features"])
        if np.shape(state["vectors"])[1:] != (features,):
            raise StateError(f"saved vectors must have {features} metrics, got {np.shape(state['vectors'])}")
        self._grow(features)
        self.learner.restore(state)

    def share(self) -> dict[str, Array]:
        """Return statistics that add up over nodes."""
        return self.learner.share()

    def start_from(self, shared: Mapping[str, Array]) -> None:
        """Go on from what a fleet has learned too."""
        self.learner.start_from(shared)

    @property
    def contention_level(self) -> float:
        """CPU Ready from which there is contention now; infinite while a percentile has too little past."""
        return float(self.learner.tolerance.level)

    def standing(self) -> SignalFigures:
        """Return the node's own record of what the signal was worth."""
        return self.learner.record.figures()


class LearnedFleet(_LearnedForm):
    """`LearnedSignal` for many nodes; `options` are those of `Policy`, the same for all.

    Node i draws its exceptions as a single signal with seed `seed + i` does. Memory: as in
    `LearnedSignal`, per node.
    """

    def __init__(self, nodes: int, *, enforcing: bool = False, **options: Any) -> None:
        if nodes < 1:
            raise ValueError(f"nodes must be at least 1, got {nodes}")
        super().__init__(Many(nodes), Policy(**options), enforcing=enforcing)
        self.nodes = nodes
        self._evidence: FleetEvidence | None = None
        # Raised, contended, score, threshold, chance and CPU Ready expected, of each node's last step.
        self._last = [np.zeros(nodes, kind) for kind in (bool, bool, float, float, float, float)]

    def decide(self, evidence: FleetEvidence) -> FleetDecision:
        """Answer for one timestep of every node; absent nodes keep what they last had."""
        if evidence.vectors.shape[1] != self.features:
            self.expect(evidence.vectors.shape[1])
        now = _inputs(evidence)
        known = np.abs(evidence.ready) < LARGEST
        for some, is_known in ((evidence.present & known, True), (evidence.present & ~known, False)):
            if some.all():
                self._step(slice(None), self.learner, now, known=is_known)
            elif some.any():
                nodes = np.flatnonzero(some)
                part = self.learner.take(nodes)
                self._step(nodes, part, _only(now, nodes), known=is_known)
                self.learner.put(nodes, part)
        self._evidence = evidence
        raised, contended, score, threshold, probability, expected = (v.copy() for v in self._last)
        return FleetDecision(raised, score, threshold, evidence.timestep, probability, expected, contended)

    def _step(self, nodes: Any, learner: ContentionLearner, now: StepInput, *, known: bool) -> None:
        """Step some nodes, and keep what was decided of them."""
        result = learner.step(now, known=known, enforcing=self.enforcing)
        decided = (result.raised, result.contended, learner.learned, result.threshold)
        found = (*decided, learner.chance(), learner.expected)
        for last, values in zip(self._last, found, strict=True):
            last[nodes] = values

    def reason(self, node: int) -> str:
        """Say why `node` was decided as it was at the last timestep."""
        raised = bool(self._last[0][node])
        evidence = self._evidence.of(node) if raised and self._evidence is not None else None
        return reason(self.learner, evidence, raised=raised, node=node)


def _sensible(values: Array) -> Array:
    return np.where(np.abs(values) < LARGEST, values, np.nan)


def _inputs(evidence: FleetEvidence) -> StepInput:
    embedded = evidence.embedded & (evidence.samples > 0.0)
    root = np.sqrt(np.where(embedded, evidence.samples, 0.0))
    strong = evidence.singular_values > 0.0
    strengths = np.where(strong, evidence.singular_values, 1.0)
    units = np.where(strong & embedded[:, None], evidence.projections * root[:, None] / strengths, 0.0)
    near = Many.clip(units[:, :DIRECTIONS], -FARTHEST, FARTHEST)
    inside = np.einsum("mr,mr->m", evidence.projections, evidence.projections)
    total = np.einsum("md,md->m", evidence.vectors, evidence.vectors)
    padding = np.zeros(len(embedded))
    return StepInput(
        time=_sensible(evidence.time),
        ready=_sensible(evidence.ready),
        utilisation=_sensible(evidence.utilisation),
        directions=[near[:, i] if i < near.shape[1] else padding for i in range(DIRECTIONS)],
        t_squared=np.einsum("mr,mr->m", units, units),
        spe=np.where(embedded, np.maximum(total - inside, 0.0), 0.0),
        embedded=embedded,
        vector=evidence.vectors,
    )


def _only(now: StepInput, nodes: NDArray[np.int64]) -> StepInput:
    return StepInput._make([v[nodes] for v in x] if isinstance(x, list) else x[nodes] for x in now)


def reason(
    learner: ContentionLearner, evidence: Evidence | None, *, raised: bool, node: int | None = None
) -> str:
    """Return one sentence for the last step of a node, of `node` among many; the evidence of it names metrics."""
    policy, admission, clock = learner.policy, learner.admission, learner.clock
    facts = (
        learner.unknown,
        clock.interval,
        clock.measured,
        learner.expected,
        learner.logit,
        learner.record.demoted,
        learner.trust(),
        admission.spent,
        admission.limited,
        admission.exempt,
        learner.level,
    )
    if node is not None:
        facts = tuple(fact[node].item() for fact in facts)
    unknown, interval, measured, expected, logit, demoted, trust, spent, limited, exempt, level = facts
    if unknown:
        known = logit > -9.0  # where a learner begins, and falls back to after a horizon without CPU Ready
        way = "going by the last known value" if known else "accepting"
        return f"CPU Ready unknown for {unknown} step{'s' if unknown > 1 else ''}: {way}"
    ahead = _duration(policy.horizon * interval) if measured else f"{policy.horizon} steps"
    chance = 100.0 / (1.0 + math.exp(-logit))
    text = f"CPU Ready {_short(expected)}{learner.unit} expected within {ahead}"
    text += f", chance of contention {round(chance)} %" if chance >= 1.0 else ", contention unlikely"
    if raised:
        drivers = _drivers(learner, evidence, node)
        text += f"; driven by {drivers}" if drivers else ""
        if logit < admission.close_at and level < CONTENDED:
            text += "; refusing until the end is sure"
    if demoted and not policy.quota:
        text += "; no better than a coin lately: acting on the present value"
    elif trust < 1.0:
        text += "; still learning: acting mostly on the present value"
    if limited:
        text += f"; held open, {policy.hourly_limit:.0%} of this hour was refused already"
    elif spent:
        text += f"; held open, the budget of {policy.budget:.0%} goes to worse moments"
    elif exempt:
        text += "; held open as an exception, to keep learning"
    return text


@lru_cache(maxsize=64)  # a regular clock asks for the same again and again
def _duration(seconds: float) -> str:
    """Return a time in seconds, or minutes where it is long."""
    return f"{_short(seconds / 60.0)} min" if seconds >= 120.0 else f"{_short(seconds)} s"


def _short(value: float) -> str:
    """Return a value with two digits, or those before the point; never in powers of ten."""
    return f"{value:.0f}" if value >= 10.0 else f"{value:.2g}" if value >= 0.001 else "0"


def _drivers(learner: ContentionLearner, evidence: Evidence | None, node: int | None) -> str:
    """Name what sets the present apart from this node's usual state, strongest first."""
    at: Any = ... if node is None else node
    apart = (learner.inputs[0][at] - learner.usual[at]) * learner.heads.weights[at][0]
    found = sorted(zip(apart.dot(BELONGS).tolist(), NAMES, strict=True), reverse=True)
    trusted = learner.correction.trust() if node is None else learner.correction.trust()[node]
    if trusted > 0.0:
        coefficients, inputs = learner.correction.heads.weights[at][0], learner.correction_inputs[0][at]
        correction = float(trusted * coefficients.dot(inputs))
        # Telling the metrics apart costs more than all the rest: only where one would be named.
        if correction > max(0.0, found[NAMED - 1][0], WORTH_NAMING * found[0][0]):
            metrics = _metrics(learner, evidence, coefficients, inputs, at)
            found += [(correction / (1 + i), name) for i, name in enumerate(metrics)]
            found.sort(reverse=True)
    strongest = found[0][0]
    if strongest <= 0.0:
        return ""
    return ", ".join(name for part, name in found[:NAMED] if part >= WORTH_NAMING * strongest)


def _metrics(
    learner: ContentionLearner, evidence: Evidence | None, coefficients: Array, inputs: Array, at: Any
) -> list[str]:
    """Return the metrics that add most to the correction."""
    unnamed = ["the other metrics"]
    if evidence is None or not evidence.samples > 0:
        return unnamed
    subspace, vector, metrics = evidence.subspace, evidence.vector, evidence.metrics
    if subspace is None or vector is None or metrics is None:
        return unnamed
    half = coefficients.size // 2
    both = coefficients[:half] + coefficients[half:]
    rank = min(DIRECTIONS, subspace.rank)
    sizes = subspace.singular_values[:rank] / math.sqrt(evidence.samples)
    linear = subspace.basis[:, :rank] @ np.where(sizes > 0.0, both[:rank] / np.maximum(sizes, 1e-12), 0.0)
    along = learner.correction.along[at]
    length = float(np.sqrt(along.dot(along)))
    spread = float(np.sqrt(np.asarray(learner.correction.squares[2])[at])) + 1e-3
    if length > 0.0:
        linear = linear + both[DIRECTIONS + 2] / (length * spread) * along
    part = linear * vector
    # T² and SPE are sums of squares: each metric has its share.
    surprise = both[DIRECTIONS : DIRECTIONS + 2] * inputs[DIRECTIONS : DIRECTIONS + 2]
    squares = vector**2
    part = part + max(float(surprise.sum()), 0.0) * squares / max(float(squares.sum()), 1e-12)
    strongest = np.argsort(-part, kind="stable")[:NAMED]
    return [metrics[i] for i in strongest if part[i] > 0.0]
