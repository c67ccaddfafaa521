"""Slurm: a node's rank is its weight, its veto a drain with the reason in `sinfo -R`.

`SlurmGate` drains nodes. `SlurmFeatureGate` takes a feature off instead, for jobs that opt
in with `sbatch -C pronto_admit`. Both rank nodes by weight (`SlurmWeights`). Running jobs
finish, pending ones go elsewhere and come back by themselves.

Slurm has no compare-and-set, and clears a reason with its drain: an administrator who drains
a node between our read and our write loses the reason they gave, and nothing is left by which
to restore it. So a drain is changed by a `scontrol` that is started before the node is read:
only a message lies between, and not the start of a program, which takes long on a busy node.
Everywhere else an administrator's drain is left alone.
"""

from __future__ import annotations

import logging
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prontosched.errors import IntegrationError, SettingsError
from prontosched.gates.gate import (
    DAMAGED_RANK,
    Observed,
    Rank,
    Verdict,
    label,
    rank_text,
    read_label,
    read_rank,
)
from prontosched.threads import engine_environment

log = logging.getLogger(__name__)

FEATURE = "pronto_admit"
LARGEST_WEIGHT = 4_294_967_280
# Nodes named in one call, and letters of their names: where scontrol is built without readline it takes a line
# of 4,096 for the end of its input, and does nothing.
MOST_AT_ONCE, MOST_LETTERS = 100, 3500
# One plain name: a list such as n[1-4] would change several nodes in one call.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,254}")
_LEAD = re.compile(
    r"NodeName=(?P<name>\S+) .*?AvailableFeatures=(?P<available>\S*) +ActiveFeatures=(?P<active>\S*)"
    r" .*?\bState=(?P<state>\S+) .*?\bWeight=(?P<weight>\d+)"
)
_TAIL = re.compile(
    r" Reason=(?P<reason>.*?)(?: \[[^\s\]]+@[0-9T:-]+\])?(?= Comment=| Extra=|\s*$)", re.DOTALL
)
_COMMENT = re.compile(r" Comment=(?P<comment>.*?)(?= Extra=|\s*$)", re.DOTALL)
_EXTRA = re.compile(r" Extra=(?P<extra>.*?)\s*$", re.DOTALL)
# What newer versions print behind all free text.
_BEHIND = re.compile(r"(?:\s+(?:InstanceId|InstanceType|ReservationName|Topology)=\S*)+\s*$")
# Variables by which people change what the commands show.
_VIEWS = ("SCONTROL_", "SQUEUE_", "SLURM_TIME_FORMAT")
# Everything by which a node takes no new jobs, other than being busy.
_DRAINED = frozenset({"DRAIN", "DRAINED", "DRAINING"})
_CLOSED = _DRAINED | {
    *("DOWN", "ERROR", "FAIL", "FAILING", "FUTURE", "INVAL", "INVALID_REG", "MAINTENANCE"),
    *("REBOOT_REQUESTED", "REBOOT_ISSUED", "UNKNOWN"),
}
# "[pronto: weight 1+2, level 2, chance 0.42, accepting, until 2026-11-15T21:09:45Z]"
# Behind it only fields can follow, which a version that we do not know would print there.
_MARK = re.compile(r"\s*\[pronto: weight (?P<rest>[^\[\]]*)\](?: +[A-Z]\w*=\S*)*$")
_FIELDS = re.compile(r"(?P<base>\d+)\+(?P<added>\d+), (?P<rank>.*)")
# What Slurm says of jobs that wait for nodes, and not for a time, a limit or another job.
_WAITING = ("Resources", "ReqNodeNotAvail", "Nodes required for job are DOWN, DRAINED")
# A job that would run into a maintenance waits until that is over, whatever is open.
_MAINTENANCE = "Reserved for maintenance"


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """One node as Slurm shows it.

    `flags` are base state and flags, such as IDLE and DRAIN; `available` and `active` the
    features that it could have, and has now. Nodes with a lower weight are filled first.
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
    """
    lead = _LEAD.match(line)
    if lead is None:
        raise IntegrationError(f"scontrol must show a node with its state, got {line[:80]!r}")
    rest = _BEHIND.sub("", line[lead.end() :])
    tail = _TAIL.search(rest)
    after = tail.end() if tail else 0
    comment = _COMMENT.search(rest, after)
    extra = _EXTRA.search(rest, comment.end() if comment else after)
    available, active = (
        () if lead[key] in ("", "(null)") else tuple(lead[key].split(",")) for key in ("available", "active")
    )
    return SlurmNode(
        lead["name"],
        # Older versions append one sign for each flag to the base state.
        frozenset(part.rstrip("*~#!%$@^-") for part in lead["state"].split("+")),
        tail["reason"] if tail else "",
        extra["extra"] if extra else "",
        available,
        active,
        int(lead["weight"]),
        comment["comment"] if comment else "",
    )


