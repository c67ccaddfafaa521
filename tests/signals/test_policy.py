"""What the operator asks for: tolerance, likelihood, hysteresis, and caps where they are wanted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prontosched.errors import SettingsError
from prontosched.signals.arithmetic import One
from prontosched.signals.learned import LearnedSignal
from prontosched.signals.policy import EARLY_SHARE, HourLimit, Policy, Tolerance, read_tolerance
from prontosched.signals.record import ENOUGH_EARLY

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
        ({"horizon": 5.5}, "horizon must be from 1 to 1000 steps, got 5.5: give a whole number"),
        ({"hourly_limit": 1.5}, "hourly_limit must be from 0 to 1, got 1.5"),
        ({"explore": -0.1}, "explore must be from 0 to 1"),
        ({"hold": -1}, "hold must be from 0"),
        ({"calm": float("nan")}, "calm must be from 0"),
        ({"reopen": 1.0}, "reopen must lie between"),
        ({"quota": True}, "quota must come with a budget"),
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
    said = run(LearnedSignal(budget=budget), lasting(rng, 8000, level=4.0))

    assert 0.3 * budget <= said.raised.mean() <= 1.15 * budget + 3600 * budget / 8000


def test_a_rising_score_cannot_outrun_the_budget():
    said = run(LearnedSignal(budget=0.1), np.geomspace(6.0, 400.0, 8000))

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

    assert "held open, 10% of this hour was refused already" in said.reasons[-1]
    assert said.states[-1] == "contended"


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

    said = run(LearnedSignal(hold=20.0), ready, interval=1.0)

    lengths = np.diff(np.flatnonzero(np.diff(np.r_[0, said.raised.astype(int), 0])))[::2]
    assert lengths.size > 0
    assert lengths.min() >= 20


def never_worse_than_the_plain_rule(ready, threshold, signal, *, interval=None):
    """Run a signal, and check it against "refuse while CPU Ready is at or above the tolerance"."""
    said = run(signal, ready, interval=interval)
    plain = ready >= threshold
    accepted = int((plain & ~said.raised).sum())
    assert accepted <= EARLY_SHARE * plain.sum()
    if accepted:
        assert signal.learner.record.early_steps >= ENOUGH_EARLY * signal.policy.horizon
    assert not np.any((said.probability >= signal.policy.likelihood) & (np.array(said.states) == "accepting"))
    return said


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(["lasting", "unforeseeable", "steps"]),
    st.sampled_from([1.0, 20.0, None]),
    st.integers(1, 12),
)
def test_what_the_plain_rule_refuses_is_refused(seed, kind, interval, horizon):
    rng = np.random.default_rng(seed)
    ready = {
        "lasting": lambda: lasting(rng, 700, level=3.0),
        "unforeseeable": lambda: unforeseeable(rng, 700, rate=0.1),
        "steps": lambda: np.repeat(rng.exponential(5.0, 70), 10),
    }[kind]()

    never_worse_than_the_plain_rule(ready, 5.0, LearnedSignal(horizon=horizon), interval=interval)


def test_a_forecast_that_has_earned_it_accepts_a_few_steps_of_contention(rng):
    # Contention lasts for one step and is followed by a long calm: its end is certain.
    ready = np.where(np.arange(16_000) % 25 == 0, 9.0, 0.3 + 0.1 * rng.random(16_000))

    said = never_worse_than_the_plain_rule(ready, 5.0, LearnedSignal())

    assert (~said.raised[ready >= 5.0]).sum() > 0


def test_on_recorded_machines_what_the_plain_rule_refuses_is_refused(shared_data):
    parquet = pytest.importorskip("pyarrow.parquet")
    for path in sorted((shared_data / "data" / "smd").glob("*.parquet")):
        ready = np.asarray(parquet.read_table(path, columns=["load_1"])["load_1"], float)[:6000]
        threshold = float(np.quantile(ready, 0.95)) + 1e-9
        never_worse_than_the_plain_rule(ready, threshold, LearnedSignal(tolerance=threshold), interval=60.0)


@pytest.mark.parametrize("level", [5.5, 20.0, 200.0])
def test_an_hour_of_steady_contention_changes_the_answer_a_handful_of_times(rng, level):
    ready = level * np.exp(0.3 * rng.normal(size=3900))

    said = run(LearnedSignal(), ready, interval=1.0)

    changes = np.abs(np.diff(said.raised[300:].astype(int))).sum()
    assert changes <= 10
    assert said.raised[300:].mean() > 0.95


def test_a_budget_holds_open_what_it_cannot_afford_and_says_so():
    said = run(LearnedSignal(budget=0.05), np.full(4000, 60.0))

    assert said.states[-1] == "contended"
    assert "held open, the budget of 5% goes to worse moments" in said.reasons[-1]
    assert "accepting" not in said.states[50:]
