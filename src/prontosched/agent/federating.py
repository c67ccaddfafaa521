"""Take part in a federation: over NATS, or embedded in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from prontosched.agent.nodes import OneNode
from prontosched.agent.several import SeveralNodes
from prontosched.federation.aggregator import Aggregator
from prontosched.federation.link import Board, Link, LocalLink
from prontosched.federation.member import Member
from prontosched.federation.service import AggregatorService
from prontosched.federation.tree import Tree

if TYPE_CHECKING:
    from prontosched.agent.loop import Agent


class FederationFollower:
    """Keep the agent's nodes in a federation.

    Nodes of a crowd (see `prontosched.agent.crowd`) take no part: their fleet is their federation.

    Parameters
    ----------
    link
        The bus.
    name_of
        Gives a node's place in the tree, `site/row/rack/node`.
    service
        The embedded root, where there is no other.
    close
        Called at the end, to let go of the bus.
    """

    name = "federation"

    def __init__(
        self,
        link: Link,
        *,
        name_of: Callable[[str], str] = str,
        service: AggregatorService | None = None,
        tree: Tree | None = None,
        close: Callable[[], None] | None = None,
    ) -> None:
        self.link = link
        self.service = service
        self._tree = tree or Tree()
        self._name_of = name_of
        self._members: dict[str, Member] = {}
        self._close = close

    @classmethod
    def embedded(cls) -> FederationFollower:
        """Return a federation within this process: every node reports to one root."""
        link, tree = LocalLink(Board()), Tree(depth=1)
        service = AggregatorService(link, Aggregator(""), tree=tree)
        return cls(link, service=service, tree=tree)

    def follow(self, agent: Agent) -> None:
        """Let each node take part for the timestep just made; nothing here waits for the bus."""
        nodes = agent.nodes
        if not isinstance(nodes, OneNode | SeveralNodes):
            return
        now = agent.pace.clock()
        for name in nodes.names:
            member = nodes if isinstance(nodes, OneNode) else nodes.member(name)
            decision = member.known(name).decision
            if member.node is None or decision is None or now - member.known(name).seen_at > 60.0:
                continue
            if name not in self._members:
                self._members[name] = Member(self.link, self._name_of(name), tree=self._tree)
            self._members[name].step(member.node, decision)
        # A lone node would only hear itself.
        if self.service is not None and len(self._members) > 1:
            self.service.turn()

    def status(self) -> dict[str, Any]:
        """Return how the federation goes."""
        members = list(self._members.values())
        found: dict[str, Any] = {
            "embedded": self.service is not None,
            "connected": self.link.connected,
            "members": len(members),
            "adopted": sum(member.adopted for member in members),
            "errors": sum(member.errors for member in members),
            "last_error": next((member.last_error for member in members if member.last_error), ""),
            "view_revision": next((m.view.revision for m in members if m.view is not None), None),
        }
        if self.service is not None:
            found["root"] = self.service.status()
        return found

    def close(self) -> None:
        """Say goodbye and let go of the bus."""
        for member in self._members.values():
            member.leave()
        if self._close is not None:
            self._close()