class SlurmCommands:
    """`scontrol` and `squeue`, run one call at a time, without a shell.

    A call may take `timeout` seconds: `scontrol` itself would wait for minutes.
    """

    def __init__(self, *, conf: str | Path | None = None, timeout: float = 10.0) -> None:
        self.conf = conf
        self.timeout = timeout
        self.left_out: set[str] = set()

    def node(self, name: str) -> SlurmNode:
        """Return one node."""
        return read_node(self._run("--oneliner", "show", "node", _checked(name)))

    def nodes(self, names: Sequence[str] = ()) -> list[SlurmNode]:
        """Return all nodes, or those named, in one call; one that cannot be read is left out, and named once."""
        found, odd = [], set(self.left_out if names else ())
        # Only newlines end a line: free text may hold other separators.
        for line in self._run("--all", "--oneliner", "show", "node", *_joined(names)).split("\n"):
            if line.startswith("NodeName="):
                try:
                    found.append(read_node(line))
                except IntegrationError as error:
                    name = line[: line.find(" ")]
                    if name not in self.left_out:
                        log.warning("left out: %s", error)
                    odd.add(name)
        self.left_out = odd
        return found

    def update(self, name: str, **changes: str) -> None:
        """Change one node: `update("n1", state="drain", reason="…")`."""
        self._run(
            "update", f"nodename={_checked(name)}", *(f"{key}={value}" for key, value in changes.items())
        )

    def waiting(self) -> list[str]:
        """Return why jobs wait, one reason for each that does."""
        # Of this cluster: a federation may be set to show all of its jobs.
        text = self._run("--noheader", "--local", "--states=PENDING", "--format=%r", program="squeue")
        return [line.strip() for line in text.splitlines()]

    def change(self, name: str, choose: Callable[[SlurmNode], Mapping[str, str]]) -> None:
        """Change one node by what it shows now; nothing where `choose` returns nothing.

        The program that makes the change is started first, and given it on its standard input.
        Values must not hold quotes or line ends; `label` leaves none.
        """
        self._change(lambda: ([name], choose(self.node(name))))

    def undrain(self, names: Sequence[str], chosen: Callable[[SlurmNode], bool]) -> list[str]:
        """Undrain those of some nodes that are `chosen` by what they show now, all at once; return them."""
        return self._change(lambda: ([n.name for n in self.nodes(names) if chosen(n)], {"state": "undrain"}))

    def _change(self, look: Callable[[], tuple[list[str], Mapping[str, str]]]) -> list[str]:
        with self._started("scontrol") as process:
            try:
                names, changes = look()
                nodes = _joined(names if changes else ())
            except BaseException:
                process.kill()
                raise
            # Slurm takes quotes for a reason only.
            words = [
                f'{key}="{value}"' if " " in value else f"{key}={value}" for key, value in changes.items()
            ]
            lines = [" ".join(["update", f"nodename={listed}", *words]) + "\n" for listed in nodes]
            self._end(process, "scontrol update", "".join(lines))
        return names

    def _run(self, *arguments: str, program: str = "scontrol") -> str:
        with self._started(program, *arguments) as process:
            return self._end(process, " ".join([program, *arguments[:2]]))

    def _started(self, program: str, *arguments: str) -> subprocess.Popen[str]:
        given = engine_environment().items()
        environment = {name: value for name, value in given if not name.startswith(_VIEWS)}
        # Its line editor takes letters beyond ASCII for commands, but not in a UTF-8 locale.
        environment["LC_ALL"] = "C.UTF-8"
        if self.conf is not None:
            environment["SLURM_CONF"] = str(self.conf)
        pipe = subprocess.PIPE
        try:
            # Free text is whatever administrators wrote, in any encoding.
            return subprocess.Popen(
                [program, *arguments],
                env=environment,
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                encoding="utf-8",
                errors="replace",
            )
        except FileNotFoundError as error:
            raise IntegrationError(
                f"{program} must be on the PATH: install Slurm's client commands"
            ) from error
        except OSError as error:
            raise IntegrationError(
                f"{program} must be a program that can be run: {error.strerror}"
            ) from error

    def _end(self, process: subprocess.Popen[str], shown: str, said: str = "") -> str:
        """Give a program its input and return what it printed; it must end well, and in time."""
        try:
            printed, words = process.communicate(said, timeout=self.timeout)
        except subprocess.TimeoutExpired as error:
            process.kill()
            raise IntegrationError(
                f"{shown} must answer within {self.timeout:g} s: is slurmctld running?"
            ) from error
        if process.returncode != 0:
            raise IntegrationError(f"{shown} failed: {_advice(words.strip() or printed.strip())}")
        return printed


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise IntegrationError(
            f"a Slurm node must be one plain name, got {name[:80]!r}: lists are not allowed"
        )
    return name


