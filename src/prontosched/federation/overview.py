"""The federation as an operator sees it: who is there, how old, how far from the view.

Covers: plain rows, and the groups they form. Reading them off the bus is
`prontosched.federation.lookout`, printing them `prontosched.cli.federation`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

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
        Of the global view; None, 0 and NaN where there is none.
    unreadable
        Messages on the bus that are not what they should be.
    misplaced
        Those who report to someone else than this tree says, because theirs is another.
    denied
        What the bus does not let this reader read, in words; empty for nothing.
    clashes
        Names under which more than one agent speaks.
    """

    rows: tuple[Row, ...]
    revision: int | None
    view_nodes: int
    view_age_seconds: float
    unreadable: int
    misplaced: int = 0
    denied: str = ""
    clashes: tuple[str, ...] = ()

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

    def groups(self, tree: Tree) -> list[Group]:
        """Return the root and all aggregators, level by level, whether they have spoken or not."""
        spoken = {row.name: row for row in self.rows if row.aggregator}
        found: dict[str, Group] = {ROOT: self._root()}
        for row in self.rows:
            own_group = [row.name] if row.aggregator else []
            for name in (*own_group, *_above(tree, row.name)):
                if name not in found:
                    own = spoken.get(name)
                    found[name] = Group(name, tree.parent(name), own.age_seconds if own else NAN)
            found[row.parent].children += 1
            if row.aggregator:
                continue
            for name in _above(tree, row.name):
                found[name].add(row)
        for name in found.keys() - spoken.keys() - {ROOT}:
            # Its children speak to it, but it has not spoken itself yet.
            found[tree.parent(name)].children += 1
        return sorted(found.values(), key=lambda group: (level(group.name), group.name))

    def _root(self) -> Group:
        return Group(ROOT, None, self.view_age_seconds)


@dataclass(slots=True)
class Group:
    """An aggregator and what lies under it.

    Attributes
    ----------
    parent
        Name of the aggregator above; None for the root.
    age_seconds
        Since its last summary, or the global view's age at the root; NaN if it has not spoken.
    children, nodes
        Who reports to it directly, and nodes at any depth.
    samples
        Vectors behind its nodes' summaries.
    refusing
        Nodes that refuse jobs now; None where no node's decision is known.
    """

    name: str
    parent: str | None
    age_seconds: float
    children: int = 0
    nodes: int = 0
    samples: float = 0.0
    refusing: int | None = None

    def add(self, row: Row) -> None:
        """Count one node."""
        self.nodes += 1
        self.samples += row.samples
        if row.accept is not None:
            self.refusing = (self.refusing or 0) + (not row.accept)


def misplaced(count: int) -> str:
    """Say that some follow another tree, and what to do."""
    return f"{count} report elsewhere than this tree says: give everyone the same depth and shards in the address"


def _above(tree: Tree, name: str) -> Iterator[str]:
    """Yield the aggregators above `name`, the root last."""
    while name != ROOT:
        name = tree.parent(name)
        yield name
