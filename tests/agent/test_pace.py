from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prontosched.agent.pace import Pace
from tests.agent.machine import Clock


def test_a_late_tick_does_not_move_the_next_one():
    clock = Clock()
    pace = Pace(1.0, clock=clock)
    pace.begin()
    clock.now += 1.3
    pace.begin()

    assert pace.remaining() == pytest.approx(0.7)
    assert (pace.late, pace.skipped) == (1, 0)
    assert pace.lag_seconds == pytest.approx(0.3)


def test_ticks_missed_by_whole_intervals_are_skipped_and_counted():
    clock = Clock()
    pace = Pace(1.0, clock=clock)
    pace.begin()
    clock.now += 61.25
    pace.begin()

    assert pace.skipped == 60
    assert pace.remaining() == pytest.approx(0.75)


@given(delays=st.lists(st.floats(0, 0.9), min_size=1, max_size=200))
def test_no_pattern_of_delays_makes_the_cadence_drift(delays):
    clock = Clock(0.0)
    pace = Pace(1.0, clock=clock)
    for delay in delays:
        clock.now += pace.remaining() + delay
        pace.begin()

    assert clock.now + pace.remaining() == pytest.approx(delays[0] + len(delays), abs=1e-6)


def test_a_tick_is_late_from_200_ms_on():
    clock = Clock()
    pace = Pace(1.0, clock=clock)
    pace.begin()
    clock.now += 1.19
    pace.begin()
    assert pace.late == 0
    clock.now += pace.remaining() + 0.21
    pace.begin()

    assert pace.late == 1


def test_interval_of_zero_is_refused():
    with pytest.raises(ValueError, match="must be above 0, got 0"):
        Pace(0)


def test_waiting_keeps_the_cadence_on_a_real_clock():
    async def run() -> Pace:
        pace = Pace(0.01)
        for _ in range(20):
            await asyncio.sleep(pace.remaining())
            pace.begin()
        return pace

    pace = asyncio.run(run())
    assert pace.ticks == 20
    assert pace.overdue_seconds >= 0.0