def _joined(names: Sequence[str]) -> list[str]:
    """Return nodes as the one word that names them all, or no word for none."""
    return [",".join(map(_checked, names))] if names else []


def _advice(words: str) -> str:
    # Slurm prints every step on the way to its error; what ended it comes last.
    lines = [line for line in words.splitlines() if line.strip()]
    last = lines[-1].removeprefix("scontrol: ").removeprefix("squeue: ") if lines else "no message"
    said = " ".join(last.split())[:300]
    if "permission" in said.lower() or "Invalid user id" in said:
        return f"{said}: run as root, as SlurmUser, or as a user with AdminLevel=Operator"
    if "configuration" in said:
        return f"{said}: name slurm.conf with the gate's option conf=PATH"
    return said


class SlurmWeights:
    """What both gates for Slurm share: ranking nodes by their weight, and counting marks.

    A node that expects contention gets a higher weight, by `weight_step` for each level, and is
    filled later. The administrator's weight and the rank stand at the end of the node's
    `Comment`, behind whatever an administrator keeps there, so that a watchdog that never met
    the agent can put the weight back. A weight that is not the one we wrote is an
    administrator's, or that of slurm.conf after `scontrol reconfigure`: our mark then counts
    for nothing, and the next rank starts there.
    """

    level_seconds = 60.0
    marks_calm = False

    def __init__(
        self, *, conf: str | Path | None = None, timeout: float = 10.0, weight_step: int = 1
    ) -> None:
        if not 0 <= weight_step <= 1_000_000:
            raise SettingsError(f"weight_step must be from 0 to 1000000, got {weight_step}")
        self.commands = SlurmCommands(conf=conf, timeout=timeout)
        self.step = weight_step

    @staticmethod
    def present() -> bool:
        """Tell whether Slurm's commands are installed."""
        return shutil.which("scontrol") is not None

    @classmethod
    def missing(cls, **options: Any) -> str:
        """Return what is missing here to call Slurm, empty where nothing is."""
        return "" if cls.present() else "scontrol must be on PATH, got none: install Slurm's client commands"

    def observe(self, node: str) -> Observed:
        """Return whether the node is closed, by whom, and its rank."""
        found = self.commands.node(node)
        return replace(self._closure(found), rank=rank_of(found))

    def owned(self) -> list[str]:
        """Return all nodes of the cluster that bear a mark of ours."""
        return sorted(name for name, one in self.observe_all().items() if one.marked)

    def prefer(self, node: str, rank: Rank, verdict: Verdict) -> None:
        """Give the node the weight of its level, or renew the mark that stands for it."""
        found = self.commands.node(node)
        if rank.level == 0:
            self._restore(found)
            return
        base = base_weight(found)
        added = min(rank.level * self.step, LARGEST_WEIGHT - base)
        mark = f"[pronto: weight {base}+{added}, {rank_text(rank)}]"
        self._write(found, f"{_MARK.sub('', found.comment)} {mark}".lstrip(), base + added)

    def restore(self, node: str) -> None:
        """Put the administrator's weight and comment back, where ours are in their place."""
        self._restore(self.commands.node(node))

    def starved(self) -> bool:
        """Tell whether jobs wait for nodes, so that no node may be kept from them."""
        return any(
            reason.startswith(_WAITING) and _MAINTENANCE not in reason for reason in self.commands.waiting()
        )

    def _restore(self, found: SlurmNode) -> None:
        if _MARK.search(found.comment) is not None:
            self._write(found, _MARK.sub("", found.comment), base_weight(found))

    def _write(self, found: SlurmNode, comment: str, weight: int) -> None:
        changes = {} if found.weight == weight else {"weight": str(weight)}
        self.commands.update(found.name, comment=comment, **changes)

    def observe_all(self) -> dict[str, Observed]:
        """Return what the scheduler says about every node, in one call."""
        return {n.name: replace(self._closure(n), rank=rank_of(n)) for n in self._reached()}

    def _reached(self) -> list[SlurmNode]:
        """Return the nodes that this gate may touch."""
        return self.commands.nodes()

    def _closure(self, node: SlurmNode) -> Observed:
        """Return whether the node is closed, and by whom."""
        raise NotImplementedError


