"""The link between a member and all others: the newest value per key.

Covers: the `Link` protocol, the `Subscription` that holds what arrives, and `LocalLink`,
which joins members inside one process without a socket. Over the network:
`prontosched.federation.nats`.

A link is a key-value store that can be subscribed to, not a queue. Every key has one newest
value, and a reader may miss older ones. Summaries replace each other, so nothing more is
needed, and it bounds what a reader has to hold.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from prontosched.errors import FederationError
from prontosched.federation.tree import MAX_NODES

SUMMARIES = "summaries"
SCHEMAS = "schemas"
DECISIONS = "decisions"
VIEWS = "views"
LEASES = "leases"
TOPICS = (SUMMARIES, SCHEMAS, DECISIONS, VIEWS, LEASES)
# Keys of the topic of views.
VIEW_KEY = "global"
CENSUS_KEY = "census"

MESSAGE_LIMIT = 512 * 1024
MAX_KEYS = 65_536
MAX_UNREAD_BYTES = 256 * 1024 * 1024


class LinkDownError(FederationError):
    """The bus did not answer in time; nothing is known about what was asked."""


class Entry(NamedTuple):
    """A value as it lies on the bus; an empty one was withdrawn by its sender.

    `revision` grows with every change of the topic and is 0 where the bus did not say. `time` is
    the arrival by the clock of the bus. `roles` says as what a signed message's sender may speak
    here: node, aggregator or both. `outdated` marks what was received after something newer.
    """

    key: str
    value: bytes
    revision: int
    time: float
    roles: frozenset[str] = frozenset()
    outdated: bool = False


# Returns what of an entry counts, or None for one to be dropped.
Check = Callable[[Entry], Entry | None]


class Subscription:
    """The newest value per key that arrived for one pattern and was not read yet.

    `ready` turns true once all that lay on the bus at the start has been delivered; `denied` says
    what the bus does not let this member read. With `keep_replaced` the last value of each key
    that was replaced unread is kept too, until `replaced` returns it.

    Memory: at most 65,536 values and 256 MB. What does not fit is dropped; its sender renews it,
    and a link reads the store again now and then.
    """

    def __init__(self, topic: str, pattern: str, check: Check | None = None) -> None:
        self.topic = topic
        self.pattern = pattern
        self.ready = False
        self.denied = ""
        self.received = 0
        self.received_bytes = 0
        self.keep_replaced = False
        self._check = check
        self._unread: dict[str, tuple[Entry, bool]] = {}
        self._replaced: dict[str, Entry] = {}
        self._size = 0
        self._lock = threading.Lock()

    def deliver(self, entry: Entry, *, live: bool = True) -> None:
        """Take one value; one read from the store never replaces one that came live."""
        size = len(entry.value)
        checked = entry if self._check is None or size > MESSAGE_LIMIT else self._check(entry)
        with self._lock:
            self.received += live
            self.received_bytes += size if live else 0
            if checked is None or size > MESSAGE_LIMIT:
                return
            before = self._unread.get(entry.key)
            if checked.outdated:
                self._replace(checked)
            elif live or before is None or not before[1]:
                grown = size - (len(before[0].value) if before else 0)
                if self._fits(entry.key, self._unread, grown):
                    self._unread[entry.key] = (checked, live)
                    self._size += grown
                    if before is not None:
                        self._replace(before[0])

    def _replace(self, entry: Entry) -> None:
        """Keep a value that was replaced, where that is asked for."""
        before = self._replaced.get(entry.key)
        grown = len(entry.value) - (len(before.value) if before else 0)
        if self.keep_replaced and self._fits(entry.key, self._replaced, grown):
            self._size += grown
            self._replaced[entry.key] = entry

    def _fits(self, key: str, held: Mapping[str, object], grown: int) -> bool:
        return (key in held or len(held) < MAX_KEYS) and self._size + grown <= MAX_UNREAD_BYTES

    def age(self) -> None:
        """Let what the store holds replace what came live before a break."""
        with self._lock:
            self._unread = {key: (entry, False) for key, (entry, _) in self._unread.items()}

    def replaced(self) -> list[Entry]:
        """Return, once, the last value of each key that was replaced unread."""
        with self._lock:
            replaced, self._replaced = self._replaced, {}
        return list(replaced.values())

    def drain(self) -> list[Entry]:
        """Return what arrived since the last call, never waiting."""
        with self._lock:
            unread, self._unread, self._size = self._unread, {}, 0
        return [entry for entry, _ in unread.values()]


class Link(Protocol):
    """One member's way to all others.

    Only `get` and `compare_and_set` may wait, and not longer than the link's timeout; they
    raise `LinkDownError` when the bus does not answer.
    """

    signed: bool  # whether only what is rightly signed counts
    last_error: str  # why the bus does not answer; empty while it does
    faults: int  # connections lost and faults that the bus reported
    last_fault: str
    name_key: bytes | None  # under which members hash the names of metrics; None sends them as they are
    stepped: float  # seconds by which the clock of the bus was set while this link knew it
    rule: Mapping[str, Any]  # what members pass to `Propagation` where they were given no rule

    @property
    def connected(self) -> bool:
        """True while the bus answers."""

    @property
    def dropped(self) -> int:
        """Messages that were not rightly signed."""

    def most_nodes(self, place: str) -> int:
        """Return how many nodes there can be under an aggregator: as many as have a key."""

    def now(self) -> float:
        """Return seconds since 1970 by the clock of the bus: one machine's wrong clock harms no other."""

    def put(self, topic: str, key: str, value: bytes) -> None:
        """Hand over a value without waiting; only the newest per key is sure to arrive."""

    def forget(self, topic: str, key: str) -> None:
        """Do not send the value of a key again when the bus comes back: it is no longer ours to say."""

    def get(self, topic: str, key: str) -> Entry | None:
        """Return the newest value of `key`, or None."""

    def compare_and_set(self, topic: str, key: str, value: bytes, *, revision: int) -> int | None:
        """Replace the value of `revision`, 0 for none; None if it is no longer the newest."""

    def subscribe(self, topic: str, pattern: str) -> Subscription:
        """Subscribe to what lies there and to all that comes; `*` is one dotted part, a final `>` the rest."""

    def unsubscribe(self, subscription: Subscription) -> None:
        """End a subscription; one that is unknown or already ended is left alone."""

    def close(self) -> None:
        """Release everything; later calls do nothing or raise `LinkDownError`."""


