"""The learned signal for many nodes at once, as arrays.

Covers: `LearnedFleet`, with the decisions of as many `LearnedSignal`s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prontosched.decision import FleetDecision, FleetEvidence
from prontosched.per_node import Nodes, Rows, fitting
from prontosched.signals.arithmetic import Many
from prontosched.signals.learned_form import LearnedForm
from prontosched.signals.learner import Answer, Present
from prontosched.signals.outlook import rising
from prontosched.signals.policy import DEFAULTS, Policy
from prontosched.signals.reasons import Seen, reason
from prontosched.signals.record import Standing
from prontosched.signals.sharing import share, start_from
from prontosched.signals.sight import DIRECTIONS, FARTHEST
from prontosched.subspace import Array


class LearnedFleet(LearnedForm):
    """`LearnedSignal` for many nodes.

    Node i draws its exceptions as a single signal with seed `seed + i` does.

    Parameters
    ----------
    nodes
        How many.
    tolerance, horizon, likelihood, reopen, calm, hold, budget, hourly_limit, quota, explore, seed, enforcing
        As in `LearnedSignal`, the same for all nodes.

    Notes
    -----
    Memory: as in `LearnedSignal`, per node.
    """

    def __init__(
        self,
        nodes: int,
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
        if nodes < 1:
            raise ValueError(f"nodes must be at least 1, got {nodes}")
        policy = Policy(
            tolerance, horizon, likelihood, reopen, calm, hold, budget, hourly_limit, quota, explore, seed
        )
        super().__init__(Many(nodes), policy, enforcing=enforcing)
        self.nodes = nodes
        self._evidence: FleetEvidence | None = None
        self._raised = np.zeros(nodes, dtype=bool)
        self._contended = np.zeros(nodes, dtype=bool)
        self._last = [np.zeros(nodes) for _ in range(4)]
        self._outlook = np.full((nodes, len(self.learner.outlook.horizons)), np.nan)

    def decide(self, evidence: FleetEvidence) -> FleetDecision:
        """Answer for one timestep of every node; absent nodes keep what they last had."""
        if evidence.vectors.shape[1] != self.features:
            self.expect(evidence.vectors.shape[1])
        present = _present(evidence)
        known = np.isfinite(evidence.ready)
        for some, is_known in ((evidence.present & known, True), (evidence.present & ~known, False)):
            if some.all():
                self._take_over(
                    slice(None), self.learner.step(present, known=is_known, enforcing=self.enforcing)
                )
            elif some.any():
                nodes = np.flatnonzero(some)
                part = self.learner.take(nodes)
                answer = part.step(_only(present, nodes), known=is_known, enforcing=self.enforcing)
                self.learner.put(nodes, part)
                self._take_over(nodes, answer)
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

    def _take_over(self, nodes: Any, answer: Answer) -> None:
        self._raised[nodes] = answer.raised
        self._contended[nodes] = answer.contended
        self._outlook[nodes] = np.stack(answer.outlook, axis=-1)
        for held, values in zip(self._last, answer[2:6], strict=True):
            held[nodes] = values

    def outlook(self) -> dict[int, Array]:
        """Return every node's chance of contention within each horizon offered, by steps ahead."""
        own = {self.policy.horizon: self._last[2]}
        return rising({**own, **dict(zip(self.learner.outlook.horizons, self._outlook.T, strict=True))})

    def share(self, node: int | None = None) -> dict[str, Array]:
        """Return statistics that add up over nodes: of one node, or the sum of all."""
        return share(self.learner, ... if node is None else node)

    def start_from(self, shared: Mapping[str, Array], node: int | None = None) -> None:
        """Go on, on one node or on every one, from what a fleet has learned too."""
        start_from(self.learner, shared, ... if node is None else node)

    def take(self, at: Nodes) -> dict[str, Rows]:
        """Return copies of all that is held of the nodes `at`, by name, nodes first."""
        last = np.stack([values[at] for values in self._last], axis=1)
        states = {"raised": self._raised[at], "contended": self._contended[at]}
        return {**states, "last": last, **self.learner.extract(at)}

    def put(self, at: Nodes, state: Mapping[str, Rows]) -> None:
        """Give the nodes `at` what `take` returned."""
        vectors = state.get("vectors")
        if not self.features and vectors is not None and vectors.ndim == 3:
            self._grow(vectors.shape[2])
        self.learner.insert(at, state)
        self._raised[at] = fitting("raised", state, (at.size,), self._raised.dtype)
        self._contended[at] = fitting("contended", state, (at.size,), self._contended.dtype)
        last = fitting("last", state, (at.size, len(self._last)), self._last[0].dtype)
        for held, values in zip(self._last, last.T, strict=True):
            held[at] = values

    def take_over(self, node: int, state: Mapping[str, Any]) -> None:
        """Give one node what `LearnedSignal.state` returned: it goes on here as it would have there."""
        at = np.array([node])
        if not self.features:
            self._grow(int(state["features"]))
        self.clear(at)
        held = self.learner.extract(at)
        mine = {name: np.asarray(state[name], like.dtype).reshape(like.shape) for name, like in held.items()}
        self.learner.insert(at, mine)

    def clear(self, at: Nodes) -> None:
        """Make the nodes `at` as new, with the seeds of their places."""
        seeds = self.learner.admission.seed[at]
        fresh = LearnedFleet(at.size, **self.settings())
        if self.features:
            fresh._grow(self.features)
        self.put(at, {**fresh.take(np.arange(at.size)), "admission.seed": seeds})

    def reason(self, node: int) -> str:
        """Say why `node` was decided as it was at the last timestep."""
        raised = bool(self._raised[node])
        evidence = self._evidence
        seen = None
        if evidence is not None and raised:
            seen = Seen(evidence.vectors[node], None, None, evidence.metrics)
            if evidence.embedded[node] and evidence.samples[node] > 0.0:
                sizes = evidence.singular_values[node] / np.sqrt(evidence.samples[node])
                seen = seen._replace(basis=evidence.basis[node], sizes=sizes)
        return reason(self.learner, seen, raised=raised, node=node)

    def standing(self, node: int) -> Standing:
        """Return one node's own record of what the signal was worth."""
        return self.learner.record.standing(node)


