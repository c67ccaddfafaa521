"""How sure: null tests by circular shifts, and intervals by block bootstrap.

A signal shifted in time keeps its downtime, its bursts and its rhythm, and loses only its connection to what it
should foretell. What it still scores is the null. For intervals, runs of blocks of time are drawn again within a node,
because neighbouring moments say the same thing twice. Over nodes, nodes are drawn again too: only that interval
speaks about machines that were not measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prontosched.student import t_quantile, t_tail
from prontosched.subspace import Array

# Draws are kept in single precision: what they differ by less is rounding.
NO_SPREAD = 1e-5


class ShiftTotals:
    """What signals come to at the moments of a target, for every circular shift k: sums of `signal[t - k] target[t]`.

    Examples
    --------
    >>> ShiftTotals(np.array([0.0, 0.0, 5.0])).of(np.array([1.0, 0.0, 0.0])).round(6) + 0.0
    array([0., 0., 5.])
    """

    def __init__(self, target: Array) -> None:
        self._spectrum = np.fft.rfft(target)
        self._size = target.size

    def of(self, signal: Array) -> Array:
        """Return the sum for every shift."""
        return np.asarray(np.fft.irfft(np.conj(np.fft.rfft(signal)) * self._spectrum, n=self._size))


def draw_shifts(steps: int, draws: int, guard: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Draw circular shifts of at least `guard` steps either way; none when the series is too short."""
    if steps < 4 * guard:
        return np.zeros(0, np.int64)
    return generator.integers(guard, steps - guard, size=draws)


@dataclass(slots=True)
class NullTotal:
    """A statistic as it is and shifted, `(methods,)` and `(methods, shifts)`, added up over so many nodes."""

    shifted: Array
    seen: Array
    nodes: Array

    @classmethod
    def over(cls, nodes: list[tuple[NDArray[np.float32], Array]], methods: int, shifts: int) -> NullTotal:
        """Add up nodes, for the methods where each has both; nodes too short to shift are passed over."""
        total = cls(np.zeros((methods, shifts)), np.zeros(methods), np.zeros(methods))
        for shifted, seen in nodes:
            if shifted.shape == total.shifted.shape:
                used = np.isfinite(shifted).all(axis=1) & np.isfinite(seen)
                one = np.where(used[:, None], shifted, 0.0), np.where(used, seen, 0.0)
                total += cls(*one, used.astype(np.float64))
        return total

    def __add__(self, other: NullTotal) -> NullTotal:
        """Add the total of other nodes."""
        return NullTotal(self.shifted + other.shifted, self.seen + other.seen, self.nodes + other.nodes)


