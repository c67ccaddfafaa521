"""HTCondor: the node publishes its chance of contention, and owns its START expression as in the paper.

The agent writes attributes of the machine ad to a file: those that the negotiator ranks
machines by (the preference) and those that START reads (the veto). A STARTD_CRON job only
prints that file, so that neither waits for the other. Configuration is in `deploy/htcondor`.

An administrator's own START, drain or OFF state is never touched: our part is one
more condition beside theirs. The expressions themselves look at the time, so a verdict
and a rank end even if agent and cron job are both dead.
"""

from __future__ import annotations

import math
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from prontosched.gates.gate import (
    MarkFiles,
    Observed,
    Rank,
    Verdict,
    label,
    marks_folder,
    rank_text,
    read_label,
    read_rank,
)

# Programs of HTCondor, one of which any machine of a pool has.
PROGRAMS = ("condor_startd", "condor_master", "condor_status")
_REASON = re.compile(r'^ProntoReason = "(.*)"$', re.MULTILINE)
_RANK = re.compile(r'^ProntoRank = "(.*)"$', re.MULTILINE)


def refusal_attributes(verdict: Verdict) -> str:
    """Write a refusal as attributes of a machine ad.

    Examples
    --------
    >>> print(refusal_attributes(Verdict(True, 0.8, "cpu_user is rising", 1700000000.0)))
    ProntoReject = true
    ProntoScore = 0.8
    ProntoReason = "pronto: cpu_user is rising (score 0.8, until 2023-11-14T22:13:20Z)"
    ProntoValidUntil = 1700000000
    <BLANKLINE>
    """
    score = f"{verdict.score:.6g}" if math.isfinite(verdict.score) else "undefined"
    return (
        "ProntoReject = true\n"
        f"ProntoScore = {score}\n"
        f'ProntoReason = "{label(verdict)}"\n'
        f"ProntoValidUntil = {math.floor(verdict.valid_until)}\n"
    )


def rank_attributes(rank: Rank) -> str:
    """Write a rank as attributes of a machine ad: `ProntoContention` is the chance of contention.

    Examples
    --------
    >>> print(rank_attributes(Rank(3, 0.62, False, 1700000000.0)))
    ProntoContention = 0.62
    ProntoLevel = 3
    ProntoContentionUntil = 1700000000
    ProntoRank = "level 3, chance 0.62, accepting, until 2023-11-14T22:13:20Z"
    <BLANKLINE>
    """
    chance = f"{rank.chance:.6g}" if math.isfinite(rank.chance) else "undefined"
    until = 0 if math.isnan(rank.valid_until) else math.floor(rank.valid_until)
    return (
        f"ProntoContention = {chance}\n"
        f"ProntoLevel = {rank.level}\n"
        f"ProntoContentionUntil = {until}\n"
        f'ProntoRank = "{rank_text(rank)}"\n'
    )


class HTCondorGate:
    """Write ranks and verdicts to `NODE.ad` in a folder, for the startd of this machine and its negotiator."""

    name = "htcondor"
    level_seconds = 0.0
    marks_calm = True

    def __init__(self, *, folder: str | Path | None = None) -> None:
        self.marks = MarkFiles(marks_folder(self.name) if folder is None else Path(folder), suffix=".ad")

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
        """Return what the file says; what others do to START is not seen here."""
        text = self.marks.read(node) or ""
        rank = _RANK.search(text)
        found = Observed("open")
        if "ProntoReject = true" in text:
            reason = _REASON.search(text)
            found = (read_label(reason[1]) if reason else None) or Observed("closed-by-us", text[:200])
        return replace(found, rank=read_rank(rank[1]) if rank else None)

    def refuse(self, node: str, verdict: Verdict) -> None:
        """Publish the refusal at the cron job's next turn."""
        # As given: the controller has looked at the time, and START looks again.
        self._write(node, refusal=refusal_attributes(verdict))

    def accept(self, node: str) -> None:
        """Publish at the cron job's next turn that the node accepts."""
        self._write(node, refusal="")

    def prefer(self, node: str, rank: Rank, verdict: Verdict) -> None:
        """Publish the rank at the cron job's next turn."""
        self._write(node, rank=rank_attributes(rank))

    def restore(self, node: str) -> None:
        """Take the rank back at the cron job's next turn."""
        self._write(node, rank="")

    def owned(self) -> list[str]:
        """Return the nodes of this machine that refuse or are ranked."""
        return self.marks.nodes()

    def _write(self, node: str, *, refusal: str | None = None, rank: str | None = None) -> None:
        """Replace one part of the file and keep the other; a file with neither is removed."""
        lines = (self.marks.read(node) or "").splitlines(keepends=True)
        ranks = [line for line in lines if line.startswith(("ProntoContention", "ProntoLevel", "ProntoRank"))]
        others = [line for line in lines if line.startswith("Pronto") and line not in ranks]
        rank = "".join(ranks) if rank is None else rank
        refusal = "".join(others) if refusal is None else refusal
        if refusal or rank:
            self.marks.write(node, f"{refusal}{rank}-\n")
        else:
            self.marks.remove(node)
