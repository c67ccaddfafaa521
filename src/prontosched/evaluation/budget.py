"""Online thresholds: spend a downtime budget where the score is highest.

Covers: many budgets on many streams of scores at once, so that methods are compared at equal
downtime. The rule is the learned signal's own (`prontosched.signals.policy`), without what it
saves up and its limit for an hour.
"""

from __future__ import annotations

import numpy as np

from prontosched.evaluation.measures import Mask
from prontosched.signals.arithmetic import Many
from prontosched.signals.policy import DOWNTIME_WEIGHT, FIRST_SCORES, level_for
from prontosched.signals.quantiles import WHOLE_PAST, ManySamples
from prontosched.subspace import Array


class BudgetThresholds:
    """Raise each stream of scores as often as a budget allows, knowing only the past.

    Long memory matters here: thresholds that chase a budget quickly spend it on quiet times.

    Parameters
    ----------
    budgets
        Downtimes to aim at, one threshold each.

    Notes
    -----
    Memory: `streams * (2,048 + len(budgets))` floats.
    """

    def __init__(self, streams: int, budgets: tuple[float, ...]) -> None:
        if not budgets or min(budgets) <= 0 or max(budgets) >= 1:
            raise ValueError(f"budgets must lie between 0 and 1, got {budgets}")
        self.budgets = budgets
        self._ops = Many(streams)
        self._scores = ManySamples(self._ops)
        self._share = np.asarray(budgets)[None, :]
        self._downtime: Array = np.repeat(self._share, streams, axis=0)
        self._young = True

    def decide(self, scores: Array) -> Mask:
        """Return which budgets raise each stream now, `(streams, budgets)`, then learn the scores."""
        threshold = self._scores.quantiles(level_for(self._ops, self._downtime, self._share))
        raised: Mask = scores[:, None] > threshold  # NaN accepts
        if self._young:
            young = self._scores.seen < FIRST_SCORES
            raised[young] = False
            self._young = bool(young.any())
        self._downtime += DOWNTIME_WEIGHT * (raised - self._downtime)
        self._scores.add(scores)
        return raised


class PastPercentile:
    """Raise scores that are high for their own past: the highest tenth of each stream.

    Notes
    -----
    Memory: 2,048 floats per stream.
    """

    def __init__(self, streams: int, share: float = 0.9) -> None:
        self._past = ManySamples(Many(streams), longest_stride=WHOLE_PAST)
        self._share = np.array([[share]])

    def raises(self, scores: Array) -> Mask:
        """Return where each score lies above its percentile, then learn it."""
        level = self._past.quantiles(self._share)[:, 0]
        raised: Mask = (scores > level) & (self._past.seen >= FIRST_SCORES)
        self._past.add(scores)
        return raised
