"""What has happened since the start, in a few numbers, for the summary and the metrics."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True)
class Tally:
    """Counts over all nodes since the agent started.

    Attributes
    ----------
    decisions, raised
        Decisions made, and those that raised the signal.
    flips
        Times a node went from accepting to rejecting or back.
    ready_count, ready_sum, ready_max
        CPU Ready where it was known.
    contended
        Timesteps with CPU Ready at the tolerance or above.
    """

    decisions: int = 0
    raised: int = 0
    flips: int = 0
    ready_count: int = 0
    ready_sum: float = 0.0
    ready_max: float = float("nan")
    contended: int = 0

    @property
    def downtime(self) -> float:
        """Share of decisions with the signal raised; NaN before the first."""
        return self.raised / self.decisions if self.decisions else math.nan

    @property
    def ready_mean(self) -> float:
        """Mean CPU Ready; NaN where it was never known."""
        return self.ready_sum / self.ready_count if self.ready_count else math.nan

    def add(self, raised: bool, flipped: bool, ready: float, tolerance: float) -> None:
        """Count one decision."""
        self.decisions += 1
        self.raised += raised
        self.flips += flipped
        if ready == ready:  # not NaN
            self.ready_count += 1
            self.ready_sum += ready
            self.contended += ready >= tolerance
            if not ready <= self.ready_max:
                self.ready_max = ready

    def add_many(
        self, raised: NDArray[np.bool_], flips: int, ready: NDArray[np.float64], tolerance: float
    ) -> None:
        """Count the decisions of many nodes at one timestep."""
        self.decisions += raised.size
        self.raised += int(raised.sum())
        self.flips += flips
        known = ready[~np.isnan(ready)]
        if known.size:
            self.ready_count += known.size
            self.ready_sum += float(known.sum())
            self.contended += int((known >= tolerance).sum())
            highest = float(known.max())
            if not highest <= self.ready_max:
                self.ready_max = highest
