"""The messages of the federation: summaries up, the global view down, decisions to anyone.

Covers: the messages as values and as bytes: versioned, bounded, and checked on arrival.
Anyone on the bus can send anything. What passes the checks cannot break a merge, and what was
merged of it passes the checks too. Statistics are added as they are. Numbers travel as
float32: they describe standardised data, where that is far finer than the truncation of a
subspace. Names of metrics travel once, as a schema.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from prontosched.codec import decode, encode, is_symmetric, pack_symmetric, unpack_symmetric
from prontosched.errors import FederationError, StateError
from prontosched.federation.link import MESSAGE_LIMIT
from prontosched.federation.schema import Metrics, fingerprint
from prontosched.federation.tree import MAX_NAME, MAX_NODES, ROOT, split
from prontosched.subspace import Array, Subspace

VERSIONS = {"summary": 1, "view": 1, "decision": 1, "census": 1}
LIMITS = {"summary": MESSAGE_LIMIT, "view": MESSAGE_LIMIT, "decision": 8192, "census": 1024}
MAX_REASON = 400
MAX_RANK = 64
MAX_STATISTICS = 64
MAX_STATISTIC_NUMBERS = 32_768
MAX_STATISTIC_NAME = 100
# The largest number that is sent or accepted, as single precision rounds it. Sums and spreads beyond it
# are clipped when they are sent, so that what an aggregator merged is never refused above it.
LARGEST = float(np.float32(1e30))
# A scaled value is clipped at 8, so no second moment can exceed 64 per metric and
# sample; the rest is room for estimates of a young scale.
MAX_MOMENT = 256.0
# Duplicate names that are told at most; when they have been dealt with, others follow.
MAX_CLASHES = 32
SHOWN_CLASHES = 5
MAX_COUNT = 2**62
_FINGERPRINT = re.compile("[0-9a-f]{32}")

Statistics = Mapping[str, Array]
Schemas = Callable[[str], Metrics | None]


class UnknownSchemaError(FederationError):
    """A message names its metrics by a fingerprint whose schema has not arrived yet."""

    def __init__(self, schema: str) -> None:
        super().__init__(f"a message must name a known schema, got {schema}: wait until its names arrive")
        self.schema = schema


def _wrong(what: str, must: str, got: object) -> FederationError:
    return FederationError(f"{what} must {must}, got {got}: discard it")


Read = TypeVar("Read")
Parameters = ParamSpec("Parameters")


def boundary(read: Callable[Parameters, Read]) -> Callable[Parameters, Read]:
    """Make sure that whatever arrives becomes a checked value or a `FederationError`."""

    @wraps(read)
    def checked(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Read:
        try:
            return read(*args, **kwargs)
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            if isinstance(error, FederationError):
                raise
            raise _wrong("a message", "be what its kind says", f"{error!r:.80}") from error

    return checked


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Estimate:
    """What is known of one node or of many: the fields that a summary and the view share.

    The scale of each metric is its level (`mean`), its deviation within a node, and the deviation
    of the levels between nodes (`spread`, 0 for a single node). Statistics are those of a learned
    signal, by name; they are additive: the fleet's are the sum over nodes.
    """

    metrics: Metrics
    subspace: Subspace | None  # with a few spare directions; None while there is nothing yet
    samples: float  # vectors behind the singular values: effective memory, where the past fades
    mean: Array
    deviation: Array
    spread: Array
    counts: Array  # samples behind each metric
    nodes: int = 1
    statistics: Statistics = field(default_factory=dict)
    clashes: tuple[str, ...] = ()  # names under which more than one agent publishes


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Summary(Estimate):
    """What a node, or an aggregator for all nodes under it, knows and shares.

    Of two summaries the one with the larger incarnation and sequence is newer. A sender that
    starts again takes a larger incarnation than any it finds on the bus.
    """

    node: str
    incarnation: int = 0
    sequence: int = 0
    sent: int = 0
    skipped: int = 0  # summaries that epsilon saved
    merged: bool = False  # True for an aggregator's

    @property
    def version(self) -> tuple[int, int]:
        """The pair by which the newer of two summaries is known."""
        return self.incarnation, self.sequence

    def to_bytes(self) -> bytes:
        """Return the message; a node of 134 metrics needs about 4 kB."""
        own: dict[str, Any] = {name: getattr(self, name) for name in ("node", *_COUNTERS)}
        if self.merged:
            own["merged"] = True
        return encode("summary", VERSIONS["summary"], {**own, **_packed(self)})

    @classmethod
    @boundary
    def from_bytes(cls, data: bytes, schemas: Schemas) -> Summary:
        """Read and check a message; `UnknownSchemaError` where `schemas` does not know the names yet."""
        found = read_fields(data, "summary")
        node = read_text(found, "node", MAX_NAME)
        if node != ROOT:
            split(node)
        own: dict[str, Any] = {name: read_count(found, name) for name in _COUNTERS}
        own["merged"] = found.get("merged") is True
        if not own["merged"] and found.get("nodes") != 1:
            raise _wrong(f"the summary of node {node!r}", "stand for one node", f"{found.get('nodes')!r:.20}")
        return cls(node=node, **own, **_unpacked(found, schemas, f"summary of {node!r}"))


_COUNTERS = ("incarnation", "sequence", "sent", "skipped")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class GlobalView(Estimate):
    """What the root knows of the whole fleet; `revision` grows with every view."""

    revision: int

    def to_bytes(self) -> bytes:
        """Return the message."""
        return encode("view", VERSIONS["view"], {"revision": self.revision, **_packed(self)})

    @classmethod
    @boundary
    def from_bytes(cls, data: bytes, schemas: Schemas) -> GlobalView:
        """Read and check a message; errors as in `Summary.from_bytes`."""
        found = read_fields(data, "view")
        return cls(revision=read_count(found, "revision"), **_unpacked(found, schemas, "global view"))

    @classmethod
    def of(cls, summary: Summary, revision: int) -> GlobalView:
        """Make the view out of the root's own summary."""
        return cls(revision=revision, **{one.name: getattr(summary, one.name) for one in fields(Estimate)})


