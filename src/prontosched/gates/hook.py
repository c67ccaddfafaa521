"""A hook: run a command of the operator's whenever the node closes or opens.

For every scheduler without a gate of its own, such as a load balancer, a CI runner or a
service registry. The command gets the change as arguments, in the environment and as JSON
on standard input; no shell is involved.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from prontosched.errors import IntegrationError, SettingsError
from prontosched.gates.gate import MarkFiles, Observed, Verdict, label, marks_folder, read_label
from prontosched.threads import engine_environment


class HookGate:
    """Run `command EVENT NODE` on every change.

    EVENT is `refuse`, `accept`, or, with `renew`, also `renew`. A command that ends with anything
    but 0 has not made the change; it is tried again later. It has to look by itself whether
    someone else has closed the node, and then end with 1. It is killed after `timeout` seconds.
    `folder` remembers across restarts what was refused.
    """

    name = "hook"

    def __init__(
        self,
        *,
        command: str | Sequence[str],
        renew: bool = False,
        folder: str | Path | None = None,
        timeout: float = 30.0,
    ) -> None:
        self.command = shlex.split(command) if isinstance(command, str) else list(command)
        if not self.command:
            raise SettingsError("command must name a program to run on every change, got nothing")
        self.renew = renew
        self.timeout = timeout
        self.marks = MarkFiles(marks_folder(self.name) if folder is None else Path(folder))

    @staticmethod
    def present() -> bool:
        """Tell whether marks of this gate lie in their standard place."""
        return marks_folder("hook").is_dir()

    @staticmethod
    def missing(**options: Any) -> str | None:
        """Return what is missing to run the command, empty where nothing is, None where none is named."""
        program = (shlex.split(str(options.get("command") or "")) or [""])[0]
        if not program:
            return None
        return "" if shutil.which(program) else f"its command must be a program, got {program!r}: name one"

    def observe(self, node: str) -> Observed:
        """Return whether the command was last run to refuse."""
        mark = self.marks.read(node)
        if mark is None:
            return Observed("open")
        # A damaged mark is still ours: as lapsed, so that it is soon undone.
        return read_label(mark.strip()) or Observed("closed-by-us", mark.strip()[:200])

    def refuse(self, node: str, verdict: Verdict) -> None:
        """Run the command to refuse, or only renew the mark where that was done."""
        mark = label(verdict)
        if self.observe(node).ours:
            if self.renew:
                self._run("renew", node, verdict)
            self.marks.write(node, mark)
            return
        # The mark first: if we die in the middle, a watchdog still undoes the rest.
        self.marks.write(node, mark)
        try:
            self._run("refuse", node, verdict)
        except IntegrationError:
            self.marks.remove(node)
            raise

    def accept(self, node: str) -> None:
        """Run the command to accept, where it was run to refuse."""
        if self.observe(node).ours:
            self._run("accept", node, None)
            self.marks.remove(node)

    def owned(self) -> list[str]:
        """Return the nodes refused from this machine."""
        return self.marks.nodes()

    def _run(self, event: Literal["refuse", "renew", "accept"], node: str, verdict: Verdict | None) -> None:
        fields = {
            "event": event,
            "node": node,
            "reason": verdict.reason if verdict else "",
            "score": verdict.score if verdict and math.isfinite(verdict.score) else None,
            "valid_until": verdict.valid_until if verdict else None,
        }
        told = {f"PRONTO_{key.upper()}": "" if value is None else str(value) for key, value in fields.items()}
        # A control character in a reason must not break a script that prints it.
        told["PRONTO_REASON"] = " ".join(told["PRONTO_REASON"].replace("\0", " ").split())
        program = self.command[0]
        try:
            process = subprocess.Popen(
                [*self.command, event, node],
                env={**engine_environment(), **told},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            raise IntegrationError(
                f"hook {program} must be a program that can be run: {error.strerror}"
            ) from error
        with process:
            try:
                said, _ = process.communicate(json.dumps(fields) + "\n", timeout=self.timeout)
            except subprocess.TimeoutExpired as error:
                # The whole session: a child that keeps the pipe open would hold us up for ever.
                os.killpg(process.pid, signal.SIGKILL)
                raise IntegrationError(
                    f"hook {program} must end within {self.timeout:g} s on {event}: it was killed"
                ) from error
        if process.returncode != 0:
            words = " ".join(said.split())[:300] or "no message"
            raise IntegrationError(
                f"hook {program} must end with 0 on {event} of {node}, got {process.returncode}: {words}"
            )
