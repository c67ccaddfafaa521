"""A fixed cadence that does not drift, and the count of what came late."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

LATE_SECONDS = 0.2
"""A tick this late is late, whatever the interval; shorter intervals allow half of themselves."""


class Pace:
    """Say when the next tick is due, on a clock that only goes forward.

    Tick n is due at `start + n * interval`, so that one late tick does not move
    the next. Ticks missed by a whole interval (a stopped or sleeping machine) are
    skipped and counted, never run in a burst.

    Parameters
    ----------
    interval_seconds
        Time between two ticks.
    clock
        Seconds on a clock that never jumps.

    Attributes
    ----------
    ticks, late, skipped
        How many were given, given late, and left out.
    lag_seconds, worst_lag_seconds
        How late the last tick was, and the latest of all.

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
        """Seconds until the next tick is due; 0 when it is overdue."""
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

    async def wait(self) -> None:
        """Sleep until the next tick is due, then take it."""
        await asyncio.sleep(self.remaining())
        self.begin()
