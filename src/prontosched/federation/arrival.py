"""Messages on arrival: every field bounded, finite and of its kind, or refused with a reason.

Covers: reading the fields that a summary and a global view share. Anyone on the bus
can send anything; what passes here cannot break a merge, nor outweigh honest members.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from prontosched import symmetric
from prontosched.codec import decode
from prontosched.errors import FederationError, StateError
from prontosched.federation.clash import MAX_CLASHES
from prontosched.federation.schema import Metrics
from prontosched.subspace import Array, Subspace

MAX_RANK = 64
MAX_NAME = 200
MAX_STATISTICS = 64
MAX_STATISTIC_NUMBERS = 65_536
# A scaled value is clipped at 8, so no second moment can exceed 64 per metric and
# sample; the rest is room for estimates of a young scale.
MAX_MOMENT = 256.0

Schemas = Callable[[str], Metrics | None]


class UnknownSchemaError(FederationError):
    """A message names metrics by a fingerprint that has not been explained yet."""

    def __init__(self, schema: str) -> None:
        super().__init__(f"a message must name a known schema, got {schema}: wait until its names arrive")
        self.schema = schema


def unpack(fields: dict[str, Any], schemas: Schemas, what: str) -> dict[str, Any]:
    """Return the checked fields that a summary and a view share."""
    schema = text(fields, "schema", 32)
    samples = number(fields, "samples")
    nodes = whole(fields, "nodes")
    if not 0.0 <= samples <= 1e15 or nodes > 10_000_000:
        raise FederationError(
            f"{what} must have plausible counts, got {samples} samples of {nodes} nodes: discard it"
        )
    features = len(_vector(fields, "mean", None))
    scale = {name: _vector(fields, name, features) for name in ("mean", "deviation")}
    scale["spread"] = _vector(fields, "spread", features) if "spread" in fields else np.zeros(features)
    counts = _vector(fields, "counts", features) if "counts" in fields else np.full(features, samples)
    if min(scale["deviation"].min(), scale["spread"].min(), counts.min()) < 0.0:
        raise FederationError(f"{what} must have deviations and counts from 0, got negative ones: discard it")
    subspace = _subspace(fields, features, samples, what) if "basis" in fields else None
    statistics = _statistics(fields, what)
    metrics = schemas(schema)
    if metrics is None:
        raise UnknownSchemaError(schema)
    if len(metrics) != features:
        raise FederationError(
            f"{what} must have {len(metrics)} metrics as its schema says, got {features}: discard it"
        )
    return {
        "metrics": metrics,
        "subspace": subspace,
        "samples": samples,
        "counts": counts,
        "nodes": nodes,
        "statistics": statistics,
        "clashes": _names(fields, what),
        **scale,
    }


def _subspace(fields: dict[str, Any], features: int, samples: float, what: str) -> Subspace:
    raw = fields["basis"]
    basis = np.asarray(raw if isinstance(raw, np.ndarray) else (), np.float64)
    if basis.ndim != 2 or basis.shape[0] != features or not 1 <= basis.shape[1] <= min(MAX_RANK, features):
        raise FederationError(
            f"{what} must have a basis of {features} rows, got shape {basis.shape}: discard it"
        )
    strengths = _vector(fields, "strengths", basis.shape[1])
    if not np.isfinite(basis).all() or np.abs(basis.T @ basis - np.eye(basis.shape[1])).max() > 1e-3:
        raise FederationError(f"{what} must have an orthonormal basis, got another: discard it")
    if strengths[-1] <= 0.0 or (strengths[1:] - strengths[:-1] > 1e-5 * strengths[0]).any():
        raise FederationError(
            f"{what} must have falling singular values above 0, got {strengths[:4]}: discard it"
        )
    if float(strengths @ strengths) > MAX_MOMENT * features * max(samples, 1.0):
        raise FederationError(
            f"{what} must have singular values that {samples:g} standardised samples can have, "
            f"got {strengths[0]:g}: discard it"
        )
    return Subspace(basis, strengths)


def _statistics(fields: dict[str, Any], what: str) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for field, value in fields.items():
        kind, _, name = field.partition(":")
        if name and isinstance(value, np.ndarray) and kind in ("statistic", "symmetric"):
            found[name] = np.asarray(value, np.float64)
            if kind == "symmetric":
                found[name] = _matrix(found[name], what)
    numbers = sum(value.size for value in found.values())
    if len(found) > MAX_STATISTICS or numbers > MAX_STATISTIC_NUMBERS:
        raise FederationError(
            f"{what} must have at most {MAX_STATISTICS} statistics of {MAX_STATISTIC_NUMBERS} numbers, "
            f"got {len(found)} of {numbers}: discard it"
        )
    if not all(np.isfinite(value).all() for value in found.values()):
        raise FederationError(f"{what} must have finite statistics, got others: discard it")
    return found


def _names(fields: dict[str, Any], what: str) -> tuple[str, ...]:
    found = fields.get("clashes", [])
    if (
        not isinstance(found, list)
        or len(found) > MAX_CLASHES
        or not all(isinstance(name, str) and len(name) <= MAX_NAME for name in found)
    ):
        raise FederationError(
            f"{what} must have at most {MAX_CLASHES} names as clashes, got {found!r:.40}: discard it"
        )
    return tuple(found)


def _matrix(triangle: Array, what: str) -> Array:
    """Return symmetric matrices from their upper triangles `(..., n (n + 1) / 2)`."""
    length = triangle.shape[-1] if triangle.ndim else 0
    side = (math.isqrt(8 * length + 1) - 1) // 2
    if (
        length < 1
        or side * (side + 1) // 2 != length
        or triangle.size // length * side**2 > MAX_STATISTIC_NUMBERS
    ):
        raise FederationError(f"{what} must have upper triangles, got shape {triangle.shape}: discard it")
    return symmetric.whole(triangle, side)


def decoded(data: bytes, kind: str, version: int, limit: int) -> dict[str, Any]:
    """Decode a message, whatever was sent; all that can go wrong is a `FederationError`."""
    try:
        return decode(data, kind=kind, version=version, limit=limit)
    except (StateError, ValueError, TypeError) as error:
        raise FederationError(f"{kind}: {error}") from error


def text(fields: dict[str, Any], name: str, longest: int) -> str:
    """Return a text field of at most `longest` characters."""
    value = fields.get(name)
    if not isinstance(value, str) or len(value) > longest:
        raise FederationError(
            f"{name} must be a text of at most {longest} characters, got {value!r:.40}: discard it"
        )
    return value


def whole(fields: dict[str, Any], name: str) -> int:
    """Return a whole number from 0."""
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**62:
        raise FederationError(f"{name} must be a whole number from 0, got {value!r:.40}: discard it")
    return value


def number(fields: dict[str, Any], name: str) -> float:
    """Return a number; NaN and infinity are left to the caller."""
    value = fields.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise FederationError(f"{name} must be a number, got {value!r:.40}: discard it")
    return float(value)


def _vector(fields: dict[str, Any], name: str, length: int | None) -> Array:
    value = fields.get(name)
    if (
        not isinstance(value, np.ndarray)
        or value.ndim != 1
        or not value.size
        or length not in (None, value.size)
    ):
        raise FederationError(
            f"{name} must be {length or 'some'} numbers, got {getattr(value, 'shape', value)!r:.40}"
        )
    numbers = value.astype(np.float64)
    if not np.isfinite(numbers).all():
        raise FederationError(f"{name} must be finite, got NaN or infinity: discard it")
    return numbers
