"""How a node or an aggregator speaks to its parent: numbered, and only when it matters.

Covers: incarnation and sequence of summaries, their schema, and the rule of when to
send. What is said comes from `prontosched.federation.member` or `service`.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable

from prontosched.errors import FederationError
from prontosched.federation.arrival import decoded, whole
from prontosched.federation.link import SUMMARIES, Link
from prontosched.federation.message import MESSAGE_LIMIT, SUMMARY_VERSION, Statistics, Summary
from prontosched.federation.propagation import Propagation
from prontosched.federation.schema import Metrics
from prontosched.federation.schema_book import SchemaBook
from prontosched.federation.tree import Tree


class Voice:
    """Send the summaries of one name.

    The incarnation is one more than the last that the bus remembers of this name, and
    not less than the time: a sender that comes back with old state, a clock that was
    wrong, or an empty bus still make newer summaries than any sent before. A part of a
    second at random keeps two agents apart that start at one moment under one name.

    Parameters
    ----------
    name
        Place in the tree of who speaks.
    rule
        When a summary is worth sending.
    """

    def __init__(self, link: Link, name: str, *, tree: Tree, book: SchemaBook, rule: Propagation) -> None:
        self.link = link
        self.name = name
        self.key = tree.key(name)
        self.book = book
        self.rule = rule
        self.bytes_sent = 0
        self.last_reason = ""
        self._incarnation = 0
        self._sequence = 0
        self._told: Metrics | None = None
        self._echo = link.subscribe(SUMMARIES, self.key)

    @property
    def ready(self) -> bool:
        """True once an incarnation larger than any before is known; the bus must have answered."""
        if self._incarnation or not self._echo.ready:
            return self._incarnation > 0
        last = 0
        for entry in self._echo.drain():
            try:
                fields = decoded(entry.value, "summary", SUMMARY_VERSION, MESSAGE_LIMIT)
                last = max(last, whole(fields, "incarnation"))
            except FederationError:
                # Someone else's rubbish under our name, or our own farewell.
                continue
        self.link.unsubscribe(self._echo)
        self._incarnation = max(last + 1, int(1000.0 * self.link.now())) + secrets.randbelow(1000)
        return True

    def offer(self, summary: Summary, statistics: Callable[[], Statistics] | None = None) -> bool:
        """Send `summary` if that is due; True if it was.

        Parameters
        ----------
        statistics
            Gives what a learned signal shares, asked only when something is sent.
        """
        if not self.ready:
            return False
        now = self.link.now()
        reason = self.rule.due(summary, now=now)
        if reason is None:
            return False
        if summary.metrics != self._told:
            self.book.publish(summary.metrics)
            self._told = summary.metrics
        self._sequence += 1
        numbered = dataclasses.replace(
            summary,
            node=self.name,
            incarnation=self._incarnation,
            sequence=self._sequence,
            statistics=statistics() if statistics else summary.statistics,
            sent=self.rule.sent_count + 1,
            skipped=self.rule.skipped_count,
        )
        data = numbered.to_bytes()
        self.link.put(SUMMARIES, self.key, data)
        self.bytes_sent += len(data)
        self.last_reason = reason
        self.rule.sent(summary, now=now)
        return True

    def renew(self) -> None:
        """Begin again, with a larger incarnation than whoever spoke under this name meanwhile."""
        self.link.unsubscribe(self._echo)
        self._echo = self.link.subscribe(SUMMARIES, self.key)
        self._incarnation = 0
        self.rule.forget()

    def take_back(self) -> None:
        """Take the summary back, so that the parent need not wait for it to expire."""
        self.link.put(SUMMARIES, self.key, b"")

    def leave(self) -> None:
        """Take the summary back and say no more."""
        self.take_back()
        self.link.unsubscribe(self._echo)
