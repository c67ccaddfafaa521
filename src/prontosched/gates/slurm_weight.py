"""Slurm's preference: a node that expects contention gets a higher weight, and is filled later.

Covers: writing a rank as the node's `Weight` and reading it back, and telling whether
jobs wait for nodes. Both gates for Slurm share it. Weight, rank and expiry are changed in
one call; the administrator's weight and the rank stand at the end of the node's
`Comment`, behind whatever an administrator keeps there, so that a watchdog that never met
the agent can put the weight back.

A weight that is not the one we wrote is an administrator's, or that of slurm.conf after
`scontrol reconfigure`: our mark then counts for nothing, and the next rank starts there.
"""

from __future__ import annotations

import math
import re

from prontosched.errors import SettingsError
from prontosched.gates.gate import Rank, Verdict, rank_text, read_rank
from prontosched.gates.slurm_commands import SlurmCommands, SlurmNode

# "[pronto: weight 1+2, level 2, chance 0.42, accepting, until 2026-11-15T21:09:45Z]"
_MARK = re.compile(r"\s*\[pronto: weight (?P<rest>[^\[\]]*)\]$")
_FIELDS = re.compile(r"(?P<base>\d+)\+(?P<added>\d+), (?P<rank>.*)")
# What Slurm says of jobs that wait for nodes, and not for a time, a limit or another job.
_WAITING = ("Resources", "ReqNodeNotAvail", "Nodes required for job are DOWN, DRAINED")
LARGEST_WEIGHT = 4_294_967_280


class WeightRanks:
    """Rank nodes by their weight; for gates that speak to Slurm.

    Parameters
    ----------
    commands
        Slurm's own commands.
    step
        How much one level adds to a weight. With 1 an administrator's order of weights
        comes first wherever they are more than a few apart; with more, contention does.
    """

    level_seconds = 60.0
    marks_calm = False

    def __init__(self, commands: SlurmCommands, step: int) -> None:
        if not 0 <= step <= 1_000_000:
            raise SettingsError(f"weight_step must be from 0 to 1000000, got {step}")
        self.commands = commands
        self.step = step

    def prefer(self, node: str, rank: Rank, verdict: Verdict) -> None:
        """Give the node the weight of its level, or renew the mark that stands for it."""
        found = self.commands.node(node)
        if rank.level == 0:
            self._restore(found)
            return
        base = base_weight(found)
        added = min(rank.level * self.step, LARGEST_WEIGHT - base)
        mark = f"[pronto: weight {base}+{added}, {rank_text(rank)}]"
        comment = f"{_MARK.sub('', found.comment)} {mark}".lstrip()
        changes = {} if found.weight == base + added else {"weight": str(base + added)}
        self.commands.update(node, comment=comment, **changes)

    def restore(self, node: str) -> None:
        """Put the administrator's weight and comment back, where ours are in their place."""
        self._restore(self.commands.node(node))

    def starved(self) -> bool:
        """Tell whether jobs wait for nodes, so that no node may be kept from them."""
        return any(reason.startswith(_WAITING) for reason in self.commands.waiting())

    def _restore(self, found: SlurmNode) -> None:
        if _MARK.search(found.comment) is None:
            return
        base = base_weight(found)
        changes = {} if found.weight == base else {"weight": str(base)}
        self.commands.update(found.name, comment=_MARK.sub("", found.comment), **changes)


def rank_of(node: SlurmNode) -> Rank | None:
    """Return the rank that the node's comment and weight show; None where there is none of ours.

    A mark that someone has edited, or whose weight is no longer there, is a rank that has
    expired: a watchdog takes it off.
    """
    mark = _MARK.search(node.comment)
    if mark is None:
        return None
    fields = _FIELDS.fullmatch(mark["rest"])
    if fields is None or node.weight != int(fields["base"]) + int(fields["added"]):
        return Rank(0, math.nan, False, math.nan)
    return read_rank(fields["rank"])


def base_weight(node: SlurmNode) -> int:
    """Return the weight that the node has without us."""
    mark = _MARK.search(node.comment)
    fields = None if mark is None else _FIELDS.fullmatch(mark["rest"])
    if fields is None or node.weight != int(fields["base"]) + int(fields["added"]):
        return node.weight
    return int(fields["base"])
