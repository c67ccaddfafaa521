"""A scheduler in memory, to try faults that a real one shows too rarely."""

from __future__ import annotations

import threading
from dataclasses import replace

from prontosched.errors import IntegrationError
from prontosched.gates.gate import Observed, Rank, Verdict, label, read_label


class MemoryGate:
    """A gate over a dictionary of closing reasons; `broken` and `stuck` make it fail."""

    name = "memory"

    def __init__(self, *nodes: str) -> None:
        self.reasons: dict[str, str] = dict.fromkeys(nodes, "")
        self.calls: list[tuple[str, str]] = []
        self.broken: Exception | None = None
        self.stuck = threading.Event()
        self.stuck.set()

    def observe(self, node: str) -> Observed:
        self._call("observe", node)
        if node not in self.reasons:
            raise IntegrationError(f"no node {node}")
        return self._observed(node)

    def refuse(self, node: str, verdict: Verdict) -> None:
        self._call("refuse", node)
        if self._observed(node).state != "closed-by-other":
            self.reasons[node] = label(verdict)

    def accept(self, node: str) -> None:
        self._call("accept", node)
        if self._observed(node).ours:
            self.reasons[node] = ""

    def owned(self) -> list[str]:
        return [node for node in self.reasons if self._observed(node).ours]

    def changes(self) -> list[tuple[str, str]]:
        return [call for call in self.calls if call[0] not in ("observe", "list")]

    def _observed(self, node: str) -> Observed:
        reason = self.reasons[node]
        return read_label(reason) or Observed("closed-by-other" if reason else "open", reason)

    def _call(self, what: str, node: str) -> None:
        self.stuck.wait(60)
        self.calls.append((what, node))
        if self.broken is not None:
            raise self.broken


class ListingMemoryGate(MemoryGate):
    """The same, for a scheduler that tells of all nodes in one call."""

    def observe_all(self) -> dict[str, Observed]:
        self._call("list", "")
        return {node: self._observed(node) for node in self.reasons}


class RankingMemoryGate(ListingMemoryGate):
    """The same, for a scheduler that can prefer and knows its queue."""

    level_seconds = 60.0
    marks_calm = False

    def __init__(self, *nodes: str) -> None:
        super().__init__(*nodes)
        self.ranks: dict[str, Rank] = {}
        self.waiting = False

    def prefer(self, node: str, rank: Rank, verdict: Verdict) -> None:
        self._call("prefer", node)
        if rank.level:
            self.ranks[node] = rank
        else:
            self.ranks.pop(node, None)

    def restore(self, node: str) -> None:
        self._call("restore", node)
        self.ranks.pop(node, None)

    def owned(self) -> list[str]:
        return sorted({*super().owned(), *self.ranks})

    def starved(self) -> bool:
        return self.waiting

    def _observed(self, node: str) -> Observed:
        return replace(super()._observed(node), rank=self.ranks.get(node))
