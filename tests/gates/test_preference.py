"""Levels of preference, and which nodes a veto may close."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from prontosched.gates.policy import TYPICAL_TIMES, closable, places, typical
from prontosched.gates.preference import LEVELS, level_of

chances = st.floats(0.0, 1.0)
fleets = st.lists(st.tuples(st.booleans(), chances), min_size=1, max_size=40)


@given(fleets, st.floats(0.01, 1.0))
def test_no_node_is_closed_that_is_calmer_than_one_left_open(fleet, share):
    refusing, chance = np.array([r for r, _ in fleet]), np.array([p for _, p in fleet])

    closed = closable(refusing, chance, share=share)

    if closed.any() and not closed.all():
        assert chance[closed].min() >= chance[~closed].max()
    assert closed.sum() <= places(len(fleet), share)
    assert not np.any(closed & ~refusing)
    assert np.all(chance[closed] >= TYPICAL_TIMES * typical(chance))


@given(fleets)
def test_nothing_is_closed_while_jobs_wait_that_no_open_node_can_take(fleet):
    refusing, chance = np.array([r for r, _ in fleet]), np.array([p for _, p in fleet])

    assert not closable(refusing, chance, share=1.0, starved=True).any()


def test_where_all_are_contended_none_is_closed():
    assert not closable(np.ones(8, bool), np.full(8, 0.9), share=0.5).any()


def test_unknown_chances_are_never_closed():
    closed = closable(np.array([True, True]), np.array([np.nan, 0.9]), share=0.5)

    assert closed.tolist() == [False, True]


@given(st.lists(chances, min_size=1, max_size=60))
def test_levels_rise_at_once_and_fall_late(stream):
    level = None
    for chance in stream:
        previous, level = level, level_of(chance, level)
        assert level_of(chance, level) == level, "the same chance again changes nothing"
        assert level_of(chance) <= level < LEVELS
        if previous is not None and level < previous:
            assert level_of(min(1.0, chance * 1.3)) <= previous


def test_a_chance_that_hovers_about_an_edge_keeps_its_level():
    level, changes = level_of(0.5), 0
    for step in range(100):
        new = level_of(0.5 + (0.04 if step % 2 else -0.04), level)
        changes += new != level
        level = new

    assert changes == 0
