"""The capacity floor: which nodes may be closed at once. Every gate, the simulator and the extender use this rule.

A node may be closed if all of this holds:

1. Its own decision is to refuse.
2. Its chance of contention is at least `TYPICAL_TIMES` the fleet's typical one.
3. No node that stays open has a higher chance.
4. At most `places` nodes are closed.
5. No job waits that no open node can take.

A lone node is never closed: there is no other node that could take the job.

`closable` is the rule over arrays, `closed_nodes` over names and `may_close` for one node.
A `Floor` applies it for one controller: with leases on the bus (`LeaseFloor`) or with the
marks at the scheduler (`CountedFloor`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prontosched.gates.gate import CountingGate, Gate, LeaseTable, Verdict
from prontosched.gates.preference import LEVEL_EDGES
from prontosched.subspace import Array

TYPICAL_TIMES = 2.0
# A closed node's chance counts for this much more, so that near equals do not take turns.
HELD_MARGIN = 0.1


def places(nodes: int, share: float) -> int:
    """Return how many of `nodes` may be closed at once: the share rounded down, at least one of two or more.

    Examples
    --------
    >>> [places(nodes, 0.25) for nodes in (1, 2, 8, 11, 12)]
    [0, 1, 2, 2, 3]
    >>> places(1, 1.0)
    0
    """
    return 0 if nodes < 2 else max(1, math.floor(share * nodes + 1e-9))


def typical(chance: Array) -> float:
    """Return the fleet's typical chance of contention: the median, of two in the middle the lower.

    Examples
    --------
    >>> typical(np.array([0.1, 0.9])), typical(np.array([0.3, 0.1, 0.9]))
    (0.1, 0.3)
    """
    return float(np.quantile(chance, 0.5, method="lower"))


def closable(
    refusing: NDArray[np.bool_],
    probability: Array,
    *,
    share: float,
    starved: bool = False,
    held: NDArray[np.bool_] | None = None,
) -> NDArray[np.bool_]:
    """Return which nodes may be closed now.

    Parameters
    ----------
    refusing, probability, held
        For the nodes in service, `(M,)` each: their own decision, their chance of contention
        (NaN counts as 0), and whether they are closed already.
    share
        Largest share of the nodes that may be closed, in (0, 1].
    starved
        Whether jobs wait that no open node can take.

    Examples
    --------
    >>> refusing, chance = np.array([True, True, False, False]), np.array([0.9, 0.6, 0.1, 0.2])
    >>> closable(refusing, chance, share=0.25).tolist()
    [True, False, False, False]
    """
    chance = np.nan_to_num(probability, nan=0.0)
    closed = np.zeros(chance.shape, np.bool_)
    room = places(chance.size, share)
    if starved or room == 0:
        return closed
    weighed = chance if held is None else chance + HELD_MARGIN * held
    order = np.argsort(-weighed, kind="stable")[:room]
    drowning = refusing & (weighed >= TYPICAL_TIMES * typical(chance))
    # From the worst down to the first that stays open: nothing calmer than that one is closed.
    closed[order] = np.logical_and.accumulate(drowning[order])
    return closed


class NodeReport(NamedTuple):
    """What others know of one node: whether it refuses, its chance, and whether we hold it closed."""

    refuse: bool
    chance: float
    held: bool = False


def closed_nodes(
    reports: Mapping[str, tuple[bool, float, bool]], *, nodes: int, share: float
) -> frozenset[str]:
    """Return the names that may be closed now, by `closable`; each report is a `NodeReport`.

    `nodes` are in service. They report from level 1 on, so the chance of one without a
    report counts as the first edge.

    Examples
    --------
    >>> reports = {"n1": NodeReport(True, 0.9), "n2": NodeReport(True, 0.7), "n3": NodeReport(False, 0.8)}
    >>> sorted(closed_nodes(reports, nodes=8, share=0.25))
    ['n1']
    """
    names = sorted(reports)
    calm = max(0, nodes - len(names))
    rows = [*(reports[name] for name in names), *[NodeReport(False, LEVEL_EDGES[0])] * calm]
    if not rows:
        return frozenset()
    refuse, chance, held = (np.array(column) for column in zip(*rows, strict=True))
    closed = closable(refuse, chance, share=share, held=held)
    return frozenset(name for name, shut in zip(names, closed, strict=False) if shut)


def may_close(node: str, reports: Mapping[str, NodeReport], *, nodes: int, share: float) -> bool:
    """Tell whether `node` may be closed now, or stay so.

    One that must open for it, and has not yet, still takes a place.

    Examples
    --------
    >>> may_close("a", {"a": NodeReport(True, 0.9), "b": NodeReport(True, 0.3, held=True)}, nodes=2, share=0.25)
    False
    """
    if node not in closed_nodes(reports, nodes=nodes, share=share):
        return False
    return reports[node].held or sum(one.held for one in reports.values()) < places(nodes, share)


class Floor:
    """Permission to refuse, one node at a time. This one is off and always gives it.

    Attributes
    ----------
    how
        One phrase for people: by what means the floor is held, or that it is off.
    costly
        True when asking loads the scheduler, so that it is asked only before a change.
    """

    costly = False

    def __init__(self, how: str) -> None:
        self.how = how

    def allow(self, node: str, verdict: Verdict, now: float) -> bool:
        """Take or renew the permission of `node` to refuse; False when there is no place."""
        return True

    def release(self, node: str) -> None:
        """Give the permission back; nothing happens where there is none."""


class LeaseFloor(Floor):
    """The floor held by leases on the bus."""

    def __init__(self, leases: LeaseTable) -> None:
        super().__init__("leases on the bus")
        self.leases = leases

    def allow(self, node: str, verdict: Verdict, now: float) -> bool:
        """Take or renew the node's lease."""
        return self.leases.tell(
            node, refuse=True, score=verdict.score, valid_until=verdict.valid_until, now=now
        )

    def release(self, node: str) -> None:
        """Give the node's lease back."""
        self.leases.release(node)


class CountedFloor(Floor):
    """The floor held by counting our own marks at the scheduler: refusals and ranks.

    A scheduler without compare-and-set lets two nodes count at the same moment and both
    close. So a node counts again right after it has closed, and by the same order on both
    sides (chance, then name) the calmer one opens. No agent touches another's node.
    """

    costly = True

    def __init__(self, gate: CountingGate, name: str, share: float) -> None:
        super().__init__(f"counted at {name}, at most {share:.0%} of the nodes")
        self.share = share
        self._count = gate.census

    def allow(self, node: str, verdict: Verdict, now: float) -> bool:
        """Count, and return whether `node` may be closed."""
        census = self._count()
        reports = {
            name: NodeReport(rank.refuse, rank.chance)
            for name, rank in census.ranks.items()
            if not rank.expired(now)
        }
        reports.update((name, NodeReport(True, seen.score, True)) for name, seen in census.refusals.items())
        reports[node] = NodeReport(True, verdict.score, node in census.refusals)
        return may_close(node, reports, nodes=census.in_service, share=self.share)


def floor_for(gate: Gate, *, share: float, leases: LeaseTable | None) -> Floor:
    """Choose how to hold the floor: leases, else counting, else off and saying so."""
    if leases is not None:
        return LeaseFloor(leases)
    if isinstance(gate, CountingGate):
        return CountedFloor(gate, gate.name, share)
    return Floor("off (no leases, and the scheduler cannot count its nodes)")
