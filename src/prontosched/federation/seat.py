"""The right to speak for an aggregator, so that a standby takes over when one dies.

Covers: one seat per aggregator on the bus, taken and renewed by compare-and-set.
Leave to refuse jobs is another lease: `prontosched.federation.leases`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from prontosched.federation.link import LEASES, Link, LinkDownError
from prontosched.federation.tree import place


class Seat:
    """The right to speak for one aggregator, held by one process at a time.

    The holder renews its seat; a standby that saw no renewal for `seconds`, by its own
    watch, takes it by compare-and-set. No clocks are compared, so none can be wrong.

    Parameters
    ----------
    aggregator
        Name of the aggregator.
    holder
        Name of this process, unlike that of any other.
    seconds
        Silence after which a holder counts as gone.
    clock
        A watch that never goes back.
    """

    def __init__(
        self,
        link: Link,
        aggregator: str,
        holder: str,
        *,
        seconds: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.link = link
        self.key = f"seats.{place(aggregator)}"
        self.holder = holder
        self.seconds = seconds
        self.clock = clock
        self.held = False
        self.takeovers = 0
        self._revision = -1
        self._since = -math.inf

    def claim(self) -> bool:
        """Take or renew the seat if that is due; True while this process holds it."""
        now = self.clock()
        if self.held and now - self._since < self.seconds / 3.0:
            return True
        try:
            return self._claim(now)
        except LinkDownError:
            # Unknown is not ours: a standby may have been seated by now.
            self.held = self.held and now - self._since < self.seconds
            return self.held

    def leave(self) -> None:
        """Give the seat up, so that a standby need not wait."""
        if self.held:
            self.held = False
            try:
                self.link.compare_and_set(LEASES, self.key, b"", revision=self._revision)
            except LinkDownError:
                return

    def _claim(self, now: float) -> bool:
        entry = self.link.get(LEASES, self.key)
        revision = entry.revision if entry else 0
        ours = entry is not None and entry.value == self.holder.encode()
        free = entry is None or not entry.value
        if not ours and revision != self._revision:
            # Someone else's sign of life, seen just now.
            self._revision, self._since, self.held = revision, now, False
        if not (ours or free or now - self._since >= self.seconds):
            return False
        seated = self.link.compare_and_set(LEASES, self.key, self.holder.encode(), revision=revision)
        if seated is None:
            self.held = False
            return False
        self.takeovers += not ours
        self._revision, self._since, self.held = seated, now, True
        return True
