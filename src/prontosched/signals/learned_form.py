"""What both forms of the learned signal have: settings, what is held, what is shared.

Covers: `LearnedForm`, the base of `LearnedSignal`, for one node, and of `LearnedFleet`, for many.
Does not cover: decisions, which each form takes from evidence of its own shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from prontosched.signals.arithmetic import Operations
from prontosched.signals.learner import Learner
from prontosched.signals.policy import Policy
from prontosched.signals.sharing import share, start_from
from prontosched.subspace import Array


class LearnedForm:
    """A learner, the policy it follows, and how both are saved, restored and shared.

    Parameters
    ----------
    ops
        For one node or for many.
    policy
        What the operator asks for.
    enforcing
        Whether decisions are obeyed; may be changed at any time.
    """

    name = "learned"

    def __init__(self, ops: Operations, policy: Policy, *, enforcing: bool) -> None:
        self.policy = policy
        self.enforcing = enforcing
        self.learner = Learner(ops, policy)
        self.features = 0

    def expect(self, features: int) -> None:
        """Make room for the metrics of the first vector; raise if a later one has another number."""
        if self.features:
            raise ValueError(f"vectors must have {self.features} metrics, got {features}")
        self._grow(features)

    def _grow(self, features: int) -> None:
        self.features = features
        self.learner.grow(features)

    def share(self) -> dict[str, Array]:
        """Return statistics that add up over nodes: of this one, or the sum of all."""
        return share(self.learner)

    def start_from(self, shared: Mapping[str, Array]) -> None:
        """Go on, on every node, from what a fleet has learned too."""
        start_from(self.learner, shared)

    def settings(self) -> dict[str, Any]:
        """Return the constructor arguments, by name: plain numbers and strings."""
        return {**asdict(self.policy), "enforcing": self.enforcing}

    def state(self) -> dict[str, Any]:
        """Return everything held, by name: plain numbers, strings and arrays."""
        return {"features": self.features, **self.learner.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        self._grow(int(state["features"]))
        self.learner.restore(state)