def _present(evidence: FleetEvidence) -> Present:
    sees = evidence.embedded & (evidence.samples > 0.0)
    root = np.sqrt(np.where(sees, evidence.samples, 0.0))
    strong = evidence.singular_values > 0.0
    strengths = np.where(strong, evidence.singular_values, 1.0)
    units = np.where(strong & sees[:, None], evidence.projections * root[:, None] / strengths, 0.0)
    near = np.clip(units[:, :DIRECTIONS], -FARTHEST, FARTHEST)
    inside = np.einsum("mr,mr->m", evidence.projections, evidence.projections)
    total = np.einsum("md,md->m", evidence.vectors, evidence.vectors)
    padding = np.zeros(len(sees))
    return Present(
        time=np.where(np.isfinite(evidence.time), evidence.time, np.nan),
        ready=evidence.ready,
        utilisation=np.where(np.isfinite(evidence.utilisation), evidence.utilisation, np.nan),
        directions=[near[:, i] if i < near.shape[1] else padding for i in range(DIRECTIONS)],
        t_squared=np.einsum("mr,mr->m", units, units),
        spe=np.where(sees, np.maximum(total - inside, 0.0), 0.0),
        sees=sees,
        vector=evidence.vectors,
    )


def _only(present: Present, nodes: NDArray[np.int64]) -> Present:
    directions: Sequence[Array] = present.directions
    return Present(
        present.time[nodes],
        present.ready[nodes],
        present.utilisation[nodes],
        [d[nodes] for d in directions],
        present.t_squared[nodes],
        present.spe[nodes],
        present.sees[nodes],
        present.vector[nodes],
    )
