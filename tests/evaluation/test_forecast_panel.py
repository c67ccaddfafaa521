"""CPU Ready cut into windows."""

from __future__ import annotations

import numpy as np
import pytest

from prontosched.evaluation.forecast.models import known_pasts
from prontosched.evaluation.forecast.panel import (
    DAY,
    HOUR,
    LENGTHS,
    ClusterWindows,
    Panel,
    cut_windows,
    level_of,
    points_per_window,
)


def build(ready: np.ndarray, *, interval: float = 60.0, windows: int | None = None) -> ClusterWindows:
    return cut_windows("c", tuple("ab"[: len(ready)]), ready, interval, windows)


def test_window_medians_are_those_of_the_samples(rng: np.random.Generator) -> None:
    ready = rng.random((2, 3 * 1440))
    cluster = build(ready)

    for length, windows in cluster.windows.items():
        whole = ready.reshape(2, -1, length // 60)
        np.testing.assert_allclose(windows.levels, np.median(whole, axis=2))


def test_windows_can_be_forecast_by_their_means(rng: np.random.Generator) -> None:
    ready = rng.random((2, 24 * 180)) ** 4
    ready[1, :100] = np.nan
    cluster = cut_windows("c", ("a", "b"), ready, 20.0, 2, "mean")
    hours = cluster.windows[HOUR]

    np.testing.assert_allclose(hours.levels[0], ready[0].reshape(24, 180).mean(axis=1))
    assert np.isnan(hours.levels[1, 0])
    first = ready[0].reshape(24, 180)[int(hours.chosen[0])].reshape(hours.points.shape[2], -1)
    np.testing.assert_allclose(hours.points[0, 0], first.mean(axis=1))


def test_points_are_medians_inside_the_chosen_windows(rng: np.random.Generator) -> None:
    ready = rng.random((1, 3 * 1440))
    windows = build(ready, windows=5).windows[HOUR]

    assert len(windows.chosen) == 5
    for place, window in enumerate(windows.chosen):
        inside = ready[0, window * 60 : (window + 1) * 60].reshape(windows.points.shape[2], -1)
        np.testing.assert_allclose(windows.points[0, place], np.median(inside, axis=1))


def test_a_window_cut_off_by_the_end_of_the_trace_is_left_out(rng: np.random.Generator) -> None:
    ready = rng.random((2, 2 * 1440 + 77))
    whole, cut = build(ready), build(ready[:, : 2 * 1440])

    for length in LENGTHS:
        shared = cut.windows[length].levels
        np.testing.assert_array_equal(whole.windows[length].levels[:, : shared.shape[1]], shared)
        assert whole.windows[length].levels.shape[1] == (2 * 1440 + 77) // (length // 60)


def test_a_window_with_less_than_half_its_samples_is_unknown(rng: np.random.Generator) -> None:
    ready = rng.random((1, 1440 * 2))
    ready[0, :40] = np.nan
    medians = build(ready).windows[HOUR].levels

    assert np.isnan(medians[0, 0])
    assert np.isfinite(medians[0, 1:]).all()
    assert np.isfinite(build(ready).daily).all()


def test_lengths_without_enough_samples_or_windows_are_left_out() -> None:
    coarse = build(np.ones((1, 600)), interval=300.0)
    short = build(np.ones((1, 40)), interval=60.0)

    assert HOUR // 4 not in coarse.windows
    assert HOUR in coarse.windows
    assert sorted(short.windows) == [HOUR // 4]
    assert Panel("p", False, "ms", 60.0, (short,)).days == 0


def test_panel_names_the_lengths_it_has_two_windows_of() -> None:
    panel = Panel("p", False, "ms", 60.0, (build(np.ones((1, 1440))),))

    assert DAY not in panel.lengths()
    assert panel.lengths()[0] == 12 * HOUR
    assert panel.days == 1


@pytest.mark.parametrize(("samples", "points"), [(45, 45), (90, 45), (4320, 45), (3, 3), (288, 36), (47, 1)])
def test_windows_are_cut_into_equal_parts_at_most_45(samples: int, points: int) -> None:
    assert points_per_window(samples) == points


def test_median_of_nothing_known_is_unknown_without_a_warning() -> None:
    assert np.isnan(level_of(np.full((2, 4), np.nan))).all()


def test_gaps_of_a_past_window_are_filled_with_the_value_before_and_long_gaps_left_out() -> None:
    past = np.array(
        [[1.0, np.nan, 3.0, 4.0, 5.0], [np.nan, np.nan, np.nan, 1.0, 2.0], [np.nan, 2.0, 2.0, 2.0, 7.0]]
    )
    rows, filled = known_pasts(past)

    assert rows.tolist() == [0, 2]
    assert filled.tolist() == [[1.0, 1.0, 3.0, 4.0, 5.0], [2.0, 2.0, 2.0, 2.0, 7.0]]
