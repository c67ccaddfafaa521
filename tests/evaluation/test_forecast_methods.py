"""The four methods, their scaling, and groups of similar nodes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from prontosched.evaluation.forecast.models import (
    GROUPINGS,
    Arima,
    AutoregressiveSVR,
    WindowScale,
    cort_distances,
    embed,
    forecast_from_cluster,
    forecast_same_node,
    group_nodes,
    lagged,
    smooth,
)
from prontosched.evaluation.forecast.study import daily_day, node_rmse, window_pair


@settings(max_examples=50, deadline=None)
@given(arrays(np.float64, (3, 6), elements=st.floats(-1e6, 1e6)))
def test_scaling_there_and_back_changes_nothing(past: np.ndarray) -> None:
    scale = WindowScale(past)

    assert scale.scaled.min() >= -1e-9
    assert scale.scaled.max() <= 1.0 + 1e-9
    np.testing.assert_allclose(scale.back(scale.forward(past[:, 2])), past[:, 2], atol=1e-6)


def test_scaling_is_per_node() -> None:
    scale = WindowScale(np.array([[0.0, 10.0], [1000.0, 3000.0]]))

    np.testing.assert_allclose(scale.back(np.array([0.5, 0.5])), [5.0, 2000.0])


def test_smoothing_is_the_recursion_with_weight_one_fifth(rng: np.random.Generator) -> None:
    course = rng.random(20)
    level = course[0]
    for value in course[1:]:
        level = 0.2 * value + 0.8 * level

    assert smooth(course[None, :])[0] == pytest.approx(level)


def test_smoothing_agrees_with_statsmodels(rng: np.random.Generator) -> None:
    from statsmodels.tsa.holtwinters import SimpleExpSmoothing

    course = rng.random(30)
    model = SimpleExpSmoothing(course, initialization_method="known", initial_level=course[0])
    reference = model.fit(smoothing_level=0.2, optimized=False).forecast(1)[0]

    assert smooth(course[None, :])[0] == pytest.approx(reference)


def test_lagged_features_come_right_before_their_target() -> None:
    features, targets = lagged(np.array([[1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 30.0, 40.0]]), 2)

    assert features.tolist() == [[1, 2], [2, 3], [10, 20], [20, 30]]
    assert targets.tolist() == [3, 4, 30, 40]


def test_more_lags_than_a_window_holds_are_refused() -> None:
    with pytest.raises(ValueError, match=r"lags must be below the length of the past window \(3\), got 3"):
        lagged(np.ones((1, 3)), 3)


def test_arima_chooses_the_order_with_the_smallest_aic(rng: np.random.Generator) -> None:
    import warnings

    from statsmodels.tsa.arima.model import ARIMA

    course = np.zeros(45)
    for at in range(1, 45):
        course[at] = 0.8 * course[at - 1] + rng.normal(scale=0.1)
    model = Arima(course)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        aics = {
            (p, d, q): ARIMA(course, order=(p, d, q)).fit().aic
            for p in range(3)
            for d in range(2)
            for q in range(3)
            if p + q <= 2
        }

    assert aics[model.order] == pytest.approx(min(aics.values()), abs=0.5)


def test_arima_built_on_one_course_forecasts_another_from_its_own_level(rng: np.random.Generator) -> None:
    drift = np.cumsum(rng.normal(size=40)) * 0.05
    model = Arima(drift)

    assert model.order is not None
    assert abs(model.forecast(drift + 0.5, steps=1)[0] - (drift[-1] + 0.5)) < 0.5


def test_constant_course_is_forecast_as_it_is() -> None:
    assert Arima(np.full(20, 0.3)).forecast(np.full(20, 0.7), steps=3).tolist() == [0.7, 0.7, 0.7]


def test_svm_learns_a_pattern_that_the_last_value_does_not_show() -> None:
    pattern = np.tile([0.0, 1.0, 0.5], 20)[None, :]
    forecast = AutoregressiveSVR(pattern).forecast(pattern[:, :-1], steps=3)[0]

    np.testing.assert_allclose(forecast, [0.5, 0.0, 1.0], atol=0.15)


def test_svm_takes_a_sample_of_many_examples_and_the_same_one_again(rng: np.random.Generator) -> None:
    scaled = rng.random((40, 20))
    first, again = (AutoregressiveSVR(scaled, seed=3, most_examples=100).forecast(scaled) for _ in range(2))

    np.testing.assert_array_equal(first, again)


def test_cluster_forecasts_of_the_simple_methods_are_those_of_the_average_node(
    rng: np.random.Generator,
) -> None:
    scaled = rng.random((6, 14))
    found = forecast_from_cluster(scaled, scaled[:, -1], np.array([1, 4]), steps=1, seed=0)

    assert found["naive"].tolist() == [scaled[:, -1].mean()] * 2
    assert found["expsmo"][0] == pytest.approx(smooth(scaled.mean(axis=0, keepdims=True))[0])
    assert {len(values) for values in found.values()} == {2}


def test_same_node_forecasts_do_not_see_other_nodes(rng: np.random.Generator) -> None:
    scaled = rng.random((2, 14))
    changed = np.vstack([scaled[:1], rng.random((1, 14))])
    first, second = forecast_same_node(scaled), forecast_same_node(changed)

    for method in first:
        assert first[method][0] == second[method][0]


def test_forecasts_do_not_see_the_day_they_forecast(rng: np.random.Generator) -> None:
    daily = rng.random((8, 15)) * 100.0
    other = daily.copy()
    other[:, 14] += 1000.0
    first, second = (daily_day(values, [2], 0)["errors"] for values in (daily, other))

    for key in first:
        assert first[key]["2"] - second[key]["2"] == pytest.approx(1000.0)


def test_daily_errors_scale_with_the_unit(rng: np.random.Generator) -> None:
    daily = rng.random((8, 15)) + 1.0
    small, large = (daily_day(daily * unit, [0, 3], 0)["errors"] for unit in (1.0, 1000.0))

    for key in small:
        assert large[key]["3"] == pytest.approx(1000.0 * small[key]["3"], rel=1e-3, abs=1e-2)


def test_nodes_with_an_unknown_day_are_skipped_and_counted(rng: np.random.Generator) -> None:
    daily = rng.random((6, 15))
    daily[1, 14] = np.nan
    daily[2, :8] = np.nan
    answer = daily_day(daily, [0, 1, 2], 0)

    assert answer["skipped"] == 2
    assert set(answer["errors"]["same node/naive"]) == {"0"}


def test_naive_window_forecast_is_the_median_of_the_window_before(rng: np.random.Generator) -> None:
    points = rng.random((4, 15)) * 50.0
    medians = np.column_stack([np.median(points, axis=1), rng.random(4) * 50.0])
    errors = window_pair(points, medians, [1], 0)["errors"]

    assert errors["naive"]["1"] == pytest.approx(medians[1, 0] - medians[1, 1])
    assert set(errors) == {"naive", "expsmo", "arima", "svm"}


def test_rmse_of_too_few_forecasts_is_unknown() -> None:
    errors = {"m": {"a": {0: 1.0, 1: 2.0}, "b": {0: 3.0, 1: 4.0, 2: 5.0}}}

    assert node_rmse(errors, "m") == {"b": pytest.approx(np.sqrt(50 / 3))}


@pytest.mark.parametrize("grouping", GROUPINGS)
def test_every_grouping_puts_each_node_into_one_group(grouping: str, rng: np.random.Generator) -> None:
    past = rng.random((30, 14)) * 100.0
    past[4] = 7.0  # a constant course has neither slope nor correlation
    labels = group_nodes(grouping, past, WindowScale(past).scaled, seed=0)

    assert labels.shape == (30,)
    assert 2 <= len(set(labels.tolist())) <= 3


@pytest.mark.parametrize("grouping", ["euclidean", "correlation", "sts", "cort", "acf"])
def test_kmeans_separates_two_kinds_of_courses(grouping: str, rng: np.random.Generator) -> None:
    time = np.arange(21)
    kinds = np.repeat([0, 1], 8)
    courses = np.where(kinds[:, None] == 0, np.sin(time * 0.3), np.sin(time * 1.6 + 1.0))
    scaled = WindowScale(courses + rng.normal(scale=0.05, size=courses.shape)).scaled
    labels = group_nodes(grouping, scaled, scaled, seed=0, groups=2)

    assert len(set(labels[:8].tolist())) == len(set(labels[8:].tolist())) == 1
    assert labels[0] != labels[8]


def test_ordered_groups_follow_the_level() -> None:
    past = np.array([[float(level)] * 14 for level in (5, 1, 9, 2, 8, 4)])
    labels = group_nodes("ordered", past, past, seed=0, groups=3)

    assert labels.tolist() == [1, 0, 2, 0, 2, 1]


def test_points_of_the_correlation_grouping_have_its_distances(rng: np.random.Generator) -> None:
    scaled = rng.random((2, 14))
    points = embed("correlation", scaled)
    correlation = np.corrcoef(scaled)[0, 1]

    assert np.linalg.norm(points[0] - points[1]) == pytest.approx(np.sqrt(2.0 * (1.0 - correlation)))


def test_cort_weighs_courses_that_move_together_less_than_those_that_move_apart() -> None:
    up, down = np.linspace(0, 1, 10), np.linspace(1, 0, 10)
    distances = cort_distances(np.array([up, up + 0.5, down]))

    euclidean = np.linalg.norm(up - (up + 0.5))
    assert distances[0, 1] == pytest.approx(2.0 / (1.0 + np.exp(2.0)) * euclidean)
    assert distances[0, 2] > np.linalg.norm(up - down)
    np.testing.assert_allclose(distances, distances.T)


def test_unknown_grouping_is_refused() -> None:
    with pytest.raises(ValueError, match=r"grouping must be one of ordered, .*, got 'dtw'"):
        embed("dtw", np.ones((2, 3)))
