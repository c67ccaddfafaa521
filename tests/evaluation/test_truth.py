"""What counts as a spike, learned from the past only."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prontosched.errors import SettingsError
from prontosched.evaluation.inputs import D4, Truth


def thresholds(truth: str, values: np.ndarray, **unit: object) -> np.ndarray:
    learner = Truth.parse(truth).learner(1, **unit)
    # In pieces, as a replay reads them.
    return np.concatenate([learner.follow(part[:, None])[:, 0] for part in np.array_split(values, 3)])


@pytest.mark.parametrize("truth", ["p95", "p50", "3sigma", "xbar", "median"])
def test_a_threshold_never_depends_on_the_present_or_the_future(truth: str, rng: np.random.Generator) -> None:
    values = rng.gamma(1.0, 2.0, 400)
    changed = values.copy()
    changed[200:] += 1000.0

    assert np.array_equal(thresholds(truth, values)[:201], thresholds(truth, changed)[:201], equal_nan=True)


def test_percentile_is_that_of_the_values_before(rng: np.random.Generator) -> None:
    values = rng.normal(size=3000)

    found = thresholds("p95", values)

    assert abs(found[-1] - np.quantile(values, 0.95)) < 0.05
    assert np.isnan(found[:20]).all()


def test_percentile_of_a_trace_longer_than_its_buffer_covers_the_whole_past(rng: np.random.Generator) -> None:
    values = np.concatenate([rng.uniform(10, 11, 12_000), rng.uniform(0, 1, 12_000)])

    assert thresholds("p25", values)[-1] < 1 < 10 < thresholds("p75", values)[-1]


def test_three_sigma_and_xbar_are_the_charts_of_the_past(rng: np.random.Generator) -> None:
    values = rng.normal(5, 2, 500)
    past = values[:-1]

    assert thresholds("3sigma", values)[-1] == pytest.approx(past.mean() + 3 * past.std())
    moving_range = np.abs(np.diff(past)).mean()
    assert thresholds("xbar", values)[-1] == pytest.approx(past.mean() + D4 * moving_range)


def test_a_constant_node_has_no_spike() -> None:
    values = np.zeros(100)

    assert not (values[20:] >= thresholds("p95", values)[20:]).any()


def test_a_node_mostly_at_zero_spikes_only_above_it() -> None:
    values = np.zeros(100)
    values[[50, 80]] = 0.5

    spikes = np.flatnonzero(values >= thresholds("p95", values))

    assert spikes.tolist() == [50, 80]


def test_milliseconds_and_percent_meet_at_the_interval() -> None:
    """1000 ms of a 20 s interval are 5 % of one CPU."""
    assert Truth.parse("1000ms").in_unit_of("percent", interval_seconds=20) == 5
    assert Truth.parse("5%").in_unit_of("ms", interval_seconds=20) == 1000
    assert Truth.parse("800").in_unit_of("ms", interval_seconds=20) == 800


def test_a_unit_without_an_interval_is_refused() -> None:
    with pytest.raises(SettingsError, match="needs the interval"):
        Truth.parse("5%").in_unit_of("ms", interval_seconds=float("nan"))


def test_percent_of_a_trace_in_a_unit_of_its_own_is_refused() -> None:
    with pytest.raises(SettingsError, match="give a plain number or a percentile"):
        Truth.parse("5%").learner(1, trace_unit="other")


@pytest.mark.parametrize("text", ["p0", "p100", "often", "", "-5", "5 apples", "nan"])
def test_an_unknown_definition_is_named_in_the_error(text: str) -> None:
    with pytest.raises(SettingsError, match=f"got '{text}'"):
        Truth.parse(text)


@given(st.sampled_from(["p95", "p99.5", "3sigma", "xbar", "median", "5%", "1000ms", "0.2"]))
def test_a_definition_prints_as_it_is_read(text: str) -> None:
    assert str(Truth.parse(text)) == text
    assert Truth.parse(text).describe().startswith("CPU Ready at or over")
