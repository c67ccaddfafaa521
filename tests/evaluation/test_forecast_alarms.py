"""Spikes by the alarm method, and the one-hour example."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from prontosched.evaluation.forecast.models import memory_and_network, one_hour
from prontosched.evaluation.forecast.study import (
    ALARM_METHODS,
    THRESHOLDS,
    alarm_day,
    score_alarms,
    thresholds,
)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("800ms", 800.0),
        ("p90", 9.1),
        ("median", 5.5),
        ("3sigma", 5.5 + 3 * np.std(np.arange(1, 11))),
        ("xbar", 3.267),
        ("mean+xbar", 5.5 + 3.267),
    ],
)
def test_thresholds_come_from_the_past_window(kind: str, expected: float) -> None:
    assert thresholds(kind, np.arange(1.0, 11.0)[None, :])[0] == pytest.approx(expected)


def test_unknown_threshold_is_refused() -> None:
    with pytest.raises(ValueError, match=r"threshold must be one of .*, got 'madness'"):
        thresholds("madness", np.ones((1, 3)))


def test_a_value_at_the_threshold_is_a_spike() -> None:
    daily = np.full((1, 15), 100.0)
    daily[0, 14] = 500.0

    assert alarm_day([daily], 14, 14, "500ms", 0)["actual"] == "1"


def test_thresholds_do_not_see_the_day_they_judge(rng: np.random.Generator) -> None:
    daily = rng.random((5, 15))
    daily[:, 14] = 50.0

    assert alarm_day([daily], 14, 14, "p99", 0)["actual"] == "11111"


def test_nodes_of_all_clusters_are_answered_in_order_and_unknown_ones_marked(
    rng: np.random.Generator,
) -> None:
    clusters = [rng.random((3, 15)) * 1000.0, rng.random((2, 15)) * 1000.0]
    clusters[0][1, 14] = np.nan
    clusters.append(rng.random((2, 10)))  # a cluster that is shorter than the others
    answer = alarm_day(clusters, 14, 14, "median", 0)

    assert set(answer) == {"actual", *ALARM_METHODS}
    for letters in answer.values():
        assert len(letters) == 7
        assert letters[1] == "-"
        assert letters[5:] == "--"
        assert set(letters) <= set("01-")


def test_naive_alarm_is_yesterdays() -> None:
    daily = np.full((2, 15), 100.0)
    daily[0, 13] = 900.0
    answer = alarm_day([daily], 14, 14, "800ms", 0)

    assert (answer["naive"], answer["actual"]) == ("10", "00")


def test_a_spike_every_other_day_is_learned_by_the_svm_and_not_by_the_naive_method() -> None:
    daily = np.where((np.arange(15) + np.arange(12)[:, None]) % 2, 900.0, 100.0)
    answer = alarm_day([daily], 14, 14, "500ms", 0)

    assert answer["svm cluster"] == answer["actual"]
    assert not any(a == b for a, b in zip(answer["naive"], answer["actual"], strict=True))


def test_scores_agree_with_scikit_learn(rng: np.random.Generator) -> None:
    from sklearn.metrics import accuracy_score, balanced_accuracy_score

    letters = np.array(["0", "1"])
    days = [
        {key: "".join(letters[rng.integers(0, 2, 9)]) for key in ("actual", *ALARM_METHODS)}
        for _ in range(20)
    ]
    scores = score_alarms(days)["arima"]
    actual = np.array([list(day["actual"]) for day in days])
    given = np.array([list(day["arima"]) for day in days])
    each = [balanced_accuracy_score(actual[:, node], given[:, node]) for node in range(9)]

    assert scores["accuracy"] == pytest.approx(np.mean(each))
    assert scores["balanced"] == pytest.approx(balanced_accuracy_score(actual.ravel(), given.ravel()))
    assert scores["plain"] == pytest.approx(accuracy_score(actual.ravel(), given.ravel()))


def test_silence_is_rewarded_per_node_but_not_when_balanced_over_all() -> None:
    """The paper's .9754 for four methods at once: most nodes have no spike, and never saying so is right."""
    quiet = dict.fromkeys(ALARM_METHODS, "0" * 10)
    days = [{"actual": "1" + "0" * 9, **quiet}, {"actual": "0" * 10, **quiet}]
    scores = score_alarms(days)["naive"]

    assert scores["accuracy"] == pytest.approx((9 * 1.0 + 0.5) / 10)
    assert scores["balanced"] == 0.5


def test_printed_formula_can_exceed_one() -> None:
    days = [{"actual": "1000"[at], **dict.fromkeys(ALARM_METHODS, "1110"[at])} for at in range(4)]

    assert score_alarms(days)["naive"]["literal"] == pytest.approx((3 / 1 + 1 / 3) / 2)


def test_share_of_spikes_leaves_unknown_nodes_out() -> None:
    days = [{"actual": "10-", **dict.fromkeys(ALARM_METHODS, "00-")}]

    assert score_alarms(days)["share of spikes"]["accuracy"] == 0.5


def test_scoring_nothing_known_warns_of_nothing() -> None:
    days = [{"actual": "--", **dict.fromkeys(ALARM_METHODS, "--")}]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scores = score_alarms(days)

    assert np.isnan(scores["naive"]["accuracy"])


def test_all_thresholds_of_the_paper_are_there() -> None:
    assert set(THRESHOLDS) >= {"500ms", "800ms", "1000ms", "p90", "p95", "p99", "3sigma", "xbar", "median"}


def test_metrics_of_memory_and_network_are_told_by_name() -> None:
    names = ("cpu.usage.average", "mem.usage.average", "net.received.average", "eth1_fi", "disk_q")

    assert memory_and_network(names) == [1, 2, 3]


def test_example_forecasts_each_sample_from_the_hour_before_it(rng: np.random.Generator) -> None:
    ready, metrics = rng.random(42) * 100.0, rng.random((42, 3))
    example = one_hour("n", ready, metrics, interval_seconds=180.0)
    later = ready.copy()
    later[-1] += 1e6
    again = one_hour("n", later, metrics, interval_seconds=180.0)

    assert len(example.actual) == 20
    np.testing.assert_array_equal(example.forecasts["naive"], ready[-21:-1])
    for method, forecast in example.forecasts.items():
        np.testing.assert_allclose(forecast, again.forecasts[method])


def test_conditional_forecasts_use_a_metric_that_announces_the_next_change(rng: np.random.Generator) -> None:
    change = rng.choice([-50.0, 50.0], 121)
    ready = 1000.0 + np.concatenate([[0.0], np.cumsum(change[:-1])])
    example = one_hour("n", ready, change[:, None], interval_seconds=60.0)
    errors = example.rmse()

    assert errors["Cond. Diff KNN"] < 0.5 * errors["naive"]
    assert errors["Cond. Diff SVR"] < 0.5 * errors["naive"]
    assert errors["ExpSmo"] > errors["naive"]


def test_example_of_less_than_two_hours_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the example needs 40 samples \(two hours\), got 39"):
        one_hour("n", np.ones(39), np.ones((39, 1)), interval_seconds=180.0)
