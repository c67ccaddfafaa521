"""Recall against downtime: compare methods where they cost the same.

A method has one point per budget: what it cost, and what it found. Between its
points a curve is drawn straight; beyond them nothing is claimed.
"""

from __future__ import annotations

import numpy as np

from prontosched.subspace import Array


def at_downtime(downtime: Array, value: Array, target: float) -> Array:
    """Read curves at one downtime, never outside what they realised.

    Parameters
    ----------
    downtime, value
        `(…, points)`, in any order along the last axis.
    target
        The downtime to read at.

    Returns
    -------
    `(…)`, NaN where no two points enclose `target`.

    Examples
    --------
    >>> float(at_downtime(np.array([0.05, 0.15]), np.array([0.2, 0.4]), 0.10).round(3))
    0.3
    >>> float(at_downtime(np.array([0.05, 0.15]), np.array([0.2, 0.4]), 0.20))
    nan
    """
    order = np.argsort(downtime, axis=-1, kind="stable")
    cost = np.take_along_axis(downtime, order, -1)
    gain = np.take_along_axis(value, order, -1)
    points = cost.shape[-1]
    with np.errstate(invalid="ignore"):
        above = np.sum(cost < target, axis=-1)[..., None]  # the first point at or beyond the target
    inside = (above < points)[..., 0]
    right = np.minimum(above, points - 1)
    left = np.maximum(right - 1, 0)
    cost_right, gain_right = np.take_along_axis(cost, right, -1), np.take_along_axis(gain, right, -1)
    cost_left, gain_left = np.take_along_axis(cost, left, -1), np.take_along_axis(gain, left, -1)
    span = cost_right - cost_left
    share = np.where(span > 0, (target - cost_left) / np.where(span > 0, span, 1.0), 1.0)
    read = (gain_left + share * (gain_right - gain_left))[..., 0]
    exact = (cost_right == target)[..., 0]
    inside &= (above[..., 0] > 0) | exact
    inside &= np.isfinite(cost_right[..., 0])
    return np.where(inside, np.where(exact, gain_right[..., 0], read), np.nan)


def exposure_of_oracle(future: Array, downtime: float) -> float:
    """Return how much lower the mean future contention is when the worst `downtime` of moments is refused.

    Parameters
    ----------
    future
        Contention following each moment.
    downtime
        Share of moments an all-knowing rule refuses.
    """
    known = np.sort(future[np.isfinite(future)])
    accepted = known[: max(1, round(known.size * (1.0 - downtime)))]
    if not known.size or known.mean() <= 0:
        return float("nan")
    return float(1.0 - accepted.mean() / known.mean())
