"""What a crowd notes of each of its nodes beside their fleet."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prontosched.agent.answer import LIKELY
from prontosched.decision import FleetDecision


class Standing(NamedTuple):
    """All nodes of a crowd as arrays, one number each.

    Attributes
    ----------
    raised
        Whether the signal is raised.
    contended
        Whether the node expects contention.
    seen_at
        When the node was stepped last.
    blocks
        Changes when the node's subspace does.
    score, ready
        Of the last decision, and CPU Ready; NaN where unknown.
    timestep
        Vectors seen.
    embedded
        Whether the node has a subspace of its own.
    """

    raised: NDArray[np.bool_]
    contended: NDArray[np.bool_]
    seen_at: NDArray[np.float64]
    blocks: NDArray[np.int64]
    score: NDArray[np.float64]
    ready: NDArray[np.float64]
    timestep: NDArray[np.int64]
    embedded: NDArray[np.bool_]


class Notes:
    """The newest of each node, one number each.

    Attributes
    ----------
    ready, used, timestamps
        Of the last sample: CPU Ready, utilisation, and when it was taken.
    seen_at, changed_at
        When the node was stepped last, and when its signal turned, by the agent's clock.
    heard
        When it was stepped last, in seconds of telemetry.
    raised, contended, decided, timestep, numbers
        The last decision: whether there was one, and its score, threshold, probability and
        expected CPU Ready, `(4, n)`.
    """

    def __init__(self, size: int) -> None:
        self.ready = np.full(size, np.nan)
        self.used = np.full(size, np.nan)
        self.timestamps = np.full(size, np.nan)
        self.seen_at = np.full(size, -np.inf)
        self.changed_at = np.full(size, -np.inf)
        self.heard = np.zeros(size)
        self.raised = np.zeros(size, np.bool_)
        self.contended = np.zeros(size, np.bool_)
        self.decided = np.zeros(size, np.bool_)
        self.timestep = np.zeros(size, np.int64)
        self.numbers = np.full((4, size), np.nan)

    def moved(self, origin: NDArray[np.intp]) -> Notes:
        """Return the notes with those of place `origin[i]` at place i; nothing where that is negative."""
        found = Notes(origin.size)
        kept = origin >= 0
        for name, held in vars(self).items():
            getattr(found, name)[..., kept] = held[..., origin[kept]]
        return found

    def decision(
        self, decision: FleetDecision, present: NDArray[np.bool_], now: float, heard: float
    ) -> NDArray[np.bool_]:
        """Take the decisions of the nodes present; return whose signal turned."""
        turned = present & self.decided & (decision.raised != self.raised)
        contended = decision.contended | (decision.probability >= LIKELY)
        moved = turned | (present & (contended != self.contended))
        self.changed_at[moved | (present & ~self.decided)] = now
        self.seen_at[present] = now
        self.heard[present] = heard
        self.raised[present] = decision.raised[present]
        self.contended[present] = contended[present]
        self.timestep[present] = decision.timestep[present]
        self.numbers[:, present] = np.stack(
            [decision.score, decision.threshold, decision.probability, decision.expected_ready]
        )[:, present]
        self.decided |= present
        return np.asarray(turned)
