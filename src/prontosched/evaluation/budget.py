"""Online thresholds: spend a downtime budget where the score is highest.

Covers: the controller that lets methods be compared at equal downtime. What a
signal does with its own budget is in `prontosched.signals`.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from prontosched.evaluation.quantiles import Mask, RunningQuantiles
from prontosched.subspace import Array

# From here on a threshold is more than a guess.
FEWEST_SCORES = 20


class BudgetThresholds:
    """Raise each stream of scores as often as a budget allows, knowing only the past.

    The threshold is a quantile of the past scores. It moves with what has been
    spent: the share to raise is `q * exp(-4 (downtime - q) / q)`, kept between a
    quarter and four times the budget q. Long memory matters here: thresholds that
    chase a budget quickly spend it on quiet times.

    Parameters
    ----------
    streams
        How many streams of scores.
    budgets
        Downtimes to aim at, one threshold each.
    half_life
        Timesteps after which spent downtime weighs half.
    capacity, stride_limit
        Of the buffer of past scores.

    Notes
    -----
    Memory: `2 * streams * (capacity + len(budgets))` floats.
    """

    def __init__(
        self,
        streams: int,
        budgets: tuple[float, ...],
        *,
        half_life: float = 5000.0,
        capacity: int = 1024,
        stride_limit: int = 32,
    ) -> None:
        if not budgets or min(budgets) <= 0 or max(budgets) >= 1:
            raise ValueError(f"budgets must lie between 0 and 1, got {budgets}")
        self.budgets = budgets
        self._scores = RunningQuantiles(streams, capacity, stride_limit=stride_limit)
        self._budget = np.asarray(budgets)[None, :]
        self._spent: Array = np.repeat(self._budget, streams, axis=0)
        self._weight = 1.0 - math.exp(-math.log(2.0) / half_life)

    def decide(self, scores: Array) -> Mask:
        """Return which budgets raise each stream now, `(streams, budgets)`, then learn the scores."""
        share = self._spent / self._budget
        share -= 1.0
        share *= -4.0
        np.clip(share, -1.3862943611198906, 1.3862943611198906, out=share)  # ±log 4
        np.exp(share, out=share)
        share *= -self._budget
        share += 1.0
        threshold = self._scores.level(share)
        raised: NDArray[np.bool_] = scores[:, None] > threshold  # NaN on either side accepts
        young = self._scores.seen < FEWEST_SCORES
        if young.any():
            raised[young] = False
        self._spent += self._weight * (raised - self._spent)
        self._scores.learn(scores)
        return raised
