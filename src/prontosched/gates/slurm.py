"""Slurm: a node's rank is its weight, its veto a drain with the reason in `sinfo -R`.

`SlurmGate` drains nodes. `SlurmFeatureGate` takes a feature off instead, for jobs that opt
in with `sbatch -C pronto_admit`. Both rank nodes by `SlurmWeights`. Running jobs finish,
pending ones go elsewhere and come back by themselves.

Slurm has no compare-and-set: an administrator who drains a node in the few milliseconds
between our read and our write loses the reason they gave, and the node is then taken for
ours. Everywhere else their drain is left alone.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prontosched.errors import IntegrationError, SettingsError
from prontosched.gates.gate import (
    GateCensus,
    Observed,
    Rank,
    Verdict,
    label,
    rank_text,
    read_label,
    read_rank,
)

# One plain name: a list such as n[1-4] would change several nodes in one call.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,254}")
_LEAD = re.compile(
    r"NodeName=(?P<name>\S+) .*?AvailableFeatures=(?P<available>\S*) +ActiveFeatures=(?P<active>\S*)"
    r" .*?\bState=(?P<state>\S+) .*?\bWeight=(?P<weight>\d+)"
)
_TAIL = re.compile(
    r" Reason=(?P<reason>.*?)(?: \[(?P<who>[^\s@\]]+)@[0-9T:-]+\])?(?= Comment=| Extra=|\s*$)", re.DOTALL
)
_COMMENT = re.compile(r" Comment=(?P<comment>.*?)(?= Extra=|\s*$)", re.DOTALL)
_EXTRA = re.compile(r" Extra=(?P<extra>.*?)\s*$", re.DOTALL)
# Everything by which a node takes no new jobs, other than being busy.
_DRAINED = frozenset({"DRAIN", "DRAINED", "DRAINING"})
_CLOSED = _DRAINED | {
    *("DOWN", "ERROR", "FAIL", "FAILING", "FUTURE", "INVAL", "INVALID_REG", "MAINTENANCE"),
    *("REBOOT_REQUESTED", "REBOOT_ISSUED", "UNKNOWN"),
}


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """One node as Slurm shows it.

    Attributes
    ----------
    flags
        Base state and flags, such as IDLE and DRAIN.
    reason, comment, extra
        Free text: why the node is closed, and whatever an operator keeps there.
    available, active
        Features the node could have, and has now.
    weight
        Nodes with a lower weight are filled first.
    """

    name: str
    flags: frozenset[str]
    reason: str
    extra: str
    available: tuple[str, ...]
    active: tuple[str, ...]
    weight: int = 1
    comment: str = ""

    @property
    def drained(self) -> bool:
        """True when the node is drained or draining."""
        return bool(self.flags & _DRAINED)

    @property
    def closed(self) -> bool:
        """True when the node takes no new jobs for another reason than being full."""
        return bool(self.flags & _CLOSED)


def read_node(line: str) -> SlurmNode:
    """Read one line of `scontrol --oneliner show node`.

    Free text comes last and may look like fields, so fields are read from the front
    and text from the end.

    Raises
    ------
    IntegrationError
        The line is not a node.
    """
    lead = _LEAD.match(line)
    if lead is None:
        raise IntegrationError(f"scontrol must show a node with its state, got {line[:80]!r}")
    rest = line[lead.end() :]
    tail = _TAIL.search(rest)
    after = tail.end() if tail else 0
    comment = _COMMENT.search(rest, after)
    extra = _EXTRA.search(rest, comment.end() if comment else after)
    # Older versions append one sign for each flag to the base state.
    flags = frozenset(part.rstrip("*~#!%$@^-") for part in lead["state"].split("+"))
    return SlurmNode(
        lead["name"],
        flags,
        tail["reason"] if tail else "",
        extra["extra"] if extra else "",
        _features(lead["available"]),
        _features(lead["active"]),
        int(lead["weight"]),
        comment["comment"] if comment else "",
    )


class SlurmCommands:
    """`scontrol` and `squeue`, run one call at a time.

    Parameters
    ----------
    conf
        Path of slurm.conf; None leaves it to Slurm to find its own.
    timeout
        Seconds that one call may take. `scontrol` itself would wait for minutes.
    """

    def __init__(self, *, conf: str | Path | None = None, timeout: float = 10.0) -> None:
        self.conf = conf
        self.timeout = timeout

    @staticmethod
    def present() -> bool:
        """Tell whether Slurm's commands are installed."""
        return shutil.which("scontrol") is not None

    @staticmethod
    def missing(**options: Any) -> str:
        """Return what is missing here to speak to Slurm, empty where nothing is."""
        if SlurmCommands.present():
            return ""
        return "scontrol must be on PATH, got none: install Slurm's client commands"

    def node(self, name: str) -> SlurmNode:
        """Return one node."""
        return read_node(self._run("--oneliner", "show", "node", _checked(name)))

    def nodes(self) -> list[SlurmNode]:
        """Return all nodes, in one call."""
        text = self._run("--all", "--oneliner", "show", "node")
        return [read_node(line) for line in text.splitlines() if line.startswith("NodeName=")]

    def update(self, name: str, **changes: str) -> None:
        """RefusalChange one node: `update("n1", state="drain", reason="…")`."""
        self._run(
            "update", f"nodename={_checked(name)}", *(f"{key}={value}" for key, value in changes.items())
        )

    def waiting(self) -> list[str]:
        """Return why jobs wait, one reason for each that does."""
        text = self._run("--noheader", "--states=PENDING", "--format=%r", program="squeue")
        return [line.strip() for line in text.splitlines()]

    def _run(self, *arguments: str, program: str = "scontrol") -> str:
        environment = dict(os.environ)
        if self.conf is not None:
            environment["SLURM_CONF"] = str(self.conf)
        command = [program, *arguments]
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=self.timeout, check=False
            )
        except FileNotFoundError as error:
            raise IntegrationError(
                f"{program} must be on the PATH: install Slurm's client commands"
            ) from error
        except subprocess.TimeoutExpired as error:
            raise IntegrationError(
                f"{_shown(command)} must answer within {self.timeout:g} s: is slurmctld running?"
            ) from error
        if done.returncode != 0:
            raise IntegrationError(
                f"{_shown(command)} failed: {_advice(done.stderr.strip() or done.stdout.strip())}"
            )
        return done.stdout


