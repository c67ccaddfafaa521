"""Leases on the bus: leave to refuse jobs, so that never too many nodes refuse at once.

Covers: `RefusalLeases`, the capacity floor of all gates. Nodes write their word into one
table by compare-and-set, in one process and over NATS; who of them may be closed is a
rule that whoever makes the leases hands in (`prontosched.gates.preference`). The
lease of an aggregator on its place is `prontosched.federation.seat`.

Time is the bus's own (`Link.now`): a machine whose clock is wrong neither keeps a
lease for too long nor takes those of others for expired.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from prontosched.codec import decode, encode
from prontosched.errors import FederationError, StateError
from prontosched.federation.link import LEASES, Link, LinkDownError
from prontosched.federation.tree import place

ATTEMPTS = 12
LONGEST_SECONDS = 3600.0
TABLE_LIMIT = 1024 * 1024
SAME_CHANCE = 0.05


# From names to (refuse, chance, held), and the number of nodes in all, to who may be closed.
Rule = Callable[[Mapping[str, tuple[bool, float, bool]], int], Collection[str]]


@dataclass(frozen=True, slots=True)
class Claim:
    """One node's word.

    Attributes
    ----------
    score
        Its chance of contention.
    valid_until
        When the word ends, by the clock of the bus.
    refuse
        Whether its own word is refusing.
    granted
        Whether it has leave to be closed.
    """

    score: float
    valid_until: float
    refuse: bool = True
    granted: bool = False


Table = dict[str, Claim]


def grant(table: Table, node: str, claim: Claim, rule: Rule, *, nodes: int, now: float) -> Table:
    """Return the table after `node` has told its word: who has leave is decided anew for all.

    Words that have ended are dropped.

    Examples
    --------
    >>> worst = lambda words, nodes: [max(words, key=lambda name: words[name][1])]
    >>> table = grant({"a": Claim(0.9, 60.0)}, "b", Claim(0.5, 60.0), worst, nodes=4, now=0.0)
    >>> [name for name in table if table[name].granted]
    ['a']
    """
    told = {name: held for name, held in table.items() if held.valid_until > now and name != node}
    held_before = node in table and table[node].granted and table[node].valid_until > now
    told[node] = replace(claim, granted=held_before)
    words = {name: (one.refuse, one.score, one.granted) for name, one in told.items()}
    closed = set(rule(words, max(nodes, len(words))))
    return {name: replace(one, granted=name in closed) for name, one in told.items()}


class RefusalLeases:
    """Let nodes refuse within one rule for the whole pool.

    Parameters
    ----------
    link
        The bus that all nodes of the pool share.
    rule
        Tells which nodes may be closed, given what all have told.
    nodes
        How many nodes the pool has: a number, or a function that knows it now.
    pool
        Name of the pool. One table per pool: with more than about a thousand nodes
        give every rack or row its own.
    unreachable
        What to answer while the bus is away and no lease is held: `accept` keeps the
        floor, `refuse` trusts the node.

    Notes
    -----
    A node renews its lease by telling its word again, and loses it silently to one that
    is worse off: the next `tell` then answers False.

    Examples
    --------
    >>> from prontosched.federation.link import Board, LocalLink
    >>> first = lambda words, nodes: sorted(words)[:1]
    >>> leases = RefusalLeases(LocalLink(Board()), first, nodes=2)
    >>> [leases.tell(n, refuse=True, score=0.5, valid_until=60.0, now=0.0) for n in ("n1", "n2")]
    [True, False]
    """

    def __init__(
        self,
        link: Link,
        rule: Rule,
        *,
        nodes: int | Callable[[], int],
        pool: str = "all",
        unreachable: Literal["accept", "refuse"] = "accept",
    ) -> None:
        self.link = link
        self.rule = rule
        self.nodes = nodes
        self.key = f"refusals.claims.{place(pool)}"
        self.unreachable = unreachable
        self.conflicts = 0
        self._held: dict[str, float] = {}

    def tell(
        self, node: str, *, refuse: bool, score: float, valid_until: float, now: float | None = None
    ) -> bool:
        """Write the word of `node` down, and return whether it may be closed.

        Parameters
        ----------
        refuse, score
            Whether its own word is refusing, and its chance of contention.
        valid_until, now
            When the word ends, and the time, both by the caller's own clock. Only
            their difference counts. Without `now`, `valid_until` is the bus's time.
        """
        try:
            asked = self.link.now()
            seconds = min(valid_until - (asked if now is None else now), LONGEST_SECONDS)
            if not seconds > 0.0:
                return False
            chance = score if math.isfinite(score) else 0.0
            nodes = self.nodes() if callable(self.nodes) else self.nodes

            def told(table: Table) -> tuple[bool, Table]:
                claim = Claim(chance, asked + seconds, refuse)
                if (known := table.get(node)) is not None and _still_true(known, claim, asked):
                    claim = replace(claim, score=known.score, valid_until=known.valid_until)
                after = grant(table, node, claim, self.rule, nodes=nodes, now=asked)
                return after[node].granted, after

            granted = self._change(told)
        except LinkDownError:
            held = self._held.get(node, -math.inf) > self.link.now()
            return refuse and (held or self.unreachable == "refuse")
        if granted:
            self._held[node] = asked + seconds
        else:
            self._held.pop(node, None)
        return granted

    def release(self, node: str) -> None:
        """Take the word of `node` out; without a bus it ends by itself."""
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
        return {name: held for name, held in table.items() if held.granted and held.valid_until > now}

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
    columns = ("score", "valid_until", "refuse", "granted")
    rows = np.array([[float(getattr(table[name], column)) for column in columns] for name in names])
    return encode("claims", 1, {"nodes": names, "rows": rows.reshape(-1, len(columns))})


def _still_true(known: Claim, claim: Claim, now: float) -> bool:
    """Tell whether a word need not be written again: the bus is spared what says nothing new."""
    fresh = known.valid_until - now > (claim.valid_until - now) / 2
    near = abs(known.score - claim.score) < SAME_CHANCE
    return fresh and near and known.refuse == claim.refuse and known.valid_until <= claim.valid_until


def _read(value: bytes) -> Table:
    if not value:
        return {}
    try:
        fields = decode(value, kind="claims", version=1, limit=TABLE_LIMIT)
        names, rows = fields["nodes"], fields["rows"].tolist()
        if not isinstance(names, list) or len(names) != len(rows):
            raise FederationError(
                f"a table of leases must have one row per node, got {len(rows)}: discard it"
            )
        return {
            str(name): Claim(float(score), float(until), refuse > 0, granted > 0)
            for name, (score, until, refuse, granted) in zip(names, rows, strict=True)
        }
    except (StateError, FederationError, KeyError, AttributeError, ValueError, TypeError):
        # A table that cannot be read protects no one: begin a new one.
        return {}
