"""Nodes of a fleet are taken out, put back elsewhere, and go on as if nothing had happened."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prontosched.errors import StateError
from prontosched.pipeline.fleet import Fleet
from prontosched.pipeline.presets import make_fleet
from tests.pipeline.test_fleet import FEATURES, NODES, presence, some_view, vectors

KINDS: dict[str, dict[str, Any]] = {
    "paper": {"preset": "paper"},
    "unscaled": {"preset": "paper", "scaling": False},
    "learned": {"preset": "default"},
    "percentile": {"preset": "default", "tolerance": "p95"},
    "adaptive": {"preset": "paper", "embedding_options": {"energy_bounds": (0.05, 0.3)}},
    "long lag": {"preset": "paper", "lag": 14},
    "held": {"preset": "paper", "hold": 5},
}


def made(kind: str, nodes: int = NODES) -> Fleet:
    fleet = make_fleet(nodes=nodes, features=FEATURES, **KINDS[kind])
    assert isinstance(fleet, Fleet)
    return fleet


class Stream:
    """The same telemetry for any fleet whose nodes may stand in other places."""

    def __init__(self, seed: int, steps: int = 160) -> None:
        rng = np.random.default_rng(seed)
        self.Y, self.present = vectors(rng, steps), presence(rng, steps)
        self.ready = np.abs(rng.standard_normal((steps, NODES))).cumsum(axis=0) % 9
        self.ready[rng.random(self.ready.shape) < 0.05] = np.nan

    def step(self, fleet: Fleet, t: int, places: np.ndarray) -> list[np.ndarray]:
        Y, present, ready = (
            np.full((fleet.nodes, FEATURES), np.nan),
            np.zeros(fleet.nodes, bool),
            np.full(fleet.nodes, np.nan),
        )
        Y[places], present[places], ready[places] = self.Y[t], self.present[t], self.ready[t]
        said = fleet.step(Y, ready=ready, utilisation=50.0, time=1e9 + t, present=present)
        here = places[self.present[t]]
        return [said.raised[here], said.score[here], said.threshold[here], said.probability[here]]


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 2**20), stop=st.integers(1, 120))
@settings(max_examples=6, deadline=None)
def test_nodes_put_into_a_larger_fleet_go_on_bit_for_bit(kind: str, seed: int, stop: int) -> None:
    stream, same = Stream(seed), np.arange(NODES)
    fleet, larger = made(kind), made(kind, 2 * NODES + 1)
    for t in range(stop):
        stream.step(fleet, t, same)
    places = np.random.default_rng(seed).permutation(larger.nodes)[:NODES]
    larger.put(places, fleet.take(same))

    for t in range(stop, len(stream.Y)):
        for expected, found in zip(stream.step(fleet, t, same), stream.step(larger, t, places), strict=True):
            np.testing.assert_array_equal(expected, found)
    here = stream.present[-1]
    assert [fleet.reason(i) for i in same[here]] == [larger.reason(i) for i in places[here]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_cleared_node_is_as_new_and_the_others_stay(kind: str) -> None:
    stream, all_of_them = Stream(3), np.arange(NODES)
    fleet, new = made(kind), made(kind)
    for t in range(90):
        stream.step(fleet, t, all_of_them)
    before = fleet.take(np.array([0, 2, 4]))
    fleet.clear(np.array([1, 3]))

    # A fleet that has never stepped has no room for the metrics in its signal yet.
    new.put(np.arange(2), fleet.take(np.array([1, 3])))
    untouched = made(kind)
    stream.step(untouched, 0, all_of_them)
    untouched.clear(all_of_them)
    for name, value in untouched.take(np.array([1, 3])).items():
        np.testing.assert_array_equal(value, new.take(np.arange(2))[name], err_msg=name)
    for name, value in fleet.take(np.array([0, 2, 4])).items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)


def test_what_is_taken_is_a_copy(rng: np.random.Generator) -> None:
    stream, all_of_them = Stream(1), np.arange(NODES)
    fleet = made("learned")
    for t in range(30):
        stream.step(fleet, t, all_of_them)
    taken = fleet.take(all_of_them)
    kept = {name: value.copy() for name, value in taken.items()}
    for t in range(30, 60):
        stream.step(fleet, t, all_of_them)

    for name, value in taken.items():
        np.testing.assert_array_equal(value, kept[name], err_msg=name)


def test_a_node_with_a_view_goes_on_without_it(rng: np.random.Generator) -> None:
    stream, all_of_them = Stream(5), np.arange(NODES)
    fleet, other = made("paper"), made("paper")
    for i in range(NODES):
        fleet.adopt(i, some_view(rng, FEATURES, 3), samples=10.0)
        other.adopt(i, some_view(rng, FEATURES, 3), samples=10.0)
    for t in range(25):
        stream.step(fleet, t, all_of_them)
        stream.step(other, t, all_of_them)
    other.put(all_of_them, fleet.take(all_of_them))

    for i in range(NODES):
        own, view = fleet.subspace(i), other.view(i)
        # The late joiner has no subspace of its own yet.
        assert (own is None) == (view is None) == (i == 4)
        if own is not None and view is not None:
            np.testing.assert_array_equal(own.basis, view.basis)
    for t in range(25, 160):
        stream.step(other, t, all_of_them)


@pytest.mark.parametrize(
    ("kind", "other"), [("paper", "learned"), ("paper", "long lag"), ("paper", "unscaled")]
)
def test_the_state_of_another_kind_of_fleet_is_refused(kind: str, other: str) -> None:
    stream, all_of_them = Stream(2), np.arange(NODES)
    fleet = made(kind)
    for t in range(20):
        stream.step(fleet, t, all_of_them)
    state = fleet.take(all_of_them)
    if other == "unscaled":
        state.pop("scaling.mean")
        other = kind

    with pytest.raises(StateError, match=r"must (hold|be)"):
        made(other).put(all_of_them, state)
