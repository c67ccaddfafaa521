"""Counters to rates."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prontosched.telemetry.source import Rates


def feed(*readings: float, seconds: float = 1.0) -> list[float]:
    rates = Rates(1)
    return [float(rates.step(np.array([value]), seconds=seconds)[0]) for value in readings]


def test_the_first_reading_gives_no_rate() -> None:
    assert np.isnan(feed(5.0)).all()


def test_a_rate_is_the_increase_per_second() -> None:
    assert feed(10.0, 40.0, seconds=2.0)[1] == 15.0


def test_counter_reset_gives_no_negative_rate() -> None:
    _, steady, after, onward = feed(1000.0, 1100.0, 3.0, 53.0)

    assert (steady, onward) == (100.0, 50.0)
    assert np.isnan(after)


@pytest.mark.parametrize("wrap", [2.0**32, 2.0**64])
def test_a_wrap_around_continues_the_rate(wrap: float) -> None:
    unit = wrap / 2.0**32
    rates = feed(wrap - 3000 * unit, wrap - 2000 * unit, wrap - 1000 * unit, 0.0, 1000 * unit)

    assert rates[1:] == [1000 * unit] * 4


def test_a_wrap_of_one_of_several_summed_counters_continues_the_rate() -> None:
    base = 7.0 * 2.0**32

    assert feed(base, base + 500, base + 900 - 2.0**32)[2] == 400.0


def test_a_reset_near_the_wrap_is_not_taken_for_a_wrap() -> None:
    """4e9 to 0 would need a leap of 3e8 where 10 a second was the pace."""
    assert np.isnan(feed(4.0e9, 4.0e9 + 10, 0.0)[2])


def test_a_small_step_back_counts_as_standing_still() -> None:
    assert feed(10_000.0, 9_990.0, 10_010.0)[1:] == [0.0, 20.0]


def test_a_missing_reading_stretches_the_next_rate_over_both_intervals() -> None:
    _, missing, rate = feed(100.0, np.nan, 120.0)

    assert np.isnan(missing)
    assert rate == 10.0


def test_no_time_passed_gives_no_rate_and_loses_nothing() -> None:
    rates = Rates(1)
    rates.step(np.array([1.0]), seconds=1.0)

    assert np.isnan(rates.step(np.array([2.0]), seconds=0.0)).all()
    assert rates.step(np.array([5.0]), seconds=1.0) == 3.0


def test_counters_keep_their_rates_when_the_list_changes() -> None:
    rates = Rates(2)
    rates.step(np.array([10.0, 20.0]), seconds=1.0)
    rates.relabel([1, -1])

    now = rates.step(np.array([25.0, 7.0]), seconds=1.0)

    assert now[0] == 5.0
    assert np.isnan(now[1])


def test_resets_and_wraps_are_counted() -> None:
    rates = Rates(2)
    for reading in ([2.0**32 - 10, 500.0], [2.0**32 - 5, 600.0], [3.0, 2.0]):
        rates.step(np.array(reading), seconds=1.0)

    assert (rates.wraps, rates.resets) == (1, 1)


def test_a_reading_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="must be 2 counters, got shape"):
        Rates(2).step(np.zeros(3), seconds=1.0)


@given(st.lists(st.floats(0, 2.0**64) | st.just(float("nan")), min_size=1, max_size=30), st.floats(0, 100))
def test_no_reading_ever_gives_a_negative_rate(readings: list[float], seconds: float) -> None:
    assert not any(rate < 0 for rate in feed(*readings, seconds=seconds))


@given(st.lists(st.integers(0, 10**9), min_size=2, max_size=30))
def test_the_rates_of_a_growing_counter_add_up_to_its_growth(increases: list[int]) -> None:
    readings = np.cumsum(increases).astype(float)

    assert sum(feed(*readings)[1:]) == pytest.approx(readings[-1] - readings[0])
