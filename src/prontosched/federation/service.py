"""An aggregator at work: read the children's summaries, merge, publish.

Covers: one turn of the work, which never waits for a message, the loop of turns, and the
discovery of the aggregators that the nodes on a bus need. A standby takes the same turns
without publishing, so that it can take over at once. The merging itself is
`prontosched.federation.aggregator`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from prontosched.errors import FederationError
from prontosched.federation.aggregator import Aggregator
from prontosched.federation.leases import LeaderLease
from prontosched.federation.link import CENSUS_KEY, SUMMARIES, VIEW_KEY, VIEWS, Entry, Link, LinkDownError
from prontosched.federation.message import (
    MAX_COUNT,
    GlobalView,
    Summary,
    UnknownSchemaError,
    census_to_bytes,
    check_roles,
    clash_note,
    peek_count,
)
from prontosched.federation.publisher import Propagation, SummaryPublisher
from prontosched.federation.schema import SchemaCache
from prontosched.federation.tree import ROOT, Tree, child_pattern, level, name_of, without_shard

log = logging.getLogger(__name__)

MAX_AGGREGATORS = 1024
MAX_QUARANTINED = 1024
TURN_SECONDS = 0.25
CENSUS_SECONDS = 60.0
# The number of nodes that was published last, and when.
UNTOLD = (0, 0.0)


class AggregatorService:
    """Run one aggregator on a link; without a lease it has no standby."""

    def __init__(
        self,
        link: Link,
        aggregator: Aggregator,
        *,
        tree: Tree | None = None,
        rule: Propagation | None = None,
        lease: LeaderLease | None = None,
    ) -> None:
        self.link = link
        self.aggregator = aggregator
        self.tree = tree or Tree()
        self.rule = rule or Propagation(rank=aggregator.rank)
        self.lease = lease
        self.schemas = SchemaCache(link, max_held=aggregator.fan_out)
        self.received = self.bytes_published = 0
        self.rejected = 0  # messages refused on arrival
        self.last_rejection = ""
        self.quarantined: set[str] = set()  # the keys that they came under
        self.overstated: set[str] = set()  # children that claimed more nodes than have a key under them
        self.view: GlobalView | None = None  # the one published last, at the root
        self._unmerged: set[str] = set()
        self._used_at, self._stepped = link.now(), link.stepped
        self.subscription = link.subscribe(SUMMARIES, child_pattern(aggregator.name))
        # Two agents under one name may send at one moment: the earlier one must be seen as well.
        self.subscription.keep_replaced = True
        self._publisher: SummaryPublisher | None = None
        self._census = UNTOLD
        self.speaking = False  # whether it publishes
        self._offered: Summary | None = None
        self._warned: tuple[str, ...] = ()
        if aggregator.name != ROOT:
            self._publisher = SummaryPublisher(
                link, aggregator.name, tree=self.tree, schemas=self.schemas, rule=self.rule
            )

    def turn(self) -> bool:
        """Do all there is to do now; True when something was published."""
        # One that has not read the whole bus yet would publish a view of the few it knows.
        now, ready, led = self.link.now(), self.subscription.ready, self.speaking
        if self.link.stepped != self._stepped:
            self.aggregator.shift(self.link.stepped - self._stepped)
            self._stepped = self.link.stepped
        self._read()
        for node in self.aggregator.expire(now):
            log.info("%s fell silent", node)
        if not ready or self.aggregator.children or self.schemas.held:
            self._used_at = now
        self._warn()
        self.speaking = ready and (self.lease is None or self.lease.acquire())
        if not self.speaking:
            self._unmerged.intersection_update(self.aggregator.children)
            if led:
                self._stand_by()
            return False
        if not led:
            self._take_over()
        merged = self._merged()
        if self._publisher is None:
            self._publish_census(merged.nodes if merged else 0, now)
        if merged is None:
            if self._offered is not None:
                self._withdraw()
            return False
        if merged is self._offered and not self.rule.aged(now):
            return False
        if self._publisher is None:
            return self._publish_view(merged, now)
        if not self._publisher.ready:
            return False
        self._offered = merged
        return self._publisher.publish(merged)

    @property
    def unused(self) -> bool:
        """True when it has had no child for as long as a child may be silent."""
        return self.link.now() - self._used_at > self.aggregator.expiry_seconds

    def close(self) -> None:
        """Release the lease and end the subscriptions."""
        if self.lease is not None:
            self.lease.release()
        self.link.unsubscribe(self.subscription)
        self.schemas.close()

    def status(self) -> dict[str, Any]:
        """Return what an operator wants to know, as plain values."""
        return {
            "aggregator": self.aggregator.name or "root",
            "speaking": self.speaking,
            "connected": self.link.connected,
            "signed": self.link.signed,
            "dropped": self.link.dropped,
            "children": len(self.aggregator.children),
            "heard": self.subscription.received,
            "received": self.received,
            "rejected": self.rejected,
            "last_rejection": self.last_rejection,
            "overstated": sorted(self.overstated),
            "sent": self.rule.sent_count,
            "skipped": self.rule.skipped_count,
            "revision": self.view.revision if self.view else None,
            "clashes": list(self.aggregator.conflicts.names),
        }

    def _read(self) -> None:
        replaced = self.subscription.replaced()
        newest = self.schemas.take({entry.key: entry for entry in self.subscription.drain()})
        for entry in [*replaced, *newest.values()]:
            try:
                self._receive(entry)
            except UnknownSchemaError as error:
                self.schemas.hold(entry.key, entry, error.schema)
            except Exception as error:
                self._quarantine(entry.key, error)

    def _quarantine(self, key: str, error: Exception) -> None:
        """Count what a sender's message did, and name the sender once; its next message is read again."""
        self.rejected += 1
        self.last_rejection = str(error) or type(error).__name__
        if _first(self.quarantined, key):
            # What no check foresaw is shown whole.
            unforeseen = None if isinstance(error, FederationError) else error
            log.warning("refused from %s: %s", name_of(key), self.last_rejection, exc_info=unforeseen)

    def _merged(self) -> Summary | None:
        """Return all children merged; without the newest ones, where these make that fail."""
        try:
            merged = self.aggregator.merged()
        except Exception as error:
            for node in self._unmerged:
                self.aggregator.forget(node)
                self._quarantine(self.tree.key(node), error)
            merged = self.aggregator.merged() if self._unmerged else None
        self._unmerged.clear()
        return merged

    def _receive(self, entry: Entry) -> None:
        if not entry.value:
            if not entry.outdated:
                self.aggregator.forget(without_shard(name_of(entry.key)))
            return
        summary = Summary.from_bytes(entry.value, self.schemas)
        if self.tree.key(summary.node) != entry.key:
            raise FederationError(
                f"a summary must speak for {name_of(entry.key)!r} on its key, got {summary.node!r}: discard it"
            )
        check_roles(summary, entry.roles)
        if entry.outdated and summary.node not in self.aggregator.children:
            # It left, and said this before.
            return
        # Age by the clock of the bus: a sender's own may be wrong by an hour.
        summary = self._bounded(summary)
        if self.aggregator.receive(summary, now=min(entry.time, self.link.now())):
            self.received += 1
            self._unmerged.add(summary.node)

    def _bounded(self, summary: Summary) -> Summary:
        """Return a summary that stands for no more nodes than have a key under its sender."""
        most = self.link.most_nodes(summary.node) if summary.merged else 1
        if most < 1:
            raise FederationError(
                f"an aggregator must have nodes with a key under it, got none under {summary.node!r}: discard it"
            )
        if summary.nodes <= most:
            return summary
        if _first(self.overstated, summary.node):
            claim = "%s claims %d nodes: counted as the %d that have a key"
            log.warning(claim, summary.node, summary.nodes, most)
        return replace(summary, nodes=most)

    def _warn(self) -> None:
        """Log once of each name that more than one agent publishes under it."""
        names = self.aggregator.conflicts.names
        for name in names:
            if name not in self._warned:
                log.warning("%s", clash_note([name]))
        self._warned = names

    def _take_over(self) -> None:
        """Publish from now on, as newer than whoever held the lease before."""
        self._offered = None
        self._census = UNTOLD
        self.rule.forget()
        if self._publisher is not None:
            self._publisher.restart()

    def _stand_by(self) -> None:
        """Leave it to the new holder of the lease to send again what a bus that comes back has lost."""
        if self._publisher is not None:
            self.link.forget(SUMMARIES, self._publisher.key)
        else:
            self.link.forget(VIEWS, CENSUS_KEY)

    def _withdraw(self) -> None:
        """Withdraw what was published for children that are all gone; the global view stays."""
        self._offered = None
        self.rule.forget()
        if self._publisher is not None:
            self._publisher.withdraw()

    def _publish_census(self, nodes: int, now: float) -> None:
        """Tell the number of nodes when it changed, and every minute while there are any."""
        last, told_at = self._census
        if nodes != last or (nodes and not 0.0 <= now - told_at < CENSUS_SECONDS):
            self._census = (nodes, now)
            self.link.put(VIEWS, CENSUS_KEY, census_to_bytes(nodes))

    def _publish_view(self, merged: Summary, now: float) -> bool:
        if self.rule.due(merged, now=now) is None:
            self._offered = merged
            return False
        self.schemas.publish(merged.metrics)
        entry = self.link.get(VIEWS, VIEW_KEY)
        last = (peek_count(entry.value, "view", "revision") if entry else None) or 0
        revision = max(last, self.view.revision if self.view else 0) + 1
        view = GlobalView.of(merged, revision % MAX_COUNT)
        data = view.to_bytes()
        stored = self.link.compare_and_set(VIEWS, VIEW_KEY, data, revision=entry.revision if entry else 0)
        if stored is None:
            # Another root published since: look again at the next turn, with its lease.
            return False
        self.view = view
        self.bytes_published += len(data)
        self.rule.sent(merged, now=now)
        self._offered = merged
        return True


