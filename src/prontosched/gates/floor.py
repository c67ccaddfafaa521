"""The capacity floor: never more than a set share of the nodes refuse at once.

Covers: asking for leave to refuse, by leases on the bus or by counting at the
scheduler. Who may be closed is one rule, `preference.closable`: where all places are
taken, the calmest gives way. The leases themselves live with the transport that all
agents share.
"""

from __future__ import annotations

from typing import Protocol

from prontosched.gates.gate import CountingGate, Gate, RefusalLeases, Verdict
from prontosched.gates.preference import Word, closed_nodes, places


class Floor(Protocol):
    """Leave to refuse, one node at a time.

    Attributes
    ----------
    how
        One phrase for people: by what means the floor is held, or that it is off.
    costly
        True when asking loads the scheduler, so that it is asked only before a change.
    """

    how: str
    costly: bool

    def allow(self, node: str, verdict: Verdict, now: float) -> bool:
        """Take or renew leave for `node` to refuse; False when there is no room for it."""
        ...

    def release(self, node: str) -> None:
        """Give leave back; nothing happens where there is none."""
        ...


class NoFloor:
    """No floor at all: every node may refuse at the same time."""

    costly = False

    def __init__(self, why: str = "no leases, and the scheduler cannot count its nodes") -> None:
        self.how = f"off ({why})"

    def allow(self, node: str, verdict: Verdict, now: float) -> bool:
        """Always give leave."""
        return True

    def release(self, node: str) -> None:
        """Do nothing: nothing was taken."""


class LeaseFloor:
    """The floor held by leases on the bus."""

    how = "leases on the bus"
    costly = False

    def __init__(self, leases: RefusalLeases) -> None:
        self.leases = leases

    def allow(self, node: str, verdict: Verdict, now: float) -> bool:
        """Take or renew the node's lease."""
        return self.leases.tell(
            node, refuse=True, score=verdict.score, valid_until=verdict.valid_until, now=now
        )

    def release(self, node: str) -> None:
        """Give the node's lease back."""
        self.leases.release(node)


class CountedFloor:
    """The floor held by counting our own marks at the scheduler: refusals and ranks.

    A scheduler that cannot compare and set lets two nodes count at the same moment
    and both close. So a node counts again right after it has closed, and by the same
    order on both sides (chance, then name) the calmer one opens. A node that must give
    way does so by itself: no agent touches another's node.

    Parameters
    ----------
    gate
        Where to count.
    share
        Largest share of the nodes in service that may refuse, in (0, 1].
    """

    costly = True

    def __init__(self, gate: Gate, share: float) -> None:
        if not isinstance(gate, CountingGate):
            raise TypeError(f"gate must be able to count its nodes, got {gate.name}: it has no census")
        self.gate = gate
        self.share = share
        self._count = gate.census
        self.how = f"counted at {gate.name}, at most {share:.0%} of the nodes"

    def allow(self, node: str, verdict: Verdict, now: float) -> bool:
        """Count, and return whether `node` is among those that may be closed and there is room."""
        census = self._count()
        words = {
            name: Word(rank.refuse, rank.chance)
            for name, rank in census.ranks.items()
            if not rank.expired(now)
        }
        words.update((name, Word(True, seen.score, True)) for name, seen in census.refusals.items())
        words[node] = Word(True, verdict.score, node in census.refusals)
        closed = closed_nodes(words, nodes=census.in_service, share=self.share)
        if node not in closed:
            return False
        if node in census.refusals:
            return True
        # One that must give way has not done so yet: wait for it.
        return len(census.refusals) < places(census.in_service, self.share)

    def release(self, node: str) -> None:
        """Do nothing: opening the node gives its place back."""


def floor_for(gate: Gate, *, share: float, leases: RefusalLeases | None) -> Floor:
    """Choose how to hold the floor: leases, else counting, else off and saying so."""
    if leases is not None:
        return LeaseFloor(leases)
    if isinstance(gate, CountingGate):
        return CountedFloor(gate, share)
    return NoFloor()
