"""Slurm, softly: a node that refuses loses a feature that jobs may ask for.

Covers: the gate for jobs that opt in with `sbatch -C pronto_admit`. All other jobs
go on as before, and no node is drained. Hard refusal is `slurm`, preference `slurm_weight`.

The mark of a veto (reason, score, expiry) is kept in the node's `extra` field, because Slurm
shows a reason only for closed nodes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from prontosched.errors import IntegrationError, SettingsError
from prontosched.gates.gate import Census, Observed, Verdict, label, read_label
from prontosched.gates.slurm_commands import SlurmCommands, SlurmNode
from prontosched.gates.slurm_weight import WeightRanks, rank_of

FEATURE = "pronto_admit"


class SlurmFeatureGate(WeightRanks):
    """Weigh nodes, and take one feature off those that refuse and put it back.

    The feature must be among the node's `Features` in slurm.conf.

    Parameters
    ----------
    feature
        The feature that jobs ask for.
    conf, timeout, weight_step
        As for `SlurmGate`.
    """

    name = "slurm-feature"

    def __init__(
        self,
        *,
        feature: str = FEATURE,
        conf: str | Path | None = None,
        timeout: float = 10.0,
        weight_step: int = 1,
    ) -> None:
        if not feature.replace("_", "").isalnum():
            raise SettingsError(f"feature must be letters, digits and underscores, got {feature!r}")
        self.feature = feature
        super().__init__(SlurmCommands(conf=conf, timeout=timeout), weight_step)

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
        """Return all nodes of the cluster whose feature we took off, or that we weigh."""
        return sorted(name for name, one in self._all().items() if one.ours or one.rank is not None)

    def census(self) -> Census:
        """Count the nodes that have the feature and are in service, in one call."""
        return Census.of(self._all())

    def _all(self) -> dict[str, Observed]:
        having = [node for node in self.commands.nodes() if self.feature in node.available]
        return {node.name: self._observed(node) for node in having}

    def _observed(self, node: SlurmNode) -> Observed:
        if self.feature not in node.available:
            raise IntegrationError(
                f"node {node.name} must have the feature {self.feature}, got {','.join(node.available) or 'none'}: "
                f"add Features={self.feature} to its line in slurm.conf"
            )
        seen = Observed("open")
        if self.feature not in node.active:
            seen = read_label(node.extra) or Observed("closed-by-other", f"{self.feature} is switched off")
        elif node.closed:
            seen = Observed("closed-by-other", node.reason or "+".join(sorted(node.flags)).lower())
        return replace(seen, rank=rank_of(node))
