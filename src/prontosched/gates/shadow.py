"""Shadow mode: a gate that remembers what it would have done, and does nothing.

Covers: the stand-in through which a keeper lives all its rules (minimum times,
respect for others) while the scheduler is only read.
"""

from __future__ import annotations

from dataclasses import replace

from prontosched.gates.gate import Gate, Observed, PreferringGate, Rank, Verdict, label, read_label


class ShadowGate:
    """A gate that reads the real one and keeps refusals and ranks to itself.

    A node that someone else has closed shows as such. What an earlier, enforcing run
    left closed or ranked is undone by the first look: in shadow mode nothing of ours may stand.

    Notes
    -----
    Memory: one line and one rank for each node refused or ranked.
    """

    level_seconds = 0.0
    marks_calm = False

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.name = gate.name
        self._refusals: dict[str, str] = {}
        self._ranks: dict[str, Rank] = {}

    def observe(self, node: str) -> Observed:
        """Return the scheduler's word on others' doings, and our own memory on ours."""
        observed = self.gate.observe(node)
        if observed.rank is not None and isinstance(self.gate, PreferringGate):
            self.gate.restore(node)
        rank = self._ranks.get(node)
        if observed.state == "closed-by-other":
            self._refusals.pop(node, None)
            return replace(observed, rank=rank)
        if observed.ours:
            self.gate.accept(node)
        mark = self._refusals.get(node)
        seen = None if mark is None else read_label(mark)
        return replace(seen or Observed("open"), rank=rank)

    def refuse(self, node: str, verdict: Verdict) -> None:
        """Remember that `node` would be closed."""
        self._refusals[node] = label(verdict)

    def accept(self, node: str) -> None:
        """Remember that `node` would be open."""
        self._refusals.pop(node, None)

    def prefer(self, node: str, rank: Rank, verdict: Verdict) -> None:
        """Remember the rank that `node` would have."""
        if rank.level:
            self._ranks[node] = rank
        else:
            self._ranks.pop(node, None)

    def restore(self, node: str) -> None:
        """Remember that `node` would have no rank."""
        self._ranks.pop(node, None)

    def owned(self) -> list[str]:
        """Return the nodes that would be closed or ranked."""
        return sorted(self._refusals.keys() | self._ranks)
