"""Seeded streams whose contention is known: what the tests of the learned signal run on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from prontosched.subspace import Array

TOLERANCE = 5.0


def lasting(rng: np.random.Generator, steps: int, *, level: float = 2.0) -> Array:
    """CPU Ready that wanders: what is high now stays high for a while."""
    wander = np.zeros(steps)
    noise = rng.normal(size=steps)
    for t in range(1, steps):
        wander[t] = 0.95 * wander[t - 1] + 0.3 * noise[t]
    return level * np.exp(0.8 * wander) * np.exp(0.4 * rng.normal(size=steps))


def calm(rng: np.random.Generator, steps: int) -> Array:
    """CPU Ready that moves, yet never comes near the tolerance."""
    return np.minimum(lasting(rng, steps, level=0.5), 0.8 * TOLERANCE)


def unforeseeable(rng: np.random.Generator, steps: int, *, rate: float = 0.04) -> Array:
    """Bursts of one step that nothing announces and that announce nothing."""
    return np.where(rng.random(steps) < rate, 10.0, 0.5 + 0.1 * rng.random(steps))


def announced(
    rng: np.random.Generator, steps: int, *, metrics: int = 24, which: tuple[int, ...] = (3, 11, 17)
) -> tuple[Array, Array]:
    """Bursts that CPU Ready's own past does not announce, and a ramp in other metrics does."""
    events = rng.random(steps + 8) < 0.015
    mixing = rng.normal(size=(3, metrics))
    factors = np.zeros(3)
    vectors = rng.normal(size=(steps, metrics))
    for t in range(steps):
        factors = 0.9 * factors + 0.4 * rng.normal(size=3)
        vectors[t] += factors @ mixing
    for ahead in range(1, 9):
        vectors[np.ix_(np.flatnonzero(events[ahead : ahead + steps]), which)] += 4.0 * (1.0 - ahead / 9.0)
    ready = np.where(events[:steps], 9.0, 0.8) + 0.2 * rng.random(steps)
    return vectors, ready


def labels(ready: Array, *, horizon: int = 5, tolerance: float = TOLERANCE) -> NDArray[np.bool_]:
    """Whether contention follows within the horizon; the last steps, unknown, say no."""
    spike = ready >= tolerance
    found = np.zeros(len(ready), dtype=bool)
    for k in range(1, horizon + 1):
        found[:-k] |= spike[k:]
    return found


def roc_area(score: Array, label: NDArray[np.bool_]) -> float:
    """Chance that a step before contention scores above one that is not; ties count half."""
    order = np.argsort(score, kind="stable")
    ranks = np.empty(len(score))
    ranks[order] = np.arange(1, len(score) + 1)
    values, place = np.unique(score, return_inverse=True)
    mean_rank = np.bincount(place, weights=ranks) / np.bincount(place, minlength=len(values))
    yes = int(label.sum())
    return float((mean_rank[place][label].sum() - yes * (yes + 1) / 2) / (yes * (len(label) - yes)))


def average_precision(score: Array, label: NDArray[np.bool_]) -> float:
    """Mean precision over the steps before contention, best first."""
    hit = label[np.argsort(-score, kind="stable")]
    return float((np.cumsum(hit) / np.arange(1, len(hit) + 1))[hit].mean())


def calibration_error(probability: Array, label: NDArray[np.bool_], *, bins: int = 20) -> float:
    """Expected distance between what was said and what came."""
    place = np.minimum((probability * bins).astype(int), bins - 1)
    said = np.bincount(place, weights=probability, minlength=bins)
    came = np.bincount(place, weights=label.astype(float), minlength=bins)
    return float(np.abs(said - came).sum() / len(label))
