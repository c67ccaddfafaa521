"""Which nodes an extender refuses at present: the rules of every gate, for all nodes at once.

Covers: minimum times, expiry and the capacity floor, kept centrally. Pure: verdicts
come from `Decisions`, time as a number. Does not cover: how verdicts get here,
`prontosched.integration.extender_decisions`; the answers to a scheduler, `extender`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from prontosched.integration.gate import Observed, Verdict
from prontosched.integration.policy import Policy, Rules
from prontosched.integration.preference import places

MOST_KNOWN = 50_000
FORGET_SECONDS = 3600.0


class Decisions(Protocol):
    """Where an extender learns what each node has decided."""

    def verdict(self, node: str) -> Verdict | None:
        """Return the newest verdict of `node`, however old; None when nothing was heard."""
        ...


class Change(NamedTuple):
    """A node began to refuse, or opened again."""

    node: str
    refuse: bool
    reason: str
    valid_until: float


@dataclass(slots=True)
class _Entry:
    policy: Policy
    seen_at: float
    refusal: Verdict | None = None
    refused_at: float = math.nan


class Ledger:
    """Decide for a whole cluster which of the nodes that want to refuse may do so.

    Parameters
    ----------
    decisions
        Where verdicts come from.
    rules
        Minimum times, and the share of the nodes that may refuse at once.

    Notes
    -----
    Memory: one entry for each node seen within the last hour, at most 50,000.
    A node beyond that, like any node nothing is known of, accepts.
    """

    def __init__(self, decisions: Decisions, rules: Rules) -> None:
        self.decisions = decisions
        self.rules = rules
        self._known: dict[str, _Entry] = {}

    @property
    def known(self) -> list[str]:
        """The nodes in service, as far as heard of."""
        return list(self._known)

    def see(self, names: Iterable[str], now: float) -> None:
        """Take note of nodes that are in service."""
        for name in names:
            entry = self._known.get(name)
            if entry is not None:
                entry.seen_at = now
            elif len(self._known) < MOST_KNOWN:
                self._known[name] = _Entry(Policy(self.rules), now)

    def refusal(self, node: str, now: float) -> Verdict | None:
        """Return the verdict by which `node` refuses now, or None: it accepts."""
        entry = self._known.get(node)
        if entry is None or entry.refusal is None or entry.refusal.expired(now):
            return None
        return entry.refusal

    def verdict(self, node: str, now: float) -> Verdict | None:
        """Return what counts for `node` now; None when nothing valid is known."""
        if (refusal := self.refusal(node, now)) is not None:
            return refusal
        heard = self.decisions.verdict(node)
        if heard is None or heard.expired(now):
            return None
        # It wants to refuse but may not (yet): no reason to send it more than others.
        return Verdict(False, 1.0, heard.reason, heard.valid_until) if heard.refuse else heard

    def settle(self, now: float) -> list[Change]:
        """Bring the refusals up to date with what was heard, and return what changed."""
        for name in [name for name, entry in self._known.items() if now - entry.seen_at > FORGET_SECONDS]:
            del self._known[name]
        wanted = {
            name: verdict
            for name, entry in self._known.items()
            if (verdict := self._wanted(name, entry, now))
        }
        room = places(len(self._known), self.rules.max_refusing)
        strongest = sorted(wanted, key=lambda name: self._rank(name, wanted[name], now), reverse=True)
        granted = set(strongest[:room])
        return [
            change
            for name, entry in self._known.items()
            if (change := _apply(name, entry, wanted[name] if name in granted else None, now))
        ]

    def _rank(self, name: str, verdict: Verdict, now: float) -> tuple[bool, float, bool, str]:
        """Order those that want to refuse; scores that are nearly equal must not take turns."""
        entry = self._known[name]
        held = entry.refusal is not None
        resting = held and now - entry.refused_at < self.rules.min_hold_seconds
        return (resting, -math.inf if math.isnan(verdict.score) else verdict.score, held, name)

    def _wanted(self, name: str, entry: _Entry, now: float) -> Verdict | None:
        """Return the verdict by which the node would refuse if there were room."""
        heard = self.decisions.verdict(name)
        held = entry.refusal
        seen = Observed("open")
        if held is not None:
            seen = Observed("closed-by-us", held.reason, score=held.score, valid_until=held.valid_until)
        step = entry.policy.choose(heard, seen, now)
        if step.action in ("refuse", "renew"):
            return heard
        if step.action == "leave" and held is not None and heard is not None:
            # Closed for the minimum time although the node accepts: it is alive and says so.
            return heard if heard.refuse else replace(held, valid_until=heard.valid_until)
        return None


def _apply(name: str, entry: _Entry, refusal: Verdict | None, now: float) -> Change | None:
    before, entry.refusal = entry.refusal, refusal
    if refusal is not None:
        entry.policy.done("refuse", now, refusal.valid_until)
        if before is not None:
            return None
        entry.refused_at = now
        return Change(name, True, refusal.reason, refusal.valid_until)
    if before is not None:
        entry.policy.done("accept", now)
        return Change(name, False, "the node accepts again", math.nan)
    return None
