"""A stretch of replayed time for a chunk of nodes: what happened, and what each method said.

Covers: labels and what follows from them. What is counted from it is in `scores`
(the paper's measures) and `honest`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from prontosched.evaluation.windows import Mask, any_within, mean_ahead, total_within
from prontosched.subspace import Array


@dataclass(frozen=True)
class Stretch:
    """Consecutive timesteps with some context on both sides; only `inner` is counted.

    Attributes
    ----------
    ready, threshold
        CPU Ready and the spike threshold in force, `(steps, nodes)`.
    known
        The node stepped and its CPU Ready is known.
    gap
        Time is missing between the step before and this one.
    score, probability
        `(steps, methods, nodes)`, NaN where a method says nothing.
    raised
        `(steps, methods, nodes, 1 + budgets)`: the method's own decision, then at each budget.
    inner
        First and last step (exclusive) to count.
    horizon, window
        Steps ahead in which a spike counts; the paper's window w.
    qos
        What jobs suffered, `(steps, nodes)`, NaN where nobody looked.
    """

    ready: Array
    threshold: Array
    known: Mask
    gap: Mask
    score: Array
    probability: Array
    raised: Mask
    inner: tuple[int, int]
    horizon: int
    window: int
    qos: Array | None = None

    @property
    def part(self) -> slice:
        """The steps to count."""
        return slice(*self.inner)

    @cached_property
    def spike(self) -> Mask:
        """CPU Ready at or over its threshold, `(steps, nodes)`."""
        with np.errstate(invalid="ignore"):
            found: Mask = self.known & (self.ready >= self.threshold)
        return found

    @cached_property
    def label(self) -> Mask:
        """A spike within the next `horizon` steps."""
        return any_within(self.spike, first=1, last=self.horizon)

    @cached_property
    def valid(self) -> Mask:
        """The step can be scored: the truth is known now and for the whole horizon, without a gap."""
        judged = self.known & np.isfinite(self.threshold)
        ahead = total_within(judged, first=1, last=self.horizon) == self.horizon
        whole: Mask = judged & ahead & ~any_within(self.gap, first=1, last=self.horizon)
        return whole

    @cached_property
    def quiet(self) -> Mask:
        """No contention at this very moment: what is foretold from here is truly ahead."""
        return self.known & ~self.spike

    @cached_property
    def future(self) -> Array:
        """Mean CPU Ready over the next `horizon` steps."""
        return mean_ahead(np.where(self.known, self.ready, np.nan), horizon=self.horizon)

    @cached_property
    def onset(self) -> Mask:
        """A spike after at least `horizon` known steps without one."""
        calm = total_within(self.quiet, first=-self.horizon, last=-1) == self.horizon
        sudden: Mask = self.spike & calm & ~any_within(self.gap, first=-self.horizon, last=0)
        return sudden
