"""Monitor the whole bus: every summary, decision and view, as rows an operator can read.

Covers: the subscriptions, the rows, and the groups that they form. A monitor reads what it is
allowed to and changes nothing. A poll costs only what changed since the last one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prontosched.errors import FederationError
from prontosched.federation.link import DECISIONS, SUMMARIES, VIEW_KEY, VIEWS, Entry, Link
from prontosched.federation.message import (
    DecisionMessage,
    GlobalView,
    Summary,
    UnknownSchemaError,
    check_roles,
    clash_note,
)
from prontosched.federation.schema import SchemaCache, carry
from prontosched.federation.tree import ROOT, Tree, level, place

NAN = float("nan")
RANK = 4
MAX_SENDERS = 20_000
PAUSE_MESSAGES = 16
# As long as a bus keeps a summary that is not renewed; where nothing tells of the end, this does.
KEPT_SECONDS = 3600.0
# A schema follows a message at once; later it is missing.
SCHEMA_SECONDS = 3.0
# What has not been renewed for so long was sent before the tree was another one.
MISPLACED_SECONDS = 180.0


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """One node or aggregator.

    `distance` is that from the global view on the fleet's scale: the root of the share of the
    node's variance that lies outside it, 0 for none and 1 for all; NaN where it is unknown.
    """

    name: str
    parent: str
    aggregator: bool
    samples: float
    nodes: int
    sent: int
    skipped: int  # summaries that epsilon saved
    message_bytes: int
    age_seconds: float = NAN  # since its last summary, by the clock of the bus
    distance: float = NAN
    accept: bool | None = None  # its present decision; None when there is none or it has expired
    reason: str = ""


@dataclass(slots=True)
class AggregatorStatus:
    """An aggregator and what lies under it; `age_seconds` is that of the global view at the root."""

    name: str
    parent: str | None  # None for the root
    age_seconds: float = NAN  # of its last summary; NaN if it has sent none
    children: int = 0
    nodes: int = 0  # at any depth
    samples: float = 0.0
    refusing: int | None = None  # nodes that refuse jobs now; None where no decision is known


@dataclass(frozen=True, slots=True)
class FederationSnapshot:
    """The whole federation at one moment."""

    rows: tuple[MemberStatus, ...]  # aggregators from the root down, then nodes with the outliers first
    revision: int | None  # of the global view; None where there is none
    view_nodes: int
    view_age_seconds: float
    unreadable: int  # messages on the bus that are not what they should be
    misplaced: int = 0  # members that report to someone else than this tree says: theirs is another
    denied: str = ""  # what the bus does not let this reader read, in words
    clashes: tuple[str, ...] = ()  # names under which more than one agent publishes
    signed: bool = False
    dropped: int = 0  # messages that were not rightly signed

    @property
    def nodes(self) -> list[MemberStatus]:
        """The nodes, outliers first."""
        return [row for row in self.rows if not row.aggregator]

    @property
    def saved(self) -> dict[str, Any]:
        """What epsilon saved: messages, their share, and bytes."""
        sent, skipped = sum(r.sent for r in self.rows), sum(r.skipped for r in self.rows)
        return {
            "messages_sent": sent,
            "messages_saved": skipped,
            "share_saved": skipped / (sent + skipped) if sent + skipped else 0.0,
            "bytes_saved": sum(r.skipped * r.message_bytes for r in self.rows),
        }

    @property
    def warnings(self) -> list[str]:
        """What is wrong with names or settings of members, in sentences."""
        found = [clash_note(self.clashes)] if self.clashes else []
        if self.misplaced:
            found.append(
                f"{self.misplaced} report elsewhere than this tree says: give everyone the same depth "
                "and shards in the address"
            )
        return found

    def as_dict(self, tree: Tree, *, max_groups: int, max_members: int) -> dict[str, Any]:
        """Return plain values: groups from the root down, then members with the outliers first."""
        groups, nodes = self.groups(tree), self.nodes
        return {
            "revision": self.revision,
            "view_age_seconds": plain(self.view_age_seconds),
            "view_nodes": self.view_nodes,
            "nodes": len(nodes),
            "unreadable": self.unreadable,
            "signed": self.signed,
            "dropped": self.dropped,
            "clashes": list(self.clashes),
            "saved": self.saved,
            "groups": [plain_fields(group) for group in groups[:max_groups]],
            "members": [plain_fields(row, *_MEMBER_FIELDS) for row in nodes[:max_members]],
            "more": max(0, len(nodes) - max_members),
        }

    def groups(self, tree: Tree) -> list[AggregatorStatus]:
        """Return the root and all aggregators, level by level, whether they have sent anything or not."""
        found = {ROOT: AggregatorStatus(ROOT, None, self.view_age_seconds)}

        def group(name: str) -> AggregatorStatus:
            if name not in found:
                parent = tree.parent(name)
                found[name] = AggregatorStatus(name, parent)
                group(parent).children += 1
            return found[name]

        for row in self.rows:
            if row.aggregator:
                group(row.name).age_seconds = row.age_seconds
                continue
            group(row.parent).children += 1
            name: str | None = row.parent
            while name is not None:
                above = group(name)
                above.nodes += 1
                above.samples += row.samples
                if row.accept is not None:
                    above.refusing = (above.refusing or 0) + (not row.accept)
                name = above.parent
        return sorted(found.values(), key=lambda one: (level(one.name), one.name))


_MEMBER_FIELDS = ("name", "parent", "samples", "age_seconds", "distance", "accept", "reason")


def plain(value: Any) -> Any:
    """Return a value as JSON can carry it: numbers to 9 digits, None where they are not finite."""
    if isinstance(value, float):
        return round(value, 9) if math.isfinite(value) else None
    return value


def plain_fields(row: MemberStatus | AggregatorStatus, *names: str) -> dict[str, Any]:
    """Return these fields of a row as JSON can carry them; all without names."""
    return {name: plain(getattr(row, name)) for name in names or row.__slots__}


class FederationMonitor:
    """Keep the state of a federation as it changes on the bus.

    Memory: `d * 4` single-precision numbers for each of at most `max_senders`; those beyond are
    not seen.
    """

    def __init__(self, link: Link, *, tree: Tree | None = None, max_senders: int = MAX_SENDERS) -> None:
        self.link = link
        self.tree = tree or Tree()
        self.max_senders = max_senders
        self._schemas = SchemaCache(link, max_held=max_senders)
        # The view first: distances are measured to it.
        patterns = ((VIEWS, VIEW_KEY), (SUMMARIES, ">"), (DECISIONS, ">"))
        self._subscriptions = [link.subscribe(*pattern) for pattern in patterns]
        self._senders: dict[str, _Sender] = {}
        self._misplaced: dict[str, float] = {}
        self._decisions: dict[str, DecisionMessage] = {}
        self._unreadable: set[tuple[str, str]] = set()
        self._view: GlobalView | None = None
        self._view_time = NAN

    @property
    def ready(self) -> bool:
        """True once all that lay on the bus at the start has arrived."""
        return all(subscription.ready for subscription in self._subscriptions)

    @property
    def pending(self) -> int:
        """Messages that wait for their schema."""
        return len(self._schemas.held)

    def poll(self, pause: Callable[[], None] | None = None) -> None:
        """Take in what arrived since the last call, never waiting for the bus.

        `pause` is called after every few messages, so that other threads may run in between.
        """
        arrived = {(one.topic, entry.key): entry for one in self._subscriptions for entry in one.drain()}
        for number, (where, entry) in enumerate(self._schemas.take(arrived).items(), 1):
            self._unreadable.discard(where)
            try:
                self._read(where[0], entry)
            except UnknownSchemaError as error:
                self._schemas.hold(where, entry, error.schema)
            except Exception:
                # Whatever one message does, the others are shown.
                if len(self._unreadable) < self.max_senders:
                    self._unreadable.add(where)
                self._drop(*where)
            if pause is not None and number % PAUSE_MESSAGES == 0:
                pause()

    def snapshot(self, pause: Callable[[], None] | None = None) -> FederationSnapshot:
        """Return all rows as they are now."""
        now, view = self.link.now(), self._view
        for key in [key for key, sender in self._senders.items() if now - sender.time > KEPT_SECONDS]:
            del self._senders[key]
        self._decisions = {key: one for key, one in self._decisions.items() if not one.expired(now)}
        decisions = {one.node: one for one in self._decisions.values()}
        self._misplaced = {
            key: when for key, when in self._misplaced.items() if now - when <= MISPLACED_SECONDS
        }
        rows = []
        for number, sender in enumerate(self._senders.values(), 1):
            row = replace(sender.row, age_seconds=max(0.0, now - sender.time), distance=sender.distance(view))
            if (decision := decisions.get(row.name)) is not None:
                row = replace(row, accept=decision.accept, reason=decision.reason)
            rows.append(row)
            if pause is not None and number % (4 * PAUSE_MESSAGES) == 0:
                pause()
        return FederationSnapshot(
            tuple(sorted(rows, key=_rank)),
            view.revision if view else None,
            view.nodes if view else 0,
            now - self._view_time if view else NAN,
            len(self._unreadable)
            + sum(now - e.time > SCHEMA_SECONDS for e, _ in self._schemas.held.values()),
            len(self._misplaced),
            "; ".join(dict.fromkeys(s.denied for s in self._subscriptions if s.denied)),
            view.clashes if view else (),
            self.link.signed,
            self.link.dropped,
        )

    def close(self) -> None:
        """End the subscriptions."""
        for subscription in self._subscriptions:
            self.link.unsubscribe(subscription)

    def _read(self, topic: str, entry: Entry) -> None:
        if not entry.value:
            self._drop(topic, entry.key)
        elif topic == SUMMARIES:
            self._read_summary(entry)
        elif topic == DECISIONS:
            message = DecisionMessage.from_bytes(entry.value)
            if place(message.node) != entry.key:
                raise FederationError(f"a decision must be on its node's key, got that of {message.node!r}")
            if entry.key in self._decisions or len(self._decisions) < self.max_senders:
                self._decisions[entry.key] = message
        else:
            view = GlobalView.from_bytes(entry.value, self._schemas)
            if self._view is None or view.revision != self._view.revision:
                self._view = view
            self._view_time = entry.time

    def _read_summary(self, entry: Entry) -> None:
        summary = Summary.from_bytes(entry.value, self._schemas)
        check_roles(summary, entry.roles)
        if self.tree.key(summary.node) != entry.key:
            self._drop(SUMMARIES, entry.key)
            if len(self._misplaced) < self.max_senders:
                self._misplaced[entry.key] = entry.time
        elif entry.key in self._senders or len(self._senders) < self.max_senders:
            self._senders[entry.key] = _Sender(summary, entry, self.tree)

    def _drop(self, topic: str, key: str) -> None:
        if topic == SUMMARIES:
            self._senders.pop(key, None)
            self._misplaced.pop(key, None)
        elif topic == DECISIONS:
            self._decisions.pop(key, None)


def _rank(row: MemberStatus) -> tuple[bool, float, str]:
    """Return the place of a row: aggregators from the root down, then nodes with the outliers first."""
    if row.aggregator:
        return False, level(row.name), row.name
    return True, 0.0 if math.isnan(row.distance) else -row.distance, row.name


class _Sender:
    """What is held of a sender: its row, and what the distance to the view needs of its summary."""

    def __init__(self, summary: Summary, entry: Entry, tree: Tree) -> None:
        self.time = entry.time
        self.row = MemberStatus(
            name=summary.node,
            parent=tree.parent(summary.node),
            aggregator=summary.merged,
            samples=summary.samples,
            nodes=summary.nodes,
            sent=summary.sent,
            skipped=summary.skipped,
            message_bytes=len(entry.value),
        )
        self.metrics = summary.metrics
        self.stretched: NDArray[np.float32] | None = None
        if summary.subspace is not None:
            own = summary.subspace.cut(RANK)
            wide = own.basis * own.singular_values * summary.deviation[:, None]
            # Only ratios count, and single precision ends at 3e38.
            self.stretched = (wide / max(np.abs(wide).max(), 1e-300)).astype(np.float32)
        self.measured = NAN
        self.against: GlobalView | None = None

    def distance(self, view: GlobalView | None) -> float:
        """Return the distance from the view on the fleet's scale, measured once per view."""
        if view is not self.against:
            self.against, self.measured = view, NAN
            if view is not None and view.subspace is not None and self.stretched is not None:
                own = carry(self.stretched.astype(np.float64), self.metrics, view.metrics)
                deviation = view.deviation[:, None]
                own = np.divide(own, deviation, out=np.zeros_like(own), where=deviation > 0)
                total = float(np.sum(own**2))
                inside = float(np.sum((view.subspace.basis[:, :RANK].T @ own) ** 2))
                self.measured = math.sqrt(max(0.0, 1.0 - inside / total)) if total > 0.0 else NAN
        return self.measured


def take_snapshot(link: Link, *, tree: Tree | None = None, seconds: float = 5.0) -> FederationSnapshot:
    """Read the bus once, or raise `FederationError` if it does not answer within `seconds`."""
    limit = time.monotonic() + seconds
    monitor = FederationMonitor(link, tree=tree)
    try:
        while not monitor.ready:
            if time.monotonic() > limit:
                raise FederationError(
                    f"the bus must answer within {seconds:g} s, got {link.last_error or 'nothing'}: "
                    "check its address and that it runs"
                )
            time.sleep(0.01)
        monitor.poll()
        # Schemas come by messages of their own.
        while monitor.pending and time.monotonic() < limit:
            time.sleep(0.01)
            monitor.poll()
        return monitor.snapshot()
    finally:
        monitor.close()
