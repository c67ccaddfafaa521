"""Slurm: a node that refuses is drained, with its reason in `sinfo -R`.

Covers: draining and undraining one node at a time by Slurm's own commands. Running
jobs finish, pending ones go elsewhere and come back by themselves. The softer way,
for jobs that opt in, is `slurm_feature`.

Slurm has no compare-and-set: an administrator who drains a node in the few
milliseconds between our read and our write loses the reason they gave, and the node
is then taken for ours. Everywhere else their drain is left alone.
"""

from __future__ import annotations

from pathlib import Path

from prontosched.integration.gate import Census, Observed, Verdict, label, read_label
from prontosched.integration.slurm_commands import SlurmCommands, SlurmNode


class SlurmGate:
    """Drain and undrain nodes, only with our own reason.

    Needs the rights of root, SlurmUser or an Operator.

    Parameters
    ----------
    conf
        Path of slurm.conf; None leaves it to Slurm to find its own.
    timeout
        Seconds that one call may take.
    """

    name = "slurm"

    def __init__(self, *, conf: str | Path | None = None, timeout: float = 10.0) -> None:
        self.commands = SlurmCommands(conf=conf, timeout=timeout)

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
        """Return all nodes of the cluster drained by Pronto."""
        return sorted(self.census().refusals)

    def census(self) -> Census:
        """Count the nodes in service, in one call."""
        seen = {node.name: _observed(node) for node in self.commands.nodes()}
        in_service = sum(observed.state != "closed-by-other" for observed in seen.values())
        return Census(in_service, {name: observed for name, observed in seen.items() if observed.ours})


def _observed(node: SlurmNode) -> Observed:
    if not node.closed:
        return Observed("open")
    ours = read_label(node.reason) if node.drained else None
    if ours is not None:
        return ours
    state = "+".join(sorted(node.flags)).lower()
    return Observed("closed-by-other", f"{state}: {node.reason}" if node.reason else state)
