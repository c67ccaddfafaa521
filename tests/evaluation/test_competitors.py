"""Published rules: their arithmetic, their defaults, and what they make of missing values."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from prontosched.evaluation.competitors import (
    COMPETITORS,
    SOURCES,
    Koordinator,
    Peak,
    PressureStall,
    ReadyLimit,
    RunQueue,
    Trimaran,
    Volcano,
)


def one(value: float) -> np.ndarray:
    return np.array([value])


@pytest.mark.parametrize("name", sorted(COMPETITORS))
def test_every_rule_has_a_source_and_answers_for_each_node_on_its_own(name: str) -> None:
    rng = np.random.default_rng(1)
    together, first, second = COMPETITORS[name](2), COMPETITORS[name](1), COMPETITORS[name](1)
    for _ in range(400):
        ready, busy = rng.exponential(10.0, 2), rng.uniform(0.0, 100.0, 2)
        both = together.step(ready, busy)
        alone = [rule.step(ready[[i]], busy[[i]]) for i, rule in enumerate((first, second))]
        np.testing.assert_allclose(both.score, np.concatenate([a.score for a in alone]), rtol=1e-9)
        assert both.refuse.tolist() == [bool(a.refuse[0]) for a in alone]

    assert name in SOURCES


@pytest.mark.parametrize("name", sorted(COMPETITORS))
def test_a_loaded_node_scores_worse_than_an_idle_one_and_an_idle_one_is_open(name: str) -> None:
    rule = COMPETITORS[name](2)
    for _ in range(700):
        verdict = rule.step(np.array([0.0, 80.0]), np.array([10.0, 100.0]))

    assert verdict.score[0] < verdict.score[1]
    assert not verdict.refuse[0]
    assert verdict.refuse[1] == (name != "trimaran")


@pytest.mark.parametrize("name", sorted(COMPETITORS))
def test_unknown_values_and_absent_nodes_change_nothing(name: str) -> None:
    rng = np.random.default_rng(2)
    with_gaps, without = COMPETITORS[name](2), COMPETITORS[name](2)
    said = with_gaps.step(np.full(2, np.nan), np.full(2, np.nan))

    assert np.isnan(said.score).all()
    assert not said.refuse.any()
    with_gaps = COMPETITORS[name](2)
    for t in range(60):
        ready, busy = rng.exponential(10.0, 2), rng.uniform(0.0, 100.0, 2)
        said, like = with_gaps.step(ready, busy), without.step(ready, busy)
        if t == 50:
            kept = with_gaps.step(np.full(2, np.nan), np.full(2, np.nan))
            absent = with_gaps.step(ready, busy, present=np.zeros(2, bool))
            np.testing.assert_allclose(kept.score, like.score, rtol=0.2)
            np.testing.assert_allclose(absent.score, kept.score, rtol=1e-9)

    assert np.isfinite(said.score).all()


def test_ready_is_compared_with_five_percent() -> None:
    verdict = ReadyLimit(3).step(np.array([4.9, 5.0, 5.1]), np.zeros(3))

    assert verdict.refuse.tolist() == [False, False, True]
    np.testing.assert_allclose(verdict.score, [0.049, 0.05, 0.051])


def test_pressure_closes_when_both_averages_are_over_and_opens_by_the_long_one() -> None:
    """avg60 needs 60 ln 2 = 42 s of full pressure to reach 50 %, from nothing."""
    rule = PressureStall(1, cores=8.0)
    rule.step(one(0.0), one(0.0))
    closed = [bool(rule.step(one(50.0), one(100.0)).refuse[0]) for _ in range(60)]
    opened = [bool(rule.step(one(0.0), one(50.0)).refuse[0]) for _ in range(60)]

    assert closed.index(True) == pytest.approx(42, abs=2)
    assert closed[45:] == [True] * 15
    # avg10 is below after 7 s; the node stays closed until avg60 is.
    assert opened.index(False) == pytest.approx(60.0 * np.log(0.632 / 0.5), abs=3)


def test_trimaran_is_half_of_mean_plus_deviation_and_never_refuses() -> None:
    rule = Trimaran(1, interval=60.0)
    for value in (20.0, 60.0) * 20:
        verdict = rule.step(one(0.0), one(value))

    # The window holds 15 values; 20 and 60 in turn.
    values = np.array([0.2, 0.6] * 8)[-15:]
    assert verdict.score[0] == pytest.approx((values.mean() + values.std()) / 2.0)
    assert not verdict.refuse[0]


def test_koordinator_takes_the_percentile_of_its_window() -> None:
    rule = Koordinator(1, interval=3.0)
    for value in [100.0] * 4 + [30.0] * 96:
        verdict = rule.step(one(0.0), one(value))

    assert verdict.score[0] == pytest.approx(0.30)
    for _ in range(6):
        verdict = rule.step(one(0.0), one(90.0))
    assert verdict.refuse[0]


def test_the_run_queue_counts_running_and_waiting_and_takes_a_measured_one() -> None:
    measured, derived = RunQueue(1, seconds=15.0), RunQueue(1, seconds=15.0)
    for _ in range(100):
        first = derived.step(one(50.0), one(100.0))
        second = measured.step(one(0.0), one(0.0), demand=one(1.5))

    assert first.score[0] == pytest.approx(1.5)
    assert second.score[0] == pytest.approx(1.5)
    assert first.refuse[0]


def test_volcano_reads_its_mean_every_half_minute() -> None:
    rule = Volcano(1)
    scores = [float(rule.step(one(0.0), one(float(t))).score[0]) for t in range(31)]

    assert len(set(scores)) == 2
    assert scores[-1] == pytest.approx(0.15)


def test_peaks_are_the_published_ones_and_their_maximum() -> None:
    rng = np.random.default_rng(3)
    values = rng.uniform(20.0, 60.0, 500)
    rules = [Peak(1, by=("sigma",)), Peak(1, by=("percentile",)), Peak(1)]
    peaks = [[float(rule.step(one(0.0), one(v)).score[0]) for v in values][-1] for rule in rules]
    kept = values[::8]

    assert peaks[0] == pytest.approx((kept.mean() + 5.0 * kept.std()) / 100.0)
    assert peaks[1] == pytest.approx(np.percentile(kept, 99.0, method="nearest") / 100.0, abs=0.01)
    assert peaks[2] == max(peaks[:2])


@pytest.mark.parametrize("interval", [1.0, 20.0, 60.0])
@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("name", sorted(COMPETITORS))
def test_several_steps_at_once_are_as_many_steps(name: str, gaps: bool, interval: float) -> None:
    rng = np.random.default_rng(4)
    ready, busy = rng.exponential(20.0, (700, 2)), rng.uniform(0.0, 110.0, (700, 2))
    present = rng.random((700, 2)) < (0.8 if gaps else 2.0)
    if gaps:
        busy[rng.random(busy.shape) < 0.1] = np.nan
    by_step, by_run = COMPETITORS[name](2, interval), COMPETITORS[name](2, interval)
    steps = [by_step.step(ready[t], busy[t], None, present[t]) for t in range(700)]
    cuts = [0, 1, 250, 251, 506, 700]
    runs = [by_run.step(ready[a:b], busy[a:b], None, present[a:b]) for a, b in itertools.pairwise(cuts)]

    np.testing.assert_allclose(
        np.concatenate([r.score for r in runs]), np.stack([s.score for s in steps]), rtol=1e-7, atol=1e-9
    )
    assert np.array_equal(np.concatenate([r.refuse for r in runs]), np.stack([s.refuse for s in steps]))
