"""The link between a member and all others: newest value per key, one interface.

Covers: the `Link` protocol, and `LocalLink`, which joins members inside one process
without a socket (the default, and what simulations and most tests use). What arrives:
`prontosched.federation.feed`. Over the network: `prontosched.federation.nats_link`.

A link is a board of values, not a queue: every key has one newest value and older
ones may be skipped. That is all the federation needs, because summaries replace
each other, and it bounds what any reader has to hold.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from prontosched.errors import FederationError
from prontosched.federation.feed import Entry, Feed

# What travels: who sends it, and how long it may be kept.
SUMMARIES = "summaries"
SCHEMAS = "schemas"
DECISIONS = "decisions"
VIEWS = "views"
LEASES = "leases"
TOPICS = (SUMMARIES, SCHEMAS, DECISIONS, VIEWS, LEASES)


class LinkDownError(FederationError):
    """The bus did not answer in time; nothing is known about what was asked."""


class Link(Protocol):
    """One member's way to all others.

    Only `get` and `compare_and_set` may wait, and not longer than the link's
    timeout; they raise `LinkDownError` when the bus does not answer.

    Attributes
    ----------
    name_key
        Key under which members hash the names of metrics; None sends them as they are.
    rule
        What members pass to `Propagation` where they were given no rule of their own.
    last_error
        Why the bus does not answer, in words; empty while it does.
    """

    last_error: str
    name_key: bytes | None
    rule: Mapping[str, Any]

    @property
    def connected(self) -> bool:
        """True while the bus answers."""
        ...

    def now(self) -> float:
        """Return the time by the clock of the bus, in seconds since 1970.

        Everyone on one bus shares it, so a wrong clock on one machine harms no one.
        """
        ...

    def put(self, topic: str, key: str, value: bytes) -> None:
        """Hand over a value without waiting; only the newest per key is sure to arrive."""
        ...

    def get(self, topic: str, key: str) -> Entry | None:
        """Return the newest value of `key`, or None."""
        ...

    def compare_and_set(self, topic: str, key: str, value: bytes, *, revision: int) -> int | None:
        """Replace what `get` returned; None if someone else was faster. 0: the key must be new."""
        ...

    def subscribe(self, topic: str, pattern: str) -> Feed:
        """Return a feed of what lies there now and of all that comes.

        `*` in the pattern stands for one dotted part, a final `>` for all that follow.
        """
        ...

    def unsubscribe(self, feed: Feed) -> None:
        """Stop a feed; a feed that is unknown or already stopped is left alone."""
        ...

    def close(self) -> None:
        """Let go of everything; later calls do nothing or raise `LinkDownError`."""
        ...


class Board:
    """The values that the links of one process share.

    Parameters
    ----------
    clock
        Gives the time of the bus; replays and simulations pass their own.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self.values: dict[str, dict[str, Entry]] = {topic: {} for topic in TOPICS}
        self.revision = 0
        self.lock = threading.Lock()
        # By what a put can look up, so that ten thousand members cost no more each than ten.
        self._feeds: dict[tuple[str, str], list[Feed]] = {}

    def set(self, topic: str, key: str, value: bytes, revision: int | None = None) -> int | None:
        """Store a value and hand it to every feed that listens; None if `revision` is not the held one."""
        with self.lock:
            held = self.values[topic].get(key)
            if revision is not None and revision != (held.revision if held else 0):
                return None
            self.revision += 1
            entry = Entry(key, value, self.revision, self.clock())
            if value or revision is not None:
                self.values[topic][key] = entry
            else:
                # A farewell is for those who listen now; kept, names that come and go would add up.
                self.values[topic].pop(key, None)
            listening = [
                feed
                for place in (key, _one_below(key.rpartition(".")[0]), ">")
                for feed in self._feeds.get((topic, place), ())
                if matches(feed.pattern, key)
            ]
        for feed in listening:
            feed.offer(entry)
        return entry.revision

    def add(self, feed: Feed) -> None:
        """Begin to hand values to a feed, first those that lie here."""
        with self.lock:
            values = self.values[feed.topic]
            if "*" in feed.pattern or ">" in feed.pattern:
                for entry in values.values():
                    if matches(feed.pattern, entry.key):
                        feed.offer(entry, live=False)
            elif feed.pattern in values:
                feed.offer(values[feed.pattern], live=False)
            self._feeds.setdefault((feed.topic, _filed_under(feed.pattern)), []).append(feed)

    def remove(self, feed: Feed) -> None:
        """Stop handing values to a feed."""
        with self.lock:
            place = (feed.topic, _filed_under(feed.pattern))
            left = [held for held in self._feeds.get(place, ()) if held is not feed]
            if left:
                self._feeds[place] = left
            else:
                self._feeds.pop(place, None)


