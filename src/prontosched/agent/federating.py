"""Take part in a federation: over NATS, or embedded in this process."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from prontosched.agent.embedded_tree import EmbeddedTree, tree_for
from prontosched.agent.tree_view import TreeView, alone
from prontosched.errors import FederationError
from prontosched.federation.adopting import HeardView
from prontosched.federation.link import Board, Link, LocalLink
from prontosched.federation.member import Member
from prontosched.federation.schema_book import SchemaBook
from prontosched.federation.tree import Tree

if TYPE_CHECKING:
    from prontosched.agent.loop import Agent

LOG = logging.getLogger("prontosched.agent")
SILENT_SECONDS = 60.0
# Of the time between two ticks, for the aggregators: what is left undone waits for the next one.
BUDGET_SHARE, LONGEST_BUDGET_SECONDS, LEAST_BUDGET_SECONDS = 0.03, 0.03, 0.003
GROWN_TIMES = 4


class FederationFollower:
    """Keep the agent's nodes in a federation.

    Parameters
    ----------
    link
        The bus.
    name_of
        Gives a node's place in the tree, `site/row/rack/node`.
    board
        The bus where it is inside this process, with aggregators embedded; None elsewhere.
    tree
        Who reports to whom; by default by the names alone.
    open_link
        Opens another way to the same bus, for those who look at the whole tree.
    """

    name = "federation"

    def __init__(
        self,
        link: Link,
        *,
        name_of: Callable[[str], str] = str,
        board: Board | None = None,
        tree: Tree | None = None,
        open_link: Callable[[], Link] | None = None,
    ) -> None:
        self.link = link
        self._board = board
        self._embedded: EmbeddedTree | None = None
        self._tree_nodes = 0
        self._tree = tree or Tree()
        self._name_of = name_of
        self._members: dict[str, Member] = {}
        self._places: set[str] = set()
        self._unnamed: dict[str, str] = {}
        self.errors = 0
        self.last_error = ""
        self._heard = HeardView(link, SchemaBook(link), self._places.__contains__)
        self._view: TreeView | None = None
        if open_link is not None:
            self._view = TreeView(
                open_link,
                lambda: self._tree,
                connected=lambda: self.link.connected,
                embedded=board is not None,
            )

    @classmethod
    def embedded(cls) -> FederationFollower:
        """Return a federation within this process, with as many aggregators as the names ask for."""
        board = Board()
        return cls(LocalLink(board), board=board, open_link=lambda: LocalLink(board))

    async def follow(self, agent: Agent) -> None:
        """Let nodes take part for the timestep just made; nothing here waits for the bus."""
        now = agent.pace.clock()
        # A lone node would only hear itself; many more than before need a deeper tree.
        if self._board is not None and len(agent.nodes) > max(1, GROWN_TIMES * self._tree_nodes):
            self._tree_nodes = len(agent.nodes)
            self._leave(list(self._members))
            self._tree = tree_for([self._name_of(name) for name in agent.nodes.names])
            self._embedded = EmbeddedTree(self._board, self._tree)
        for node in list(agent.nodes):
            if node.node is None or node.decision is None or now - node.seen_at > SILENT_SECONDS:
                continue
            member = self._members.get(node.name) or self._join(node.name)
            if member is not None:
                member.step(node.node, node.decision)
            await agent.give_way()
        if len(self._members) + len(self._unnamed) > len(agent.nodes):
            self._leave([name for name in self._members if name not in agent.nodes])
            self._unnamed = {name: why for name, why in self._unnamed.items() if name in agent.nodes}
        if self._embedded is not None:
            self._embedded.grow([member.name for member in self._members.values()])
            await self._turn_aggregators(agent)

    async def _turn_aggregators(self, agent: Agent) -> None:
        assert self._embedded is not None
        share = BUDGET_SHARE * agent.pace.interval_seconds
        end = time.perf_counter() + max(LEAST_BUDGET_SECONDS, min(share, LONGEST_BUDGET_SECONDS))
        for turn in self._embedded.turns():
            turn()
            await agent.give_way()
            if time.perf_counter() > end:
                return

    def overview(self, now: float) -> dict[str, Any] | None:
        """Return the whole tree as plain values; None until the bus has been read."""
        if self._view is None or (self._board is not None and self._embedded is None):
            return alone(now)
        found = self._view.ask()
        return None if found is None else {**found, "adopted": self.adopted, "started": self.started}

    @property
    def adopted(self) -> int:
        """How many times a node of this agent adopted a global view."""
        return sum(one.adopted for one in self._members.values())

    @property
    def started(self) -> int:
        """How many times a signal of this agent took up what the fleet has learned."""
        return sum(one.started for one in self._members.values())

    def status(self) -> dict[str, Any]:
        """Return how the federation goes."""
        members, view = self._members.values(), self._heard.view
        errors = [self._heard.last_error, *(one.last_error for one in members), *self._unnamed.values()]
        found: dict[str, Any] = {
            "embedded": self._board is not None,
            "connected": self.link.connected,
            "members": len(members),
            "adopted": self.adopted,
            "started": self.started,
            "errors": self._heard.errors + sum(one.errors for one in members) + len(self._unnamed),
            "last_error": next((error for error in errors if error), ""),
            "clashes": sorted(self._heard.clashes),
            "view_revision": None if view is None else view.revision,
        }
        if self._embedded is not None:
            found |= self._embedded.status()
            found["view_revision"] = found["root"].get("revision")
        return found

    def close(self) -> None:
        """Say goodbye and let go of the bus."""
        if self._view is not None:
            self._view.close()
        for member in self._members.values():
            member.leave()
        self._heard.close()
        self.link.close()

    def _leave(self, names: list[str]) -> None:
        for name in names:
            member = self._members.pop(name)
            self._places.discard(member.name)
            member.leave()

    def _join(self, name: str) -> Member | None:
        if name in self._unnamed:
            return None
        try:
            member = Member(self.link, self._name_of(name), tree=self._tree, heard=self._heard)
        except FederationError as error:
            self._unnamed[name] = self.last_error = str(error)
            self.errors += 1
            LOG.warning("%s takes no part in the federation: %s", name, error)
            return None
        self._members[name] = member
        self._places.add(member.name)
        return member
