"""What the operator asks for: tolerance, budget as cap or quota, limits, hold times."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prontosched.errors import SettingsError
from prontosched.signals.arithmetic import One
from prontosched.signals.budget import HourLimit
from prontosched.signals.learned import LearnedSignal
from prontosched.signals.policy import Policy, Tolerance, read_tolerance

from .runs import run
from .streams import calm, lasting, unforeseeable


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5%", ("absolute", 5.0)),
        ("0.5 %", ("absolute", 0.5)),
        (7, ("absolute", 7.0)),
        ("0.25", ("absolute", 0.25)),
        ("p95", ("percentile", 0.95)),
        ("P99.5", ("percentile", 0.995)),
    ],
)
def test_a_tolerance_is_read_as_written(text, expected):
    assert read_tolerance(text) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["", "five", "5%%", "%", "-1", "0", "nan", "inf", "p", "px", "95p"])
def test_a_tolerance_that_means_nothing_is_refused(text):
    with pytest.raises(SettingsError, match="tolerance must be"):
        Policy(tolerance=text)


@pytest.mark.parametrize("text", ["p100", "p0", "p49", "p-5", "pnan"])
def test_a_percentile_no_one_can_exceed_is_refused(text):
    with pytest.raises(SettingsError, match="p50 to below p100"):
        Policy(tolerance=text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": 0.0}, "budget must lie between 0 and 1, got 0.0"),
        ({"budget": 1.0}, "budget must lie between 0 and 1"),
        ({"budget": float("nan")}, "budget must lie between"),
        ({"horizon": 0}, "horizon must be from 1 to 1000 steps, got 0"),
        ({"hourly_limit": 1.5}, "hourly_limit must be from 0 to 1, got 1.5"),
        ({"explore": -0.1}, "explore must be from 0 to 1"),
        ({"hold": -1}, "hold must be from 0"),
        ({"likelihood": 0.0}, "likelihood must lie between"),
        ({"seed": -1}, "seed must be from 0"),
    ],
)
def test_settings_out_of_range_are_refused(options, message):
    with pytest.raises(SettingsError, match=message):
        LearnedSignal(**options)


@given(st.lists(st.floats(0.0, 1e6), min_size=21, max_size=200), st.sampled_from([0.5, 0.9, 0.95]))
def test_a_percentile_comes_from_the_past_alone(values, share):
    tolerance = Tolerance(One(), f"p{100 * share:g}")
    for value in values[:-1]:
        tolerance.learn(value)
    before = tolerance.level

    past = sorted(values[:-1])
    expected = past[min(int(share * len(past)), len(past) - 1)]
    if expected > past[0]:
        # Values are put in order once a sixty-fourth of them is new.
        stale = len(past) // 64
        assert past[max(0, int(share * (len(past) - stale)) - stale)] <= before <= past[-1]
    else:
        assert before > expected


def test_a_percentile_of_mostly_zeros_is_above_zero():
    tolerance = Tolerance(One(), "p95")
    for t in range(400):
        tolerance.learn(0.7 if t % 40 == 0 else 0.0)

    assert tolerance.level == 0.7


def test_a_cap_leaves_unspent_what_is_not_needed(rng):
    said = run(LearnedSignal(budget=0.2), calm(rng, 3000))

    assert said.raised.mean() == 0.0


def test_a_quota_spends_the_whole_budget_needed_or_not(rng):
    said = run(LearnedSignal(budget=0.1, quota=True), calm(rng, 8000))

    assert 0.07 <= said.raised[1000:].mean() <= 0.13


@pytest.mark.parametrize("budget", [0.03, 0.1])
def test_long_run_downtime_stays_within_the_budget(rng, budget):
    said = run(LearnedSignal(budget=budget, hourly_limit=1.0), lasting(rng, 8000, level=4.0))

    assert 0.3 * budget <= said.raised.mean() <= 1.15 * budget + 3600 * budget / 8000


def test_a_rising_score_cannot_outrun_the_budget():
    said = run(LearnedSignal(hourly_limit=1.0), np.geomspace(6.0, 400.0, 8000))

    assert said.raised.sum() <= 0.1 * (8000 + 3600) + 1


@pytest.mark.parametrize("interval", [60.0, 20.0, None])
def test_no_hour_is_refused_beyond_its_limit(rng, interval):
    ready = np.where(np.arange(6000) % 2000 < 600, 40.0, 0.5) + rng.random(6000)

    said = run(LearnedSignal(budget=0.3, hourly_limit=0.25), ready, interval=interval)

    per_hour = round(3600 / (interval or 60.0))
    busiest = np.convolve(said.raised, np.ones(per_hour), "valid").max()
    assert 0.2 * per_hour <= busiest <= 0.25 * per_hour


def test_the_hourly_limit_says_so():
    said = run(LearnedSignal(hourly_limit=0.1), np.linspace(20.0, 60.0, 60))

    assert "accepted, 10% of this hour was refused already" in said.reasons[-1]


def test_a_clock_set_back_does_not_close_the_hour_for_good():
    limit = HourLimit(One(), 0.5)
    limit.advance(1e9)
    limit.spend(True, 1800.0)
    assert not limit.allows(1.0)

    limit.advance(1e9 - 86_400.0)
    limit.advance(1e9 - 86_400.0 + 3_720.0)

    assert limit.allows(1.0)


def test_a_refusal_is_held(rng):
    ready = np.where(unforeseeable(rng, 900, rate=0.01) > 5.0, 40.0, 0.2)

    said = run(LearnedSignal(hold=4, hourly_limit=1.0), ready)

    lengths = np.diff(np.flatnonzero(np.diff(np.r_[0, said.raised.astype(int), 0])))[::2]
    assert lengths.size > 0
    assert lengths.min() >= 5
