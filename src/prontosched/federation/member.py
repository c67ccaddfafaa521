"""A node's membership: tell what it knows, publish its decision, adopt the global view.

Covers: all that an agent needs of the federation, in one call per timestep that never
waits and never raises. While the bus is away the node decides on the view it has.
"""

from __future__ import annotations

import logging

import numpy as np

from prontosched.decision import Decision
from prontosched.errors import FederationError
from prontosched.federation.arrival import UnknownSchemaError
from prontosched.federation.contribution import (
    Contributor,
    own_deviation,
    shared_by,
    start_signal,
    summary_of,
)
from prontosched.federation.herald import Herald
from prontosched.federation.link import VIEWS, Link
from prontosched.federation.message import GlobalView
from prontosched.federation.pooling import for_node, trust
from prontosched.federation.propagation import Propagation
from prontosched.federation.schema import Metrics, SentNames
from prontosched.federation.schema_book import SchemaBook
from prontosched.federation.tree import Tree, split
from prontosched.federation.voice import Voice
from prontosched.subspace import Subspace

log = logging.getLogger(__name__)

VIEW_KEY = "global"
# Mean and deviation of a vector or two would be those vectors themselves.
FIRST_TIMESTEP = 10
# Until its own history has filled, a learned signal does better by the present value than
# by what a fleet has learned; much later it has learned itself.
START_TIMESTEP, LAST_START_TIMESTEP = 300, 1000
# Weight of a view that fits, relative to what a node gives any view it adopts.
FULL_TRUST = 10.0


class Member:
    """Keep one node in the federation.

    Parameters
    ----------
    link
        The bus.
    name
        The node's place, `site/row/rack/node`.
    tree, rule
        Who is the parent, and when a summary is worth sending; without a rule the link's.
    decision_seconds
        How long a decision holds without being renewed.
    adopt_seconds
        How often a newer global view is adopted.
    name_key
        Sends the names of metrics as hashes under this key, at least 16 bytes; None
        takes the link's.
    rank
        Directions of the global view that are adopted.

    Attributes
    ----------
    view
        The global view heard last, or None.
    adopted
        How many times a view was adopted.
    errors, last_error
        What went wrong and was survived.
    """

    def __init__(
        self,
        link: Link,
        name: str,
        *,
        tree: Tree | None = None,
        rule: Propagation | None = None,
        decision_seconds: float = 60.0,
        adopt_seconds: float = 300.0,
        name_key: bytes | None = None,
        rank: int = 4,
    ) -> None:
        split(name)
        self.link = link
        self.name = name
        self.herald = Herald(link, name, seconds=decision_seconds)
        self.adopt_seconds = adopt_seconds
        self.name_key = name_key or link.name_key
        self.rank = rank
        self.book = SchemaBook(link)
        self.voice = Voice(
            link, name, tree=tree or Tree(), book=self.book, rule=rule or Propagation(rank=rank, **link.rule)
        )
        self.view: GlobalView | None = None
        self.adopted = 0
        self.errors = 0
        self.last_error = ""
        self._views = link.subscribe(VIEWS, VIEW_KEY)
        self._unread: bytes | None = None
        self._looked_at: Subspace | None = None
        self._names = SentNames()
        self._adopted_view: GlobalView | None = None
        self._adopted_when = -np.inf
        self._adopted_step = 0
        self._adopted_blind = False
        self._started = False

    def step(self, node: Contributor, decision: Decision) -> bool:
        """Take part for one timestep; True when the node adopted a view.

        Call it after `node.step`. Nothing here waits for the bus, and nothing is raised:
        a federation that fails must not keep a node from deciding.
        """
        try:
            self.herald.say(decision.accept, lambda: decision)
            self._propagate(node)
            return self._adopt(node)
        except Exception as error:
            self.errors += 1
            if str(error) != self.last_error:
                log.exception("federation of %s: deciding alone", self.name)
            self.last_error = str(error)
            return False

    def leave(self) -> None:
        """Say goodbye, so that no one waits for this node to expire."""
        self.voice.leave()
        self.herald.take_back()
        self.link.unsubscribe(self._views)

    def _propagate(self, node: Contributor) -> None:
        own = node.embedding.subspace
        if (
            node.timestep < FIRST_TIMESTEP
            or not self.voice.ready
            or (own is self._looked_at and not self.voice.rule.aged(self.link.now()))
        ):
            return
        metrics = self._metrics(node)
        if metrics is not None:
            self.voice.offer(summary_of(node, self.name, metrics), lambda: shared_by(node))
            self._looked_at = own

    def _metrics(self, node: Contributor) -> Metrics | None:
        """Return the names as they are sent, hashed once per schema."""
        own = node.metrics
        if own is None:
            subspace = node.embedding.subspace
            if subspace is None:
                return None
            own = tuple(f"metric {row}" for row in range(subspace.features))
        return self._names.of(own, self.name_key)

    def _adopt(self, node: Contributor) -> bool:
        for entry in self._views.drain():
            self._unread = entry.value
        if self._unread is not None:
            self._read()
        self._start_signal(node)
        now = self.link.now()
        view = self.view
        if view is None or view.subspace is None:
            return False
        # A young node's units change as its scale settles, and so does how far the view fits it.
        due = view is not self._adopted_view and now - self._adopted_when >= self.adopt_seconds
        due = due or node.timestep >= 1.5 * self._adopted_step + 10
        # Trusted blindly until now: the first own block says whether that was right.
        due = due or (self._adopted_blind and node.embedding.subspace is not None)
        metrics = self._metrics(node) if due else None
        if metrics is None:
            return False
        self._adopted_view, self._adopted_when, self._adopted_step = view, now, node.timestep
        self._adopted_blind = node.embedding.subspace is None
        mine = for_node(view, metrics, own_deviation(node), rank=self.rank)
        if mine is None:
            return False
        weight = max(FULL_TRUST * trust(mine, node.embedding.subspace), 1e-9)
        node.adopt(mine, samples=1.0 / weight)
        self.adopted += 1
        return True

    def _start_signal(self, node: Contributor) -> None:
        if self._started or self.view is None or node.timestep < START_TIMESTEP:
            return
        self._started = True
        if node.timestep <= LAST_START_TIMESTEP:
            start_signal(node, self.view.statistics)

    def _read(self) -> None:
        data, self._unread = self._unread, None
        try:
            view = GlobalView.from_bytes(data or b"", self.book)
        except UnknownSchemaError:
            self._unread = data
            return
        except FederationError as error:
            self.errors += 1
            self.last_error = str(error)
            return
        if self.view is None or view.revision != self.view.revision:
            self.view = view
