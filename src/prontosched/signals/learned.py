"""The default signal: what a node has learned about its own contention.

Covers: `LearnedSignal`, for one node. For many at once see `learned_fleet`.
"""

from __future__ import annotations

import math

import numpy as np

from prontosched.decision import Decision, Evidence
from prontosched.signals.arithmetic import One
from prontosched.signals.learned_fleet import LearnedFleet
from prontosched.signals.learned_form import LearnedForm
from prontosched.signals.learner import Answer, Present
from prontosched.signals.policy import DEFAULTS, Policy
from prontosched.signals.reasons import Seen, reason
from prontosched.signals.record import Standing
from prontosched.signals.sight import DIRECTIONS, FARTHEST

__all__ = ["LearnedFleet", "LearnedSignal"]

NOTHING = np.zeros(0)
NO_DIRECTIONS = [0.0] * DIRECTIONS


class LearnedSignal(LearnedForm):
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
        ready = evidence.ready
        known = math.isfinite(ready)
        present = self._present(evidence)
        answer = self.learner.step(present, known=known, enforcing=self.enforcing)
        return Decision(
            answer.raised,
            answer.score,
            answer.threshold,
            reason(
                self.learner, self._seen(evidence, present) if answer.raised else None, raised=answer.raised
            ),
            evidence.timestep,
            answer.probability,
            answer.expected_ready,
            answer.contended,
            self._outlook(answer),
        )

    def _outlook(self, answer: Answer) -> tuple[tuple[int, float], ...]:
        """Return the chance within each horizon, shortest first; nothing while CPU Ready is unknown."""
        learner = self.learner
        if learner.unknown > self.policy.horizon:
            return ()
        pairs = [(self.policy.horizon, answer.probability)]
        pairs += zip(learner.outlook.horizons, answer.outlook, strict=True)
        pairs.sort()
        # Within longer there can only be more; heads that learn by themselves need not agree.
        highest, found = 0.0, []
        for horizon, chance in pairs:
            highest = chance if chance > highest else highest
            found.append((horizon, highest))
        return tuple(found)

    def _present(self, evidence: Evidence) -> Present:
        vector = NOTHING if evidence.vector is None else evidence.vector
        if vector.size != self.features:
            self.expect(vector.size)
        subspace, samples = evidence.subspace, evidence.samples
        sees = subspace is not None and samples > 0
        directions, t_squared, spe = NO_DIRECTIONS, 0.0, 0.0
        if subspace is not None and sees:
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
        time, utilisation = float(evidence.time), float(evidence.utilisation)
        time = time if math.isfinite(time) else math.nan
        utilisation = utilisation if math.isfinite(utilisation) else math.nan
        return Present(time, float(evidence.ready), utilisation, directions, t_squared, spe, sees, vector)

    @staticmethod
    def _seen(evidence: Evidence, present: Present) -> Seen:
        subspace = evidence.subspace
        if subspace is None or not present.sees:
            return Seen(present.vector, None, None, evidence.metrics)
        sizes = subspace.singular_values / math.sqrt(evidence.samples)
        return Seen(present.vector, subspace.basis, sizes, evidence.metrics)

    def standing(self) -> Standing:
        """Return the node's own record of what the signal was worth."""
        return self.learner.record.standing()
