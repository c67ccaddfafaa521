"""The paper's measures and the honest ones, on series small enough to count by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from prontosched.evaluation.measures import (
    Ranks,
    Stretch,
    at_downtime,
    average_precision,
    binned_scores,
    calibration_error,
    count_calibration,
    count_honest,
    count_leads,
    count_paper,
    drawn_scores,
    exposure_of_oracle,
    histograms,
    paper_scores,
    roc_area,
)


def stretch(
    spikes: np.ndarray,
    raised: np.ndarray,
    *,
    horizon: int = 5,
    window: int = 10,
    gap: np.ndarray | None = None,
    probability: np.ndarray | None = None,
) -> Stretch:
    steps = len(spikes)
    none = np.full((steps, 1, 1), np.nan)
    return Stretch(
        ready=spikes.astype(float)[:, None],
        threshold=np.ones((steps, 1)),
        known=np.ones((steps, 1), bool),
        gap=np.zeros((steps, 1), bool) if gap is None else gap[:, None],
        score=none,
        probability=none if probability is None else probability[:, None, None],
        raised=raised.reshape(steps, 1, 1, 1),
        inner=(0, steps),
        horizon=horizon,
        window=window,
    )


def marks(steps: int, *places: int) -> np.ndarray:
    found = np.zeros(steps, bool)
    found[list(places)] = True
    return found


def test_left_has_six_slots_and_right_five() -> None:
    counts = count_paper(stretch(marks(40, 20), np.ones(40, bool)))

    assert counts["left"][0, 0] == 6
    assert counts["left_strict"][0, 0] == 5
    assert counts["right"][0, 0] == 5


def test_a_spike_is_preceded_by_a_raise_with_it_but_not_strictly() -> None:
    scores = paper_scores(count_paper(stretch(marks(40, 20), marks(40, 20))))

    assert scores["preceded"][0, 0] == 1
    assert scores["preceded_strict"][0, 0] == 0


def test_contained_spikes_exceed_one_when_over_alarming_and_preceded_does_not() -> None:
    scores = paper_scores(count_paper(stretch(marks(100, 50), np.ones(100, bool))))

    assert scores["preceded"][0, 0] == 1
    assert scores["contained_spikes"][0, 0] == 11
    assert scores["raise_ratio"][0, 0] == 100
    assert scores["downtime"][0, 0] == 1


def test_a_clock_scores_full_success_and_no_more_recall_than_its_downtime(rng: np.random.Generator) -> None:
    spikes = rng.random(20_000) < 0.01
    clock = np.arange(20_000) % 10 == 0
    part = stretch(spikes, clock)

    honest = count_honest(part)

    assert paper_scores(count_paper(part))["success"][0, 0] > 0.999
    assert honest["hits"][0, 0, 0] / honest["positive"][0] == pytest.approx(0.1, abs=0.02)


def test_recall_counts_moments_before_a_spike_within_the_horizon() -> None:
    honest = count_honest(stretch(marks(40, 20), marks(40, 10, 15, 19, 20), horizon=5))

    assert honest["positive"][0] == 5
    assert honest["hits"][0, 0, 0] == 2  # 15 and 19; 20 itself is too late, 10 too early
    assert honest["raised"][0, 0, 0] == 4


def test_the_last_steps_are_not_scored_as_their_future_is_unknown() -> None:
    assert count_honest(stretch(marks(40, 38), marks(40), horizon=5))["valid"][0] == 35


def test_nothing_is_scored_across_a_gap() -> None:
    honest = count_honest(stretch(marks(40, 20), marks(40), gap=marks(40, 20), horizon=5))

    assert honest["positive"][0] == 0
    assert honest["valid"][0] == 30


def test_latched_recall_of_a_coin_is_its_latched_downtime(rng: np.random.Generator) -> None:
    spikes = rng.random(60_000) < 0.01
    honest = count_honest(stretch(spikes, rng.random(60_000) < 0.02))

    cost = honest["latched"][0, 0, 0] / honest["latched_steps"][0]
    found = honest["latched_onsets"][0, 0, 0] / honest["onsets"][0]

    assert found == pytest.approx(cost, abs=0.06)


def test_lead_time_is_that_of_the_first_raise_in_the_window() -> None:
    leads = count_leads(stretch(marks(60, 30), marks(60, 15, 23, 28), window=10))

    assert leads[0, 0, 0].tolist() == [0, 0, 0, 0, 0, 0, 1, 0, 0, 0]  # 7 steps ahead


def test_a_spike_soon_after_another_is_no_onset() -> None:
    assert count_honest(stretch(marks(60, 30, 33, 50), marks(60)))["onsets"][0] == 2


def test_calibration_error_is_the_distance_from_what_followed() -> None:
    steps = 1000
    bins = count_calibration(stretch(np.zeros(steps, bool), marks(steps), probability=np.full(steps, 0.3)))

    assert calibration_error(bins[0, 0]) == pytest.approx(0.3)


def test_curves_are_read_between_their_points_and_never_beyond() -> None:
    cost, gain = np.array([[0.2, 0.05, 0.1]]), np.array([[0.8, 0.2, 0.4]])

    assert at_downtime(cost, 0.075, gain)[0] == pytest.approx(0.3)
    assert at_downtime(cost, 0.2, gain)[0] == pytest.approx(0.8)
    assert at_downtime(cost, 0.05, gain)[0] == pytest.approx(0.2)
    assert np.isnan(at_downtime(cost, 0.04, gain)[0])
    assert np.isnan(at_downtime(cost, 0.21, gain)[0])


def test_the_oracle_cuts_what_the_worst_moments_add() -> None:
    assert exposure_of_oracle(np.array([0.0, 0.0, 0.0, 4.0]), 0.25) == 1.0


@settings(deadline=None)  # the first call imports scikit-learn
@given(
    st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=60).filter(
        lambda rows: len({label for _, label in rows}) == 2
    )
)
def test_ranking_scores_equal_those_of_scikit_learn(rows: list[tuple[int, bool]]) -> None:
    scores = np.array([float(score) for score, _ in rows])
    labels = np.array([label for _, label in rows])

    assert average_precision(scores, labels) == pytest.approx(average_precision_score(labels, scores))
    assert roc_area(scores, labels) == pytest.approx(roc_auc_score(labels, scores))


def test_binned_ranking_is_close_to_the_exact_one(rng: np.random.Generator) -> None:
    labels = rng.random(5000) < 0.1
    scores = rng.normal(size=5000) + labels
    counts = histograms(Ranks(scores).bins(128), 128, labels, np.ones(5000, bool), np.zeros(5000, np.int64))

    precision, area = binned_scores(counts[..., 0])

    assert precision == pytest.approx(average_precision(scores, labels), abs=0.02)
    assert area == pytest.approx(roc_area(scores, labels), abs=0.005)


def test_scores_of_drawn_blocks_are_those_of_their_histograms_added(rng: np.random.Generator) -> None:
    counts = rng.integers(0, 4, (16, 2, 3, 5)).astype(float)
    weights = rng.integers(0, 3, (7, 5)).astype(float)

    drawn = np.stack(drawn_scores(counts, weights))

    for one in range(3):
        for draw, weighing in enumerate(weights):
            np.testing.assert_allclose(drawn[:, one, draw], binned_scores(counts[:, :, one] @ weighing))


def test_contention_that_was_accepted_and_changes_of_mind_are_counted() -> None:
    spikes, raised = marks(40, 10, 11, 12, 30), marks(40, 11, 12, 13, 20)

    counts = count_honest(stretch(spikes, raised))

    assert counts["contended"][0] == 4
    assert counts["contended_accepted"][0, 0] == 2
    assert counts["changes"][0, 0] == 4
    assert counts["steps_running"][0] == 39


def test_a_change_across_a_gap_is_none() -> None:
    counts = count_honest(stretch(marks(40, 10), np.arange(40) >= 20, gap=marks(40, 20)))

    assert counts["changes"][0, 0] == 0
    assert counts["steps_running"][0] == 38


def test_calibration_tells_contended_moments_from_quiet_ones() -> None:
    spikes = marks(40, *range(10, 20))
    said = np.where(spikes, 0.9, 0.1)

    bins = count_calibration(stretch(spikes, spikes, probability=said))[0, 0]

    assert bins[1, :, 0].sum() == 10
    assert bins[1, 18, 0] == 10
    assert bins[0, 2, 0] == bins[0, :, 0].sum()


def test_what_jobs_suffer_is_counted_after_the_moment_within_the_horizon() -> None:
    raised, suffered = marks(40, 10, 11), np.full(40, np.nan)
    suffered[12], suffered[30] = 3.0, 1.0
    counts = count_honest(replace(stretch(marks(40, 12), raised), qos=suffered[:, None]))

    assert counts["qos_moments"][0] == 10
    assert counts["qos"][0] == 5 * 3.0 + 5 * 1.0
    assert counts["qos_refused_moments"][0, 0] == 2
    assert counts["qos_refused"][0, 0] == 6.0
