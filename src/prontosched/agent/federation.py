"""Take part in a federation: over NATS, or embedded in this process.

Covers: a member for every node, the aggregators of an embedded tree, and the answer of
`/v1/federation`, kept up to date by a thread while someone asks.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from prontosched.agent.loop import Agent
from prontosched.agent.record import plain
from prontosched.errors import FederationError
from prontosched.federation.aggregator import Aggregator
from prontosched.federation.link import Link, LocalBus, LocalLink
from prontosched.federation.member import Member, ViewSubscriber
from prontosched.federation.monitor import NAN, FederationMonitor, FederationSnapshot
from prontosched.federation.schema import SchemaCache
from prontosched.federation.service import AggregatorDiscovery, AggregatorService
from prontosched.federation.tree import Tree

LOG = logging.getLogger("prontosched.agent")
SILENT_SECONDS = 60.0
# Of the time between two ticks, for the aggregators: what is left undone waits for the next one.
BUDGET_SHARE, LONGEST_BUDGET_SECONDS, LEAST_BUDGET_SECONDS = 0.03, 0.03, 0.003
GROWN_TIMES = 4


class FederationFollower:
    """Keep the agent's nodes in a federation.

    `name_of` gives a node's place in the tree, `site/row/rack/node`. With a `board` the bus is
    inside this process and aggregators are embedded. `open_link` opens another way to the same
    bus, for those who look at the whole tree.
    """

    name = "federation"

    def __init__(
        self,
        link: Link,
        *,
        name_of: Callable[[str], str] = str,
        board: LocalBus | None = None,
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
        self._refused = 0
        self._refusal = ""
        self._views = ViewSubscriber(link, SchemaCache(link), self._places.__contains__)
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
        board = LocalBus()
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
        share = BUDGET_SHARE * agent.pace.interval_seconds
        end = time.perf_counter() + max(LEAST_BUDGET_SECONDS, min(share, LONGEST_BUDGET_SECONDS))
        for turn in self._embedded.turns() if self._embedded is not None else ():
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
    def errors(self) -> int:
        """Faults so far: of the bus, and names that are no place in the tree."""
        return self.link.faults + self._refused

    @property
    def last_error(self) -> str:
        """The last fault."""
        return self.link.last_fault or self._refusal

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
        members, view = self._members.values(), self._views.view
        errors = [self._views.last_error, *(one.last_error for one in members), *self._unnamed.values()]
        found: dict[str, Any] = {
            "embedded": self._board is not None,
            "connected": self.link.connected,
            "signed": self.link.signed,
            "dropped": self.link.dropped,
            "members": len(members),
            "adopted": self.adopted,
            "started": self.started,
            "errors": self._views.errors + sum(one.errors for one in members) + len(self._unnamed),
            "last_error": next((error for error in errors if error), ""),
            "clashes": sorted(self._views.clashes),
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
        self._views.close()
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
            member = Member(self.link, self._name_of(name), tree=self._tree, views=self._views)
        except FederationError as error:
            self._unnamed[name] = self._refusal = str(error)
            self._refused += 1
            LOG.warning("%s takes no part in the federation: %s", name, error)
            return None
        self._members[name] = member
        self._places.add(member.name)
        return member


FAN_OUT = 32
MOST_FLAT = 64
MAX_CHILDREN = 65_536


def tree_for(names: Sequence[str]) -> Tree:
    """Return the tree for many nodes: by their names, or of two levels where those give no place.

    Examples
    --------
    >>> tree_for(["paris/rack7/n3"] * 1000).shards, tree_for(["n3"] * 1000).shards
    (1, 32)
    """
    flat = sum("/" not in name for name in names)
    return Tree.balanced(flat, fan_out=FAN_OUT) if flat > MOST_FLAT else Tree()


class EmbeddedTree:
    """The aggregators above the nodes of one process, which meet them on `board`."""

    def __init__(self, board: LocalBus, tree: Tree) -> None:
        def make(name: str) -> AggregatorService:
            return AggregatorService(LocalLink(board), Aggregator(name, fan_out=MAX_CHILDREN), tree=tree)

        self._discovery = AggregatorDiscovery(LocalLink(board), tree, make, most=MAX_CHILDREN)
        self._next = 0

    def turns(self) -> Iterator[Callable[[], object]]:
        """Yield the work of each aggregator in turn, the deepest first, from where the last call stopped."""
        services = self._discovery.services()
        for _ in services:
            self._next = self._next % len(services) + 1
            yield services[self._next - 1].turn

    def status(self) -> dict[str, Any]:
        """Return how the root stands, and how many aggregators there are."""
        services = self._discovery.services()
        return {"aggregators": len(services), "root": services[-1].status()}


MAX_GROUPS = 256
MAX_MEMBERS = 100
REFRESH_SECONDS = 2.0
IDLE_SECONDS = 60.0
PATIENCE_SECONDS = 1.5
BREATH_SECONDS = 0.003
ALONE: dict[str, Any] = {
    **FederationSnapshot((), None, 0, NAN, 0).as_dict(Tree(), max_groups=0, max_members=0),
    **dict.fromkeys(("joined", "embedded", "connected"), False),
    **dict.fromkeys(("adopted", "started"), 0),
    "note": "",
}


class TreeView:
    """Monitor a federation for as long as someone asks.

    The first question opens a way of its own to the bus; a minute after the last one it is closed
    again. In a fleet of thousands it would cost each agent the traffic of all. Memory: that of a
    `FederationMonitor` while someone asks.
    """

    def __init__(
        self,
        open_link: Callable[[], Link],
        tree: Callable[[], Tree],
        *,
        connected: Callable[[], bool] = lambda: False,
        embedded: bool,
        refresh_seconds: float = REFRESH_SECONDS,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self._open_link = open_link
        self._tree = tree
        self._connected = connected
        self._embedded = embedded
        self._refresh_seconds = refresh_seconds
        self._idle_seconds = idle_seconds
        self._asked_at = -float("inf")
        self._found: dict[str, Any] | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def ask(self) -> dict[str, Any] | None:
        """Return the newest answer, at most a few seconds old; None until there is one. For one thread only."""
        self._asked_at = time.monotonic()
        if (self._thread is None or not self._thread.is_alive()) and not self._stop.is_set():
            self._found = None
            self._thread = threading.Thread(target=self._run, name="pronto-federation", daemon=True)
            self._thread.start()
        return self._found

    def close(self) -> None:
        """Stop watching; returns within moments."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(2.0)

    def _run(self) -> None:
        link: Link | None = None
        try:
            link = self._open_link()
            monitor = FederationMonitor(link, tree=self._tree())
            patient = time.monotonic() + PATIENCE_SECONDS
            while self._wanted() and self._tree() == monitor.tree:
                monitor.poll(_breathe)
                young = not monitor.ready or monitor.pending > 0
                if not young or time.monotonic() > patient:
                    self._look(link, monitor)
                self._stop.wait(0.05 if young else self._refresh_seconds)
        except Exception as error:
            # A page without a tree is no reason to stop deciding.
            LOG.warning("cannot watch the federation: %s", error)
            note = str(error) if isinstance(error, FederationError) else type(error).__name__
            self._found = {**ALONE, **self._standing(link), "note": f"cannot watch the federation: {note}"}
            self._stop.wait(self._refresh_seconds)
        finally:
            if link is not None:
                link.close()

    def _wanted(self) -> bool:
        return not self._stop.is_set() and time.monotonic() - self._asked_at < self._idle_seconds

    def _look(self, link: Link, monitor: FederationMonitor) -> None:
        seen = monitor.snapshot(_breathe)
        note = ""
        if not link.connected and link.last_error:
            note = f"the bus does not answer ({link.last_error}): shown is what was heard last"
        elif not monitor.ready:
            note = "still reading the bus"
        elif seen.denied:
            note = f"the bus lets this agent read only a part: {seen.denied}"
        elif seen.warnings:
            note = seen.warnings[0]
        found = seen.as_dict(monitor.tree, max_groups=MAX_GROUPS, max_members=MAX_MEMBERS)
        self._found = {**found, **self._standing(link), "note": note}

    def _standing(self, link: Link | None) -> dict[str, Any]:
        return {
            "joined": True,
            "embedded": self._embedded,
            "connected": self._connected() or (link is not None and link.connected),
            "as_of": plain(time.time()),
        }


def alone(now: float) -> dict[str, Any]:
    """Return the answer of an agent that is in no federation."""
    return {**ALONE, "as_of": plain(now)}


def _breathe() -> None:
    """Let the loop run: numbers for a page must not make a tick late."""
    time.sleep(BREATH_SECONDS)