class LocalBus:
    """The values that the links of one process share; simulations pass a clock of their own."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self.values: dict[str, dict[str, Entry]] = {topic: {} for topic in TOPICS}
        self.revision = 0
        self.lock = threading.Lock()
        # Indexed by what a put can look up, so that a put costs the same for ten members and ten thousand.
        self._subscriptions: dict[tuple[str, str], list[Subscription]] = {}

    def set(self, topic: str, key: str, value: bytes, revision: int | None = None) -> int | None:
        """Store a value and deliver it; None if `revision` is not the newest."""
        with self.lock:
            held = self.values[topic].get(key)
            if revision is not None and revision != (held.revision if held else 0):
                return None
            self.revision += 1
            entry = Entry(key, value, self.revision, self.clock())
            if value or revision is not None:
                self.values[topic][key] = entry
            else:
                # A withdrawal is for present subscribers; stored, names that come and go would add up.
                self.values[topic].pop(key, None)
            subscribers = [
                subscription
                for index in (key, _one_below(key.rpartition(".")[0]), ">")
                for subscription in self._subscriptions.get((topic, index), ())
                if matches(subscription.pattern, key)
            ]
        for subscription in subscribers:
            subscription.deliver(entry)
        return entry.revision

    def add(self, subscription: Subscription) -> None:
        """Begin to deliver to a subscription, first what lies here."""
        with self.lock:
            pattern, values = subscription.pattern, self.values[subscription.topic]
            wild = "*" in pattern or ">" in pattern
            for key in [k for k in values if matches(pattern, k)] if wild else {pattern} & values.keys():
                subscription.deliver(values[key], live=False)
            self._subscriptions.setdefault((subscription.topic, _index(pattern)), []).append(subscription)

    def remove(self, subscription: Subscription) -> None:
        """Stop delivering to a subscription."""
        with self.lock:
            index = (subscription.topic, _index(subscription.pattern))
            left = [other for other in self._subscriptions.pop(index, ()) if other is not subscription]
            if left:
                self._subscriptions[index] = left


class LocalLink:
    """A link within one process: no socket, no thread, nothing ever waits."""

    signed, dropped, faults, stepped = False, 0, 0, 0.0
    last_error = last_fault = ""
    name_key: bytes | None = None
    rule: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, bus: LocalBus) -> None:
        self.bus = bus
        self.connected = True
        self._subscriptions: list[Subscription] = []

    def most_nodes(self, place: str) -> int:
        """Return the most that any federation has: nobody is registered."""
        return MAX_NODES

    def now(self) -> float:
        """Return the time of the bus."""
        return self.bus.clock()

    def put(self, topic: str, key: str, value: bytes) -> None:
        """Store a value for all to see."""
        if self.connected:
            self.bus.set(topic, key, value)

    def forget(self, topic: str, key: str) -> None:
        """Nothing is ever sent again here."""

    def get(self, topic: str, key: str) -> Entry | None:
        """Return the newest value of `key`, or None."""
        self._check_open()
        return self.bus.values[topic].get(key)

    def compare_and_set(self, topic: str, key: str, value: bytes, *, revision: int) -> int | None:
        """Replace the value of `revision`; None if it is no longer the newest."""
        self._check_open()
        return self.bus.set(topic, key, value, revision)

    def subscribe(self, topic: str, pattern: str) -> Subscription:
        """Return a subscription that already holds what lies on the bus."""
        self._check_open()
        subscription = Subscription(topic, pattern)
        self.bus.add(subscription)
        subscription.ready = True
        self._subscriptions.append(subscription)
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """End one subscription."""
        self.bus.remove(subscription)
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)

    def close(self) -> None:
        """End all subscriptions of this link."""
        for subscription in list(self._subscriptions):
            self.unsubscribe(subscription)
        self.connected = False

    def _check_open(self) -> None:
        if not self.connected:
            raise LinkDownError("the link must be open, got a closed one: open another")


def matches(pattern: str, key: str) -> bool:
    """Tell whether a dotted key fits a pattern with `*` and a final `>`."""
    wanted, parts = pattern.split("."), key.split(".")
    if wanted[-1] == ">":
        wanted, parts = wanted[:-1], parts[: len(wanted) - 1] if len(parts) >= len(wanted) else []
    return len(parts) == len(wanted) and all(w in ("*", p) for w, p in zip(wanted, parts, strict=True))


def _one_below(parent: str) -> str:
    return f"{parent}.*" if parent else "*"


def _index(pattern: str) -> str:
    """Return under which of its three look-ups a put finds this pattern: the key, its parent's, or `>`."""
    if "*" not in pattern and ">" not in pattern:
        return pattern
    parent = pattern.rpartition(".")[0]
    return pattern if pattern == _one_below(parent) and "*" not in parent else ">"
