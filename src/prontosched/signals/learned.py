"""The default signal: what a node has learned about its own contention.

Covers: `LearnedSignal`, for one node, and `LearnedFleet`, for many at once with the same
decisions. Both carry a step's evidence to `learner.ContentionLearner` and its result back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prontosched.decision import Decision, Evidence, FleetDecision, FleetEvidence, one_line
from prontosched.signals.arithmetic import Many, One, Operations
from prontosched.signals.heads import DIRECTIONS, FARTHEST
from prontosched.signals.learner import ContentionLearner, StepInput
from prontosched.signals.policy import DEFAULTS, Policy
from prontosched.signals.reasons import MetricContext, reason
from prontosched.signals.record import SignalFigures
from prontosched.subspace import Array

# A time, a CPU Ready or a utilisation from here on is no number: what is computed from it would not be one.
LARGEST = 1e12
NOTHING = np.zeros(0)
NO_DIRECTIONS = [0.0] * DIRECTIONS


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
    Memory: about 93 kB and `8 d (horizon + 1)` bytes, 66 kB more for a percentile
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

    def decide(self, evidence: Evidence) -> Decision:
        """Answer for one timestep."""
        now, learner = self._input(evidence), self.learner
        known = -LARGEST < evidence.ready < LARGEST
        result = learner.step(now, known=known, enforcing=self.enforcing)
        chance = learner.chance()
        outlook = self._outlook(chance)
        context = _context(evidence, now) if result.raised else None
        return Decision(
            result.raised,
            learner.learned,
            result.threshold,
            reason(learner, context, raised=result.raised),
            evidence.timestep,
            chance,
            learner.expected,
            result.contended,
            outlook,
        )

    def _outlook(self, chance: float) -> tuple[tuple[int, float], ...]:
        """Return the chance within each horizon, shortest first; nothing while CPU Ready is unknown."""
        learner = self.learner
        further = learner.outlook.step(
            learner.inputs[0], learner.contention[0], learner.counts[0], learner.clock, learner.profiles
        )
        if learner.unknown > self.policy.horizon:
            return ()
        pairs = [(self.policy.horizon, chance), *zip(learner.outlook.horizons, further, strict=True)]
        pairs.sort()
        # Within longer there can only be more; heads that learn by themselves need not agree.
        highest, found = 0.0, []
        for horizon, within in pairs:
            highest = within if within > highest else highest
            found.append((horizon, highest))
        return tuple(found)

    def _input(self, evidence: Evidence) -> StepInput:
        vector = NOTHING if evidence.vector is None else evidence.vector
        if vector.size != self.features:
            self.expect(vector.size)
        subspace, samples = evidence.subspace, evidence.samples
        embedded = subspace is not None and samples > 0
        directions, t_squared, spe = NO_DIRECTIONS, 0.0, 0.0
        if subspace is not None and embedded:
            root, inside, directions = math.sqrt(samples), 0.0, []
            for p, strength in zip(evidence.projections, subspace.singular_values.tolist(), strict=False):
                unit = p * root / strength if strength > 0.0 else 0.0
                t_squared += unit * unit
                inside += p * p
                directions.append(unit if -FARTHEST < unit < FARTHEST else math.copysign(FARTHEST, unit))
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
        self._grow(int(state["features"]))
        self.learner.restore(state)

    def share(self) -> dict[str, Array]:
        """Return statistics that add up over nodes."""
        return self.learner.share()

    def start_from(self, shared: Mapping[str, Array]) -> None:
        """Go on from what a fleet has learned too."""
        self.learner.start_from(shared)

    def standing(self) -> SignalFigures:
        """Return the node's own record of what the signal was worth."""
        return self.learner.record.figures()


def _context(evidence: Evidence, now: StepInput) -> MetricContext:
    subspace = evidence.subspace
    if subspace is None or not now.embedded:
        return MetricContext(now.vector, None, None, evidence.metrics)
    sizes = subspace.singular_values / math.sqrt(evidence.samples)
    return MetricContext(now.vector, subspace.basis, sizes, evidence.metrics)


class LearnedFleet(_LearnedForm):
    """`LearnedSignal` for many nodes.

    Node i draws its exceptions as a single signal with seed `seed + i` does.

    Parameters
    ----------
    nodes
        How many.
    enforcing
        Whether decisions are obeyed.
    options
        As in `Policy`, the same for all nodes.

    Notes
    -----
    Memory: as in `LearnedSignal`, per node.
    """

    def __init__(self, nodes: int, *, enforcing: bool = False, **options: Any) -> None:
        if nodes < 1:
            raise ValueError(f"nodes must be at least 1, got {nodes}")
        super().__init__(Many(nodes), Policy(**options), enforcing=enforcing)
        self.nodes = nodes
        self._evidence: FleetEvidence | None = None
        self._raised = np.zeros(nodes, dtype=bool)
        self._contended = np.zeros(nodes, dtype=bool)
        self._last = [np.zeros(nodes) for _ in range(4)]

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
        score, threshold, probability, expected = (values.copy() for values in self._last)
        return FleetDecision(
            self._raised.copy(),
            score,
            threshold,
            evidence.timestep,
            probability,
            expected,
            self._contended.copy(),
        )

    def _step(self, nodes: Any, learner: ContentionLearner, now: StepInput, *, known: bool) -> None:
        """Step some nodes, and keep what was decided of them."""
        result = learner.step(now, known=known, enforcing=self.enforcing)
        self._raised[nodes] = result.raised
        self._contended[nodes] = result.contended
        found = (learner.learned, result.threshold, learner.chance(), learner.expected)
        for last, values in zip(self._last, found, strict=True):
            last[nodes] = values

    def reason(self, node: int) -> str:
        """Say why `node` was decided as it was at the last timestep."""
        raised = bool(self._raised[node])
        evidence = self._evidence
        context = None
        if evidence is not None and raised:
            context = MetricContext(evidence.vectors[node], None, None, evidence.metrics)
            if evidence.embedded[node] and evidence.samples[node] > 0.0:
                sizes = evidence.singular_values[node] / np.sqrt(evidence.samples[node])
                context = context._replace(basis=evidence.basis[node], sizes=sizes)
        return reason(self.learner, context, raised=raised, node=node)


def _sensible(values: Array) -> Array:
    return np.where(np.abs(values) < LARGEST, values, np.nan)


def _inputs(evidence: FleetEvidence) -> StepInput:
    embedded = evidence.embedded & (evidence.samples > 0.0)
    root = np.sqrt(np.where(embedded, evidence.samples, 0.0))
    strong = evidence.singular_values > 0.0
    strengths = np.where(strong, evidence.singular_values, 1.0)
    units = np.where(strong & embedded[:, None], evidence.projections * root[:, None] / strengths, 0.0)
    near = np.clip(units[:, :DIRECTIONS], -FARTHEST, FARTHEST)
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
