"""Publishers: summaries to the parent when they changed enough, decisions to anyone.

Covers: the rule of epsilon, the numbering of summaries, and the renewal of decisions. What is
published comes from `prontosched.federation.member` or `prontosched.federation.service`.
"""

from __future__ import annotations

import dataclasses
import math
import secrets
from collections.abc import Callable
from typing import Literal

import numpy as np

from prontosched.decision import Decision
from prontosched.federation.link import DECISIONS, SUMMARIES, Link
from prontosched.federation.message import MAX_COUNT, DecisionMessage, Statistics, Summary, peek_count
from prontosched.federation.schema import SchemaCache
from prontosched.federation.tree import Tree, place
from prontosched.subspace import distance


class Propagation:
    """Decide whether a summary is worth sending, and count what was saved.

    A summary is compared with the last one *sent*, not with the one before. So a slow drift,
    which never exceeds epsilon from one block to the next, is sent in the end.

    `epsilon` (the paper's ε) is the change of the leading directions, from 0 to 1, from which it
    is worth sending, and `epsilon_strength` the relative change of a singular value per root sample.
    After `max_age_seconds` a summary is sent unchanged, so that the parent knows that the sender
    lives. The kind `projector` compares what the directions span; `elementwise` is the paper's
    absdiff, the largest difference of absolute entries, and looks at nothing else. Only `rank`
    leading directions are compared: spare ones turn with every block of noise.
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
        if not (epsilon >= 0 and epsilon_strength >= 0):
            raise ValueError(f"epsilon must be at least 0, got {epsilon} and {epsilon_strength}")
        if not 0 < max_age_seconds < math.inf:
            raise ValueError(f"max_age_seconds must be positive, got {max_age_seconds}")
        if kind not in ("projector", "elementwise"):
            raise ValueError(f"trigger must be projector or elementwise, got {kind!r}")
        self.epsilon = epsilon
        self.epsilon_strength = epsilon_strength
        self.max_age_seconds = max_age_seconds
        self.kind = kind
        self.rank = rank
        self.sent_count = 0
        self.skipped_count = 0
        self._last: Summary | None = None
        self._sent_at = -np.inf

    def due(self, summary: Summary, *, now: float) -> str | None:
        """Return why `summary` should be sent now, or None; each None counts as one saved."""
        reason = self._reason(summary, now)
        if reason is None:
            self.skipped_count += 1
        return reason

    def sent(self, summary: Summary, *, now: float) -> None:
        """Remember what was sent."""
        self._last, self._sent_at = summary, now
        self.sent_count += 1

    def forget(self) -> None:
        """Treat the next summary as the first: another process may have sent one since."""
        self._last, self._sent_at = None, -np.inf

    def aged(self, now: float) -> bool:
        """Tell whether the last one sent is too old, whatever the next one is; so it is if the clock went back."""
        return not 0.0 <= now - self._sent_at < self.max_age_seconds

    def _reason(self, summary: Summary, now: float) -> str | None:
        last = self._last
        if last is None:
            return "first"
        for name in ("metrics", "nodes", "clashes"):
            if getattr(summary, name) != getattr(last, name):
                return f"{name} changed"
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


class SummaryPublisher:
    """Publish the summaries of one name, numbered.

    The incarnation is one more than the last that the bus holds of this name, and not less
    than the time. So a sender that comes back with old state, after a wrong clock, or on an
    empty bus still sends newer summaries than any before. A random part of a second keeps two
    agents apart that start at one moment under one name.
    """

    def __init__(self, link: Link, name: str, *, tree: Tree, schemas: SchemaCache, rule: Propagation) -> None:
        self.link = link
        self.name = name
        self.key = tree.key(name)
        self.schemas = schemas
        self.rule = rule
        self.bytes_sent = 0
        self._incarnation = 0
        self._sequence = 0
        self._former = link.subscribe(SUMMARIES, self.key)

    @property
    def ready(self) -> bool:
        """True once an incarnation larger than any before is known; the bus must have answered."""
        if self._incarnation or not self._former.ready:
            return self._incarnation > 0
        # Nothing of someone else's rubbish under this name, or of a withdrawal.
        found = [peek_count(entry.value, "summary", "incarnation") or 0 for entry in self._former.drain()]
        last = max(found, default=0)
        self.link.unsubscribe(self._former)
        # A number near the end of all numbers is nobody's: one more could not be read.
        last = last if last < MAX_COUNT // 2 else 0
        self._incarnation = max(last + 1, int(1000.0 * self.link.now())) + secrets.randbelow(1000)
        return True

    def publish(self, summary: Summary, statistics: Callable[[], Statistics] | None = None) -> bool:
        """Send `summary` if that is due; True if it was.

        `statistics` gives what a learned signal shares; it is called only when something is sent.
        """
        if not self.ready:
            return False
        now = self.link.now()
        if self.rule.due(summary, now=now) is None:
            return False
        self.schemas.publish(summary.metrics)
        self._sequence += 1
        numbered = dataclasses.replace(
            summary,
            node=self.name,
            incarnation=self._incarnation,
            sequence=self._sequence,
            statistics=statistics() if statistics else summary.statistics,
            sent=self.rule.sent_count + 1,
            skipped=self.rule.skipped_count,
        )
        data = numbered.to_bytes()
        self.link.put(SUMMARIES, self.key, data)
        self.bytes_sent += len(data)
        self.rule.sent(summary, now=now)
        return True

    def restart(self) -> None:
        """Begin again, with a larger incarnation than whoever published under this name meanwhile."""
        self.link.unsubscribe(self._former)
        self._former = self.link.subscribe(SUMMARIES, self.key)
        self._incarnation = 0
        self.rule.forget()

    def withdraw(self) -> None:
        """Withdraw the summary, so that the parent need not wait for it to expire."""
        self.link.put(SUMMARIES, self.key, b"")

    def close(self) -> None:
        """Withdraw the summary and publish no more."""
        self.withdraw()
        self.link.unsubscribe(self._former)


class DecisionPublisher:
    """Publish the decisions of one node, each valid for `seconds` unless renewed."""

    def __init__(self, link: Link, name: str, *, seconds: float = 60.0) -> None:
        self.link = link
        self.name = name
        self.seconds = seconds
        self._key = place(name)
        self._accepted: bool | None = None
        self._sent_at = 0.0

    def publish(self, decision: Decision) -> bool:
        """Publish a decision if it changed or a third of its life has passed; True if it was."""
        now = self.link.now()
        if decision.accept == self._accepted and 0.0 <= now - self._sent_at < self.seconds / 3.0:
            return False
        message = DecisionMessage(
            self.name,
            decision.accept,
            float(decision.score),
            decision.reason,
            issued=now,
            valid_until=now + self.seconds,
            threshold=float(decision.threshold),
            probability=float(decision.probability),
        )
        self.link.put(DECISIONS, self._key, message.to_bytes())
        self._accepted, self._sent_at = decision.accept, now
        return True

    def withdraw(self) -> None:
        """Withdraw the decision before it expires."""
        self.link.put(DECISIONS, self._key, b"")
