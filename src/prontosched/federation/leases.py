"""Leases on the bus: leave to refuse jobs, so that never too many nodes refuse at once.

Covers: `RefusalLeases`, the capacity floor of all gates (at most a set share of the
nodes refuse at once). It works on any link by compare-and-set, in one process and over
NATS. The lease of an aggregator on its place is `prontosched.federation.seat`.

Time is the bus's own (`Link.now`): a machine whose clock is wrong neither keeps a
lease for too long nor takes those of others for expired.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from prontosched.codec import decode, encode
from prontosched.errors import FederationError, StateError
from prontosched.federation.link import LEASES, Link, LinkDownError
from prontosched.federation.tree import place

ATTEMPTS = 12
LONGEST_SECONDS = 3600.0
TABLE_LIMIT = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Refusal:
    """One node's leave to refuse.

    Attributes
    ----------
    score
        How certain the node is that it should refuse.
    valid_until
        When the lease ends, by the clock of the bus.
    """

    score: float
    valid_until: float


Table = dict[str, Refusal]


def grant(
    table: Table, node: str, refusal: Refusal, *, allowed: int, now: float, margin: float = 0.0
) -> tuple[bool, Table]:
    """Return whether `node` may refuse, and the table of leases after that.

    Ended leases are dropped. Where there is no room the least certain holder gives
    way, if `node` is more certain by more than `margin`.

    Examples
    --------
    >>> held = {"a": Refusal(0.9, 60.0), "b": Refusal(0.2, 60.0)}
    >>> granted, table = grant(held, "c", Refusal(0.5, 60.0), allowed=2, now=0.0)
    >>> granted, sorted(table)
    (True, ['a', 'c'])
    """
    others = {name: held for name, held in table.items() if held.valid_until > now and name != node}
    # By name among equals, so that every node comes to the same table.
    least_first = sorted(others, key=lambda name: (others[name].score, name))
    renewing = node in table and table[node].valid_until > now
    while len(others) > max(allowed, 0):
        del others[least_first.pop(0)]
    if len(others) < allowed:
        return True, {**others, node: refusal}
    needed = 0.0 if renewing else margin
    if least_first and refusal.score > others[least_first[0]].score + needed:
        del others[least_first[0]]
        return True, {**others, node: refusal}
    return False, others


class RefusalLeases:
    """Let at most a set share of the nodes refuse at once.

    Parameters
    ----------
    link
        The bus that all nodes of the pool share.
    share
        Largest share of the nodes that may refuse, from 0 to 1.
    nodes
        How many nodes the pool has: a number, or a function that knows it now.
    pool
        Name of the pool. One table per pool: with more than about a thousand nodes
        give every rack or row its own.
    at_least
        Nodes that may refuse however small the pool is; 0 forbids a lone node to refuse.
    margin
        How much more certain a newcomer must be to take another's lease.
    unreachable
        What to answer while the bus is away and no lease is held: `accept` keeps the
        floor, `refuse` trusts the node.

    Notes
    -----
    A node renews its lease by asking again, and loses it silently to a more certain
    one: the next `try_refuse` then answers False.

    Examples
    --------
    >>> from prontosched.federation.link import Board, LocalLink
    >>> leases = RefusalLeases(LocalLink(Board()), share=0.5, nodes=2)
    >>> [leases.try_refuse(n, score=0.5, valid_until=60.0, now=0.0) for n in ("n1", "n2")]
    [True, False]
    """

    def __init__(
        self,
        link: Link,
        *,
        share: float,
        nodes: int | Callable[[], int],
        pool: str = "all",
        at_least: int = 1,
        margin: float = 0.05,
        unreachable: Literal["accept", "refuse"] = "accept",
    ) -> None:
        if not 0.0 <= share <= 1.0:
            raise ValueError(f"share must be from 0 to 1, got {share}")
        self.link = link
        self.share = share
        self.nodes = nodes
        self.key = f"refusals.{place(pool)}"
        self.at_least = at_least
        self.margin = margin
        self.unreachable = unreachable
        self.conflicts = 0
        self._held: dict[str, float] = {}

    def allowed(self) -> int:
        """Return how many nodes may refuse now."""
        nodes = self.nodes() if callable(self.nodes) else self.nodes
        return max(min(self.at_least, nodes), math.floor(self.share * nodes + 1e-9))

    def try_refuse(self, node: str, *, score: float, valid_until: float, now: float | None = None) -> bool:
        """Take or renew the lease of `node`; False when the floor leaves no room for it.

        Parameters
        ----------
        score
            How certain the node is; the least certain give way first.
        valid_until, now
            When the refusal ends, and the time, both by the caller's own clock. Only
            their difference counts. Without `now`, `valid_until` is the bus's time.
        """
        try:
            asked = self.link.now()
            seconds = valid_until - (asked if now is None else now)
            if not seconds > 0.0:
                return False
            certain = score if math.isfinite(score) else -math.inf
            wanted = Refusal(certain, asked + min(seconds, LONGEST_SECONDS))
            granted = self._change(
                lambda table: grant(
                    table, node, wanted, allowed=self.allowed(), now=asked, margin=self.margin
                )
            )
        except LinkDownError:
            return self._held.get(node, -math.inf) > self.link.now() or self.unreachable == "refuse"
        if granted:
            self._held[node] = wanted.valid_until
        else:
            self._held.pop(node, None)
        return granted

    def release(self, node: str) -> None:
        """Give the lease of `node` back; without a bus it ends by itself."""
        self._held.pop(node, None)

        def without(table: Table) -> tuple[bool, Table]:
            return True, {name: held for name, held in table.items() if name != node}

        try:
            self._change(without)
        except LinkDownError:
            return

    def refusing(self) -> Table:
        """Return the leases that hold now."""
        entry = self.link.get(LEASES, self.key)
        now = self.link.now()
        table = _read(entry.value) if entry else {}
        return {name: held for name, held in table.items() if held.valid_until > now}

    def _change(self, change: Callable[[Table], tuple[bool, Table]]) -> bool:
        for attempt in range(ATTEMPTS):
            entry = self.link.get(LEASES, self.key)
            table = _read(entry.value) if entry else {}
            answer, changed = change(table)
            if changed == table:
                return answer
            revision = entry.revision if entry else 0
            if self.link.compare_and_set(LEASES, self.key, _write(changed), revision=revision):
                return answer
            self.conflicts += 1
            # Spread out those who asked together; doubling, or a large pool never gets through.
            time.sleep(random.uniform(0.0, 0.001 * 2 ** min(attempt, 6)))
        raise LinkDownError(f"the table of leases must be free in {ATTEMPTS} attempts, got others every time")


def _write(table: Table) -> bytes:
    names = sorted(table)
    return encode(
        "refusals",
        1,
        {
            "nodes": names,
            "scores": np.array([table[name].score for name in names]),
            "valid_until": np.array([table[name].valid_until for name in names]),
        },
    )


def _read(value: bytes) -> Table:
    if not value:
        return {}
    try:
        fields = decode(value, kind="refusals", version=1, limit=TABLE_LIMIT)
        names, scores, until = fields["nodes"], fields["scores"].tolist(), fields["valid_until"].tolist()
        if not isinstance(names, list) or not len(names) == len(scores) == len(until):
            raise FederationError(
                f"a table of leases must have one row per node, got {len(scores)}: discard it"
            )
    except (StateError, FederationError, KeyError, AttributeError):
        # A table that cannot be read protects no one: begin a new one.
        return {}
    return {str(n): Refusal(float(s), float(u)) for n, s, u in zip(names, scores, until, strict=True)}
