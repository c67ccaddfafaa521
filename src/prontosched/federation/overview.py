"""The federation as an operator sees it: who is there, how old, how far from the view.

Covers: one look at the bus, turned into plain rows. It reads what everyone can read and
changes nothing. Printing is `prontosched.cli.federation`.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

from prontosched.errors import FederationError
from prontosched.federation.arrival import UnknownSchemaError
from prontosched.federation.link import DECISIONS, SUMMARIES, VIEWS, Feed, Link
from prontosched.federation.member import VIEW_KEY
from prontosched.federation.message import DecisionMessage, GlobalView, Summary
from prontosched.federation.pooling import pooled_subspace, share_inside
from prontosched.federation.schema_book import SchemaBook
from prontosched.federation.tree import ROOT, Tree, level

NAN = float("nan")


@dataclass(frozen=True, slots=True)
class Row:
    """One node or aggregator.

    Attributes
    ----------
    aggregator
        True for an inner vertex of the tree.
    age_seconds
        Since its last summary, by the clock of the bus.
    samples, nodes
        Vectors and nodes behind its summary.
    distance
        From the global view on the fleet's scale: the root of the share of the node's variance
        that lies outside it, 0 for none and 1 for all; NaN unknown.
    accept, reason
        Its present decision; None when there is none or it has expired.
    sent, skipped
        Summaries sent, and those that epsilon saved.
    message_bytes
        Length of its last summary.
    """

    name: str
    parent: str
    aggregator: bool
    age_seconds: float
    samples: float
    nodes: int
    distance: float
    accept: bool | None
    reason: str
    sent: int
    skipped: int
    message_bytes: int


@dataclass(frozen=True, slots=True)
class Overview:
    """The whole federation at one moment.

    Attributes
    ----------
    rows
        Aggregators from the root down, then nodes with the outliers first.
    revision, view_nodes, view_age_seconds
        Of the global view; None where there is none.
    unreadable
        Messages on the bus that are not what they should be.
    """

    rows: tuple[Row, ...]
    revision: int | None
    view_nodes: int
    view_age_seconds: float
    unreadable: int

    @property
    def nodes(self) -> list[Row]:
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
    tree = tree or Tree()
    summaries, decisions, views = (
        link.subscribe(topic, pattern)
        for topic, pattern in ((SUMMARIES, ">"), (DECISIONS, ">"), (VIEWS, VIEW_KEY))
    )
    try:
        _wait([summaries, decisions, views], seconds)
        return _Look(link, tree, rank, seconds).overview(summaries, decisions, views)
    finally:
        for feed in (summaries, decisions, views):
            link.unsubscribe(feed)


class _Look:
    def __init__(self, link: Link, tree: Tree, rank: int, seconds: float) -> None:
        self.link = link
        self.tree = tree
        self.rank = rank
        self.limit = time.monotonic() + seconds
        self.book = SchemaBook(link)
        self.unreadable = 0

    def overview(self, summaries: Feed, decisions: Feed, views: Feed) -> Overview:
        view, view_time = self._view(views)
        said: dict[str, DecisionMessage] = {}
        for entry in decisions.drain():
            try:
                message = DecisionMessage.from_bytes(entry.value) if entry.value else None
            except FederationError:
                self.unreadable += 1
                continue
            if message is not None and not message.expired(self.link.now()):
                said[message.node] = message
        found = []
        for entry in summaries.drain():
            summary = self._patiently(Summary.from_bytes, entry.value) if entry.value else None
            if summary is not None and self.tree.key(summary.node) == entry.key:
                found.append((summary, entry.time, len(entry.value)))
        inner = {self.tree.parent(s.node) for s, _, _ in found} | {ROOT}
        rows = [self._row(*item, view, said, inner) for item in found]
        rows.sort(
            key=lambda r: (not r.aggregator, level(r.name) if r.aggregator else 0, _far_first(r), r.name)
        )
        age = self.link.now() - view_time if view else NAN
        return Overview(
            tuple(rows), view.revision if view else None, view.nodes if view else 0, age, self.unreadable
        )

    def _view(self, views: Feed) -> tuple[GlobalView | None, float]:
        for entry in views.drain():
            view = self._patiently(GlobalView.from_bytes, entry.value)
            if view is not None:
                return view, entry.time
        return None, NAN

    def _patiently(self, read: Any, data: bytes) -> Any:
        """Read a message, waiting for the names of its metrics if need be."""
        while True:
            try:
                return read(data, self.book)
            except UnknownSchemaError:
                if time.monotonic() > self.limit:
                    self.unreadable += 1
                    return None
                time.sleep(0.01)
            except FederationError:
                self.unreadable += 1
                return None

    def _row(
        self,
        summary: Summary,
        when: float,
        size: int,
        view: GlobalView | None,
        said: dict[str, DecisionMessage],
        inner: set[str],
    ) -> Row:
        apart = NAN
        if view is not None and view.subspace is not None and summary.subspace is not None:
            mine = pooled_subspace([summary], view.metrics, view.deviation, rank=self.rank)
            if mine is not None:
                apart = math.sqrt(1.0 - share_inside(view.subspace.cut(self.rank), mine))
        decision = said.get(summary.node)
        return Row(
            summary.node,
            self.tree.parent(summary.node),
            summary.node in inner,
            max(0.0, self.link.now() - when),
            summary.samples,
            summary.nodes,
            apart,
            decision.accept if decision else None,
            decision.reason if decision else "",
            summary.sent,
            summary.skipped,
            size,
        )


def _far_first(row: Row) -> float:
    return 0.0 if row.aggregator or row.distance != row.distance else -row.distance


def _wait(feeds: list[Feed], seconds: float) -> None:
    limit = time.monotonic() + seconds
    while not all(feed.ready for feed in feeds):
        if time.monotonic() > limit:
            raise FederationError(f"the bus must answer within {seconds:g} s, got nothing: check its address")
        time.sleep(0.01)
