from __future__ import annotations

import math

import numpy as np
import pytest

from prontosched.agent.nodes import LiveNode
from prontosched.agent.record import ENOUGH, SEPARATE, TrackRecord, _missing, record_shown
from prontosched.agent.views import record_figures
from prontosched.pipeline.presets import make_node
from prontosched.telemetry.source import Sample


def follow(steps, *, horizon=3):
    record = TrackRecord(tolerance=5.0, horizon=horizon)
    for raised, ready in steps:
        record.note(raised, ready)
    return record.figures()


def test_nothing_yet_is_unknown_and_not_zero():
    figures = TrackRecord(tolerance=5.0, horizon=3).figures()

    assert figures.timesteps == 0
    assert math.isnan(figures.downtime)
    assert math.isnan(figures.preceded)
    assert math.isnan(figures.precision)


def test_a_raise_at_the_onset_itself_does_not_precede_it():
    figures = follow([(False, 1), (False, 1), (True, 9), (False, 9), (False, 1)])

    assert figures.contentions == 1
    assert figures.preceded == 0.0


def test_lead_is_counted_from_the_first_raise_within_the_horizon():
    figures = follow([(True, 1), (True, 1), (False, 1), (False, 9)], horizon=5)

    assert figures.lead_timesteps == 3.0


def test_a_raise_before_the_horizon_does_not_count():
    figures = follow([(True, 1), *[(False, 1)] * 4, (False, 9)], horizon=3)

    assert figures.preceded == 0.0


def test_false_alarms_lower_precision():
    quiet = [(False, 1)] * 8
    figures = follow([(True, 1), (False, 9), *quiet, (True, 1), *quiet])

    assert figures.precision == 0.5


def test_one_long_contention_is_one():
    figures = follow([(False, 1), *[(False, 9)] * 20, (False, 1)])

    assert figures.contentions == 1


def test_unknown_ready_within_a_contention_does_not_begin_another():
    figures = follow([(False, 9), (False, math.nan), (False, 9)])

    assert figures.contentions == 1


def test_a_coin_is_worth_what_the_record_says_of_coins(rng):
    record = TrackRecord(tolerance=5.0, horizon=5)
    ready = np.where(rng.random(40_000) < 0.01, 9.0, 1.0)
    for raised, value in zip(rng.random(40_000) < 0.1, ready, strict=True):
        record.note(bool(raised), float(value))
    figures = record.figures()

    assert figures.preceded == pytest.approx(figures.coin_preceded, abs=0.08)
    assert figures.precision == pytest.approx(figures.coin_precision, abs=0.02)


def test_a_restored_record_goes_on_counting():
    record = TrackRecord(tolerance=5.0, horizon=3)
    for step in [(True, 1.0), (False, 9.0), (False, 1.0), (False, 1.0), (False, 1.0)]:
        record.note(*step)
    later = TrackRecord(tolerance=5.0, horizon=3)
    later.restore(record.state())
    later.note(False, 1.0)

    assert later.figures().timesteps == 6
    assert later.figures().preceded == 1.0


def test_a_contention_that_outlives_a_restart_is_still_one():
    record = TrackRecord(tolerance=5.0, horizon=3)
    record.note(False, 9.0)
    for _ in range(4):
        later = TrackRecord(tolerance=5.0, horizon=3)
        later.restore(record.state())
        later.note(False, 9.0)
        record = later

    assert record.figures().contentions == 1


def test_figures_that_so_few_events_cannot_carry_are_not_told_but_what_is_missing_is():
    record = TrackRecord(tolerance=5.0, horizon=1)
    shown = []
    for _ in range(ENOUGH):
        for step in [(True, 1.0), (False, 9.0), (False, 1.0)]:
            record.note(*step)
        shown.append(record_shown(record, None))

    assert math.isnan(shown[0]["preceded"])
    assert "19 more contended moments and 19 more refused moments needed" in shown[0]["words"]
    assert "4 more contentions, 20 more contended moments and 1 more refused moment" in _missing(20, 1, 4)
    assert shown[-1]["preceded"] == shown[-1]["precision"] == 1.0
    assert "needed" not in shown[-1]["words"]


def test_the_signals_own_figures_wait_for_enough_contentions_too():
    few = {"steps": 100.0, "recall": 0.5, "precision": 0.5, "downtime": 0.5, "base_rate": 0.1,
           "lead_steps": 2.0, "better_than_coin": None}  # fmt: skip
    many = few | {"steps": 10_000.0, "better_than_coin": True}
    record = TrackRecord(tolerance=5.0, horizon=5)
    for _ in range(SEPARATE):
        record.note(False, 9.0)
        record.note(False, 1.0)

    assert math.isnan(record_shown(record, few)["signal"]["recall"])
    assert (
        "18 more contended moments and 10 more refused moments needed" in record_shown(record, few)["words"]
    )
    assert record_shown(record, many)["signal"]["recall"] == 0.5
    assert "Better than a coin" in record_shown(record, many)["words"]


def test_a_percentile_is_counted_by_what_it_comes_to(rng):
    """CPU Ready that never comes near 5 %: contention is what its own past seldom exceeds."""
    node = LiveNode(lambda metrics: make_node(metrics=metrics, tolerance="p95"), name="n1")
    for step, ready in enumerate(rng.uniform(0.0, 1.0, 600)):
        node.step(Sample("n1", ("a", "b"), rng.normal(size=2), ready=float(ready)), float(step))

    assert node.record.tolerance == pytest.approx(0.95, abs=0.05)
    assert record_figures(node)["contentions"] > 5
