"""Sliding windows over many series at once: any, sum and mean over the steps before or after each.

The first axis is time. A window reaches over the edge of the array by counting what is not there as nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from prontosched.subspace import Array

Mask = NDArray[np.bool_]


def total_within(values: NDArray[Any], *, first: int, last: int) -> Array:
    """Return, for each t, the sum of `values[t + first … t + last]`.

    Examples
    --------
    >>> total_within(np.array([1.0, 2.0, 4.0]), first=1, last=2)
    array([6., 4., 0.])
    """
    if last < first:
        raise ValueError(f"last must be at least first ({first}), got {last}")
    steps = values.shape[0]
    dtype = np.float64 if values.dtype.kind == "f" else np.int32
    sums = np.zeros((steps + 1, *values.shape[1:]), dtype)
    np.cumsum(values, axis=0, out=sums[1:], dtype=dtype)
    index = np.arange(steps)
    upper = np.clip(index + last + 1, 0, steps)
    lower = np.clip(index + first, 0, steps)
    found: Array = sums[upper] - sums[lower]
    return found


def any_within(happened: Mask, *, first: int, last: int) -> Mask:
    """Return, for each t, whether anything happened in `t + first … t + last`.

    Examples
    --------
    >>> any_within(np.array([False, False, True]), first=1, last=1)
    array([False,  True, False])
    """
    found: Mask = total_within(happened, first=first, last=last) > 0
    return found


def mean_ahead(values: Array, *, horizon: int) -> Array:
    """Return, for each t, the mean of the known values in the next `horizon` steps; NaN without any."""
    known = np.isfinite(values)
    count = total_within(known, first=1, last=horizon)
    total = total_within(np.where(known, values, 0.0), first=1, last=horizon)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def within_array(steps: int, *, first: int, last: int) -> NDArray[np.int64]:
    """Return how many steps of `t + first … t + last` lie inside an array of `steps`, for each t."""
    index = np.arange(steps)
    return np.clip(index + last + 1, 0, steps) - np.clip(index + first, 0, steps)
