"""What a job would suffer if it started now, and how much longer contention lasts.

Covers: an estimate from what is busy and what waits, and the lengths of a node's past
contentions. Pure. What `pronto run` makes of it is `prontosched.cli.run`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

KEPT = 64
ENOUGH = 5


def slowdown(*, busy: float, waiting: float, ahead: float, asked: float, capacity: float) -> float:
    """Return how many times as long as alone a job would take: all who want to run share the CPUs.

    Parameters
    ----------
    busy
        CPUs in use by normal work.
    waiting
        Threads that wait for one: CPU Ready times the CPUs.
    ahead
        CPUs of jobs announced and not yet seen.
    asked
        CPUs the job itself will use.

    Examples
    --------
    >>> slowdown(busy=2.0, waiting=3.0, ahead=0.0, asked=1.0, capacity=2.0)
    3.0
    """
    known = [value for value in (busy, waiting) if not math.isnan(value)]
    return max(1.0, (math.fsum(known) + ahead + asked) / capacity) if known else math.nan


class ContentionLengths:
    """How long a node's contentions last, in timesteps.

    Parameters
    ----------
    calm
        Timesteps below the tolerance that end a contention.

    Notes
    -----
    Memory: the last 64 lengths.

    Examples
    --------
    >>> lengths = ContentionLengths(calm=1)
    >>> for contended in ([True] * 30 + [False] * 10) * 5 + [True] * 12:
    ...     lengths.note(contended)
    >>> lengths.left()
    18.0
    """

    def __init__(self, *, calm: int) -> None:
        self.calm = calm
        self.length = 0
        self.past: deque[int] = deque(maxlen=KEPT)
        self._gap = 0

    def note(self, contended: bool) -> None:
        """Count one timestep."""
        if contended:
            self.length += self._gap + 1
            self._gap = 0
        elif self.length:
            self._gap += 1
            if self._gap >= self.calm:
                self.past.append(self.length)
                self.length = self._gap = 0

    def left(self) -> float:
        """Return how many timesteps the present contention will go on; NaN while too few are known.

        It is the median over those past ones that lasted longer than this one has so far.
        Where none did, it is taken to go on for as long as it has lasted.
        """
        if not self.length or len(self.past) < ENOUGH:
            return math.nan
        longer = sorted(past - self.length for past in self.past if past > self.length)
        return float(longer[len(longer) // 2]) if longer else float(self.length)

    def restore(self, past: Iterable[int], length: int) -> None:
        """Go on from the lengths of an earlier run, and from a contention that it was in."""
        self.past = deque((int(one) for one in past), maxlen=KEPT)
        self.length, self._gap = int(length), 0