@dataclass(frozen=True, slots=True)
class DecisionMessage:
    """A node's present decision, which expires by itself; times are by the clock of the bus."""

    node: str
    accept: bool
    score: float
    reason: str
    issued: float
    valid_until: float
    threshold: float = float("nan")
    probability: float = float("nan")

    def expired(self, now: float) -> bool:
        """Tell whether it no longer counts."""
        return not now < self.valid_until

    def to_bytes(self) -> bytes:
        """Return the message, about 300 bytes."""
        own = {one.name: getattr(self, one.name) for one in fields(self)}
        own["reason"] = "".join(c if c.isprintable() else " " for c in self.reason[:MAX_REASON])
        return encode("decision", VERSIONS["decision"], own)

    @classmethod
    @boundary
    def from_bytes(cls, data: bytes) -> DecisionMessage:
        """Read and check a message."""
        found = read_fields(data, "decision")
        node = read_text(found, "node", MAX_NAME)
        split(node)
        accept = found.get("accept")
        if not isinstance(accept, bool):
            raise _wrong("accept", "be true or false", f"{accept!r:.40}")
        names = ("score", "issued", "valid_until", "threshold", "probability")
        numbers = {name: _number(found, name) for name in names}
        if not (math.isnan(numbers["probability"]) or 0.0 <= numbers["probability"] <= 1.0):
            raise _wrong("probability", "be from 0 to 1", numbers["probability"])
        return cls(node=node, accept=accept, reason=read_text(found, "reason", MAX_REASON), **numbers)


def check_roles(summary: Summary, roles: frozenset[str]) -> None:
    """Refuse what is signed by one who may speak, but not as that; nothing where it is not signed."""
    role = "aggregator" if summary.merged else "node"
    if roles and role not in roles:
        raise _wrong(
            f"the key of {summary.node!r}", f"be that of {role}", f"one of {', '.join(sorted(roles))}"
        )


def census_to_bytes(nodes: int) -> bytes:
    """Return the message by which the root tells how many nodes there are."""
    return encode("census", VERSIONS["census"], {"nodes": nodes})


def clash_note(names: Sequence[str]) -> str:
    """Say that some names are used by more than one agent, and what to do."""
    more = f" and {len(names) - SHOWN_CLASHES} more" if len(names) > SHOWN_CLASHES else ""
    return (
        f"more than one agent runs as {', '.join(names[:SHOWN_CLASHES])}{more} and each hides the other: "
        "give every agent a --name of its own"
    )


