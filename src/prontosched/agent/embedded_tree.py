"""Aggregators inside an agent, for nodes that have no one else to report to.

Covers: which aggregators the nodes need, and their turns, a few per tick.
On machines of their own aggregators are `pronto aggregate`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from prontosched.federation.aggregator import Aggregator
from prontosched.federation.link import Board, LocalLink
from prontosched.federation.service import AggregatorService
from prontosched.federation.tree import ROOT, Tree, level

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
    """The whole tree above the nodes of one process.

    Parameters
    ----------
    board
        Where they meet the nodes.
    tree
        Who reports to whom.
    """

    def __init__(self, board: Board, tree: Tree) -> None:
        self.tree = tree
        self._board = board
        self._known: Sequence[str] = ()
        self._services: dict[str, AggregatorService] = {}
        self._order: list[str] = []
        self._next = 0

    @property
    def root(self) -> AggregatorService | None:
        """The aggregator at the root; None while there are no nodes."""
        return self._services.get(ROOT)

    def grow(self, names: Sequence[str]) -> None:
        """Make the aggregators that these nodes need; nothing where they are the same as before."""
        if names == self._known:
            return
        self._known = list(names)
        for name in self.tree.aggregators(names):
            if name not in self._services:
                self._services[name] = AggregatorService(
                    LocalLink(self._board), Aggregator(name, fan_out=MAX_CHILDREN), tree=self.tree
                )
        self._order = sorted(self._services, key=lambda name: (-level(name), name))

    def turns(self) -> Iterator[Callable[[], object]]:
        """Yield the work of each aggregator in turn, the deepest first, from where the last call stopped."""
        for _ in range(len(self._order)):
            service = self._services[self._order[self._next % len(self._order)]]
            self._next = (self._next + 1) % len(self._order)
            yield service.turn

    def status(self) -> dict[str, Any]:
        """Return how the root stands, and how many aggregators there are."""
        found = self.root.status() if self.root is not None else {}
        return {"aggregators": len(self._order), "root": found}
