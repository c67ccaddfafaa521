"""Leases on the bus, taken and renewed by compare-and-set.

Covers: `RefusalLeases`, the capacity floor of all gates: never too many nodes refuse jobs at
once. `LeaderLease`: one process at a time publishes for an aggregator, and a standby takes
over when it dies. `NodeCount`: how many nodes the capacity floor is a share of.

Refusal leases end by the clock of the bus (`Link.now`): a machine whose clock is wrong neither
keeps a lease for too long nor takes those of others for expired.
"""

from __future__ import annotations

import math
import random
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import astuple, dataclass, replace

import numpy as np

from prontosched.codec import decode, encode
from prontosched.errors import StateError
from prontosched.federation.link import CENSUS_KEY, LEASES, MESSAGE_LIMIT, VIEWS, Link, LinkDownError
from prontosched.federation.message import peek_count
from prontosched.federation.schema import name_bytes
from prontosched.federation.tree import MAX_NODES, ROOT, place

ATTEMPTS = 12
LONGEST_SECONDS = 3600.0
# Clocks of members agree as well as their way to the bus is short.
SLACK_SECONDS = 60.0
# Of the names and claims of a table: it must fit a message, signed.
TABLE_BYTES = MESSAGE_LIMIT - 4096
MAX_CLAIM_NAME = 256
SAME_CHANCE = 0.05
# The root renews its census every minute; one this old is no longer true.
CENSUS_KEPT_SECONDS = 900.0

# From names to (refuse, chance, held), and the number of nodes in all, to who may be closed.
Rule = Callable[[Mapping[str, tuple[bool, float, bool]], int], Collection[str]]


@dataclass(frozen=True, slots=True)
class Claim:
    """What one node wrote into the table."""

    score: float  # its chance of contention
    valid_until: float  # by the clock of the bus
    refuse: bool = True  # whether the node itself wants to refuse
    granted: bool = False  # whether it may be closed

    def covers(self, other: Claim, now: float) -> bool:
        """Tell whether `other` says nothing new, so that it need not be written."""
        fresh = self.valid_until - now > (other.valid_until - now) / 2
        near = abs(self.score - other.score) < SAME_CHANCE
        return fresh and near and self.refuse == other.refuse and self.valid_until <= other.valid_until


Table = dict[str, Claim]


def grant(
    table: Table, node: str, claim: Claim, rule: Rule, *, nodes: int, now: float, most: int = MAX_NODES
) -> Table:
    """Return the table with the claim of `node`: the rule decides anew for all; ended claims are dropped.

    Beyond `most` those written longest ago are dropped too: who writes claims of names that do not
    exist must not make the fleet look larger than it can be. So are those that may not be closed,
    where a message cannot hold all.
    """
    # No lease is longer: one that says so would keep its place for ever.
    valid = {
        name: held
        for name, held in table.items()
        if now < held.valid_until <= now + LONGEST_SECONDS + SLACK_SECONDS
    }
    granted = node in valid and valid[node].granted
    # The newest claim last.
    valid.pop(node, None)
    valid[node] = replace(claim, granted=granted)
    for name in list(valid)[: max(0, len(valid) - max(most, 1))]:
        del valid[name]
    told = {name: (one.refuse, one.score, one.granted) for name, one in valid.items()}
    closed = set(rule(told, max(nodes, len(told))))
    decided = {name: replace(one, granted=name in closed) for name, one in valid.items()}
    size = sum(map(_row_bytes, decided))
    for name in sorted(decided, key=lambda other: (other == node, decided[other].granted)):
        if size <= TABLE_BYTES:
            break
        size -= _row_bytes(name)
        del decided[name]
    return decided


class RefusalLeases:
    """Let nodes refuse within one rule for all of them.

    A node renews its lease by telling its state again. It loses the lease silently to one that
    is worse off: the next `tell` then returns False. While the bus is away no new lease is
    granted, and held ones last until they end. `rule` returns which nodes may be closed, given
    what all have told.
    """

    key = "refusals.claims.all"

    def __init__(self, link: Link, rule: Rule, *, nodes: int | Callable[[], int]) -> None:
        self.link = link
        self.rule = rule
        self.nodes = nodes
        self._held: dict[str, float] = {}

    def tell(
        self, node: str, *, refuse: bool, score: float, valid_until: float, now: float | None = None
    ) -> bool:
        """Write the claim of `node`, and return whether it may be closed.

        `valid_until` and `now` are by the caller's own clock: only their difference counts. Without
        `now`, `valid_until` is by the bus's.
        """
        asked = self.link.now()
        seconds = min(valid_until - (asked if now is None else now), LONGEST_SECONDS)
        if not seconds > 0.0 or len(node) > MAX_CLAIM_NAME:
            return False
        claim = Claim(score if math.isfinite(score) else 0.0, asked + seconds, refuse)
        nodes = self.nodes() if callable(self.nodes) else self.nodes

        def claimed(table: Table) -> Table:
            known = table.get(node)
            new = claim
            if known is not None and known.covers(claim, asked):
                new = replace(claim, score=known.score, valid_until=known.valid_until)
            most = self.link.most_nodes(ROOT)
            return grant(table, node, new, self.rule, nodes=nodes, now=asked, most=most)

        try:
            granted = self._change(claimed)[node].granted
        except LinkDownError:
            return refuse and self._held.get(node, -math.inf) > self.link.now()
        if granted:
            self._held[node] = asked + seconds
        else:
            self._held.pop(node, None)
        return granted

    def release(self, node: str) -> None:
        """Remove the claim of `node`; without a bus it ends by itself."""
        self._held.pop(node, None)
        with suppress(LinkDownError):
            self._change(lambda table: {name: held for name, held in table.items() if name != node})

    def refusing(self) -> Table:
        """Return the leases that hold now."""
        entry = self.link.get(LEASES, self.key)
        now = self.link.now()
        table = _read(entry.value) if entry else {}
        return {name: held for name, held in table.items() if held.granted and held.valid_until > now}

    def _change(self, change: Callable[[Table], Table]) -> Table:
        """Replace the table by what `change` makes of it, and return that."""
        for attempt in range(ATTEMPTS):
            entry = self.link.get(LEASES, self.key)
            table = _read(entry.value) if entry else {}
            changed = change(table)
            revision = entry.revision if entry else 0
            if changed == table or self.link.compare_and_set(
                LEASES, self.key, _write(changed), revision=revision
            ):
                return changed
            # Spread out those who asked together; doubling, or a large fleet never gets through.
            time.sleep(random.uniform(0.0, 0.001 * 2 ** min(attempt, 6)))
        raise LinkDownError(f"the table of leases must be free in {ATTEMPTS} attempts, got others every time")


