from __future__ import annotations

import math

import pytest

from prontosched.agent.record import ENOUGH_LENGTHS as ENOUGH
from prontosched.agent.record import ContentionLengths, TrackRecord
from prontosched.agent.views import slowdown


def follow(*stretches, calm=3):
    """Note stretches of (contended, timesteps)."""
    lengths = ContentionLengths(calm=calm)
    for contended, steps in stretches:
        for _ in range(steps):
            lengths.note(contended)
    return lengths


def test_a_job_on_free_cpus_is_not_slowed():
    assert slowdown(busy=0.5, waiting=0.0, ahead=0.0, asked=1.0, capacity=2.0) == 1.0


def test_those_who_wait_and_those_announced_share_the_cpus_too():
    assert slowdown(busy=2.0, waiting=7.0, ahead=0.5, asked=1.0, capacity=2.0) == pytest.approx(5.25)


def test_where_nothing_is_measured_nothing_is_told():
    nothing = math.nan

    assert math.isnan(slowdown(busy=nothing, waiting=nothing, ahead=1.0, asked=1.0, capacity=2.0))


def test_how_long_is_left_is_not_told_from_few_contentions():
    assert math.isnan(follow(*[(True, 30), (False, 10)] * (ENOUGH - 1), (True, 5)).left())


def test_what_is_left_is_what_longer_ones_had_left():
    past = [(True, 10), (False, 5)] * 6 + [(True, 60), (False, 5)] * 3

    assert follow(*past, (True, 4)).left() == 6.0
    assert follow(*past, (True, 20)).left() == 40.0


def test_one_that_outlasts_all_others_goes_on_as_long_as_it_has():
    assert follow(*[(True, 10), (False, 5)] * 6, (True, 200)).left() == 200.0


def test_a_short_breath_does_not_end_a_contention():
    lengths = follow((True, 10), (False, 2), (True, 8), (False, 3))

    assert list(lengths.past) == [20]
    assert math.isnan(lengths.left())


def test_lengths_outlive_a_restart():
    record = TrackRecord(tolerance=5.0, horizon=2)
    for _ in range(ENOUGH):
        for ready in [9.0] * 30 + [1.0] * 5:
            record.note(False, ready)
    for _ in range(10):
        record.note(False, 9.0)
    later = TrackRecord(tolerance=5.0, horizon=2)
    later.restore(record.state())

    assert later.lengths.left() == record.lengths.left() == 20.0
