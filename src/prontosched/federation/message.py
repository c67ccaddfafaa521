"""What travels between members: summaries up, decisions sideways, the global view down.

Covers: the three messages as values and as bytes, versioned, bounded and checked on
arrival. Numbers travel as float32: they describe standardised data, where that is far
finer than the truncation of a subspace. Names of metrics travel once, in a schema.
Does not cover: how messages are combined; see `prontosched.federation.aggregator`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prontosched.codec import encode
from prontosched.errors import FederationError
from prontosched.federation.arrival import Schemas, decoded, number, text, unpack, whole
from prontosched.federation.schema import Metrics, fingerprint
from prontosched.federation.tree import ROOT, split
from prontosched.subspace import Array, Subspace
from prontosched.symmetric import is_symmetric, upper

SUMMARY_VERSION = 1
VIEW_VERSION = 1
DECISION_VERSION = 1
MESSAGE_LIMIT = 512 * 1024
DECISION_LIMIT = 4096
MAX_REASON = 400
# What a summary has beyond a view, all whole numbers.
OWN = ("incarnation", "sequence", "sent", "skipped")

Statistics = Mapping[str, Array]


@dataclass(frozen=True, slots=True, eq=False)
class Summary:
    """What a node, or an aggregator for all nodes under it, knows and shares.

    Attributes
    ----------
    node
        Who sends it.
    incarnation, sequence
        Of two summaries the one with the larger pair is newer. A sender that starts
        again takes a larger incarnation than any it finds on the bus.
    metrics
        Names of the rows.
    subspace
        Directions with a few spare ones; None while there is nothing yet.
    samples
        Vectors behind the singular values (effective memory, where the past fades).
    mean, deviation, spread
        Scale of each metric: its level, its deviation within a node, and the deviation
        of the levels between nodes (0 for a single node).
    counts
        Samples behind each metric.
    nodes
        Nodes behind it: 1 for a node.
    statistics
        Named statistics of a learned signal. They must be additive: the fleet's are the
        sum over nodes.
    sent, skipped
        Summaries sent so far, and those that epsilon saved.
    merged
        True for what an aggregator says.
    clashes
        Names below under which more than one agent speaks.
    """

    node: str
    incarnation: int
    sequence: int
    metrics: Metrics
    subspace: Subspace | None
    samples: float
    mean: Array
    deviation: Array
    spread: Array
    counts: Array
    nodes: int = 1
    statistics: Statistics = field(default_factory=dict)
    sent: int = 0
    skipped: int = 0
    merged: bool = False
    clashes: tuple[str, ...] = ()

    @property
    def version(self) -> tuple[int, int]:
        """The pair by which the newer of two summaries is known."""
        return self.incarnation, self.sequence

    def to_bytes(self) -> bytes:
        """Return the message; a node of 134 metrics needs about 4 kB."""
        own: dict[str, Any] = {name: getattr(self, name) for name in OWN}
        if self.merged:
            own["merged"] = True
        return encode("summary", SUMMARY_VERSION, {"node": self.node, **own, **_pack(self)})

    @classmethod
    def from_bytes(cls, data: bytes, schemas: Schemas) -> Summary:
        """Read and check a message.

        Raises
        ------
        UnknownSchemaError
            `schemas` does not know the names yet.
        FederationError
            Anything else that is wrong with it.
        """
        fields = decoded(data, "summary", SUMMARY_VERSION, MESSAGE_LIMIT)
        node = text(fields, "node", 200)
        if node != ROOT:
            split(node)
        own: dict[str, Any] = {name: whole(fields, name) for name in OWN}
        own["merged"] = fields.get("merged") is True
        return cls(node=node, **own, **unpack(fields, schemas, f"summary of {node!r}"))


@dataclass(frozen=True, slots=True, eq=False)
class GlobalView:
    """What the root knows of the whole fleet; the fields are those of a `Summary`.

    Attributes
    ----------
    revision
        Grows with every view that is published.
    """

    revision: int
    metrics: Metrics
    subspace: Subspace | None
    samples: float
    mean: Array
    deviation: Array
    spread: Array
    counts: Array
    nodes: int = 0
    statistics: Statistics = field(default_factory=dict)
    clashes: tuple[str, ...] = ()

    def to_bytes(self) -> bytes:
        """Return the message."""
        return encode("view", VIEW_VERSION, {"revision": self.revision, **_pack(self)})

    @classmethod
    def from_bytes(cls, data: bytes, schemas: Schemas) -> GlobalView:
        """Read and check a message; errors as in `Summary.from_bytes`."""
        fields = decoded(data, "view", VIEW_VERSION, MESSAGE_LIMIT)
        return cls(revision=whole(fields, "revision"), **unpack(fields, schemas, "global view"))

    @classmethod
    def of(cls, summary: Summary, revision: int) -> GlobalView:
        """Make the view out of the root's own summary."""
        return cls(
            revision,
            summary.metrics,
            summary.subspace,
            summary.samples,
            summary.mean,
            summary.deviation,
            summary.spread,
            summary.counts,
            summary.nodes,
            summary.statistics,
            summary.clashes,
        )


@dataclass(frozen=True, slots=True)
class DecisionMessage:
    """A node's present decision, which expires by itself.

    Attributes
    ----------
    issued, valid_until
        By the clock of the bus, in seconds since 1970.
    """

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
        return encode(
            "decision",
            DECISION_VERSION,
            {
                "node": self.node,
                "accept": self.accept,
                "score": self.score,
                "reason": self.reason[:MAX_REASON],
                "issued": self.issued,
                "valid_until": self.valid_until,
                "threshold": self.threshold,
                "probability": self.probability,
            },
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> DecisionMessage:
        """Read and check a message."""
        fields = decoded(data, "decision", DECISION_VERSION, DECISION_LIMIT)
        node = text(fields, "node", 200)
        split(node)
        if not isinstance(fields.get("accept"), bool):
            raise FederationError(
                f"accept must be true or false, got {fields.get('accept')!r:.40}: discard it"
            )
        numbers = {
            name: number(fields, name)
            for name in ("score", "issued", "valid_until", "threshold", "probability")
        }
        return cls(node=node, accept=fields["accept"], reason=text(fields, "reason", MAX_REASON), **numbers)


def _pack(message: Summary | GlobalView) -> dict[str, Any]:
    subspace = message.subspace
    packed: dict[str, Any] = {
        "schema": fingerprint(message.metrics),
        "samples": float(message.samples),
        "nodes": message.nodes,
        "mean": _single(message.mean),
        "deviation": _single(message.deviation),
    }
    if subspace is not None:
        packed |= {"basis": _single(subspace.basis), "strengths": _single(subspace.singular_values)}
    # A lone node has neither; leaving them out is a fifth of its message.
    if np.any(message.spread):
        packed["spread"] = _single(message.spread)
    if not np.all(message.counts == message.samples):
        packed["counts"] = _single(message.counts)
    if message.clashes:
        packed["clashes"] = list(message.clashes)
    for name, value in message.statistics.items():
        # A matrix of products is symmetric; half of it is enough.
        half = is_symmetric(value)
        packed[f"{'symmetric' if half else 'statistic'}:{name}"] = _single(upper(value) if half else value)
    return packed


def _single(values: Array) -> NDArray[np.float32]:
    return np.asarray(values, np.float32)
