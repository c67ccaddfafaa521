"""What a limit for any one hour does to a signal that spends its budget in bursts."""

from __future__ import annotations

from collections import deque

import numpy as np

from prontosched.evaluation.measures import Mask
from prontosched.subspace import Array


def limit_hours(raised: Mask, *, steps_per_hour: int, limit: float) -> Mask:
    """Lower the raises that would close a node for more than `limit` of the last hour.

    Examples
    --------
    >>> limit_hours(np.ones(6, bool), steps_per_hour=4, limit=0.5)
    array([ True,  True, False, False,  True,  True])
    """
    allowed = max(1, int(limit * steps_per_hour + 1e-9))
    recent: deque[int] = deque()
    kept = np.zeros(raised.shape, bool)
    for step in np.flatnonzero(raised).tolist():
        while recent and recent[0] <= step - steps_per_hour:
            recent.popleft()
        if len(recent) < allowed:
            recent.append(step)
            kept[step] = True
    return kept


def worst_hour(raised: Mask, *, steps_per_hour: int) -> float:
    """Return the largest share of any one hour in which the signal was raised; NaN for less than an hour."""
    if raised.size < steps_per_hour:
        return float("nan")
    sums = np.concatenate([[0], np.cumsum(raised)])
    return float((sums[steps_per_hour:] - sums[:-steps_per_hour]).max() / steps_per_hour)


def hours_above(raised: Mask, *, steps_per_hour: int, limit: float) -> int:
    """Return how many whole hours, one after the other, have more than `limit` raised."""
    hours = raised.size // steps_per_hour
    share = raised[: hours * steps_per_hour].reshape(hours, steps_per_hour).mean(axis=1)
    return int(np.sum(share > limit + 1.0 / steps_per_hour))


def limit_figures(
    chosen: Mask, own: Mask, positive: Mask, *, steps_per_hour: int, limit: float
) -> dict[str, Array]:
    """Return what a limit per hour does to each method, `(methods,)` each.

    Parameters
    ----------
    chosen, own
        Raises at the compared budget and by the method's own decision, `(steps, methods)`.
    positive
        Moments before a spike, `(steps,)`.

    Returns
    -------
    Recall at the compared budget, `free` and `limited`; of the own decisions the `worst` hour's downtime and
    the number of hours `above` the limit.
    """
    found = {key: np.full(chosen.shape[1], np.nan) for key in ("free", "limited", "worst", "above")}
    for method in range(chosen.shape[1]):
        kept = limit_hours(chosen[:, method], steps_per_hour=steps_per_hour, limit=limit)
        if positive.any():
            found["free"][method] = chosen[positive, method].mean()
            found["limited"][method] = kept[positive].mean()
        found["worst"][method] = worst_hour(own[:, method], steps_per_hour=steps_per_hour)
        found["above"][method] = hours_above(own[:, method], steps_per_hour=steps_per_hour, limit=limit)
    return found
