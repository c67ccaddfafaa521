"""Nodes that stood on their own go on in a fleet as they would have alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from prontosched.errors import StateError
from prontosched.pipeline.fleet import Fleet
from prontosched.pipeline.joining import join
from prontosched.pipeline.node import Node
from prontosched.pipeline.presets import make_fleet, make_node
from tests.pipeline.test_fleet import FEATURES, NODES, some_view
from tests.pipeline.test_fleet_state import KINDS, Stream, made


def node_of(kind: str, **changed: Any) -> Node:
    return make_node(**{**KINDS[kind], **changed})


def step(node: Node, stream: Stream, t: int, i: int) -> tuple[bool, float, float, float]:
    said = node.step(stream.Y[t, i], ready=float(stream.ready[t, i]), utilisation=50.0, time=1e9 + t)
    return said.raised, said.score, said.threshold, said.probability


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 2**20), stop=st.integers(1, 120))
@example(seed=38, stop=30)  # one of them has a subspace that it has not projected on yet
@settings(max_examples=4, deadline=None)
def test_nodes_go_on_in_a_fleet_as_they_would_have_alone(kind: str, seed: int, stop: int) -> None:
    stream = Stream(seed)
    nodes = [node_of(kind) for _ in range(NODES)]
    for t in range(stop):
        for i in np.flatnonzero(stream.present[t]):
            step(nodes[i], stream, t, i)
    fleet = made(kind, 2 * NODES)
    # Others were there before.
    for t in range(25):
        stream.step(fleet, t, NODES + np.arange(NODES))
    places = np.random.default_rng(seed).permutation(fleet.nodes)[:NODES]
    joined = [i for i, node in enumerate(nodes) if node.timestep]
    for i in joined:
        join(fleet, int(places[i]), nodes[i])

    for t in range(stop, len(stream.Y)):
        here = np.flatnonzero(stream.present[t]).tolist()
        for i, (raised, *found) in zip(here, zip(*stream.step(fleet, t, places), strict=True), strict=True):
            if i not in joined:
                continue
            expected, *numbers = step(nodes[i], stream, t, i)
            np.testing.assert_allclose(found, numbers, rtol=1e-9, atol=1e-9)
            score, threshold, _ = numbers
            assert raised == expected or abs(score - threshold) < 1e-9
    for i in joined:
        own, kept = nodes[i].embedding.subspace, fleet.subspace(int(places[i]))
        assert (own is None) == (kept is None)
        if own is not None and kept is not None:
            np.testing.assert_allclose(kept.singular_values, own.singular_values, rtol=1e-9)


def test_a_restored_node_joins_too() -> None:
    stream = Stream(4)
    node = node_of("learned")
    for t in range(77):
        step(node, stream, t, 0)
    fleet, other = (make_fleet("default", nodes=2, features=FEATURES) for _ in range(2))
    assert isinstance(fleet, Fleet)
    assert isinstance(other, Fleet)
    join(fleet, 1, node)
    join(other, 1, Node.from_bytes(node.to_bytes()))

    for name, value in fleet.take(np.array([1])).items():
        if name not in ("warm", "spikes"):  # of the last decision, which is not saved
            np.testing.assert_array_equal(other.take(np.array([1]))[name], value, err_msg=name)


def test_a_node_with_a_view_goes_on_without_it(rng: np.random.Generator) -> None:
    stream = Stream(6)
    with_view, young = node_of("paper"), node_of("paper")
    for node, steps in ((with_view, 34), (young, 7)):
        node.adopt(some_view(rng, FEATURES, 3), samples=10.0)
        for t in range(steps):
            step(node, stream, t, 0)
    fleet = made("paper")
    join(fleet, 2, with_view)
    join(fleet, 3, young)

    own, found = with_view.embedding.subspace, fleet.view(2)
    assert own is not None
    assert found is not None
    np.testing.assert_allclose(np.abs(np.diag(own.basis.T @ found.basis)), 1.0, atol=1e-12)
    assert fleet.view(3) is None
    for t in range(34, 80):
        stream.step(fleet, t, np.arange(NODES))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"embedding_options": {"rank": 2}}, "the embedding's settings of the fleet"),
        ({"embedding": "spirit"}, "the embedding of the fleet, fpca, got spirit"),
        ({"lag": 12}, "the lag of the fleet, 10, got 12"),
        ({"scaling": False}, "the scaling of the fleet"),
        ({"signal": "learned"}, "the signal of the fleet"),
        ({"threshold": 0.5}, "the signal of the fleet"),
    ],
)
def test_a_node_of_another_kind_is_refused(changed: dict[str, Any], said: str) -> None:
    node = node_of("paper", **changed)
    node.step(np.ones(FEATURES))
    with pytest.raises(StateError, match=said):
        join(made("paper"), 0, node)


def test_a_node_of_other_metrics_is_refused() -> None:
    node = node_of("paper")
    node.step(np.ones(FEATURES + 1))
    with pytest.raises(
        StateError, match=f"must have the {FEATURES} metrics of the fleet, got {FEATURES + 1}"
    ):
        join(made("paper"), 0, node)