def read_fields(data: bytes, kind: str) -> dict[str, Any]:
    """Decode a message, whatever was sent; all that can go wrong is a `FederationError`."""
    try:
        return decode(data, kind=kind, version=VERSIONS[kind], limit=LIMITS[kind])
    except (StateError, ValueError, TypeError) as error:
        raise FederationError(f"{kind}: {error}") from error


def read_text(found: dict[str, Any], name: str, longest: int) -> str:
    """Return a text field of at most `longest` characters."""
    value = found.get(name)
    if not _is_text(value, longest):
        raise _wrong(name, f"be a text of at most {longest} printable characters", f"{value!a:.40}")
    return str(value)


def _is_text(value: Any, longest: int) -> bool:
    # What is shown on a terminal or logged must not control it; JSON can even carry halves of characters.
    return isinstance(value, str) and len(value) <= longest and value.isprintable()


def read_count(found: dict[str, Any], name: str) -> int:
    """Return a whole number from 0."""
    value = found.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < MAX_COUNT:
        raise _wrong(name, "be a whole number from 0", f"{value!r:.40}")
    return value


def peek_count(data: bytes, kind: str, name: str) -> int | None:
    """Return a whole number of a message that is not read otherwise; None where it has none."""
    try:
        return read_count(read_fields(data, kind), name)
    except FederationError:
        return None


def _packed(estimate: Estimate) -> dict[str, Any]:
    subspace = estimate.subspace
    packed: dict[str, Any] = {
        "schema": fingerprint(estimate.metrics),
        "samples": float(estimate.samples),
        "nodes": estimate.nodes,
        "mean": _single(estimate.mean),
        "deviation": _single(estimate.deviation),
    }
    if subspace is not None:
        packed |= {"basis": _single(subspace.basis), "strengths": _single(subspace.singular_values)}
    # A lone node has neither; leaving them out is a fifth of its message.
    if np.any(estimate.spread):
        packed["spread"] = _single(estimate.spread)
    if not np.all(estimate.counts == estimate.samples):
        packed["counts"] = _single(estimate.counts)
    if estimate.clashes:
        packed["clashes"] = list(estimate.clashes)
    for name, value in estimate.statistics.items():
        # A matrix of products is symmetric; half of it is enough.
        if is_symmetric(value):
            packed[f"symmetric:{name}"] = _single(pack_symmetric(value))
        else:
            packed[f"statistic:{name}"] = _single(value)
    return packed


def _single(values: Array) -> NDArray[np.float32]:
    return np.clip(values, -LARGEST, LARGEST).astype(np.float32)


def _unpacked(found: dict[str, Any], schemas: Schemas, what: str) -> dict[str, Any]:
    """Return the checked fields of an `Estimate`."""
    schema = read_text(found, "schema", 32)
    if not _FINGERPRINT.fullmatch(schema):
        raise _wrong(what, "name its schema by 32 digits", f"{schema!a:.40}")
    samples = _number(found, "samples")
    nodes = read_count(found, "nodes")
    if not 0.0 <= samples <= 1e15 or nodes > MAX_NODES:
        raise _wrong(what, "have plausible counts", f"{samples} samples of {nodes} nodes")
    mean = _vector(found, "mean", None)
    features = len(mean)
    deviation = _vector(found, "deviation", features)
    spread = _vector(found, "spread", features) if "spread" in found else np.zeros(features)
    counts = _vector(found, "counts", features) if "counts" in found else np.full(features, samples)
    if min(deviation.min(), spread.min(), counts.min()) < 0.0:
        raise _wrong(what, "have deviations and counts from 0", "negative ones")
    # No metric was measured more often than there are samples; single precision may round up.
    counts = np.minimum(counts, samples)
    checked = {
        "subspace": _subspace(found, features, samples, what) if "basis" in found else None,
        "statistics": _statistics(found, what),
        "clashes": _clashes(found.get("clashes", []), what),
    }
    metrics = schemas(schema)
    if metrics is None:
        raise UnknownSchemaError(schema)
    if len(metrics) != features:
        raise _wrong(what, f"have {len(metrics)} metrics as its schema says", features)
    scale = {"mean": mean, "deviation": deviation, "spread": spread, "counts": counts}
    return {"metrics": metrics, "samples": samples, "nodes": nodes, **scale, **checked}


