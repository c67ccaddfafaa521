from __future__ import annotations

import math

import numpy as np
import pytest

from prontosched.agent.track_record import TrackRecord


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
