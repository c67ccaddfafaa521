"""Slurm's own commands, as far as gates need them: read nodes, change one node, see who waits.

Covers: running `scontrol` and `squeue` without a shell, within a time limit, and reading
what they print. What is changed is decided in `slurm`, `slurm_feature` and `slurm_weight`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prontosched.errors import IntegrationError

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
        """Change one node: `update("n1", state="drain", reason="…")`."""
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