def _features(text: str) -> tuple[str, ...]:
    return () if text in ("", "(null)") else tuple(text.split(","))


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise IntegrationError(
            f"a Slurm node must be one plain name, got {name[:80]!r}: lists are not allowed"
        )
    return name


def _shown(command: list[str]) -> str:
    return " ".join(command[:3])


def _advice(words: str) -> str:
    # Slurm tells the whole way to its trouble; what ended it comes last.
    lines = [line for line in words.splitlines() if line.strip()]
    lines = [line.removeprefix("scontrol: ").removeprefix("squeue: ") for line in lines]
    said = " ".join(lines[-1].split())[:300] if lines else "no message"
    if "permission" in said.lower() or "Invalid user id" in said:
        return f"{said}: run as root, as SlurmUser, or as a user with AdminLevel=Operator"
    if "configuration" in said:
        return f"{said}: name slurm.conf with the gate's option conf=PATH"
    return said


# "[pronto: weight 1+2, level 2, chance 0.42, accepting, until 2026-11-15T21:09:45Z]"
_MARK = re.compile(r"\s*\[pronto: weight (?P<rest>[^\[\]]*)\]$")
_FIELDS = re.compile(r"(?P<base>\d+)\+(?P<added>\d+), (?P<rank>.*)")
# What Slurm says of jobs that wait for nodes, and not for a time, a limit or another job.
_WAITING = ("Resources", "ReqNodeNotAvail", "Nodes required for job are DOWN, DRAINED")
LARGEST_WEIGHT = 4_294_967_280


class SlurmWeights:
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


class SlurmGate(SlurmWeights):
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

    def census(self) -> GateCensus:
        """Count the nodes in service, in one call."""
        return GateCensus.of({node.name: _observed(node) for node in self.commands.nodes()})


def _observed(node: SlurmNode) -> Observed:
    rank = rank_of(node)
    if not node.closed:
        return Observed("open", rank=rank)
    ours = read_label(node.reason) if node.drained else None
    if ours is not None:
        return replace(ours, rank=rank)
    state = "+".join(sorted(node.flags)).lower()
    return Observed("closed-by-other", f"{state}: {node.reason}" if node.reason else state, rank=rank)


FEATURE = "pronto_admit"


class SlurmFeatureGate(SlurmWeights):
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

    def census(self) -> GateCensus:
        """Count the nodes that have the feature and are in service, in one call."""
        return GateCensus.of(self._all())

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
