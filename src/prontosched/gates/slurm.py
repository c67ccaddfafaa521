"""Slurm: a node's rank is its weight, and its veto a drain with the reason in `sinfo -R`.

Covers: draining and undraining one node at a time by Slurm's own commands. Running
jobs finish, pending ones go elsewhere and come back by themselves. Weights are
`slurm_weight`; the softer veto, for jobs that opt in, is `slurm_feature`.

Slurm has no compare-and-set: an administrator who drains a node in the few
milliseconds between our read and our write loses the reason they gave, and the node
is then taken for ours. Everywhere else their drain is left alone.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from prontosched.gates.gate import Census, Observed, Verdict, label, read_label
from prontosched.gates.slurm_commands import SlurmCommands, SlurmNode
from prontosched.gates.slurm_weight import WeightRanks, rank_of


class SlurmGate(WeightRanks):
    """Weigh nodes, and drain and undrain them, only with our own reason.

    Needs the rights of root, SlurmUser or an Operator.

    Parameters
    ----------
    conf
        Path of slurm.conf; None leaves it to Slurm to find its own.
    timeout
        Seconds that one call may take.
    weight_step
        How much one level adds to a node's weight; 0 leaves weights alone.
    """

    name = "slurm"

    def __init__(
        self, *, conf: str | Path | None = None, timeout: float = 10.0, weight_step: int = 1
    ) -> None:
        super().__init__(SlurmCommands(conf=conf, timeout=timeout), weight_step)

    present = staticmethod(SlurmCommands.present)
    missing = staticmethod(SlurmCommands.missing)

    def observe(self, node: str) -> Observed:
        """Return whether the node is drained, and by whom."""
        return _observed(self.commands.node(node))

    def refuse(self, node: str, verdict: Verdict) -> None:
        """Drain the node; renew the reason where the drain is ours; leave others' alone."""
        observed = self.observe(node)
        if observed.state == "open":
            self.commands.update(node, state="drain", reason=label(verdict))
        elif observed.ours:
            self.commands.update(node, reason=label(verdict))

    def accept(self, node: str) -> None:
        """Undrain the node if the drain is ours.

        `undrain` and not `resume`: a node that is also down stays down.
        """
        if self.observe(node).ours:
            self.commands.update(node, state="undrain")

    def owned(self) -> list[str]:
        """Return all nodes of the cluster drained or weighed by Pronto."""
        seen = {node.name: _observed(node) for node in self.commands.nodes()}
        return sorted(name for name, one in seen.items() if one.ours or one.rank is not None)

    def census(self) -> Census:
        """Count the nodes in service, in one call."""
        return Census.of({node.name: _observed(node) for node in self.commands.nodes()})


def _observed(node: SlurmNode) -> Observed:
    rank = rank_of(node)
    if not node.closed:
        return Observed("open", rank=rank)
    ours = read_label(node.reason) if node.drained else None
    if ours is not None:
        return replace(ours, rank=rank)
    state = "+".join(sorted(node.flags)).lower()
    return Observed("closed-by-other", f"{state}: {node.reason}" if node.reason else state, rank=rank)
