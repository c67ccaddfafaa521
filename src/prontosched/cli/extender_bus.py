"""The nodes' decisions as they lie on the federation's bus, for `pronto extender`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from prontosched.errors import ProntoError
from prontosched.federation.link import DECISIONS, Link
from prontosched.federation.message import DecisionMessage
from prontosched.federation.tree import name_of
from prontosched.gates.extender import MOST_NODES
from prontosched.gates.gate import Verdict, chance

# Places that go by one name, of which more than one valid decision makes the node unknown.
MOST_SENDERS = 4


class BusDecisions:
    """Follow every decision that is put on a federation's bus.

    Nodes go by the last part of their name there: `site/row/rack/n1` is the node `n1`. Where two
    places have a valid decision under one name, the node is unknown: whoever has a key for any
    `…/n1` could otherwise speak for another place's. A decision counts for at most
    `valid_seconds`, by this machine's `clock`. At most `MOST_NODES` nodes are followed.
    """

    def __init__(
        self, link: Link, *, valid_seconds: float = 60.0, clock: Callable[[], float] = time.time
    ) -> None:
        self.link = link
        self.valid_seconds = valid_seconds
        self.unreadable = 0
        self._clock = clock
        self._feed = link.subscribe(DECISIONS, ">")
        self._senders: dict[str, dict[str, Verdict]] = {}
        self._newest: dict[str, Verdict] = {}
        self._dropped_at = 0.0

    def verdicts(self) -> Mapping[str, Verdict]:
        """Return the newest verdict of each node on the bus."""
        for entry in self._feed.drain():
            try:
                sender = name_of(entry.key)
                found = DecisionMessage.from_bytes(entry.value) if entry.value else None
            except (ProntoError, ValueError):
                self.unreadable += 1
                continue
            if found is not None and found.node != sender:  # rights on the bus go by key
                self.unreadable += 1
                continue
            self._take(sender, found)
        return self._newest

    def _take(self, sender: str, found: DecisionMessage | None) -> None:
        """Take the newest decision of a sender; None where it has left."""
        name, now = sender.rpartition("/")[2], self._clock()
        before = self._senders.get(name, {})
        if not before and len(self._senders) >= MOST_NODES and abs(now - self._dropped_at) >= 1.0:
            self._dropped_at = now
            self._drop_expired(now)
        known = {other: one for other, one in before.items() if other != sender and not one.expired(now)}
        if found is not None and (before or len(self._senders) < MOST_NODES) and len(known) < MOST_SENDERS:
            score = chance(found.probability, refuse=not found.accept)
            left = min(found.valid_until - self.link.now(), self.valid_seconds)
            known[sender] = Verdict(not found.accept, score, found.reason, now + left)
        self._newest.pop(name, None)
        self._senders.pop(name, None)
        if known:
            self._senders[name] = known
        if len(known) == 1:
            (self._newest[name],) = known.values()

    def _drop_expired(self, now: float) -> None:
        """Make room: nodes that ended without a word must not keep new ones out."""
        for name, known in list(self._senders.items()):
            if all(one.expired(now) for one in known.values()):
                del self._senders[name]
                self._newest.pop(name, None)
