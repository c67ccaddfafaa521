"""How sure: block bootstrap within nodes, and over nodes.

Within a node whole blocks of time are drawn again, because neighbouring moments
say the same thing twice. Over nodes, nodes are drawn again too: only that interval
speaks about machines not measured.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from prontosched.subspace import Array


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float
    nodes: int = 0

    def as_dict(self) -> dict[str, float | int | None]:
        """Return plain numbers, None for what is not known."""
        return {
            "value": _plain(self.value),
            "low": _plain(self.low),
            "high": _plain(self.high),
            "nodes": self.nodes,
        }


def block_weights(blocks: int, draws: int, generator: np.random.Generator) -> Array:
    """Draw, `draws` times, how often each of `blocks` blocks is taken: `(draws, blocks)`."""
    chosen = generator.integers(0, blocks, size=(draws, blocks))
    weights = np.zeros((draws, blocks))
    np.add.at(weights, (np.arange(draws)[:, None], chosen), 1.0)
    return weights


def mean_interval(values: Array, draws: Array, *, over: bool, generator: np.random.Generator) -> Interval:
    """Return the mean over nodes with its interval.

    Parameters
    ----------
    values
        One per node, NaN where not defined.
    draws
        `(nodes, draws)`, the same statistic on resampled blocks.
    over
        Also draw the nodes again. With one node there is nothing to draw.
    """
    used = np.isfinite(values)
    if not used.any():
        return Interval(float("nan"), float("nan"), float("nan"))
    means = _resampled(draws[used], over=over, generator=generator)
    low, high = _limits(means)
    return Interval(float(values[used].mean()), low, high, int(used.sum()))


def ratio_interval(
    above: Array, above_draws: Array, below: Array, below_draws: Array, *, over: bool, seed: int
) -> Interval:
    """Return the ratio of two means over the nodes where both are defined, resampled in pairs."""
    used = np.isfinite(above) & np.isfinite(below)
    if not used.any() or below[used].mean() <= 0:
        return Interval(float("nan"), float("nan"), float("nan"))
    top = _resampled(above_draws[used], over=over, generator=np.random.default_rng(seed))
    bottom = _resampled(below_draws[used], over=over, generator=np.random.default_rng(seed))
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios = np.where(bottom > 0, top / bottom, np.nan)
    low, high = _limits(ratios)
    return Interval(float(above[used].mean() / below[used].mean()), low, high, int(used.sum()))


def _resampled(draws: Array, *, over: bool, generator: np.random.Generator) -> Array:
    """Return the mean over nodes for each draw; a node's undefined draw takes no part in it."""
    nodes, count = draws.shape
    if over and nodes > 1:
        chosen = generator.integers(0, nodes, size=(nodes, count))
        draws = np.take_along_axis(draws, chosen, axis=0)
    known = np.isfinite(draws)
    number = known.sum(axis=0)
    total = np.where(known, draws, 0.0).sum(axis=0)
    return np.where(number > 0, total / np.maximum(number, 1), np.nan)


def _limits(draws: Array) -> tuple[float, float]:
    known = draws[np.isfinite(draws)]
    if known.size < 20:
        return float("nan"), float("nan")
    low, high = np.quantile(known, [0.025, 0.975])
    return float(low), float(high)


def _plain(number: float) -> float | None:
    return float(number) if np.isfinite(number) else None
