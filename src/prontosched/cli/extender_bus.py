"""The nodes' decisions as they lie on the federation's bus, for `pronto extender`."""

from __future__ import annotations

import time
from collections.abc import Callable

from prontosched.errors import ProntoError
from prontosched.federation.link import DECISIONS, Link
from prontosched.federation.message import DecisionMessage
from prontosched.federation.tree import name_of
from prontosched.gates.extender import MOST_KNOWN
from prontosched.gates.gate import Verdict, chance

# Places that go by one name, of which more than one valid decision makes the node unknown.
MOST_SENDERS = 4


class BusDecisions:
    """Follow every decision that is put on a federation's bus.

    Nodes go by the last part of their name there: `site/row/rack/n1` is the node `n1`.

    Parameters
    ----------
    link
        The way to the bus.
    valid_seconds
        Longest time that one decision may count, whatever it says itself.
    clock
        This machine's time; what lies on the bus counts by the bus's own.

    Notes
    -----
    Memory: one verdict for each node on the bus, at most 50,000.
    """

    def __init__(
        self, link: Link, *, valid_seconds: float = 60.0, clock: Callable[[], float] = time.time
    ) -> None:
        self.link = link
        self.valid_seconds = valid_seconds
        self.unreadable = 0
        self._clock = clock
        self._feed = link.subscribe(DECISIONS, ">")
        self._newest: dict[str, dict[str, Verdict]] = {}

    def verdict(self, node: str) -> Verdict | None:
        """Return the newest verdict that `node` has put on the bus; None where two senders go by that name."""
        for entry in self._feed.drain():
            self._take(entry.key, entry.value)
        known = list(self._newest.get(node, {}).values())
        if len(known) > 1:
            # Whoever has a key for any `…/n1` could otherwise speak for another place's.
            known = [one for one in known if not one.expired(self._clock())]
        return known[0] if len(known) == 1 else None

    def _take(self, key: str, value: bytes) -> None:
        try:
            sender = name_of(key)
            found = DecisionMessage.from_bytes(value) if value else None
        except (ProntoError, ValueError):
            self.unreadable += 1
            return
        name = sender.rpartition("/")[2]
        if found is None:  # the node has left
            known = self._newest.get(name, {})
            known.pop(sender, None)
            if not known:
                self._newest.pop(name, None)
            return
        if found.node != sender:  # rights on the bus go by key: no node writes for another
            self.unreadable += 1
            return
        if name not in self._newest and len(self._newest) >= MOST_KNOWN:
            return
        known = self._newest.setdefault(name, {})
        for other in [other for other, one in known.items() if one.expired(self._clock())]:
            del known[other]
        if sender not in known and len(known) >= MOST_SENDERS:
            return
        score = chance(found.probability, refuse=not found.accept)
        left = min(found.valid_until - self.link.now(), self.valid_seconds)
        known[sender] = Verdict(not found.accept, score, found.reason, self._clock() + left)
