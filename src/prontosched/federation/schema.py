"""The schema of a summary: which metric each row of a basis stands for.

Covers: the fingerprint by which a message names its metrics, the message that lists them,
the cache of known schemas, values moved from one schema to another, and names sent as keyed
hashes. Metrics are matched by name, never by position.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import json
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from prontosched.codec import decode, encode
from prontosched.errors import FederationError, StateError
from prontosched.federation.link import MAX_UNREAD_BYTES, MESSAGE_LIMIT, SCHEMAS, Entry, Link, Subscription
from prontosched.subspace import Array

MAX_METRICS = 8192
MAX_METRIC_NAME = 200
MAX_SCHEMAS = 256
MAX_PENDING = 64
PATIENCE_SECONDS = 5.0
RENEW_SECONDS = 3600.0

Metrics = tuple[str, ...]
Where = TypeVar("Where", bound=Hashable)


def fingerprint(metrics: Sequence[str]) -> str:
    """Return 32 characters that stand for these names in this order."""
    return hashlib.blake2b("\n".join(metrics).encode(), digest_size=16).hexdigest()


@functools.lru_cache(maxsize=16_384)
def name_bytes(name: str) -> int:
    """Return how long a name is in the message that lists it."""
    return len(json.dumps(name)) + 1


def schema_to_bytes(metrics: Sequence[str]) -> bytes:
    """Return the message that lists the names behind a fingerprint."""
    return encode("schema", 1, {"metrics": list(checked_metrics(metrics))})


def schema_from_bytes(data: bytes, *, expected: str) -> Metrics:
    """Read a schema and check that its fingerprint is `expected`."""
    try:
        fields = decode(data, kind="schema", version=1, limit=MESSAGE_LIMIT)
    except StateError as error:
        raise FederationError(f"schema {expected}: {error}") from error
    metrics = checked_metrics(fields.get("metrics"))
    if fingerprint(metrics) != expected:
        raise FederationError(
            f"a schema must have the fingerprint {expected}, got {fingerprint(metrics)}: discard it"
        )
    return metrics


def checked_metrics(metrics: object) -> Metrics:
    """Return metric names as a tuple, or say what is wrong with them."""
    if not isinstance(metrics, Sequence) or isinstance(metrics, str) or not 1 <= len(metrics) <= MAX_METRICS:
        found = len(metrics) if isinstance(metrics, Sequence) else type(metrics).__name__
        raise FederationError(f"a schema must have 1 to {MAX_METRICS} metrics, got {found}: discard it")
    names = tuple(metrics)
    for name in names:
        if not isinstance(name, str) or not 1 <= len(name) <= MAX_METRIC_NAME or not name.isprintable():
            raise FederationError(
                f"a metric must have a name of 1 to {MAX_METRIC_NAME} printable characters, got {name!r:.80}"
            )
    if len(set(names)) != len(names):
        [(twice, _)] = Counter(names).most_common(1)
        raise FederationError(f"metrics must have names of their own, got {twice!r} twice: rename one")
    return names


def union(schemas: Iterable[Metrics]) -> Metrics:
    """Return all names of all schemas, each once, sorted."""
    return tuple(sorted({name for schema in schemas for name in schema}))


@functools.lru_cache(maxsize=256)
def rows(metrics: Metrics, among: Metrics) -> NDArray[np.intp]:
    """Return the row in `among` of each of `metrics`, −1 where it is absent."""
    at = {name: row for row, name in enumerate(among)}
    return np.array([at.get(name, -1) for name in metrics], dtype=np.intp)


def carry(values: Array, metrics: Metrics, onto: Metrics) -> Array:
    """Return values per metric, `(d,)` or `(d, k)`, in the order of `onto`; absent ones as 0."""
    if metrics == onto:
        return values
    found = rows(onto, metrics)
    carried = np.zeros((len(onto), *values.shape[1:]))
    carried[found >= 0] = values[found[found >= 0]]
    return carried


@functools.lru_cache(maxsize=64)
def hashed(metrics: Metrics, key: bytes) -> Metrics:
    """Return names that nobody without `key` can look up in a dictionary.

    The same key gives the same hash on every node, so summaries still merge by name.
    """
    if len(key) < 16:
        raise FederationError(
            f"a key for metric names must have at least 16 bytes, got {len(key)}: use a longer one"
        )
    return tuple(hmac.new(key, name.encode(), hashlib.sha256).hexdigest()[:16] for name in metrics)


class SchemaCache:
    """Names of metrics by fingerprint, read from the bus when a message needs them.

    Nothing here waits: a schema that has not arrived is unknown until it has. `held` has the messages
    that wait for theirs. Memory: at most 256 schemas and 64 that are asked for, of which the least
    recently used is dropped first, and `max_held` messages of 256 MB.
    """

    def __init__(self, link: Link, *, max_held: int = 1) -> None:
        self.link = link
        self.max_held = max_held
        self.held: dict[Hashable, tuple[Entry, str]] = {}
        self._held_bytes = 0
        self._known: dict[str, Metrics] = {}
        self._pending: dict[str, tuple[Subscription, float]] = {}
        self._published: dict[Metrics, float] = {}

    def publish(self, metrics: Metrics) -> None:
        """Put the schema of `metrics` on the bus, again after an hour: a full store drops the oldest."""
        now = self.link.now()
        if 0.0 <= now - self._published.get(metrics, -RENEW_SECONDS) < RENEW_SECONDS:
            return
        schema = fingerprint(metrics)
        self._keep(schema, metrics)
        self.link.put(SCHEMAS, schema, schema_to_bytes(metrics))
        self._published.pop(metrics, None)
        self._published[metrics] = now
        if len(self._published) > MAX_SCHEMAS:
            oldest = next(iter(self._published))
            del self._published[oldest]
            self.link.forget(SCHEMAS, fingerprint(oldest))

    def __call__(self, schema: str) -> Metrics | None:
        """Return the names behind a fingerprint; where they are unknown, None, and subscribe to them."""
        if schema not in self._known and schema not in self._pending and not self._ask(schema):
            return None
        metrics = self._known.get(schema) or self._arrived(schema)
        if metrics is not None:
            self._keep(schema, metrics)
        return metrics

    def hold(self, where: Hashable, entry: Entry, schema: str) -> None:
        """Keep a message until its schema arrives; where there is no room its sender renews it."""
        if len(self.held) < self.max_held and self._held_bytes + len(entry.value) <= MAX_UNREAD_BYTES:
            self.held[where] = (entry, schema)
            self._held_bytes += len(entry.value)

    def take(self, arrived: Mapping[Where, Entry]) -> dict[Where, Entry]:
        """Return the held messages whose schema is known by now, and what arrived, which replaces older ones."""
        taken = [where for where, (_, schema) in self.held.items() if where in arrived or self(schema)]
        ready: dict[Any, Entry] = {where: self.held.pop(where)[0] for where in taken}
        self._held_bytes -= sum(len(entry.value) for entry in ready.values())
        return {**ready, **arrived}

    def close(self) -> None:
        """End the subscriptions to schemas that have not arrived."""
        for subscription, _ in self._pending.values():
            self.link.unsubscribe(subscription)
        self._pending.clear()

    def _ask(self, schema: str) -> bool:
        """Subscribe to a schema; False while too many others are waited for."""
        now = self.link.now()
        if len(self._pending) >= MAX_PENDING:
            # Invented fingerprints must not keep out those that exist.
            oldest = next(iter(self._pending))
            subscription, since = self._pending[oldest]
            if 0.0 <= now - since < PATIENCE_SECONDS:
                return False
            del self._pending[oldest]
            self.link.unsubscribe(subscription)
        self._pending[schema] = (self.link.subscribe(SCHEMAS, schema), now)
        return True

    def _arrived(self, schema: str) -> Metrics | None:
        subscription, _ = self._pending[schema]
        for entry in subscription.drain():
            try:
                metrics = schema_from_bytes(entry.value, expected=schema)
            except FederationError:
                # Anyone can put anything there. The right one may still come.
                continue
            del self._pending[schema]
            self.link.unsubscribe(subscription)
            return metrics
        return None

    def _keep(self, schema: str, metrics: Metrics) -> None:
        self._known.pop(schema, None)
        self._known[schema] = metrics
        if len(self._known) > MAX_SCHEMAS:
            del self._known[next(iter(self._known))]
