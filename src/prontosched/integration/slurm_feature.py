"""Slurm, softly: a node that refuses loses a feature that jobs may ask for.

Covers: the gate for jobs that opt in with `sbatch -C pronto_admit`. All other jobs
go on as before, and no node is drained. Hard refusal is `slurm`.

The mark (reason, score, expiry) is kept in the node's `extra` field, because Slurm
shows a reason only for closed nodes.
"""

from __future__ import annotations

from pathlib import Path

from prontosched.errors import IntegrationError, SettingsError
from prontosched.integration.gate import Census, Observed, Verdict, label, read_label
from prontosched.integration.slurm_commands import SlurmCommands, SlurmNode

FEATURE = "pronto_admit"


class SlurmFeatureGate:
    """Take one feature off nodes that refuse, and put it back.

    The feature must be among the node's `Features` in slurm.conf.

    Parameters
    ----------
    feature
        The feature that jobs ask for.
    conf, timeout
        As for `SlurmGate`.
    """

    name = "slurm-feature"

    def __init__(
        self, *, feature: str = FEATURE, conf: str | Path | None = None, timeout: float = 10.0
    ) -> None:
        if not feature.replace("_", "").isalnum():
            raise SettingsError(f"feature must be letters, digits and underscores, got {feature!r}")
        self.feature = feature
        self.commands = SlurmCommands(conf=conf, timeout=timeout)

    present = staticmethod(SlurmCommands.present)
    missing = staticmethod(SlurmCommands.missing)

    def observe(self, node: str) -> Observed:
        """Return whether the feature is on, and who took it off."""
        return self._observed(self.commands.node(node))

    def refuse(self, node: str, verdict: Verdict) -> None:
        """Take the feature off; renew the mark where it is ours."""
        found = self.commands.node(node)
        observed = self._observed(found)
        if observed.state == "closed-by-other":
            return
        if found.extra and read_label(found.extra) is None:
            raise IntegrationError(
                f"the extra field of {node} must be free for our mark, got {found.extra[:60]!r}: "
                "clear it, or use the gate slurm"
            )
        # The mark first: a feature without a mark would be nobody's, and stay off.
        self.commands.update(node, extra=label(verdict))
        if observed.state == "open":
            self.commands.update(node, activefeatures=",".join(f for f in found.active if f != self.feature))

    def accept(self, node: str) -> None:
        """Put the feature back if we took it off."""
        found = self.commands.node(node)
        if self._observed(found).ours:
            # A feature already there is not ours to turn round: keep the configured order.
            active = [f for f in found.available if f in found.active or f == self.feature]
            self.commands.update(node, activefeatures=",".join(active))
            self.commands.update(node, extra="")

    def owned(self) -> list[str]:
        """Return all nodes of the cluster whose feature we took off."""
        return sorted(self.census().refusals)

    def census(self) -> Census:
        """Count the nodes that have the feature and are in service, in one call."""
        having = [node for node in self.commands.nodes() if self.feature in node.available]
        seen = {node.name: self._observed(node) for node in having}
        in_service = sum(observed.state != "closed-by-other" for observed in seen.values())
        return Census(in_service, {name: observed for name, observed in seen.items() if observed.ours})

    def _observed(self, node: SlurmNode) -> Observed:
        if self.feature not in node.available:
            raise IntegrationError(
                f"node {node.name} must have the feature {self.feature}, got {','.join(node.available) or 'none'}: "
                f"add Features={self.feature} to its line in slurm.conf"
            )
        if self.feature not in node.active:
            return read_label(node.extra) or Observed("closed-by-other", f"{self.feature} is switched off")
        if node.closed:
            return Observed("closed-by-other", node.reason or "+".join(sorted(node.flags)).lower())
        return Observed("open")
