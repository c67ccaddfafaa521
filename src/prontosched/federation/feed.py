"""What arrives from the bus and waits to be looked at, bounded.

Covers: a value as it lies on the bus, and the feed that holds the newest one per key.
Where feeds come from is `prontosched.federation.link`.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

MESSAGE_LIMIT = 512 * 1024
FEED_LIMIT = 65_536


class Entry(NamedTuple):
    """A value as it lies on the bus.

    Attributes
    ----------
    key
        Dotted name within its topic.
    value
        The message; empty means that its sender took it back.
    revision
        Grows with every change of the topic; 0 where the bus did not say.
    time
        When it arrived, by the clock of the bus.
    """

    key: str
    value: bytes
    revision: int
    time: float


class Feed:
    """What arrived for one pattern and was not looked at yet, the newest per key.

    Attributes
    ----------
    ready
        True once all that lay on the bus at the start has been handed over.
    received, received_bytes
        What was heard live, before older values gave way to newer ones.
    dropped
        Messages that were too long, or beyond the number of keys that are held.
    denied
        What the bus does not let this member read, in its words; empty for nothing.
    keep_hidden
        Set, the last value that gave way to a newer one is kept too, until `hidden` is asked.

    Notes
    -----
    Memory: at most `limit` values of at most `message_limit` bytes, and in practice
    one value per sender; twice that where `keep_hidden` is set.
    """

    def __init__(
        self, topic: str, pattern: str, *, limit: int = FEED_LIMIT, message_limit: int = MESSAGE_LIMIT
    ) -> None:
        self.topic = topic
        self.pattern = pattern
        self.limit = limit
        self.message_limit = message_limit
        self.ready = False
        self.dropped = 0
        self.denied = ""
        self.received = 0
        self.received_bytes = 0
        self.keep_hidden = False
        self._held: dict[str, tuple[Entry, bool]] = {}
        self._hidden: dict[str, Entry] = {}
        self._lock = threading.Lock()

    def offer(self, entry: Entry, *, live: bool = True) -> None:
        """Take one value; one read from the store never hides one heard live."""
        with self._lock:
            self.received += live
            self.received_bytes += len(entry.value) if live else 0
            held = self._held.get(entry.key)
            if len(entry.value) > self.message_limit or (held is None and len(self._held) >= self.limit):
                self.dropped += 1
            elif live or held is None or not held[1]:
                if self.keep_hidden and held is not None:
                    self._hidden[entry.key] = held[0]
                self._held[entry.key] = (entry, live)

    def age(self) -> None:
        """Let what the store holds replace what was heard live before a break."""
        with self._lock:
            self._held = {key: (entry, False) for key, (entry, _) in self._held.items()}

    def hidden(self) -> list[Entry]:
        """Return, once, values that gave way to newer ones before anyone looked: one per key, the last."""
        with self._lock:
            hidden, self._hidden = self._hidden, {}
        return list(hidden.values())

    def drain(self) -> list[Entry]:
        """Return what arrived since the last call, never waiting."""
        with self._lock:
            held, self._held = self._held, {}
        return [entry for entry, _ in held.values()]