def _write(table: Table) -> bytes:
    # In the order in which they were written.
    rows = np.array([astuple(claim) for claim in table.values()], np.float64)
    return encode("claims", 1, {"nodes": list(table), "rows": rows.reshape(-1, 4)})


def _row_bytes(name: str) -> int:
    return name_bytes(name) + 4 * 8


def _read(value: bytes) -> Table:
    try:
        fields = decode(value, kind="claims", version=1, limit=MESSAGE_LIMIT)
        return {
            name: Claim(float(score) if math.isfinite(score) else 0.0, float(until), refuse > 0, granted > 0)
            for name, (score, until, refuse, granted) in zip(
                fields["nodes"], fields["rows"].tolist(), strict=True
            )
            if isinstance(name, str) and len(name) <= MAX_CLAIM_NAME
        }
    except (StateError, KeyError, AttributeError, ValueError, TypeError):
        # A table that cannot be read protects no one: begin a new one.
        return {}


class LeaderLease:
    """The right to publish for one aggregator, held by one process at a time.

    The holder renews its lease. A standby that saw no renewal for `seconds`, by its own monotonic
    clock, takes it by compare-and-set. No clocks are compared, so none can be wrong. `holder` is
    shown on the bus; a random number tells apart two containers that both are process 1 of one host.
    """

    def __init__(
        self,
        link: Link,
        aggregator: str,
        holder: str,
        *,
        seconds: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.link = link
        self.key = f"seats.{place(aggregator)}"
        self.holder = f"{holder} {secrets.token_hex(4)}"
        self.seconds = seconds
        self.clock = clock
        self.held = False
        self.takeovers = 0
        self._revision = -1
        self._since = -math.inf

    def acquire(self) -> bool:
        """Take or renew the lease if that is due; True while this process holds it."""
        now = self.clock()
        if self.held and now - self._since < self.seconds / 3.0:
            return True
        try:
            self.held = self._acquire(now)
        except LinkDownError:
            # Unknown is not ours: a standby may have taken it by now.
            self.held = self.held and now - self._since < self.seconds
        return self.held

    def release(self) -> None:
        """Give the lease up, so that a standby need not wait."""
        if self.held:
            self.held = False
            with suppress(LinkDownError):
                self.link.compare_and_set(LEASES, self.key, b"", revision=self._revision)

    def _acquire(self, now: float) -> bool:
        entry = self.link.get(LEASES, self.key)
        if self.held and entry is None:
            # The bus lost its store. Taken anew, the lease lets its holder publish all again.
            return False
        revision = entry.revision if entry else 0
        ours = entry is not None and entry.value == self.holder.encode()
        free = entry is None or not entry.value
        if not ours and revision != self._revision:
            # Another process renewed it just now.
            self._revision, self._since, self.held = revision, now, False
        if not (ours or free or now - self._since >= self.seconds):
            return False
        stored = self.link.compare_and_set(LEASES, self.key, self.holder.encode(), revision=revision)
        if stored is None:
            return False
        self.takeovers += not ours
        self._revision, self._since = stored, now
        return True


class NodeCount:
    """How many nodes the federation has, as the root last told; `fallback` until then and 15 minutes after."""

    def __init__(self, link: Link, *, fallback: int = 1) -> None:
        self.nodes = self.fallback = fallback
        self._told_at = -math.inf
        self._link = link
        self._subscription = link.subscribe(VIEWS, CENSUS_KEY)

    def __call__(self) -> int:
        """Return the number of nodes, never waiting."""
        for entry in self._subscription.drain():
            if (told := peek_count(entry.value, "census", "nodes")) is not None:
                # Not even the root may count more nodes than have a key.
                self.nodes = max(1, min(told, self._link.most_nodes(ROOT)))
                self._told_at = entry.time
        fresh = self._link.now() - self._told_at < CENSUS_KEPT_SECONDS
        return self.nodes if fresh else self.fallback
