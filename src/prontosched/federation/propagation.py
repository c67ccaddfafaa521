"""When a changed summary is worth sending: by epsilon against the last one sent.

Pure: time arrives as a number. Comparing with the last summary *sent*, not with the
one before, is what lets a slow drift through (a drift of 0.002 rad a block never
exceeds epsilon from one block to the next, however far it goes).
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from prontosched.federation.message import Summary
from prontosched.subspace import distance


class Propagation:
    """Decide whether to send, and keep count of what was saved.

    Parameters
    ----------
    epsilon
        Change of the leading directions, from 0 to 1, from which it is worth sending.
        Paper: ε.
    epsilon_strength
        Relative change of a singular value per root sample that is worth sending.
    max_age_seconds
        Longest silence: after it a summary is sent unchanged, so that the living are known.
    kind
        `projector` compares what the directions span. `elementwise` is the paper's
        absdiff, the largest difference of absolute entries, and looks at nothing else.
    rank
        Leading directions that are compared. Spare ones turn with every block of noise.

    Examples
    --------
    >>> rule = Propagation(epsilon=0.05, max_age_seconds=60.0)
    >>> rule.sent_count, rule.skipped_count
    (0, 0)
    """

    def __init__(
        self,
        *,
        epsilon: float = 0.05,
        epsilon_strength: float = 0.1,
        max_age_seconds: float = 60.0,
        kind: Literal["projector", "elementwise"] = "projector",
        rank: int = 4,
    ) -> None:
        if epsilon < 0 or epsilon_strength < 0:
            raise ValueError(f"epsilon must be at least 0, got {epsilon} and {epsilon_strength}")
        if not max_age_seconds > 0:
            raise ValueError(f"max_age_seconds must be positive, got {max_age_seconds}")
        self.epsilon = epsilon
        self.epsilon_strength = epsilon_strength
        self.max_age_seconds = max_age_seconds
        self.kind = kind
        self.rank = rank
        self.sent_count = 0
        self.skipped_count = 0
        self._last: Summary | None = None
        self._when = -np.inf

    def due(self, summary: Summary, *, now: float) -> str | None:
        """Return why `summary` should be sent now, or None; each None counts as one saved."""
        reason = self._reason(summary, now)
        if reason is None:
            self.skipped_count += 1
        return reason

    def sent(self, summary: Summary, *, now: float) -> None:
        """Remember what was sent."""
        self._last, self._when = summary, now
        self.sent_count += 1

    def forget(self) -> None:
        """Take the next summary for the first: someone else may have spoken since the last."""
        self._last, self._when = None, -np.inf

    def aged(self, now: float) -> bool:
        """Tell whether the last one sent is too old, without looking at a new one."""
        return now - self._when >= self.max_age_seconds

    def _reason(self, summary: Summary, now: float) -> str | None:
        last = self._last
        if last is None:
            return "first"
        if summary.metrics != last.metrics:
            return "metrics changed"
        if summary.nodes != last.nodes:
            return "nodes changed"
        if summary.clashes != last.clashes:
            return "clashes changed"
        if self._moved(summary, last):
            return "moved"
        return "age" if self.aged(now) else None

    def _moved(self, summary: Summary, last: Summary) -> bool:
        new = summary.subspace and summary.subspace.cut(self.rank)
        old = last.subspace and last.subspace.cut(self.rank)
        if new is None or old is None:
            return new is not old
        if distance(new, old, kind=self.kind) > self.epsilon:
            return True
        if self.kind == "elementwise" or new.rank != old.rank:
            return False
        strength = new.singular_values / np.sqrt(max(summary.samples, 1e-12))
        before = old.singular_values / np.sqrt(max(last.samples, 1e-12))
        return bool(np.abs(strength / before - 1.0).max() > self.epsilon_strength)