def _subspace(found: dict[str, Any], features: int, samples: float, what: str) -> Subspace:
    raw = found["basis"]
    basis = np.asarray(raw if isinstance(raw, np.ndarray) else (), np.float64)
    if basis.ndim != 2 or basis.shape[0] != features or not 1 <= basis.shape[1] <= min(MAX_RANK, features):
        raise _wrong(what, f"have a basis of {features} rows", f"shape {basis.shape}")
    strengths = _vector(found, "strengths", basis.shape[1])
    # No entry of a direction is above 1; the squares of what is would be infinite, and their differences no number.
    if not (np.abs(basis) < 2.0).all() or np.abs(basis.T @ basis - np.eye(basis.shape[1])).max() > 1e-3:
        raise _wrong(what, "have an orthonormal basis", "another")
    if strengths[-1] <= 0.0 or (strengths[1:] - strengths[:-1] > 1e-5 * strengths[0]).any():
        raise _wrong(what, "have falling singular values above 0", strengths[:4])
    if float(strengths @ strengths) > MAX_MOMENT * features * max(samples, 1.0):
        can = f"have singular values that {samples:g} standardised samples can have"
        raise _wrong(what, can, f"{strengths[0]:g}")
    return Subspace(basis, strengths)


def _statistics(found: dict[str, Any], what: str) -> dict[str, Array]:
    statistics: dict[str, Array] = {}
    for key, value in found.items():
        kind, _, name = key.partition(":")
        if name and isinstance(value, np.ndarray) and kind in ("statistic", "symmetric"):
            numbers = np.asarray(value, np.float64)
            statistics[name] = _matrix(numbers, what) if kind == "symmetric" else numbers
    size = sum(value.size for value in statistics.values())
    longest = max(map(len, statistics), default=0)
    if len(statistics) > MAX_STATISTICS or size > MAX_STATISTIC_NUMBERS or longest > MAX_STATISTIC_NAME:
        most = f"have at most {MAX_STATISTICS} statistics of {MAX_STATISTIC_NUMBERS} numbers with short names"
        raise _wrong(what, most, f"{len(statistics)} of {size}")
    if not all(map(_plausible, statistics.values())):
        raise _wrong(what, f"have finite statistics up to {LARGEST:g}", "others")
    return statistics


def _clashes(names: Any, what: str) -> tuple[str, ...]:
    known = isinstance(names, list) and len(names) <= MAX_CLASHES
    if not known or not all(_is_text(one, MAX_NAME) for one in names):
        raise _wrong(what, f"have at most {MAX_CLASHES} names as clashes", f"{names!a:.40}")
    return tuple(names)


def _matrix(triangle: Array, what: str) -> Array:
    """Return symmetric matrices from their upper triangles `(..., n (n + 1) / 2)`."""
    length = triangle.shape[-1] if triangle.ndim else 0
    side = (math.isqrt(8 * length + 1) - 1) // 2
    fits = length > 0 and side * (side + 1) // 2 == length
    if not fits or triangle.size // length * side**2 > MAX_STATISTIC_NUMBERS:
        raise _wrong(what, "have upper triangles", f"shape {triangle.shape}")
    return unpack_symmetric(triangle, side)


def _number(found: dict[str, Any], name: str) -> float:
    """Return a number; NaN and infinity are left to the caller."""
    value = found.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _wrong(name, "be a number", f"{value!r:.40}")
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _vector(found: dict[str, Any], name: str, length: int | None) -> Array:
    value = found.get(name)
    if not isinstance(value, np.ndarray) or value.ndim != 1 or value.size != (length or value.size or -1):
        raise _wrong(name, f"be {length or 'some'} numbers", f"{getattr(value, 'shape', value)!r:.40}")
    numbers: Array = value.astype(np.float64)
    if not _plausible(numbers):
        raise _wrong(name, f"be finite numbers up to {LARGEST:g}", "others")
    return numbers


def _plausible(numbers: Array) -> bool:
    """Tell whether all numbers are finite and small enough to be merged and sent on."""
    return bool((np.abs(numbers) <= LARGEST).all())
