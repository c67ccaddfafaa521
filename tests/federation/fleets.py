"""Small fleets for the federation's tests: data, nodes' summaries, angles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from prontosched.federation.message import Summary
from prontosched.federation.schema import carry
from prontosched.subspace import Array, Subspace, summarise


def summary_of(
    name: str,
    data: Array,
    *,
    rank: int,
    metrics: tuple[str, ...] | None = None,
    standardise: bool = False,
    sequence: int = 1,
    incarnation: int = 1,
) -> Summary:
    """Summarise a node's raw data `(d, n)`, by its own scale or on the shared scale 1."""
    features, samples = data.shape
    mean = data.mean(axis=1) if standardise else np.zeros(features)
    deviation = data.std(axis=1) if standardise else np.ones(features)
    scaled = (data - mean[:, None]) / np.where(deviation > 0, deviation, 1.0)[:, None]
    return Summary(
        node=name,
        incarnation=incarnation,
        sequence=sequence,
        metrics=metrics or names(features),
        subspace=summarise(scaled, rank=rank),
        samples=float(samples),
        mean=mean,
        deviation=deviation,
        spread=np.zeros(features),
        counts=np.full(features, float(samples)),
    )


def names(features: int) -> tuple[str, ...]:
    """Metric names in sorted order, so that a merged basis keeps its rows."""
    return tuple(f"m{i:03d}" for i in range(features))


def factor_data(
    rng: np.random.Generator, features: int, samples: int, *, factors: int = 3, noise: float = 0.2
) -> Array:
    """A few common factors of falling strength, and noise."""
    loading = np.linalg.qr(rng.standard_normal((features, factors)))[0]
    strength = 3.0 * 0.6 ** np.arange(factors)
    return loading * strength @ rng.standard_normal((factors, samples)) + noise * rng.standard_normal(
        (features, samples)
    )


def angle(one: Subspace | Array, other: Subspace | Array) -> float:
    """Largest principal angle between two spans of equal rank, in radians."""
    a = one.basis if isinstance(one, Subspace) else one
    b = other.basis if isinstance(other, Subspace) else other
    # By the sine: the cosine of a small angle has no digits left to tell it by.
    outside = b - a @ (a.T @ b)
    return float(np.arcsin(min(1.0, np.linalg.norm(outside, 2))))


def exact(blocks: Sequence[Array], rank: int) -> Subspace:
    """The truncated SVD of all data side by side."""
    directions, strengths, _ = np.linalg.svd(np.hstack(blocks), full_matrices=False)
    return Subspace(directions[:, :rank], strengths[:rank])


def align(subspace: Subspace, metrics: tuple[str, ...], onto: tuple[str, ...]) -> Subspace | None:
    """A subspace over other metrics: those it lacks get 0, those not asked for go."""
    return summarise(carry(subspace.basis * subspace.singular_values, metrics, onto), rank=subspace.rank)