def p_value(observed: float, null: Array, distinct: float = math.inf) -> float:
    """Return the share of the null at least as high as observed, counting the observed one itself.

    `distinct` says how many different shifts there are: drawing one again proves nothing.
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


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float
    nodes: int = 0

    def as_dict(self) -> dict[str, float | int | None]:
        """Return plain numbers, None for what is not known."""
        limits = {"low": plain(self.low), "high": plain(self.high)}
        return {"value": plain(self.value), **limits, "nodes": self.nodes}


def block_weights(blocks: int, draws: int, generator: np.random.Generator) -> Array:
    """Draw, `draws` times, how often each of `blocks` blocks is taken: `(draws, blocks)`.

    They are drawn in runs of neighbours, as many as the cube root of all: contention may outlast a block. The last
    block is followed by the first.
    """
    run = round(blocks ** (1.0 / 3.0))
    first = generator.integers(0, blocks, size=(draws, -(-blocks // run), 1))
    chosen = ((first + np.arange(run)) % blocks).reshape(draws, -1)[:, :blocks]
    weights = np.zeros((draws, blocks))
    np.add.at(weights, (np.arange(draws)[:, None], chosen), 1.0)
    return weights


def mean_interval(values: Array, draws: Array, *, over: bool, generator: np.random.Generator) -> Interval:
    """Return the mean over nodes, NaN where not defined, with its interval from draws `(nodes, draws)`.

    With `over`, nodes are drawn again too.
    """
    used = np.isfinite(values)
    if not used.any():
        return Interval(math.nan, math.nan, math.nan)
    means = _resampled(draws[used], over=over, generator=generator)
    low, high = _limits(means)
    if not high - low > NO_SPREAD:
        # Without any spread there is nothing to tell how sure a value is.
        low = high = math.nan
    return Interval(float(values[used].mean()), low, high, int(used.sum()))


def ratio_interval(
    above: Array, above_draws: Array, below: Array, below_draws: Array, *, over: bool, seed: int
) -> Interval:
    """Return the ratio of two means over the nodes where both are defined, resampled in pairs."""
    value, ratios, nodes = ratio_draws(above, above_draws, below, below_draws, over=over, seed=seed)
    return Interval(value, *_limits(ratios), nodes)


def ratio_draws(
    above: Array, above_draws: Array, below: Array, below_draws: Array, *, over: bool, seed: int
) -> tuple[float, Array, int]:
    """Return the ratio of two means, the same on each draw, and over how many nodes."""
    used = np.isfinite(above) & np.isfinite(below)
    if not used.any() or below[used].mean() <= 0:
        return float("nan"), np.full(above_draws.shape[-1], np.nan), 0
    top = _resampled(above_draws[used], over=over, generator=np.random.default_rng(seed))
    bottom = _resampled(below_draws[used], over=over, generator=np.random.default_rng(seed))
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios = np.where(bottom > 0, top / bottom, np.nan)
    return float(above[used].mean() / below[used].mean()), ratios, int(used.sum())


def excess_p(ratio: float, draws: Array, degrees: int) -> float:
    """Return the chance of a ratio at least so far above 1 if in truth it is 1 (a t test on its logarithm).

    `draws` are the ratio on resampled blocks or nodes, of which there are one more than `degrees`.
    """
    known = draws[np.isfinite(draws) & (draws > 0)]
    if degrees < 1 or not ratio > 0 or known.size < max(20, draws.size // 2):
        return float("nan")
    spread = float(np.log(known).std())
    if spread <= 1e-9:
        return float("nan")
    return t_tail(math.log(ratio) / spread, degrees)


def student_interval(
    value: float, draws: Array, degrees: int, nodes: int, *, positive: bool = False
) -> Interval:
    """Return a value with Student's interval around it, from its spread over draws of so many blocks.

    Of what can only be positive it is that of the logarithm. Draws that are few or all the same tell nothing.
    """
    known = draws[np.isfinite(draws) & (draws > 0 if positive else True)]
    enough = degrees >= 1 and known.size >= max(20, draws.size // 2)
    half = math.nan
    if enough and (value > 0 if positive else value == value):
        half = t_quantile(degrees) * float((np.log(known) if positive else known).std())
    if not half > NO_SPREAD * (1.0 if positive else abs(value)):
        half = math.nan
    if positive:
        return Interval(float(value), float(value * math.exp(-half)), float(value * math.exp(half)), nodes)
    return Interval(float(value), float(value - half), float(value + half), nodes)


def _resampled(draws: Array, *, over: bool, generator: np.random.Generator) -> Array:
    """Return the mean over nodes for each draw; a node's undefined draw takes no part in it."""
    nodes, count = draws.shape
    if over and nodes > 1:
        chosen = generator.integers(0, nodes, size=(nodes, count))
        draws = np.take_along_axis(draws, chosen, axis=0)
    return column_means(draws)


def column_means(values: Array) -> Array:
    """Return the mean of what is known of each column, NaN where nothing is."""
    known = np.isfinite(values)
    number = known.sum(axis=0)
    return np.where(number > 0, np.where(known, values, 0.0).sum(axis=0) / np.maximum(number, 1), np.nan)


def _limits(draws: Array) -> tuple[float, float]:
    known = draws[np.isfinite(draws)]
    if known.size < 20:
        return float("nan"), float("nan")
    low, high = np.quantile(known, [0.025, 0.975])
    return float(low), float(high)


def plain(number: float) -> float | None:
    """Return a number that JSON knows: None for what is not finite."""
    return float(number) if np.isfinite(number) else None
