"""How much an adopted global view counts, for one node and for many at once."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

# An adopted view counts as this many vectors at first, and half of that after
# each half-life of own vectors; below the least it is let go.
ADOPTED_SAMPLES = 20.0
ADOPTED_HALF_LIFE = 500.0
LEAST_WEIGHT = 1.0

Timesteps = TypeVar("Timesteps", float, NDArray[np.float64])


def adopted_weight(timestep: Timesteps) -> Timesteps:
    """Return as how many vectors a view counts for a node that has seen `timestep` of its own.

    Examples
    --------
    >>> adopted_weight(0), adopted_weight(500)
    (20.0, 10.0)
    """
    weight: Timesteps = ADOPTED_SAMPLES * 0.5 ** (timestep / ADOPTED_HALF_LIFE)
    return weight
