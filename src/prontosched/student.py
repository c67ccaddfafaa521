"""Student's t: its tail and its quantiles, for intervals of means. Pure."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np


def t_tail(t: float, degrees: int) -> float:
    """Return the chance that Student's t exceeds `t`.

    Examples
    --------
    >>> round(t_tail(1.812, 10), 3), round(t_tail(-1.812, 10), 3)
    (0.05, 0.95)
    """
    size = abs(t)
    # The density falls like a power of 1 / t: in the angle whose tangent is t / sqrt(degrees) it is smooth.
    angles = np.linspace(math.atan(size / math.sqrt(degrees)), math.pi / 2.0, 2001)
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(math.pi)
    heights = np.cos(angles) ** (degrees - 1)
    beyond = scale * float(np.diff(angles) @ (heights[1:] + heights[:-1])) / 2.0
    return beyond if t >= 0 else 1.0 - beyond


@lru_cache(maxsize=256)
def t_quantile(degrees: int, beyond: float = 0.025) -> float:
    """Return the value that Student's t exceeds with chance `beyond`.

    Examples
    --------
    >>> round(t_quantile(10), 2)
    2.23
    """
    low, high = 0.0, 1e6
    while high - low > 1e-4 * (1.0 + low):
        middle = (low + high) / 2.0
        low, high = (middle, high) if t_tail(middle, degrees) > beyond else (low, middle)
    return high
