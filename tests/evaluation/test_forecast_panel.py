"""CPU Ready cut into windows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prontosched.evaluation.forecast.panel import (
    DAY,
    HOUR,
    LENGTHS,
    Panel,
    PanelBuilder,
    filled_histories,
    level_of,
    points_per_window,
)


def build(ready: np.ndarray, *, interval: float = 60.0, windows: int | None = None, parts: int = 1) -> object:
    builder = PanelBuilder(
        "c", tuple("ab"[: len(ready)]), interval_seconds=interval, steps=ready.shape[1], windows=windows
    )
    for part in np.array_split(ready, parts, axis=1):
        builder.feed(part)
    return builder.finish()


def test_window_medians_are_those_of_the_samples(rng: np.random.Generator) -> None:
    ready = rng.random((2, 3 * 1440))
    cluster = build(ready)

    for length, windows in cluster.windows.items():
        whole = ready.reshape(2, -1, length // 60)
        np.testing.assert_allclose(windows.levels, np.median(whole, axis=2))


def test_windows_can_be_forecast_by_their_means(rng: np.random.Generator) -> None:
    ready = rng.random((2, 24 * 180)) ** 4
    ready[1, :100] = np.nan
    builder = PanelBuilder(
        "c", ("a", "b"), interval_seconds=20.0, steps=ready.shape[1], windows=2, level="mean"
    )
    builder.feed(ready)
    hours = builder.finish().windows[HOUR]

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


@settings(max_examples=15, deadline=None)
@given(parts=st.integers(1, 40))
def test_windows_do_not_depend_on_how_the_samples_arrive(parts: int) -> None:
    ready = np.random.default_rng(5).random((2, 2 * 1440 + 77))
    whole, pieces = build(ready), build(ready, parts=parts)

    for length in LENGTHS:
        np.testing.assert_array_equal(whole.windows[length].levels, pieces.windows[length].levels)
        np.testing.assert_array_equal(whole.windows[length].points, pieces.windows[length].points)


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
    filled = dict(filled_histories(past))

    assert sorted(filled) == [0, 2]
    assert filled[0].tolist() == [1.0, 1.0, 3.0, 4.0, 5.0]
    assert filled[2].tolist() == [2.0, 2.0, 2.0, 2.0, 7.0]
