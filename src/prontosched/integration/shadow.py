"""Shadow mode: a gate that remembers what it would have done, and does nothing.

Covers: the stand-in through which a keeper lives all its rules (minimum times,
respect for others) while the scheduler is only read.
"""

from __future__ import annotations

from prontosched.integration.gate import Gate, Observed, Verdict, label, read_label


class ShadowGate:
    """A gate that reads the real one and keeps refusals to itself.

    A node that someone else has closed shows as such. What an earlier, enforcing run
    left closed is opened by the first look: in shadow mode nothing of ours may stand.

    Notes
    -----
    Memory: one line for each node refused.
    """

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.name = gate.name
        self._refusals: dict[str, str] = {}

    def observe(self, node: str) -> Observed:
        """Return the scheduler's word on others' doings, and our own memory on ours."""
        observed = self.gate.observe(node)
        if observed.state == "closed-by-other":
            self._refusals.pop(node, None)
            return observed
        if observed.ours:
            self.gate.accept(node)
        mark = self._refusals.get(node)
        return Observed("open") if mark is None else read_label(mark) or Observed("open")

    def refuse(self, node: str, verdict: Verdict) -> None:
        """Remember that `node` would be closed."""
        self._refusals[node] = label(verdict)

    def accept(self, node: str) -> None:
        """Remember that `node` would be open."""
        self._refusals.pop(node, None)

    def owned(self) -> list[str]:
        """Return the nodes that would be closed."""
        return sorted(self._refusals)
