"""Whether the agent decides, and if not, why: one truth for `/healthz`, the service manager and answers."""

from __future__ import annotations

import math

from prontosched.agent.pace import Pace

TICKS = 3
"""Intervals without a decision, and ticks in a row with a fault, from which an agent is not healthy."""
LEAST_SECONDS = 3.0


class Health:
    """Watch the loop from within.

    Healthy is an agent that has decided for some node within three intervals, at least
    three seconds, and whose last three ticks did not all meet a fault.

    Parameters
    ----------
    pace
        The loop's cadence.

    Attributes
    ----------
    decided_at
        When a node last decided, on the loop's clock; the start before that.
    """

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self.decided_at = pace.clock()
        self._words = ""
        self._fault_at = -math.inf
        self._faulted = False
        self._faulty_ticks = 0

    def note_fault(self, words: str) -> None:
        """Take note of what went wrong in the tick under way."""
        self._words, self._fault_at, self._faulted = words, self._pace.clock(), True

    def note_tick(self, *, decided: bool) -> None:
        """Take note that a tick has ended, and whether any node decided in it."""
        if decided:
            self.decided_at = self._pace.clock()
        self._faulty_ticks = self._faulty_ticks + 1 if self._faulted else 0
        self._faulted = False

    def fault_since(self, moment: float) -> str:
        """Return the last fault where it came at `moment` or later, empty otherwise."""
        return self._words if self._fault_at >= moment else ""

    @property
    def trouble(self) -> str:
        """What is wrong, in one line; empty while the agent is healthy."""
        silent = self._pace.clock() - self.decided_at
        longest = max(LEAST_SECONDS, TICKS * self._pace.interval_seconds)
        if (overdue := self._pace.overdue_seconds) >= longest:
            return f"no tick for {overdue:.0f} s: the loop hangs"
        if silent >= longest:
            why = self.fault_since(self.decided_at) or "the source gives no telemetry"
            return f"no decision for {silent:.0f} s: {why}"
        if self._faulty_ticks >= TICKS:
            return f"every tick faults: {self._words}"
        return ""
