"""Perturbation masks: differential privacy for one block, as the paper's authors propose it.

No part of Pronto: what docs/privacy.md and docs/decisions/0007 say of them is computed and tested with these.
"""

from __future__ import annotations

import math

import numpy as np

from prontosched.subspace import Array, Subspace, extend


def mask_deviation(features: int, samples: int, *, epsilon: float, delta: float) -> float:
    """Return the standard deviation of each entry of a mask over a covariance. Paper: ω.

    The authors call it a variance; it is used as a standard deviation, and the guarantee
    needs it to be one.

    Parameters
    ----------
    features
        Metrics. Paper: d.
    samples
        Vectors that the released covariance averages, each of length 1 at most. Paper: n.
    epsilon, delta
        The privacy budget: smaller is more private.

    Examples
    --------
    >>> int(mask_deviation(52, 10, epsilon=0.4, delta=0.05))
    232
    """
    _check(features, samples, epsilon, delta)
    spread = math.sqrt(2.0 * math.log(features**2 / (delta * math.sqrt(2.0 * math.pi))))
    return 4.0 * features / (epsilon * samples) * spread + math.sqrt(2.0) / (math.sqrt(epsilon) * samples)


def symmetric_mask_deviation(features: int, samples: int, *, epsilon: float, delta: float) -> float:
    """Return the deviation of MOD-SuLQ's symmetric mask, for comparison.

    About four times smaller, but it needs the whole covariance at once instead of slices.
    """
    _check(features, samples, epsilon, delta)
    spread = math.sqrt(2.0 * math.log((features**2 + features) / (2.0 * delta * math.sqrt(2.0 * math.pi))))
    return (features + 1.0) / (samples * epsilon) * spread + 1.0 / (samples * math.sqrt(epsilon))


def masked_summary(
    block: Array, *, rank: int, epsilon: float, delta: float, rng: np.random.Generator
) -> Subspace | None:
    """Return the leading directions of a block whose covariance was masked, slice by slice.

    The covariance `B Bᵀ / b` is released in slices of `b` columns, each with independent
    noise on every entry, and the slices are folded into one subspace. Singular values
    come back as those of data, so that they merge with others.

    Parameters
    ----------
    block
        Vectors as columns, `(d, b)`, each of length 1 at most.
    rng
        Source of the noise. It must not be predictable: a seed known to others is no mask.

    Raises
    ------
    ValueError
        A vector is longer than 1: the guarantee holds only for those that are not.
    """
    features, size = block.shape
    longest = float(np.linalg.norm(block, axis=0).max(initial=0.0))
    if longest > 1.0 + 1e-9:
        raise ValueError(f"every vector must have length 1 at most, got {longest:.3g}: scale the block first")
    deviation = mask_deviation(features, size, epsilon=epsilon, delta=delta)
    found: Subspace | None = None
    for start in range(0, features, size):
        part = block[start : start + size]
        noise = rng.normal(0.0, deviation, (features, part.shape[0]))
        found = extend(found, block @ part.T / size + noise, rank=rank)
    if found is None:
        return None
    return Subspace(found.basis, np.sqrt(size * found.singular_values))


def _check(features: int, samples: int, epsilon: float, delta: float) -> None:
    if features < 1 or samples < 1:
        raise ValueError(f"features and samples must be at least 1, got {features} and {samples}")
    if not epsilon > 0.0 or not 0.0 < delta < 1.0:
        raise ValueError(f"epsilon must be positive and delta in (0, 1), got {epsilon} and {delta}")
