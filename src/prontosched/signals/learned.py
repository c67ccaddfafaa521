"""The default signal: what a node has learned about its own contention.

Covers: `LearnedSignal`, for one node. For many at once see `learned_fleet`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from prontosched.decision import Decision, Evidence
from prontosched.signals.arithmetic import One
from prontosched.signals.learned_fleet import LearnedFleet
from prontosched.signals.learner import Learner, Present
from prontosched.signals.policy import Policy
from prontosched.signals.reasons import Seen, reason
from prontosched.signals.record import Standing
from prontosched.signals.sharing import share as share_of
from prontosched.signals.sharing import start_from
from prontosched.signals.sight import DIRECTIONS, FARTHEST
from prontosched.subspace import Array

__all__ = ["LearnedFleet", "LearnedSignal"]

NOTHING = np.zeros(0)
NO_DIRECTIONS = [0.0] * DIRECTIONS


class LearnedSignal:
    """Refuse when contention is expected within the horizon, within a budget.

    The node learns from its own CPU Ready, a horizon late, whether contention
    followed, and predicts it for the next one. Until it has seen enough it acts on
    the present value.

    Parameters
    ----------
    budget, tolerance, horizon, quota, hourly_limit, hold, explore, seed, likelihood
        See `prontosched.signals.policy.Policy`.
    enforcing
        Whether decisions are obeyed; may be changed at any time.

    Notes
    -----
    Memory: about 55 kB and `8 d (horizon + 1)` bytes, 16 kB more for a percentile
    tolerance, however long the stream.

    Examples
    --------
    >>> signal = LearnedSignal(tolerance="5%")
    >>> for t in range(30):
    ...     decision = signal.decide(Evidence(t, ready=0.5))
    >>> decision.raised, decision.probability < 0.1
    (False, True)
    """

    name = "learned"

    def __init__(
        self,
        *,
        budget: float = 0.1,
        tolerance: str | float = "5%",
        horizon: int = 5,
        quota: bool = False,
        hourly_limit: float = 0.4,
        hold: int = 0,
        explore: float = 0.02,
        seed: int = 0,
        likelihood: float = 0.5,
        enforcing: bool = False,
    ) -> None:
        self.policy = Policy(budget, tolerance, horizon, quota, hourly_limit, hold, explore, seed, likelihood)
        self.enforcing = enforcing
        self.learner = Learner(One(), self.policy)
        self.features = 0

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
        )

    def _present(self, evidence: Evidence) -> Present:
        vector = NOTHING if evidence.vector is None else evidence.vector
        if vector.size != self.features:
            if self.features:
                raise ValueError(f"vector must have {self.features} metrics, got {vector.size}")
            self.features = vector.size
            self.learner.grow(vector.size)
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

    def share(self) -> dict[str, Array]:
        """Return statistics that add up over nodes."""
        return share_of(self.learner)

    def start_from(self, shared: Mapping[str, Array]) -> None:
        """Begin with what a fleet has learned."""
        start_from(self.learner, shared)

    def settings(self) -> dict[str, Any]:
        """Return the constructor arguments, by name: plain numbers and strings."""
        return {**asdict(self.policy), "enforcing": self.enforcing}

    def state(self) -> dict[str, Any]:
        """Return everything held, by name: plain numbers, strings and arrays."""
        return {"features": self.features, **self.learner.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        self.features = int(state["features"])
        self.learner.grow(self.features)
        self.learner.restore(state)
