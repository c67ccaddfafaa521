"""Which aggregators the nodes on a bus need, found from their names.

So that one command serves a whole fleet whatever its names are. Where a process of its
own runs an aggregator, that one holds the seat and the one made here stands by.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from prontosched.errors import FederationError
from prontosched.federation.arrival import decoded, text
from prontosched.federation.feed import Entry
from prontosched.federation.link import SUMMARIES, Link
from prontosched.federation.message import MESSAGE_LIMIT, SUMMARY_VERSION
from prontosched.federation.service import AggregatorService
from prontosched.federation.tree import ROOT, Tree, level

log = logging.getLogger(__name__)

MAX_AGGREGATORS = 1024


class Discovery:
    """Make an aggregator for every place that some node reports to.

    Parameters
    ----------
    make
        Gives the service of one aggregator, by its name.

    Notes
    -----
    Memory: at most 1,024 aggregators; a flood of invented names makes no more.
    """

    def __init__(self, link: Link, tree: Tree, make: Callable[[str], AggregatorService]) -> None:
        self.tree = tree
        self.make = make
        self.services: dict[str, AggregatorService] = {ROOT: make(ROOT)}
        self._feed = link.subscribe(SUMMARIES, ">")
        self._full = False

    def look(self) -> list[AggregatorService]:
        """Return all services that are needed now, the deepest first and the root last."""
        for entry in self._feed.drain():
            name = self._sender(entry)
            while name is not None and name != ROOT:
                name = self.tree.parent(name)
                self._add(name)
        return sorted(self.services.values(), key=lambda s: (-level(s.aggregator.name), s.aggregator.name))

    def _add(self, name: str) -> None:
        if name in self.services:
            return
        if len(self.services) < MAX_AGGREGATORS:
            self.services[name] = self.make(name)
        elif not self._full:
            self._full = True
            log.warning(
                "aggregators must be at most %d in one process, got %s as one more", MAX_AGGREGATORS, name
            )

    def _sender(self, entry: Entry) -> str | None:
        try:
            name = text(decoded(entry.value, "summary", SUMMARY_VERSION, MESSAGE_LIMIT), "node", 200)
            return name if self.tree.key(name) == entry.key else None
        except FederationError:
            return None
