"""The capacity floor: never more than a set share of the nodes refuse at once.

Covers: asking for leave to refuse, by leases on the bus or by counting at the
scheduler. Where all places are taken, the least certain gives way. The leases
themselves live with the transport that all agents share.
"""

from __future__ import annotations

import math
from typing import Protocol

from prontosched.integration.gate import CountingGate, Gate, RefusalLeases, Verdict
from prontosched.integration.preference import places


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
        return self.leases.try_refuse(node, score=verdict.score, valid_until=verdict.valid_until, now=now)

    def release(self, node: str) -> None:
        """Give the node's lease back."""
        self.leases.release(node)


class CountedFloor:
    """The floor held by counting our own marks at the scheduler.

    A scheduler that cannot compare and set lets two nodes count at the same moment
    and both close. So a node counts again right after it has closed, and by the same
    order on both sides (score, then name) the weaker one opens.

    Parameters
    ----------
    gate
        Where to count, and to open weaker nodes that give way.
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
        """Count; where all places are taken, open those less certain than `node`."""
        census = self._count()
        room = places(census.in_service, self.share)
        others = sorted(
            ((name, seen) for name, seen in census.refusals.items() if name != node),
            key=lambda other: _certainty(other[0], other[1].score),
        )
        mine = _certainty(node, verdict.score)
        stronger = sum(_certainty(name, seen.score) > mine for name, seen in others)
        if stronger >= room:
            return False
        for name, _ in others[: max(0, len(others) - (room - 1))]:
            self.gate.accept(name)
        return True

    def release(self, node: str) -> None:
        """Do nothing: opening the node gives its place back."""


def floor_for(gate: Gate, *, share: float, leases: RefusalLeases | None) -> Floor:
    """Choose how to hold the floor: leases, else counting, else off and saying so."""
    if leases is not None:
        return LeaseFloor(leases)
    if isinstance(gate, CountingGate):
        return CountedFloor(gate, share)
    return NoFloor()


def _certainty(name: str, score: float) -> tuple[float, str]:
    return (-math.inf if math.isnan(score) else score, name)
