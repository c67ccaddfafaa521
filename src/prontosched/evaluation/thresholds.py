"""Online thresholds on scores: at equal downtime, and of scores without a threshold of their own.

A threshold knows the past of its own stream alone. Streams are methods on nodes; many are handled at once, some
timesteps at a time, between which the order of the past scores does not change (`signals.quantiles`).
"""

from __future__ import annotations

import numpy as np

from prontosched.evaluation.measures import Mask
from prontosched.signals.arithmetic import Many
from prontosched.signals.policy import DOWNTIME_WEIGHT, FIRST_SCORES
from prontosched.signals.quantiles import WHOLE_PAST, ManySamples
from prontosched.subspace import Array


class BudgetThresholds:
    """Raise each stream of scores as often as a budget allows, knowing only the past.

    Many budgets on many streams at once, so that methods are compared at equal downtime. The rule is the learned
    signal's own (`signals.policy`), without its savings and its limit for an hour. Long memory matters here:
    thresholds that chase a budget quickly spend it on quiet times.

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
        self._scores = ManySamples(Many(streams))
        self._share = np.asarray(budgets)
        self._downtime: Array = np.repeat(self._share[None], streams, axis=0)

    def decide(self, scores: Array) -> Mask:
        """Return which budgets raise each stream at each step, `(steps, streams, budgets)`, and learn the scores."""
        raised = np.empty((*scores.shape, self._share.size), bool)
        downtime = self._downtime
        for span, seen in self._scores.spans(scores):
            limits = self._limits(scores[span], seen)
            for step, limit in enumerate(limits, start=span.start):
                refused = np.less(downtime, limit, out=raised[step])
                downtime *= 1.0 - DOWNTIME_WEIGHT
                np.add(downtime, DOWNTIME_WEIGHT, out=downtime, where=refused)
        return raised

    def _limits(self, scores: Array, seen: Array) -> Array:
        """Return the downtime so far below which each score is raised, for each budget.

        `signals.policy.level_for` solved for the downtime: a score is raised while the share that it wants to refuse
        is larger than the share of past scores that are not below this one.
        """
        counts = self._scores.sorted_count
        rows = zip(self._scores.ordered, counts.tolist(), scores.T, strict=True)
        below = np.stack([ordered[:count].searchsorted(score) for ordered, count, score in rows], axis=1)
        below[np.isnan(scores) | (seen < FIRST_SCORES)] = 0
        share = self._share
        with np.errstate(divide="ignore"):
            above = np.log(1.0 - below / np.maximum(counts, 1))
        limits = share - 0.25 * share * (above[..., None] - np.log(share))
        # The share that is wanted is kept between a quarter of the budget and four times it.
        least, most = ((1.0 - np.minimum(share * k, 1.0)) * counts[:, None] for k in (0.25, 4.0))
        limits = np.where(below[..., None] > least.astype(np.int64), np.inf, limits)
        return np.where(below[..., None] > most.astype(np.int64), limits, -np.inf)


class PastPercentile:
    """Raise scores that are high for their own past: the highest tenth of each stream.

    Notes
    -----
    Memory: 2,048 floats per stream.
    """

    def __init__(self, streams: int, share: float = 0.9) -> None:
        self._past = ManySamples(Many(streams), longest_stride=WHOLE_PAST)
        self._share = np.array([share])

    def raises(self, scores: Array) -> Mask:
        """Return where each score, `(steps, streams)`, lies above its percentile, and learn them."""
        raised = np.empty(scores.shape, bool)
        for span, seen in self._past.spans(scores):
            raised[span] = (scores[span] > self._past.quantile(self._share)) & (seen >= FIRST_SCORES)
        return raised
