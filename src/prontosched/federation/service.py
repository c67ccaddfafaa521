"""An aggregator at work: hear the children, merge, speak to the parent or publish the view.

Covers: one turn of the work, which never waits for a message, and the loop of turns.
A standby runs the same turns without speaking, so that it can take over at once.
The arithmetic is `prontosched.federation.aggregator`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from prontosched.errors import FederationError
from prontosched.federation.adopting import VIEW_KEY
from prontosched.federation.aggregator import Aggregator
from prontosched.federation.arrival import UnknownSchemaError, decoded, whole
from prontosched.federation.census import CENSUS_KEY, census_to_bytes
from prontosched.federation.clash import clashing
from prontosched.federation.feed import Entry
from prontosched.federation.link import SUMMARIES, VIEWS, Link, LinkDownError
from prontosched.federation.message import MESSAGE_LIMIT, VIEW_VERSION, GlobalView, Summary
from prontosched.federation.propagation import Propagation
from prontosched.federation.schema import Metrics
from prontosched.federation.schema_book import SchemaBook
from prontosched.federation.seat import Seat
from prontosched.federation.tree import ROOT, Tree, listens, name_of
from prontosched.federation.voice import Voice

log = logging.getLogger(__name__)


class AggregatorService:
    """Run one aggregator on a link.

    Parameters
    ----------
    aggregator
        What merges.
    tree, rule
        Who is the parent, and when the merged summary is worth sending.
    seat
        The right to speak; None for an aggregator that has no standby.

    Attributes
    ----------
    received, rejected, last_rejection
        Messages taken, and those refused on arrival with the last reason.
    view
        The view published last, at the root.
    """

    def __init__(
        self,
        link: Link,
        aggregator: Aggregator,
        *,
        tree: Tree | None = None,
        rule: Propagation | None = None,
        seat: Seat | None = None,
    ) -> None:
        self.link = link
        self.aggregator = aggregator
        self.tree = tree or Tree()
        self.rule = rule or Propagation(rank=aggregator.rank)
        self.seat = seat
        self.book = SchemaBook(link)
        self.received = 0
        self.rejected = 0
        self.last_rejection = ""
        self.view: GlobalView | None = None
        self.published = 0
        self.bytes_published = 0
        self._feed = link.subscribe(SUMMARIES, listens(aggregator.name))
        # Twins speak at one moment: whoever is a little earlier must be heard as well.
        self._feed.keep_hidden = True
        self._waiting: dict[str, Entry] = {}
        self._voice: Voice | None = None
        self._told: Metrics | None = None
        self._census: tuple[int, float] = (-1, 0.0)
        self._seated = False
        self._offered: Summary | None = None
        self._warned: tuple[str, ...] = ()
        if aggregator.name != ROOT:
            self._voice = Voice(link, aggregator.name, tree=self.tree, book=self.book, rule=self.rule)

    def turn(self) -> bool:
        """Do all there is to do now; True when something was sent."""
        now = self.link.now()
        self._hear()
        for node in self.aggregator.expire(now):
            log.info("%s fell silent", node)
        self._warn()
        seated = self.seat is None or self.seat.claim()
        if seated and not self._seated:
            self._take_seat()
        self._seated = seated
        merged = self.aggregator.merged()
        if seated and merged is None and self._offered is not None:
            self._fall_silent(now)
        if not seated or merged is None or (merged is self._offered and not self.rule.aged(now)):
            return False
        if self._voice is not None:
            if not self._voice.ready:
                return False
            self._offered = merged
            return self._voice.offer(merged)
        return self._publish(merged, now)

    def _warn(self) -> None:
        """Say once of each name that more than one agent speaks under it."""
        names = self.aggregator.clashes.names
        for name in names:
            if name not in self._warned:
                log.warning("%s", clashing([name]))
        self._warned = names

    def _take_seat(self) -> None:
        """Speak from now on, as newer than whoever held the seat before."""
        if self.seat is not None:
            log.debug("speaking for %s", self.aggregator.name or "the root")
        self._offered = None
        self.rule.forget()
        if self._voice is not None:
            self._voice.renew()

    def _fall_silent(self, now: float) -> None:
        """Take back what was said for children that are all gone; the global view stays."""
        self._offered = None
        self.rule.forget()
        if self._voice is not None:
            self._voice.take_back()
        else:
            self._census = (0, now)
            self.link.put(VIEWS, CENSUS_KEY, census_to_bytes(0))

    def run(self, stop: threading.Event, *, interval_seconds: float = 0.25) -> None:
        """Take turns until told to stop, then give up the seat."""
        while not stop.wait(interval_seconds):
            try:
                self.turn()
            except LinkDownError as error:
                log.info("bus lost, waiting: %s", error)
        if self.seat is not None:
            self.seat.leave()

    def status(self) -> dict[str, Any]:
        """Return what an operator wants to know, as plain values."""
        return {
            "aggregator": self.aggregator.name or "root",
            "speaking": self._seated,
            "connected": self.link.connected,
            "children": len(self.aggregator.children),
            "heard": self._feed.received,
            "received": self.received,
            "rejected": self.rejected,
            "last_rejection": self.last_rejection,
            "sent": self.rule.sent_count,
            "skipped": self.rule.skipped_count,
            "revision": self.view.revision if self.view else None,
            "clashes": list(self.aggregator.clashes.names),
        }

    @property
    def heard_bytes(self) -> int:
        """Bytes that arrived from children, good and bad."""
        return self._feed.received_bytes

    def _hear(self) -> None:
        hidden = [(entry.key, entry) for entry in self._feed.hidden()]
        arrived = {entry.key: entry for entry in self._feed.drain()}
        for key, entry in [*hidden, *{**self._waiting, **arrived}.items()]:
            self._waiting.pop(key, None)
            try:
                self._take(entry)
            except UnknownSchemaError:
                if len(self._waiting) < self.aggregator.fan_out:
                    self._waiting[key] = entry
            except FederationError as error:
                self.rejected += 1
                self.last_rejection = str(error)
                log.debug("refused on %s: %s", key, error)

    def _take(self, entry: Entry) -> None:
        if not entry.value:
            self.aggregator.forget(name_of(entry.key))
            return
        summary = Summary.from_bytes(entry.value, self.book)
        if self.tree.key(summary.node) != entry.key:
            raise FederationError(
                f"a summary must speak for {name_of(entry.key)!r} on its key, got {summary.node!r}: discard it"
            )
        # Age by the clock of the bus: a sender's own may be wrong by an hour.
        self.received += self.aggregator.receive(summary, now=min(entry.time, self.link.now()))

    def _publish(self, merged: Summary, now: float) -> bool:
        if merged.nodes != self._census[0] or now - self._census[1] > self.rule.max_age_seconds:
            self._census = (merged.nodes, now)
            self.link.put(VIEWS, CENSUS_KEY, census_to_bytes(merged.nodes))
        if self.rule.due(merged, now=now) is None:
            self._offered = merged
            return False
        if merged.metrics != self._told:
            self.book.publish(merged.metrics)
            self._told = merged.metrics
        entry = self.link.get(VIEWS, VIEW_KEY)
        last = self._revision(entry)
        view = GlobalView.of(merged, max(last, self.view.revision if self.view else 0) + 1)
        data = view.to_bytes()
        stored = self.link.compare_and_set(VIEWS, VIEW_KEY, data, revision=entry.revision if entry else 0)
        if stored is None:
            # Another root spoke since: look again at the next turn, with its seat.
            return False
        self.view = view
        self.published += 1
        self.bytes_published += len(data)
        self.rule.sent(merged, now=now)
        self._offered = merged
        return True

    def _revision(self, entry: Entry | None) -> int:
        if entry is None:
            return 0
        try:
            return whole(decoded(entry.value, "view", VIEW_VERSION, MESSAGE_LIMIT), "revision")
        except FederationError:
            return 0


def run_all(
    look: Callable[[], list[AggregatorService]], stop: threading.Event, tell: Callable[[str], None]
) -> None:
    """Run several aggregators in turn in one process.

    Parameters
    ----------
    look
        Gives the services of the moment, the deepest first.
    tell
        Told in a line of each seat won or lost.
    """
    spoken: dict[str, bool] = {}
    while not stop.wait(0.25):
        for service in look():
            try:
                service.turn()
            except LinkDownError as error:
                log.info("bus lost, waiting: %s", error)
            status = service.status()
            if spoken.get(status["aggregator"]) != status["speaking"]:
                spoken[status["aggregator"]] = status["speaking"]
                tell(f"{status['aggregator']}: {'speaking' if status['speaking'] else 'standby'}")
    for service in look():
        if service.seat is not None:
            service.seat.leave()
