"""Which nodes an extender prefers and refuses at present: the rules of every gate, for all nodes at once.

Covers: minimum times, expiry, the capacity floor and jobs just placed, kept centrally.
Pure: verdicts come from `Decisions`, time as a number. Does not cover: how verdicts get here,
`prontosched.gates.extender_decisions`; the answers to a scheduler, `extender`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from prontosched.gates.gate import Observed, Verdict
from prontosched.gates.placement import Placements, crowded_chance
from prontosched.gates.policy import CONTENDED, Policy, Rules
from prontosched.gates.preference import Candidate, Word, best_first, closed_nodes

# A node whose size is not known is taken to have so many CPUs.
USUAL_NODE_CPUS = 8.0
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
    cpus: float = USUAL_NODE_CPUS


class Ledger:
    """Decide for a whole cluster which nodes to prefer, and which of those that refuse may do so.

    Parameters
    ----------
    decisions
        Where verdicts come from.
    rules
        Minimum times, and the share of the nodes that may refuse at once. Nodes refuse
        only with `veto`; without, they are only preferred less.

    Notes
    -----
    Memory: one entry for each node seen within the last hour, at most 50,000.
    A node beyond that, like any node nothing is known of, accepts.
    """

    def __init__(self, decisions: Decisions, rules: Rules) -> None:
        self.decisions = decisions
        self.rules = rules
        self.placements = Placements()
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

    def size(self, node: str, cpus: float) -> None:
        """Take note of how many CPUs a node has."""
        if node in self._known and cpus > 0.0:
            self._known[node].cpus = cpus

    def refusal(self, node: str, now: float) -> Verdict | None:
        """Return the verdict by which `node` refuses now, or None: it accepts."""
        entry = self._known.get(node)
        if entry is None or entry.refusal is None or entry.refusal.expired(now):
            return None
        return entry.refusal

    def verdict(self, node: str, now: float) -> Verdict | None:
        """Return the node's own word; None when nothing valid is known."""
        heard = self.decisions.verdict(node)
        return None if heard is None or heard.expired(now) else heard

    def chance(self, node: str, now: float) -> float:
        """Return the chance of contention on `node`, jobs just placed there counted; NaN when unknown."""
        heard = self.verdict(node, now)
        if heard is None:
            return math.nan
        entry = self._known.get(node)
        cpus = USUAL_NODE_CPUS if entry is None else entry.cpus
        return crowded_chance(heard.score, self.placements.cpus(node, now), cpus)

    def best(self, now: float) -> list[Candidate]:
        """Return the nodes in service, the one to prefer first."""
        return best_first(self._candidate(name, now) for name in self._known)

    def _candidate(self, name: str, now: float) -> Candidate:
        heard, placed = self.verdict(name, now), self.placements.cpus(name, now)
        if heard is None:
            return Candidate(name, math.nan, "unknown", "nothing valid is known of the node", placed)
        state = "refusing" if heard.refuse else "contended" if heard.score >= CONTENDED else "accepting"
        return Candidate(name, self.chance(name, now), state, heard.reason, placed)

    def settle(self, now: float) -> list[Change]:
        """Bring the refusals up to date with what was heard, and return what changed."""
        for name in [name for name, entry in self._known.items() if now - entry.seen_at > FORGET_SECONDS]:
            del self._known[name]
        wanted = {
            name: verdict
            for name, entry in self._known.items()
            if self.rules.veto and (verdict := self._wanted(name, entry, now))
        }
        words = {
            name: Word(name in wanted, heard.score, entry.refusal is not None)
            for name, entry in self._known.items()
            if (heard := self.verdict(name, now)) is not None
        }
        granted = closed_nodes(words, nodes=len(self._known), share=self.rules.max_refusing)
        return [
            change
            for name, entry in self._known.items()
            if (change := _apply(name, entry, wanted[name] if name in granted else None, now))
        ]

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
        return Change(name, True, refusal.reason, refusal.valid_until)
    if before is not None:
        entry.policy.done("accept", now)
        return Change(name, False, "the node accepts again", math.nan)
    return None
