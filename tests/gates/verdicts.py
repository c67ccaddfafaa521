"""What tests of gates say to them: verdicts, rules, and what a real scheduler was heard to say."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from prontosched.gates.gate import Verdict
from prontosched.gates.policy import Rules

REASON = "cpu_user is rising"
# Requests and nodes of a real Kubernetes cluster, as they were sent.
RECORDED = Path(__file__).parent.parent / "data" / "kubernetes"
# A taint that is not ours.
DEDICATED = {"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}


def busy_at(now: float, seconds: float = 60.0, *, score: float = 0.8, reason: str = REASON) -> Verdict:
    """A refusal that was made at some time and counts for some seconds."""
    return Verdict(True, score, reason, now + seconds)


def quiet_at(now: float) -> Verdict:
    """An acceptance that was made at some time and counts for a minute."""
    return Verdict(False, 0.1, "nothing spikes", now + 60.0)


def busy(seconds: float = 60.0, *, score: float = 0.8, reason: str = REASON) -> Verdict:
    """A refusal made now."""
    return busy_at(time.time(), seconds, score=score, reason=reason)


def quiet() -> Verdict:
    """An acceptance made now."""
    return quiet_at(time.time())


def eager(share: float = 1.0) -> Rules:
    """Rules that obey at once, veto and all, as long as no more than `share` of the nodes refuse."""
    return Rules(
        enforce=True,
        veto=True,
        max_refusing=share,
        min_hold_seconds=0,
        min_accept_seconds=0,
        override_seconds=0,
        observe_seconds=0,
    )


def recorded(name: str) -> dict[str, Any]:
    """What a real cluster sent."""
    found: dict[str, Any] = json.loads((RECORDED / name).read_text())
    return found


class GivenDecisions:
    """Decisions from a dictionary, where an extender would ask agents."""

    def __init__(self, verdicts: dict[str, Verdict]) -> None:
        self._verdicts = verdicts

    def verdicts(self) -> dict[str, Verdict]:
        return self._verdicts
