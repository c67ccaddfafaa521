"""Watch the whole bus: every summary, decision and view, kept as rows an operator can read.

Covers: feeds that stay open, so that a look costs only what changed since the last one;
and one look for those who want no more. It reads what it is allowed to and changes
nothing. The rows are `prontosched.federation.overview`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prontosched.errors import FederationError
from prontosched.federation.adopting import VIEW_KEY
from prontosched.federation.arrival import UnknownSchemaError
from prontosched.federation.feed import Entry, Feed
from prontosched.federation.link import DECISIONS, SUMMARIES, VIEWS, Link
from prontosched.federation.message import DecisionMessage, GlobalView, Summary
from prontosched.federation.overview import NAN, Overview, Row
from prontosched.federation.schema import Metrics, carry
from prontosched.federation.schema_book import SchemaBook
from prontosched.federation.tree import Tree, level

MAX_SENDERS = 20_000
BREATH = 16
# As long as a bus keeps a summary that is not renewed; where nothing tells of the end, this does.
KEPT_SECONDS = 3600.0
# The names of metrics follow a message at once; later they are missing.
NAMED_SECONDS = 3.0
# What has not been renewed for so long was said before the tree was another one.
MISPLACED_SECONDS = 180.0


def look(link: Link, *, tree: Tree | None = None, rank: int = 4, seconds: float = 5.0) -> Overview:
    """Read the bus once.

    Parameters
    ----------
    rank
        Directions that are compared with the view.
    seconds
        How long to wait for the bus.

    Raises
    ------
    FederationError
        The bus does not answer.
    """
    limit = time.monotonic() + seconds
    lookout = Lookout(link, tree=tree, rank=rank)
    try:
        while not lookout.ready:
            if time.monotonic() > limit:
                raise FederationError(
                    f"the bus must answer within {seconds:g} s, got {link.last_error or 'nothing'}: "
                    "check its address and that it runs"
                )
            time.sleep(0.01)
        lookout.take()
        # The names of metrics come by a message of their own.
        while lookout.waiting and time.monotonic() < limit:
            time.sleep(0.01)
            lookout.take()
        return lookout.overview()
    finally:
        lookout.close()


class Lookout:
    """Keep an overview of a bus as it changes.

    Parameters
    ----------
    tree
        Who reports to whom.
    rank
        Directions that are compared with the view.
    most
        Senders that are held at most; those beyond are not seen.

    Notes
    -----
    Memory: `d * (rank + 1)` single-precision numbers per sender.
    """

    def __init__(
        self, link: Link, *, tree: Tree | None = None, rank: int = 4, most: int = MAX_SENDERS
    ) -> None:
        self.link = link
        self.tree = tree or Tree()
        self.rank = rank
        self.most = most
        self._book = SchemaBook(link)
        self._summaries = link.subscribe(SUMMARIES, ">")
        self._decisions = link.subscribe(DECISIONS, ">")
        self._views = link.subscribe(VIEWS, VIEW_KEY)
        self._senders: dict[str, _Sender] = {}
        self._misplaced: dict[str, float] = {}
        self._said: dict[str, DecisionMessage] = {}
        self._waiting: dict[tuple[str, str], Entry] = {}
        self._bad: set[tuple[str, str]] = set()
        self._view: GlobalView | None = None
        self._view_time = NAN

    @property
    def feeds(self) -> tuple[Feed, Feed, Feed]:
        """What it listens to: summaries, decisions and views."""
        return self._summaries, self._decisions, self._views

    @property
    def ready(self) -> bool:
        """True once all that lay on the bus at the start has arrived."""
        return all(feed.ready for feed in self.feeds)

    @property
    def waiting(self) -> int:
        """Messages that wait for the names of their metrics."""
        return len(self._waiting)

    def take(self, breath: Callable[[], None] | None = None) -> None:
        """Take in what arrived since the last call, never waiting for the bus.

        Parameters
        ----------
        breath
            Called after every few messages, so that others may run in between.
        """
        arrived = list(self._waiting.items())
        self._waiting = {}
        # The view first: distances are measured to it.
        for feed in (self._views, self._summaries, self._decisions):
            arrived += [((feed.topic, entry.key), entry) for entry in feed.drain()]
        for number, (place, entry) in enumerate(arrived):
            self._bad.discard(place)
            try:
                self._read(place[0], entry)
            except UnknownSchemaError:
                self._waiting[place] = entry
            except FederationError:
                self._bad.add(place)
                self._drop(*place)
            if breath is not None and number % BREATH == BREATH - 1:
                breath()

    def overview(self, breath: Callable[[], None] | None = None) -> Overview:
        """Return all rows as they are now."""
        now, view = self.link.now(), self._view
        for key in [key for key, sender in self._senders.items() if now - sender.time > KEPT_SECONDS]:
            del self._senders[key]
        said = {m.node: m for m in self._said.values() if not m.expired(now)}
        inner = {self.tree.parent(sender.name) for sender in self._senders.values()}
        rows = []
        for number, sender in enumerate(self._senders.values()):
            # A release that does not say so itself is known by its children.
            sender.merged = sender.merged or sender.name in inner
            rows.append(self._row(sender, now, said.get(sender.name)))
            if breath is not None and number % (4 * BREATH) == 4 * BREATH - 1:
                breath()
        rows.sort(
            key=lambda r: (not r.aggregator, level(r.name) if r.aggregator else 0, _far_first(r), r.name)
        )
        return Overview(
            tuple(rows),
            view.revision if view else None,
            view.nodes if view else 0,
            now - self._view_time if view else NAN,
            len(self._bad) + sum(now - e.time > NAMED_SECONDS for e in self._waiting.values()),
            sum(now - when <= MISPLACED_SECONDS for when in self._misplaced.values()),
            "; ".join(dict.fromkeys(feed.denied for feed in self.feeds if feed.denied)),
            view.clashes if view else (),
        )

    def close(self) -> None:
        """Stop listening."""
        for feed in self.feeds:
            self.link.unsubscribe(feed)

    def _read(self, topic: str, entry: Entry) -> None:
        if not entry.value:
            self._drop(topic, entry.key)
        elif topic == SUMMARIES:
            self._take_summary(entry)
        elif topic == DECISIONS:
            message = DecisionMessage.from_bytes(entry.value)
            if entry.key in self._said or len(self._said) < self.most:
                self._said[entry.key] = message
        else:
            view = GlobalView.from_bytes(entry.value, self._book)
            if self._view is None or view.revision != self._view.revision:
                self._view = view
            self._view_time = entry.time

    def _take_summary(self, entry: Entry) -> None:
        summary = Summary.from_bytes(entry.value, self._book)
        if self.tree.key(summary.node) != entry.key:
            self._drop(SUMMARIES, entry.key)
            if len(self._misplaced) < self.most:
                self._misplaced[entry.key] = entry.time
        elif entry.key in self._senders or len(self._senders) < self.most:
            self._senders[entry.key] = _Sender.of(summary, entry, self.rank)

    def _drop(self, topic: str, key: str) -> None:
        if topic == SUMMARIES:
            self._senders.pop(key, None)
            self._misplaced.pop(key, None)
        elif topic == DECISIONS:
            self._said.pop(key, None)

    def _row(self, sender: _Sender, now: float, decision: DecisionMessage | None) -> Row:
        return Row(
            sender.name,
            self.tree.parent(sender.name),
            sender.merged,
            max(0.0, now - sender.time),
            sender.samples,
            sender.nodes,
            sender.distance(self._view, self.rank),
            decision.accept if decision else None,
            decision.reason if decision else "",
            sender.sent,
            sender.skipped,
            sender.message_bytes,
        )


@dataclass(slots=True)
class _Sender:
    """What is held of a summary: no more than a row and the distance to the view need."""

    name: str
    time: float
    samples: float
    nodes: int
    sent: int
    skipped: int
    merged: bool
    message_bytes: int
    metrics: Metrics
    deviation: NDArray[np.float32]
    weighted: NDArray[np.float32] | None
    measured: float = NAN
    against: Any = None

    @classmethod
    def of(cls, summary: Summary, entry: Entry, rank: int) -> _Sender:
        own = summary.subspace and summary.subspace.cut(rank)
        return cls(
            summary.node,
            entry.time,
            summary.samples,
            summary.nodes,
            summary.sent,
            summary.skipped,
            summary.merged,
            len(entry.value),
            summary.metrics,
            summary.deviation.astype(np.float32),
            None if own is None else (own.basis * own.singular_values).astype(np.float32),
        )

    def distance(self, view: GlobalView | None, rank: int) -> float:
        """Return the distance from the view on the fleet's scale, measured once per view."""
        if view is not self.against:
            self.against, self.measured = view, NAN
            if view is not None and view.subspace is not None and self.weighted is not None:
                self.measured = self._measure(view, rank)
        return self.measured

    def _measure(self, view: GlobalView, rank: int) -> float:
        assert view.subspace is not None
        assert self.weighted is not None
        stretched = self.weighted * self.deviation[:, None]
        mine = carry(np.asarray(stretched, np.float64), self.metrics, view.metrics)
        deviation = view.deviation[:, None]
        mine = np.divide(mine, deviation, out=np.zeros_like(mine), where=deviation > 0)
        whole = float(np.sum(mine**2))
        if whole <= 0.0:
            return NAN
        inside = float(np.sum((view.subspace.basis[:, :rank].T @ mine) ** 2)) / whole
        return math.sqrt(max(0.0, 1.0 - inside))


def _far_first(row: Row) -> float:
    return 0.0 if row.aggregator or row.distance != row.distance else -row.distance
