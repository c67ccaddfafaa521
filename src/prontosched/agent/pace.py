"""When ticks come, and whether the agent decides in them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

LATE_SECONDS = 0.2
"""A tick this late is late, whatever the interval; shorter intervals allow half of themselves."""
TICKS = 3
"""Intervals without a decision, and ticks in a row with a fault, from which an agent is not healthy."""
LEAST_SECONDS = 3.0
NO_TELEMETRY = "the source gives no telemetry"


class Pace:
    """Say when the next tick is due, on a clock that only goes forward.

    Tick n is due at `start + n * interval`, so that one late tick does not move
    the next. Ticks missed by a whole interval (a stopped or sleeping machine) are
    skipped and counted, never run in a burst.

    Examples
    --------
    >>> now = [100.0]
    >>> pace = Pace(1.0, clock=lambda: now[0])
    >>> pace.begin()
    >>> now[0] = 101.25
    >>> pace.begin()
    >>> pace.late, pace.remaining()
    (1, 0.75)
    """

    def __init__(self, interval_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        if not interval_seconds > 0:
            raise ValueError(f"interval_seconds must be above 0, got {interval_seconds}")
        self.interval_seconds = interval_seconds
        self.clock = clock
        self.ticks = 0
        self.late = 0
        self.skipped = 0
        self.lag_seconds = 0.0
        self.worst_lag_seconds = 0.0
        self._due: float | None = None

    @property
    def late_after_seconds(self) -> float:
        """The lag from which a tick counts as late."""
        return min(LATE_SECONDS, self.interval_seconds / 2)

    def remaining(self) -> float:
        """Return the seconds until the next tick is due; 0 when it is overdue."""
        return 0.0 if self._due is None else max(0.0, self._due - self.clock())

    @property
    def overdue_seconds(self) -> float:
        """How long the next tick has been due without having been taken; 0 when it is not."""
        return 0.0 if self._due is None else max(0.0, self.clock() - self._due)

    def begin(self) -> None:
        """Take the tick that is due now, and set when the next one is."""
        now = self.clock()
        due = now if self._due is None else self._due
        self.ticks += 1
        self.lag_seconds = max(0.0, now - due)
        self.worst_lag_seconds = max(self.worst_lag_seconds, self.lag_seconds)
        if self.lag_seconds > self.late_after_seconds:
            self.late += 1
        missed = int(self.lag_seconds / self.interval_seconds)
        self.skipped += missed
        self._due = due + (missed + 1) * self.interval_seconds


class Health:
    """Whether the agent decides.

    It is healthy while some node has decided within three intervals, at least three seconds, and
    not all of the last three ticks met a fault.
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
            return f"no decision for {silent:.0f} s: {self.fault_since(self.decided_at) or NO_TELEMETRY}"
        if self._faulty_ticks >= TICKS:
            return f"every tick faults: {self._words}"
        return ""
