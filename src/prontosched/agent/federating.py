"""Take part in a federation: over NATS, or embedded in this process."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from prontosched.agent.crowd import Crowd
from prontosched.agent.crowd_members import CrowdMembers
from prontosched.agent.embedded_tree import EmbeddedTree, tree_for
from prontosched.agent.nodes import OneNode
from prontosched.agent.several import SeveralNodes
from prontosched.agent.tree_view import TreeView, alone
from prontosched.errors import FederationError
from prontosched.federation.link import Board, Link, LocalLink
from prontosched.federation.member import Member
from prontosched.federation.tree import Tree

if TYPE_CHECKING:
    from prontosched.agent.loop import Agent

LOG = logging.getLogger("prontosched.agent")
SILENT_SECONDS = 60.0
# Of the time between two ticks, at most: what is left undone waits for the next one.
BUDGET_SHARE, LONGEST_BUDGET_SECONDS = 0.03, 0.03
# Until everyone has been heard, so that a page need not wait for its tree.
FIRST_BUDGET_SHARE, LONGEST_FIRST_BUDGET_SECONDS = 0.05, 0.05
WALL_SHARE = 0.4
# Leaves a part of the budget to the aggregators.
MEMBERS_SHARE = 0.6


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
        self._tree = tree or Tree()
        self._name_of = name_of
        self._members: dict[str, Member] = {}
        self._unnamed: dict[str, str] = {}
        self.errors = 0
        self.last_error = ""
        self._crowd: CrowdMembers | None = None
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

    def follow(self, agent: Agent) -> None:
        """Let nodes take part for the timestep just made; nothing here waits for the bus."""
        nodes = agent.nodes
        budget = self._budget(agent.pace.interval_seconds)
        spent = _stopwatch()
        now = agent.pace.clock()
        if isinstance(nodes, Crowd):
            share = 1.0 if self._board is None else MEMBERS_SHARE
            self._follow_crowd(nodes, now, lambda: spent() < share * budget)
        elif isinstance(nodes, OneNode | SeveralNodes):
            self._follow_few(nodes, now)
        if self._embedded is not None:
            self._embedded.turn(lambda: spent() < budget)

    def _budget(self, interval: float) -> float:
        root = None if self._embedded is None else self._embedded.root
        seen = root.view.nodes if root is not None and root.view is not None else 0
        heard = self._crowd is None or (seen >= len(self._crowd) if root is not None else self._crowd.told)
        if heard:
            return min(BUDGET_SHARE * interval, LONGEST_BUDGET_SECONDS)
        return min(FIRST_BUDGET_SHARE * interval, LONGEST_FIRST_BUDGET_SECONDS)

    def overview(self, now: float) -> dict[str, Any] | None:
        """Return the whole tree as plain values; None until the bus has been read."""
        if self._view is None or (self._board is not None and self._embedded is None):
            return alone(now)
        found = self._view.ask()
        return None if found is None else {**found, "adopted": self.adopted, "started": self.started}

    @property
    def adopted(self) -> int:
        """How many times a node of this agent adopted a global view."""
        return sum(one.adopted for one in self._speaking())

    @property
    def started(self) -> int:
        """How many times a signal of this agent took up what the fleet has learned."""
        return sum(one.started for one in self._speaking())

    def _speaking(self) -> list[Member | CrowdMembers]:
        return [*self._members.values()] if self._crowd is None else [self._crowd]

    def status(self) -> dict[str, Any]:
        """Return how the federation goes."""
        speaking = self._speaking()
        errors = [who.last_error for who in speaking if who.last_error]
        errors += list(self._unnamed.values())
        views = [who.view for who in speaking]
        found: dict[str, Any] = {
            "embedded": self._board is not None,
            "connected": self.link.connected,
            "members": len(speaking) if self._crowd is None else len(self._crowd),
            "adopted": self.adopted,
            "started": self.started,
            "errors": sum(who.errors for who in speaking) + len(self._unnamed),
            "last_error": next(iter(errors), ""),
            "clashes": sorted(name for who in speaking for name in who.clashes),
            "view_revision": next((v.revision for v in views if v is not None), None),
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
        if self._crowd is not None:
            self._crowd.leave()
        self.link.close()

    def _follow_few(self, nodes: OneNode | SeveralNodes, now: float) -> None:
        for name in nodes.names:
            one = nodes if isinstance(nodes, OneNode) else nodes.member(name)
            known = one.known(name)
            if one.node is None or known.decision is None or now - known.seen_at > SILENT_SECONDS:
                continue
            member = self._members.get(name) or self._join(name)
            if member is not None:
                member.step(one.node, known.decision)
        # A lone node would only hear itself.
        if self._board is not None and len(self._members) > 1:
            self._embedded = self._embedded or EmbeddedTree(self._board, self._tree)
            self._embedded.grow([member.name for member in self._members.values()])

    def _follow_crowd(self, crowd: Crowd, now: float, more: Callable[[], bool]) -> None:
        if self._crowd is None:
            # What was a few nodes has become many: their names speak on from here.
            for member in self._members.values():
                member.leave()
            self._members.clear()
            if self._board is not None:
                self._tree = tree_for(crowd.names)
                self._embedded = EmbeddedTree(self._board, self._tree)
            self._crowd = CrowdMembers(self.link, self._tree, self._name_of)
        self._crowd.follow(crowd, now, more)
        if self._embedded is not None:
            self._embedded.grow(self._crowd.places)

    def _join(self, name: str) -> Member | None:
        if name in self._unnamed:
            return None
        try:
            member = Member(self.link, self._name_of(name), tree=self._tree)
        except FederationError as error:
            self._unnamed[name] = self.last_error = str(error)
            self.errors += 1
            LOG.warning("%s takes no part in the federation: %s", name, error)
            return None
        self._members[name] = member
        return member


def _stopwatch() -> Callable[[], float]:
    """Return what tells the time spent: the processor's, and where that is shared a part of all."""
    cpu, clock = time.thread_time(), time.perf_counter()
    return lambda: max(time.thread_time() - cpu, WALL_SHARE * (time.perf_counter() - clock))
