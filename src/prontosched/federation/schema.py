"""The schema of a summary: which metric each row of a basis stands for.

Covers: the fingerprint by which a message names its metrics instead of listing them,
the message that lists them once, the union of several schemas, and names sent as keyed
hashes. Metrics are matched by name, never by position.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from prontosched.codec import decode, encode
from prontosched.errors import FederationError, StateError
from prontosched.subspace import Array, Subspace, summarise

MAX_METRICS = 8192
MAX_METRIC_NAME = 200
SCHEMA_LIMIT = 2 * 1024 * 1024
_KIND, _VERSION = "schema", 1
_HASH_BYTES = 8

Metrics = tuple[str, ...]


def fingerprint(metrics: Sequence[str]) -> str:
    """Return 32 characters that stand for these names in this order.

    Examples
    --------
    >>> fingerprint(["cpu", "disk"]) == fingerprint(["disk", "cpu"])
    False
    """
    return hashlib.blake2b("\n".join(metrics).encode(), digest_size=16).hexdigest()


def schema_to_bytes(metrics: Sequence[str]) -> bytes:
    """Return the message that tells which names a fingerprint stands for."""
    return encode(_KIND, _VERSION, {"metrics": list(checked_metrics(metrics))})


def schema_from_bytes(data: bytes, *, expected: str) -> Metrics:
    """Read a schema and make sure that it is the one that `expected` stands for."""
    try:
        fields = decode(data, kind=_KIND, version=_VERSION, limit=SCHEMA_LIMIT)
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
        twice = next(name for name in names if names.count(name) > 1)
        raise FederationError(f"metrics must have names of their own, got {twice!r} twice: rename one")
    return names


def union(schemas: Iterable[Metrics]) -> Metrics:
    """Return all names of all schemas, each once, in an order that depends on the names alone.

    Examples
    --------
    >>> union([("disk", "cpu"), ("cpu", "net")])
    ('cpu', 'disk', 'net')
    """
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


def align(subspace: Subspace | None, metrics: Metrics, onto: Metrics) -> Subspace | None:
    """Return a subspace over other metrics: those it lacks get 0, those not asked for go.

    What a node does with its own subspace when its metrics change: nothing that was
    learned of the metrics that stay is lost.

    Examples
    --------
    >>> both = Subspace(np.eye(2), np.array([2.0, 1.0]))
    >>> align(both, ("cpu", "disk"), ("disk", "net")).singular_values
    array([1.])
    """
    if subspace is None or metrics == onto:
        return subspace
    moved = carry(subspace.basis * subspace.singular_values, metrics, onto)
    return summarise(moved, rank=subspace.rank)


class SentNames:
    """Metrics by the names they travel under: their own, or hashed where there is a key.

    Notes
    -----
    Memory: the last list asked for, so that the same one is not hashed again.
    """

    def __init__(self) -> None:
        self._own: Metrics = ()
        self._sent: Metrics = ()

    def of(self, own: Metrics, key: bytes | None) -> Metrics:
        """Return the names under which `own` is sent."""
        if own is not self._own:
            self._own, self._sent = own, hashed(own, key) if key else own
        return self._sent


def hashed(metrics: Sequence[str], key: bytes) -> Metrics:
    """Return names that only holders of `key` can tell apart from noise.

    The same name gives the same hash on every node with the same key, so summaries
    still merge by name. Without the key a name cannot be looked up in a dictionary.

    Examples
    --------
    >>> hashed(["cpu"], b"k" * 16) == hashed(["cpu"], b"k" * 16)
    True
    """
    if len(key) < 16:
        raise FederationError(
            f"a key for metric names must have at least 16 bytes, got {len(key)}: use a longer one"
        )
    return tuple(
        hmac.new(key, name.encode(), hashlib.sha256).hexdigest()[: 2 * _HASH_BYTES] for name in metrics
    )
