"""Which names each fingerprint stands for, learned from the bus as messages need it.

Covers: telling others the names of one's metrics, once, and looking up those of
others. Nothing here waits: a fingerprint that is not explained yet is simply not known.
"""

from __future__ import annotations

from prontosched.errors import FederationError
from prontosched.federation.feed import Feed
from prontosched.federation.link import SCHEMAS, Link
from prontosched.federation.schema import Metrics, fingerprint, schema_from_bytes, schema_to_bytes

MAX_KNOWN = 256
MAX_AWAITED = 64


class SchemaBook:
    """Names of metrics by fingerprint.

    Notes
    -----
    Memory: at most 256 schemas; the one used longest ago goes first.
    """

    def __init__(self, link: Link) -> None:
        self.link = link
        self.rejected = 0
        self._known: dict[str, Metrics] = {}
        self._awaited: dict[str, Feed] = {}
        self._published: set[Metrics] = set()

    def publish(self, metrics: Metrics) -> None:
        """Tell everyone what the fingerprint of `metrics` stands for, once."""
        if metrics in self._published:
            return
        schema = fingerprint(metrics)
        self._learn(schema, metrics)
        self.link.put(SCHEMAS, schema, schema_to_bytes(metrics))
        if len(self._published) >= MAX_KNOWN:
            self._published.clear()
        self._published.add(metrics)

    def __call__(self, schema: str) -> Metrics | None:
        """Return the names behind a fingerprint, or None and begin to listen for them."""
        metrics = self._known.get(schema) or self._heard(schema)
        if metrics is not None:
            self._learn(schema, metrics)
        elif schema not in self._awaited and schema.isalnum() and len(self._awaited) < MAX_AWAITED:
            self._awaited[schema] = self.link.subscribe(SCHEMAS, schema)
            # Within one process the answer is there already.
            return self._heard(schema)
        return metrics

    def _heard(self, schema: str) -> Metrics | None:
        feed = self._awaited.get(schema)
        for entry in feed.drain() if feed else ():
            try:
                metrics = schema_from_bytes(entry.value, expected=schema)
            except FederationError:
                self.rejected += 1
                continue
            self.link.unsubscribe(self._awaited.pop(schema))
            self._learn(schema, metrics)
            return metrics
        return None

    def _learn(self, schema: str, metrics: Metrics) -> None:
        self._known.pop(schema, None)
        self._known[schema] = metrics
        while len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]
