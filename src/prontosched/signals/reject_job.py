"""Reject-Job, the paper's signal: spikes of the projections, weighted and summed, for one node and for many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from prontosched.decision import Decision, Evidence, FleetDecision, FleetEvidence, one_line
from prontosched.subspace import Array, Subspace

Weights = Literal["normalised", "raw", "harmonic"]
# Two weights of one half each must reach a threshold of one.
TOLERANCE = 1e-12
NAN = float("nan")
_decision = tuple.__new__
WARMING = "accepting: warming up, too few vectors seen yet"
CALM = "accepting: no direction spiked"
SOME = "accepting: some directions spiked, not enough to matter"


class _Options:
    """The settings that both forms have."""

    name = "paper"

    def __init__(
        self,
        threshold: float = 1.0,
        *,
        absolute: bool = False,
        weights: Weights = "normalised",
        hold: int = 0,
    ) -> None:
        if not threshold > 0:
            raise ValueError(f"threshold must be positive, got {threshold}")
        if weights not in ("normalised", "raw", "harmonic"):
            raise ValueError(f"weights must be normalised, raw or harmonic, got {weights!r}")
        if hold < 0 or hold != int(hold):
            raise ValueError(f"hold must be at least 0 timesteps, a whole number, got {hold:g}")
        self.threshold = threshold
        self.absolute = absolute
        self.weights: Weights = weights
        self.hold = int(hold)
        self._holding: Any = 0  # timesteps to go; in a fleet those of each node

    def settings(self) -> dict[str, Any]:
        """Return the constructor arguments, by name."""
        return {
            "threshold": self.threshold,
            "absolute": self.absolute,
            "weights": self.weights,
            "hold": self.hold,
        }


class RejectJob(_Options):
    """Raise the signal when the weighted sum of spikes reaches a threshold.

    Parameters
    ----------
    threshold
        Score from which the signal is raised. Paper: tr.
    absolute
        Count spikes of either sign; off, an upward and a downward spike cancel, as
        in the paper.
    weights
        `normalised`: singular values over the largest, so that the threshold means
        the same on all data. `raw`: singular values, as printed in the paper.
        `harmonic`: 1, 1/2, 1/3, …, the paper's stand-in for embeddings without them.
    hold
        Timesteps the signal stays raised after the last raise.

    Notes
    -----
    Memory: a handful of floats.

    Examples
    --------
    >>> subspace = Subspace(np.eye(3)[:, :2], np.array([4.0, 2.0]))
    >>> RejectJob().decide(Evidence(7, subspace=subspace, projections=[9.0, 1.0], spikes=[1, 0])).raised
    True
    """

    _subspace: Subspace | None = None
    _weights: Sequence[float] = ()

    def decide(self, evidence: Evidence) -> Decision:
        """Answer for one timestep."""
        spikes = evidence.spikes
        if spikes is None:
            return Decision(False, 0.0, self.threshold, WARMING, evidence.timestep)
        if self._holding or any(spikes):
            return self._judge(evidence, spikes)
        # Nearly every step ends here; by its parts a decision costs a third less.
        return _decision(Decision, (False, 0.0, self.threshold, CALM, evidence.timestep, NAN, NAN, False))

    def _judge(self, evidence: Evidence, spikes: list[int]) -> Decision:
        """Answer where a direction spikes, or the signal is held."""
        timestep, score = evidence.timestep, 0.0
        subspace = evidence.subspace
        if subspace is not self._subspace and subspace is not None:
            self._subspace, self._weights = subspace, weigh_one(subspace.singular_values, self.weights)
        for spike, weight in zip(spikes, self._weights, strict=False):
            if spike:
                score += weight if self.absolute or spike > 0 else -weight
        if score >= self.threshold - TOLERANCE:
            self._holding = self.hold
            assert subspace is not None
            reason = explain(spikes, self._weights, subspace.basis, evidence.metrics, score, self.threshold)
            return Decision(True, score, self.threshold, reason, timestep, contended=True)
        if self._holding:
            self._holding -= 1
            reason = f"refusing: held after the last raise, {self._holding} timesteps to go"
            return Decision(True, score, self.threshold, reason, timestep, contended=True)
        return _decision(Decision, (False, score, self.threshold, SOME, timestep, NAN, NAN, False))

    def __repr__(self) -> str:
        return one_line(self, self.settings(), f"held for {self._holding} timesteps")

    def state(self) -> dict[str, Any]:
        """Return everything held, by name."""
        return {"holding": self._holding}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        self._holding = int(state["holding"])


class RejectJobFleet(_Options):
    """Reject-Job for M nodes at once; the same decisions as M separate signals.

    Parameters are those of `RejectJob`, after the number of nodes.
    """

    def __init__(self, nodes: int, **options: Any) -> None:
        super().__init__(**options)
        self._holding = np.zeros(nodes, np.int64)
        self._last: tuple[FleetEvidence, FleetDecision] | None = None
        self._raised = np.zeros(0, np.intp)
        self._strengths = self._basis = np.zeros((0, 0))

    def decide(self, evidence: FleetEvidence) -> FleetDecision:
        """Answer for one timestep of every node."""
        # Few directions spike: only those are weighed.
        node, direction = np.nonzero(evidence.spikes)
        signs = np.ones(node.size) if self.absolute else evidence.spikes[node, direction]
        weights = weigh(evidence.singular_values[node], self.weights)[np.arange(node.size), direction]
        score = np.asarray(np.bincount(node, weights * signs, len(evidence.spikes)), np.float64)
        score[~evidence.warm] = 0.0
        raised = (score >= self.threshold - TOLERANCE) & evidence.warm & evidence.present
        if self.hold:
            held = ~raised & (self._holding > 0) & evidence.present & evidence.warm
            self._holding[held] -= 1
            self._holding[raised] = self.hold
            raised = raised | held
        nothing = np.full(score.shape, NAN)
        threshold = np.full(score.shape, self.threshold)
        decision = FleetDecision(raised, score, threshold, evidence.timestep, nothing, nothing, raised)
        self._last = (evidence, decision)
        # The fleet goes on learning: what a reason needs is kept as it was.
        self._raised = np.flatnonzero(raised)
        self._strengths = evidence.singular_values[self._raised]
        self._basis = evidence.basis[self._raised]
        return decision

    def reason(self, node: int) -> str:
        """Say why `node` was decided as it was at the last timestep."""
        if self._last is None:
            return "accepting: nothing seen yet"
        evidence, decision = self._last
        if not evidence.warm[node]:
            return WARMING
        spikes = evidence.spikes[node].tolist()
        if not decision.raised[node]:
            return SOME if any(spikes) else CALM
        score = float(decision.score[node])
        if score < self.threshold - TOLERANCE:
            return f"refusing: held after the last raise, {self._holding[node]} timesteps to go"
        kept = int(np.searchsorted(self._raised, node))
        weights = weigh(self._strengths[kept], self.weights).tolist()
        return explain(spikes, weights, self._basis[kept], evidence.metrics, score, self.threshold)


def weigh(singular_values: Array, kind: Weights) -> Array:
    """Return the weight of each direction, for singular values `(…, r)`."""
    if kind == "raw":
        return singular_values
    if kind == "harmonic":
        return np.where(singular_values > 0, 1.0 / np.arange(1, singular_values.shape[-1] + 1), 0.0)
    largest = singular_values[..., :1]
    return np.divide(singular_values, largest, out=np.zeros_like(singular_values), where=largest > 0)


def weigh_one(singular_values: Array, kind: Weights) -> list[float]:
    """Return what `weigh` does for the directions of one node: for a few, plain floats are faster."""
    if kind != "normalised":
        return weigh(singular_values, kind).tolist()  # type: ignore[no-any-return]
    strengths = singular_values.tolist()
    largest = strengths[0]
    return [value / largest if largest > 0.0 else 0.0 for value in strengths]


def explain(
    spikes: list[int],
    weights: Sequence[float],
    basis: Array,
    metrics: tuple[str, ...] | None,
    score: float,
    threshold: float,
) -> str:
    """Say which directions spike, and which metrics make up the strongest of them."""
    moved = [i for i, spike in enumerate(spikes) if spike]
    parts = [f"{i + 1} {'up' if spikes[i] > 0 else 'down'} (weight {weights[i]:.2f})" for i in moved]
    noun = "direction" if len(moved) == 1 else "directions"
    text = f"refusing: {noun} {', '.join(parts)} spiked; score {score:.2f} at threshold {threshold:.2f}"
    if metrics is None:
        return text
    strongest = max(moved, key=lambda i: weights[i])
    top = np.argsort(-np.abs(basis[:, strongest]))[:3]
    return f"{text}; driven by {', '.join(metrics[j] for j in top)}"
