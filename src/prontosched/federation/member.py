"""A node's membership: tell what it knows, publish its decision, adopt the global view.

Covers: all that an agent needs of the federation, in one call per timestep that never
waits and never raises. While the bus is away the node decides on the view it has.
"""

from __future__ import annotations

import logging

import numpy as np

from prontosched.decision import Decision
from prontosched.federation.adopting import ADOPT_SECONDS, RANK, Adoptions, HeardView, fitted
from prontosched.federation.contribution import Contributor, shared_by, start_signal, summary_of
from prontosched.federation.herald import Herald
from prontosched.federation.link import Link
from prontosched.federation.message import GlobalView
from prontosched.federation.propagation import Propagation
from prontosched.federation.schema import Metrics, SentNames
from prontosched.federation.schema_book import SchemaBook
from prontosched.federation.tree import Tree, split
from prontosched.federation.voice import Voice
from prontosched.subspace import Subspace

log = logging.getLogger(__name__)

# Mean and deviation of a vector or two would be those vectors themselves.
FIRST_TIMESTEP = 10


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
    heard
        The global view as it comes down, where many nodes of one process share it; None makes one.

    Attributes
    ----------
    adopted, started
        How many times a view was adopted, and how many times the signal took up what the fleet has learned.
    """

    def __init__(
        self,
        link: Link,
        name: str,
        *,
        tree: Tree | None = None,
        rule: Propagation | None = None,
        decision_seconds: float = 60.0,
        adopt_seconds: float = ADOPT_SECONDS,
        name_key: bytes | None = None,
        rank: int = RANK,
        heard: HeardView | None = None,
    ) -> None:
        split(name)
        self.link = link
        self.name = name
        self.herald = Herald(link, name, seconds=decision_seconds)
        self.name_key = name_key or link.name_key
        self.rank = rank
        self.book = SchemaBook(link) if heard is None else heard.book
        self.voice = Voice(
            link, name, tree=tree or Tree(), book=self.book, rule=rule or Propagation(rank=rank, **link.rule)
        )
        self.adopted = self.started = 0
        self._errors = 0
        self._last_error = ""
        self._heard = heard or HeardView(link, self.book, lambda place: place == self.name)
        self._shared = heard is not None
        self._adoptions = Adoptions(1, seconds=adopt_seconds)
        self._looked_at: Subspace | None = None
        self._names = SentNames()

    @property
    def view(self) -> GlobalView | None:
        """The global view heard last."""
        return self._heard.view

    @property
    def clashes(self) -> tuple[str, ...]:
        """The node's own name, if another agent speaks under it."""
        return tuple(name for name in self._heard.clashes if name == self.name)

    @property
    def errors(self) -> int:
        """How much went wrong and was survived."""
        return self._errors + (0 if self._shared else self._heard.errors)

    @property
    def last_error(self) -> str:
        """The last thing that went wrong."""
        return self._last_error or self._heard.last_error

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
            self._errors += 1
            if str(error) != self._last_error:
                log.exception("federation of %s: deciding alone", self.name)
            self._last_error = str(error)
            return False

    def leave(self) -> None:
        """Say goodbye, so that no one waits for this node to expire."""
        self.voice.leave()
        self.herald.take_back()
        if not self._shared:
            self._heard.close()

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
        view = self._heard.look()
        if view is None:
            return False
        self._start_signal(node, view)
        now, learned = self.link.now(), node.embedding.subspace is not None
        if not self._adoptions.due(view, now, np.array([node.timestep]), np.array([learned]))[0]:
            return False
        metrics = self._metrics(node)
        if metrics is None:
            return False
        self._adoptions.note(0, view, now, node.timestep, learned=learned)
        found = fitted(view, node, metrics, rank=self.rank)
        if found is None:
            return False
        mine, samples = found
        node.adopt(mine, samples=samples)
        self.adopted += 1
        return True

    def _start_signal(self, node: Contributor, view: GlobalView) -> None:
        if self._adoptions.starting(view, np.array([node.timestep]))[0]:
            self._adoptions.note_start(0, node.timestep)
            self.started += start_signal(node, view.statistics)