def rank_of(node: SlurmNode) -> Rank | None:
    """Return the rank that the node's comment and weight show; None where there is none of ours.

    A mark that someone has edited, or whose weight is no longer there, is a rank that has expired.
    """
    if _MARK.search(node.comment) is None:
        return None
    fields = _own_weight(node)
    return DAMAGED_RANK if fields is None else read_rank(fields["rank"])


def base_weight(node: SlurmNode) -> int:
    """Return the weight that the node has without us."""
    fields = _own_weight(node)
    return node.weight if fields is None else int(fields["base"])


def _own_weight(node: SlurmNode) -> re.Match[str] | None:
    """Return the fields of our mark where the node still has the weight that we wrote."""
    mark = _MARK.search(node.comment)
    fields = None if mark is None else _FIELDS.fullmatch(mark["rest"])
    if fields is None or node.weight != int(fields["base"]) + int(fields["added"]):
        return None
    return fields


class SlurmGate(SlurmWeights):
    """Weigh nodes, and drain and undrain them, only with our own reason.

    Needs the rights of root, SlurmUser or an Operator.
    """

    name = "slurm"

    def refuse(self, node: str, verdict: Verdict) -> None:
        """Drain the node; renew the reason where the drain is ours; leave others' alone."""

        def change(found: SlurmNode) -> dict[str, str]:
            observed = self._closure(found)
            if observed.state == "open":
                return {"state": "drain", "reason": label(verdict)}
            return {"reason": label(verdict)} if observed.ours else {}

        self.commands.change(node, change)

    def accept(self, node: str) -> None:
        """Undrain the node if the drain is ours.

        `undrain` and not `resume`: a node that is also down stays down.
        """
        self.commands.change(node, lambda found: {"state": "undrain"} if self._closure(found).ours else {})

    def accept_lapsed(self, nodes: Sequence[str], now: float) -> list[str]:
        """Undrain all of these nodes whose drain is ours and over."""
        opened: list[str] = []
        longest = max(map(len, nodes), default=0)
        size = min(MOST_AT_ONCE, MOST_LETTERS // (longest + 1))
        for start in range(0, len(nodes), size):
            part = nodes[start : start + size]
            opened += self.commands.undrain(part, lambda found: self._closure(found).lapsed(now))
        return opened

    def _closure(self, node: SlurmNode) -> Observed:
        if not node.closed:
            return Observed("open")
        if node.drained and (ours := read_label(node.reason)) is not None:
            return ours
        state = "+".join(sorted(node.flags)).lower()
        return Observed("closed-by-other", f"{state}: {node.reason}" if node.reason else state)


class SlurmFeatureGate(SlurmWeights):
    """Weigh nodes, and take one feature off those that refuse and put it back. No node is drained.

    The feature that jobs ask for must be among the node's `Features` in slurm.conf. The mark
    of a veto is kept in the node's `extra` field, because Slurm shows a reason only for
    closed nodes.
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
        super().__init__(conf=conf, timeout=timeout, weight_step=weight_step)

    def refuse(self, node: str, verdict: Verdict) -> None:
        """Take the feature off; renew the mark where it is ours."""
        found = self.commands.node(node)
        observed = self._closure(found)
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
        if self._closure(found).ours:
            # In the configured order.
            active = [f for f in found.available if f in found.active or f == self.feature]
            self.commands.update(node, activefeatures=",".join(active))
            self.commands.update(node, extra="")

    def _reached(self) -> list[SlurmNode]:
        return [node for node in self.commands.nodes() if self.feature in node.available]

    def _closure(self, node: SlurmNode) -> Observed:
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
