"""Could chance have done it: the same signal, circularly shifted in time.

A shifted signal keeps its downtime, its bursts and its rhythm, and loses only its
connection to what it should foretell. What it still scores is the null.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prontosched.subspace import Array


def shift_totals(signal: Array, target: Array) -> Array:
    """Return, for every circular shift k, the sum of `signal[t - k] * target[t]`.

    Examples
    --------
    >>> shift_totals(np.array([1.0, 0.0, 0.0]), np.array([0.0, 0.0, 5.0])).round(6) + 0.0
    array([0., 0., 5.])
    """
    size = signal.shape[-1]
    spectrum = np.conj(np.fft.rfft(signal)) * np.fft.rfft(target)
    totals: Array = np.fft.irfft(spectrum, n=size)
    return totals


def shifted_means(signal: Array, target: Array, shifts: Array) -> Array:
    """Return the mean of the shifted `signal` over the moments `target` marks, for each shift."""
    moments = float(target.sum())
    if moments <= 0:
        return np.full(shifts.shape, np.nan)
    chosen: Array = shift_totals(signal, target)[shifts.astype(np.int64)] / moments
    return chosen


def draw_shifts(steps: int, draws: int, guard: int, generator: np.random.Generator) -> Array:
    """Draw circular shifts of at least `guard` steps either way; empty when the series is too short."""
    if steps < 4 * guard:
        return np.zeros(0)
    return generator.integers(guard, steps - guard, size=draws).astype(np.float64)


@dataclass(slots=True)
class NullTotal:
    """A statistic and its nulls, added up over nodes: what is kept does not grow with them.

    Attributes
    ----------
    shifted
        Sum over nodes, `(methods, shifts)`.
    seen
        Sum of the statistic as it is, `(methods,)`.
    nodes
        How many were added, `(methods,)`.
    """

    shifted: Array
    seen: Array
    nodes: Array

    @classmethod
    def empty(cls, methods: int, shifts: int) -> NullTotal:
        """Return a total of nothing."""
        return cls(np.zeros((methods, shifts)), np.zeros(methods), np.zeros(methods))

    def add(self, shifted: NDArray[np.float32], seen: Array) -> None:
        """Add one node, for the methods where it has both; nodes too short to shift are passed over."""
        if shifted.shape != self.shifted.shape:
            return
        used = np.isfinite(shifted).all(axis=1) & np.isfinite(seen)
        self.shifted += np.where(used[:, None], shifted, 0.0)
        self.seen += np.where(used, seen, 0.0)
        self.nodes += used

    def merge(self, other: NullTotal) -> None:
        """Add the total of other nodes."""
        self.shifted += other.shifted
        self.seen += other.seen
        self.nodes += other.nodes


def p_value(observed: float, null: Array, distinct: float = math.inf) -> float:
    """Return the share of the null at least as high as observed, counting the observed one itself.

    Parameters
    ----------
    distinct
        How many different shifts there are: drawing one again proves nothing.
    """
    null = null[np.isfinite(null)]
    if not np.isfinite(observed) or not null.size:
        return float("nan")
    share = (1 + np.sum(null >= observed - 1e-12)) / (1 + null.size)
    return float(max(share, 1.0 / (1.0 + distinct)))


def holm(p_values: dict[str, float], level: float = 0.01) -> set[str]:
    """Return which claims stand when many are tested at once, by Holm's step-down rule.

    Examples
    --------
    >>> sorted(holm({"a": 0.001, "b": 0.006, "c": 0.04}))
    ['a']
    """
    tested = sorted((p, name) for name, p in p_values.items() if np.isfinite(p))
    standing: set[str] = set()
    for position, (p, name) in enumerate(tested):
        if p > level / (len(tested) - position):
            break
        standing.add(name)
    return standing
