from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prontosched.explain import MetricShare, changes, directions, drivers, sentence
from prontosched.subspace import Subspace, summarise

NAMES = tuple(f"m{i}" for i in range(8))


@given(st.integers(0, 10_000))
def test_the_shares_of_a_direction_sum_to_one(seed):
    block = np.random.default_rng(seed).normal(size=(8, 20))
    for direction in directions(summarise(block, rank=3), NAMES, top=8):
        assert sum(part.share for part in direction.parts) == pytest.approx(1.0)
        assert [part.share for part in direction.parts] == sorted(
            (part.share for part in direction.parts), reverse=True
        )


def test_strengths_sum_to_one_over_all_directions(rng):
    found = directions(summarise(rng.normal(size=(8, 20)), rank=3), NAMES)

    assert sum(direction.strength for direction in found) == pytest.approx(1.0)


def test_the_planted_metric_is_the_first_driver(rng):
    subspace = summarise(rng.normal(size=(8, 50)), rank=4)
    vector = 0.1 * rng.normal(size=8)
    vector[5] = -20.0
    first = drivers(vector, subspace, NAMES)[0]

    assert first.metric == "m5"
    assert first.sign == -1


def test_only_directions_that_spike_count():
    plane = Subspace(np.eye(8)[:, :2], np.array([10.0, 1.0]))
    vector = np.array([5.0, 4.0, 0, 0, 0, 0, 0, 0])

    assert drivers(vector, plane, NAMES)[0].metric == "m0"
    assert drivers(vector, plane, NAMES, spikes=[0, 0]) == drivers(vector, plane, NAMES)
    assert [part.metric for part in drivers(vector, plane, NAMES, spikes=[0, 1])] == ["m1"]


def test_a_metric_that_no_direction_holds_yet_is_named():
    plane = Subspace(np.eye(8)[:, :2], np.array([10.0, 1.0]))
    vector = np.array([3.0, 2.0, 0, 0, 0, 0, 8.0, 0])

    assert drivers(vector, plane, NAMES)[0].metric == "m6"


def test_drivers_do_not_depend_on_the_signs_of_directions(rng):
    subspace = summarise(rng.normal(size=(8, 50)), rank=3)
    turned = Subspace(-subspace.basis, subspace.singular_values)
    vector = rng.normal(size=8)

    assert drivers(vector, subspace, NAMES) == drivers(vector, turned, NAMES)


def test_an_idle_vector_has_no_drivers(rng):
    assert drivers(np.zeros(8), summarise(rng.normal(size=(8, 50)), rank=3), NAMES) == []


def test_a_change_names_what_came_and_what_went():
    before = Subspace(np.eye(8)[:, :1], np.array([3.0]))
    after = Subspace(np.eye(8)[:, 1:3], np.array([3.0, 1.0]))
    found = changes(before, after, NAMES)

    assert found.gained[0].metric == "m1"
    assert found.lost[0].metric == "m0"
    assert (found.rank_before, found.rank) == (1, 2)
    assert found.distance > 0


def test_a_sentence_can_be_read_aloud():
    assert (
        sentence([MetricShare("cpu_user", 0.613, 1), MetricShare("idle", 0.2, -1)])
        == "cpu_user up (61 %), idle down (20 %)"
    )
