"""How well a score ranks moments: ROC area and average precision, exact and binned.

Binned forms serve the bootstrap: a resample of blocks is a weighted sum of their
histograms, so hundreds of resamples cost one matrix product.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from prontosched.evaluation.windows import Mask
from prontosched.subspace import Array


def rank_bins(scores: Array, bins: int) -> NDArray[np.int64]:
    """Return the bin of each score, higher for higher scores, ties together, about equally filled.

    Scores that are NaN (nothing said yet) count as the lowest.
    """
    filled = np.where(np.isfinite(scores), scores, -np.inf)
    _, inverse, count = np.unique(filled, return_inverse=True, return_counts=True)
    below = np.cumsum(count) - count
    return np.asarray((below * bins // max(filled.size, 1))[inverse], np.int64).reshape(scores.shape)


def middle_ranks(scores: Array) -> Array:
    """Return the rank of each score between 0 and 1, ties at the middle of theirs; NaN counts as the lowest.

    Examples
    --------
    >>> middle_ranks(np.array([5.0, 1.0, 1.0, 9.0]))
    array([0.625, 0.25 , 0.25 , 0.875])
    """
    filled = np.where(np.isfinite(scores), scores, -np.inf)
    _, inverse, count = np.unique(filled, return_inverse=True, return_counts=True)
    middle = np.cumsum(count) - count / 2.0
    found: Array = (middle / max(filled.size, 1))[inverse].reshape(scores.shape)
    return found


def histograms(
    bins: NDArray[np.int64], size: int, labels: Mask, used: Mask, block: NDArray[np.int64]
) -> Array:
    """Count moments by block, label and bin: `(blocks, 2, size)`."""
    blocks = int(block.max(initial=-1)) + 1
    key = (block[used] * 2 + labels[used]) * size + bins[used]
    counted = np.bincount(key, minlength=blocks * 2 * size)
    return counted.reshape(blocks, 2, size).astype(np.float64)


def binned_scores(counts: Array) -> tuple[Array, Array]:
    """Return average precision and ROC area of histograms `(…, 2, bins)`; NaN with one class only."""
    down = counts[..., ::-1]
    negative, positive = down[..., 0, :], down[..., 1, :]
    found, alarms = np.cumsum(positive, -1), np.cumsum(negative, -1)
    all_positive, all_negative = found[..., -1], alarms[..., -1]
    with np.errstate(invalid="ignore", divide="ignore"):
        precision = np.where(found + alarms > 0, found / (found + alarms), 0.0)
        average_precision = np.sum(precision * positive, -1) / all_positive
        earlier = alarms - negative / 2.0
        area = 1.0 - np.sum(positive * earlier, -1) / (all_positive * all_negative)
    return average_precision, area


def average_precision(scores: Array, labels: Mask) -> float:
    """Return the exact average precision, ties together; NaN without positives.

    Examples
    --------
    >>> round(average_precision(np.array([3.0, 2.0, 1.0]), np.array([True, False, True])), 3)
    0.833
    """
    return _exact(scores, labels)[0]


def roc_area(scores: Array, labels: Mask) -> float:
    """Return the exact area under the ROC curve, ties counting half; NaN with one class only."""
    return _exact(scores, labels)[1]


def _exact(scores: Array, labels: Mask) -> tuple[float, float]:
    if not labels.size or not labels.any():
        return float("nan"), float("nan")
    filled = np.where(np.isfinite(scores), scores, -np.inf)
    distinct, inverse = np.unique(filled, return_inverse=True)
    counts = np.zeros((2, distinct.size))
    counts[1] = np.bincount(inverse, weights=labels, minlength=distinct.size)
    counts[0] = np.bincount(inverse, minlength=distinct.size) - counts[1]
    precision, area = binned_scores(counts)
    return float(precision), float(area)
