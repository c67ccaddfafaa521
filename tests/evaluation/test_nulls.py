"""Nulls and intervals: chance is recognised as chance."""

from __future__ import annotations

import numpy as np
import pytest

from prontosched.evaluation.nulls import (
    ShiftTotals,
    block_weights,
    draw_shifts,
    holm,
    mean_interval,
    p_value,
    ratio_interval,
    student_interval,
)


def test_every_shift_at_once_equals_rolling_by_hand(rng: np.random.Generator) -> None:
    signal, target = rng.random(31), rng.random(31)

    totals = ShiftTotals(target).of(signal)

    assert np.allclose(totals, [np.roll(signal, k) @ target for k in range(31)])


def test_a_foretelling_signal_beats_its_shifts_and_a_coin_does_not(rng: np.random.Generator) -> None:
    target = (rng.random(5000) < 0.05).astype(float)
    oracle, coin = target.copy(), (rng.random(5000) < 0.05).astype(float)
    shifts = draw_shifts(5000, 300, 50, rng)

    found = {
        name: p_value(float(signal @ target), ShiftTotals(target).of(signal)[shifts])
        for name, signal in (("oracle", oracle), ("coin", coin))
    }  # fmt: skip

    assert found["oracle"] == pytest.approx(1 / 301)
    assert found["coin"] > 0.01


def test_a_short_series_has_no_shifts(rng: np.random.Generator) -> None:
    assert draw_shifts(100, 10, 50, rng).size == 0
    assert np.isnan(p_value(1.0, np.zeros(0)))


def test_holm_lets_few_of_many_lucky_ones_stand() -> None:
    lucky = {f"m{k}": p for k, p in enumerate(np.linspace(0.01, 1.0, 20))}

    assert holm(lucky) == set()
    assert holm({**lucky, "real": 0.0004}) == {"real"}


@pytest.mark.parametrize("blocks", [1, 2, 7, 30, 63])
def test_block_weights_take_as_many_blocks_as_there_are(blocks: int, rng: np.random.Generator) -> None:
    weights = block_weights(blocks, 4000, rng)

    assert (weights.sum(axis=1) == blocks).all()
    assert np.allclose(weights.mean(axis=0), 1.0, atol=0.15)


def test_intervals_hold_where_contention_lasts_for_several_blocks(rng: np.random.Generator) -> None:
    covered = 0
    for _ in range(200):
        # Each block is half its neighbour's, half its own.
        own = rng.normal(size=61)
        blocks = own[1:] + own[:-1]
        drawn = block_weights(60, 200, rng) @ blocks / 60
        found = student_interval(blocks.mean(), drawn, 59, 1)
        covered += found.low < 0.0 < found.high

    assert covered > 176


def test_the_interval_over_nodes_is_wider_than_within(rng: np.random.Generator) -> None:
    values = rng.normal(1.0, 0.5, 12)
    draws = values[:, None] + 0.01 * rng.normal(size=(12, 300))

    within = mean_interval(values, draws, over=False, generator=rng)
    over = mean_interval(values, draws, over=True, generator=rng)

    assert over.high - over.low > 5 * (within.high - within.low)
    assert over.low < values.mean() < over.high


def test_paired_ratios_do_not_suffer_from_differences_between_nodes(rng: np.random.Generator) -> None:
    below = rng.uniform(0.1, 0.9, 10)
    draws = np.repeat(below[:, None], 200, axis=1)

    found = ratio_interval(1.2 * below, 1.2 * draws, below, draws, over=True, seed=1)

    assert found.value == pytest.approx(1.2)
    assert found.low == pytest.approx(1.2)
    assert found.high == pytest.approx(1.2)


def test_nodes_where_one_side_is_undefined_are_left_out_of_a_ratio() -> None:
    above, below = np.array([0.5, np.nan, 0.4]), np.array([0.25, 0.9, np.nan])
    draws = np.repeat(np.ones((3, 1)), 50, axis=1)

    assert ratio_interval(above, draws, below, draws, over=True, seed=1).nodes == 1


def test_what_can_only_be_positive_has_an_interval_that_is(rng: np.random.Generator) -> None:
    found = student_interval(2.0, rng.gamma(0.5, 4.0, 200), 5, 1, positive=True)

    assert 0 < found.low < 2.0 < found.high


def test_draws_that_are_all_the_same_tell_nothing() -> None:
    same = np.full(200, 1.25) + 1e-7 * (np.arange(200) % 2)
    found = [student_interval(1.25, same, 5, 1, positive=positive) for positive in (True, False)]
    found.append(mean_interval(same[:1], same[None], over=False, generator=np.random.default_rng(1)))

    assert all(one.value == pytest.approx(1.25) for one in found)
    assert not any(np.isfinite(one.low) or np.isfinite(one.high) for one in found)
