"""HTCondor: the node owns its START expression, as in the paper.

Covers: the attributes that a STARTD_CRON job publishes and the START expression
reads. The agent writes them to a file; the cron job only prints that file, so that
neither waits for the other. Configuration is in `deploy/htcondor`.

An administrator's own START, drain or OFF state is never touched: our part is one
more condition beside theirs. The expression itself looks at the time, so a verdict
ends at `ProntoValidUntil` even if agent and cron job are both dead.
"""

from __future__ import annotations

import math
import re
import shutil
from pathlib import Path
from typing import Any

from prontosched.integration.gate import Observed, Verdict, label, read_label
from prontosched.integration.marks import Marks, marks_folder

ACCEPTING = "ProntoReject = false\n-\n"
# What an administrator adds to START, with jobs that may opt out.
START = (
    "((MY.ProntoReject =?= true && time() < MY.ProntoValidUntil) =!= true || TARGET.ProntoOptOut =?= true)"
)
# Programs of HTCondor, one of which any machine of a pool has.
PROGRAMS = ("condor_startd", "condor_master", "condor_status")
_REASON = re.compile(r'^ProntoReason = "(.*)"$', re.MULTILINE)


def classad(verdict: Verdict | None, *, now: float) -> str:
    """Write the attributes of a verdict as a STARTD_CRON job prints them.

    No verdict, one that has ended and one that accepts give the same few words.

    Examples
    --------
    >>> print(classad(Verdict(True, 0.8, "cpu_user is rising", 1700000000.0), now=1699999990.0))
    ProntoReject = true
    ProntoScore = 0.8
    ProntoReason = "pronto: cpu_user is rising (score 0.8, until 2023-11-14T22:13:20Z)"
    ProntoValidUntil = 1700000000
    -
    <BLANKLINE>
    """
    if verdict is None or not verdict.refuse or verdict.expired(now):
        return ACCEPTING
    score = f"{verdict.score:.6g}" if math.isfinite(verdict.score) else "undefined"
    return (
        "ProntoReject = true\n"
        f"ProntoScore = {score}\n"
        f'ProntoReason = "{label(verdict)}"\n'
        f"ProntoValidUntil = {math.floor(verdict.valid_until)}\n"
        "-\n"
    )


class HTCondorGate:
    """Hand verdicts to the START expression of this machine's startd.

    Parameters
    ----------
    folder
        Where the cron job finds the attributes: `NODE.ad` for each node.
    """

    name = "htcondor"

    def __init__(self, *, folder: str | Path | None = None) -> None:
        self.marks = Marks(marks_folder(self.name) if folder is None else Path(folder), suffix=".ad")

    @staticmethod
    def present() -> bool:
        """Tell whether marks of this gate lie in their standard place."""
        return marks_folder("htcondor").is_dir()

    @staticmethod
    def missing(**options: Any) -> str:
        """Return what is missing here for HTCondor, empty where nothing is or the folder was named."""
        if options.get("folder") or any(shutil.which(program) for program in PROGRAMS):
            return ""
        return (
            f"{PROGRAMS[0]} must be on PATH, got none: install HTCondor, "
            "or name the folder that its startd reads (folder=FOLDER)"
        )

    def observe(self, node: str) -> Observed:
        """Return what the file says; others' doings are beside ours and not seen here."""
        text = self.marks.read(node)
        if text is None or "ProntoReject = true" not in text:
            return Observed("open")
        reason = _REASON.search(text)
        return (read_label(reason[1]) if reason else None) or Observed("closed-by-us", text[:200])

    def refuse(self, node: str, verdict: Verdict) -> None:
        """Publish the refusal at the cron job's next turn."""
        # As given: the keeper has looked at the time, and START looks again.
        self.marks.write(node, classad(verdict, now=-math.inf))

    def accept(self, node: str) -> None:
        """Publish at the cron job's next turn that the node accepts."""
        self.marks.remove(node)

    def owned(self) -> list[str]:
        """Return the nodes of this machine that refuse."""
        return [node for node in self.marks.nodes() if self.observe(node).ours]