class LocalLink:
    """A link within one process: no socket, no thread, nothing ever waits.

    Parameters
    ----------
    board
        Shared by all links that are to hear each other.

    Examples
    --------
    >>> board = Board()
    >>> here, there = LocalLink(board), LocalLink(board)
    >>> feed = there.subscribe("decisions", ">")
    >>> here.put("decisions", "rack1.n1", b"accept")
    >>> [entry.value for entry in feed.drain()]
    [b'accept']
    """

    def __init__(self, board: Board) -> None:
        self.board = board
        self.last_error = ""
        self.name_key: bytes | None = None
        self.rule: Mapping[str, Any] = {}
        self.closed = False
        self._feeds: list[Feed] = []

    @property
    def connected(self) -> bool:
        """True until closed: a board in the same process is always there."""
        return not self.closed

    def now(self) -> float:
        """Return the time of the board."""
        return self.board.clock()

    def put(self, topic: str, key: str, value: bytes) -> None:
        """Store a value for all to see."""
        if not self.closed:
            self.board.set(topic, key, value)

    def get(self, topic: str, key: str) -> Entry | None:
        """Return the newest value of `key`, or None."""
        self._open()
        return self.board.values[topic].get(key)

    def compare_and_set(self, topic: str, key: str, value: bytes, *, revision: int) -> int | None:
        """Replace the value of `revision`; None if it is no longer the newest."""
        self._open()
        return self.board.set(topic, key, value, revision)

    def subscribe(self, topic: str, pattern: str) -> Feed:
        """Return a feed that already holds what lies on the board."""
        self._open()
        feed = Feed(topic, pattern)
        self.board.add(feed)
        feed.ready = True
        self._feeds.append(feed)
        return feed

    def unsubscribe(self, feed: Feed) -> None:
        """Stop one feed."""
        self.board.remove(feed)
        if feed in self._feeds:
            self._feeds.remove(feed)

    def close(self) -> None:
        """Stop all feeds of this link."""
        for feed in list(self._feeds):
            self.unsubscribe(feed)
        self.closed = True

    def _open(self) -> None:
        if self.closed:
            raise LinkDownError("the link must be open, got a closed one: open another")


def matches(pattern: str, key: str) -> bool:
    """Tell whether a dotted key fits a pattern with `*` and a final `>`.

    Examples
    --------
    >>> matches("paris.*", "paris.n1"), matches("paris.*", "paris.rack7.n1"), matches(">", "paris.n1")
    (True, False, True)
    """
    wanted, parts = pattern.split("."), key.split(".")
    if wanted[-1] == ">":
        return len(parts) >= len(wanted) and all(
            w in ("*", p) for w, p in zip(wanted[:-1], parts, strict=False)
        )
    return len(parts) == len(wanted) and all(w in ("*", p) for w, p in zip(wanted, parts, strict=True))


def _one_below(parent: str) -> str:
    return f"{parent}.*" if parent else "*"


def _filed_under(pattern: str) -> str:
    """Return what a put looks up to find this pattern: the key, its parent's, or all."""
    if "*" not in pattern and ">" not in pattern:
        return pattern
    parent = pattern.rpartition(".")[0]
    return pattern if pattern == _one_below(parent) and "*" not in parent else ">"