def _first(named: set[str], name: str) -> bool:
    """Take note of a name; True the first time, while there is room."""
    new = name not in named and len(named) < MAX_QUARANTINED
    if new:
        named.add(name)
    return new


class AggregatorDiscovery:
    """Make an aggregator for every place that some node on the bus reports to.

    So one command serves a whole fleet, whatever its names are. Where another process runs an
    aggregator, that one holds the lease and the one made here stands by. At most `most` are made. Those
    that stay without children are closed, so that neither renamed racks nor invented names add up.
    """

    def __init__(
        self, link: Link, tree: Tree, make: Callable[[str], AggregatorService], *, most: int = MAX_AGGREGATORS
    ) -> None:
        self.tree = tree
        self.make = make
        self.most = most
        self._services: dict[str, AggregatorService] = {ROOT: make(ROOT)}
        self._subscription = link.subscribe(SUMMARIES, ">")
        self._full = False

    def services(self) -> list[AggregatorService]:
        """Return all services that are needed now, the deepest first and the root last."""
        for unused in [name for name, one in self._services.items() if name != ROOT and one.unused]:
            self._services.pop(unused).close()
        done: set[str] = set()
        for entry in self._subscription.drain():
            above = entry.key.rpartition(".")[0]  # the same for all children of one parent
            name = self._sender(entry.key) if entry.value and above not in done else ROOT
            if name != ROOT:
                done.add(above)
            while name != ROOT:
                name = self.tree.parent(name)
                self._add(name)
        return [self._services[name] for name in sorted(self._services, key=lambda n: (-level(n), n))]

    def _add(self, name: str) -> None:
        if name in self._services:
            return
        if len(self._services) < self.most:
            self._services[name] = self.make(name)
        elif not self._full:
            self._full = True
            log.warning("aggregators must be at most %d in one process, got %s as one more", self.most, name)

    def _sender(self, key: str) -> str:
        """Return whose summary belongs under a key; the root where no member's does."""
        name = without_shard(name_of(key))
        with suppress(FederationError):
            return name if self.tree.key(name) == key else ROOT
        return ROOT


def run_services(
    services: Callable[[], list[AggregatorService]], stop: threading.Event, report: Callable[[str], None]
) -> None:
    """Let aggregators take turns in one process until told to stop, then release their leases.

    `services` returns those of the moment, the deepest first; `report` takes a line for each lease
    won or lost.
    """
    speaking: dict[str, bool] = {}
    troubled: set[str] = set()
    while not stop.wait(TURN_SECONDS):
        spoke, speaking = speaking, {}
        for service in services():
            name = service.aggregator.name or "root"
            try:
                service.turn()
                troubled.discard(name)
            except LinkDownError as error:
                log.info("bus lost, waiting: %s", error)
            except Exception:
                # One aggregator's trouble is not that of the others, nor of its next turn.
                if name not in troubled:
                    troubled.add(name)
                    log.exception("%s: a turn failed; trying again each turn", name)
            speaking[name] = service.speaking
            if spoke.get(name) != service.speaking:
                report(f"{name}: {'speaking' if service.speaking else 'standby'}")
        troubled &= speaking.keys()
    for service in services():
        service.close()
