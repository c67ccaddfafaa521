from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prontosched.agent.schema import Schema, with_metrics
from prontosched.errors import StateError
from prontosched.pipeline.presets import make_node
from prontosched.telemetry.source import Sample

NAMES = tuple("abcdefgh")


def given_sample(metrics, values=None):
    values = np.arange(len(metrics), dtype=float) if values is None else values
    return Sample("n1", tuple(metrics), np.asarray(values, dtype=float))


def test_the_same_metrics_pass_unchanged():
    schema = Schema(("a", "b"))
    found = given_sample(("a", "b"))

    assert schema.align(found) is found.vector


def test_lost_metrics_become_unknown_and_new_ones_are_left_out():
    schema = Schema(("a", "b", "c"))
    y = schema.align(given_sample(("x", "c", "a"), [9, 3, 1]))

    np.testing.assert_array_equal(y, [1, np.nan, 3])
    assert schema.missing == ("b",)
    assert schema.extra == ("x",)


def test_a_change_settles_only_after_it_has_lasted():
    schema = Schema(("a", "b"), patience=3)
    for _ in range(2):
        schema.align(given_sample(("a",)))
    assert schema.settled is None
    schema.align(given_sample(("a",)))

    assert schema.settled == ("a",)


def test_a_metric_that_flaps_never_settles():
    schema = Schema(("a", "b"), patience=3)
    for i in range(50):
        schema.align(given_sample(("a",) if i % 2 else ("a", "b")))

    assert schema.settled is None


def test_what_is_gone_settles_though_others_come_and_go_all_the_time():
    """As on a machine whose containers live for a moment: no two samples have the same metrics."""
    schema = Schema(("a", "b", "gone"), patience=5)
    for i in range(5):
        schema.align(given_sample(("a", "b", f"container{i}")))

    assert schema.settled == ("a", "b")


def test_a_metric_that_flaps_stays_while_another_comes_for_good():
    schema = Schema(("a", "b"), patience=4)
    for i in range(4):
        schema.align(given_sample(("a", "new") if i % 2 else ("a", "b", "new")))

    assert schema.settled == ("a", "new", "b")


def test_metrics_that_only_come_and_go_change_nothing():
    schema = Schema(("a", "b"), patience=4)
    for i in range(40):
        schema.align(given_sample(("a", "b", f"container{i // 3}")))

    assert schema.settled is None


def test_another_order_of_the_same_metrics_never_settles():
    schema = Schema(("a", "b"), patience=3)
    for _ in range(10):
        y = schema.align(given_sample(("b", "a"), [2, 1]))

    np.testing.assert_array_equal(y, [1, 2])
    assert schema.settled is None


@given(
    st.lists(st.sampled_from(NAMES), unique=True), st.lists(st.sampled_from(NAMES), unique=True, min_size=1)
)
def test_every_shared_metric_keeps_its_value(old, new):
    schema = Schema(tuple(old))
    values = {name: float(ord(name)) for name in new}
    y = schema.align(given_sample(new, [values[name] for name in new]))

    for name, value in zip(old, y, strict=True):
        assert value == values[name] if name in values else np.isnan(value)


def warm_node(metrics, rng, steps=200):
    node = make_node("paper", metrics=tuple(metrics))
    common = rng.normal(size=steps)
    for t in range(steps):
        node.step(common[t] * np.arange(1.0, len(metrics) + 1) + 0.1 * rng.normal(size=len(metrics)))
    return node


def test_a_node_keeps_what_it_knew_of_the_metrics_that_stay(rng):
    node = warm_node("abcd", rng)
    moved = with_metrics(node, ("d", "x", "b", "c"))

    assert moved.metrics == ("d", "x", "b", "c")
    assert moved.timestep == node.timestep
    np.testing.assert_allclose(moved.scaling.mean[[0, 2, 3]], node.scaling.mean[[3, 1, 2]])
    np.testing.assert_allclose(
        moved.embedding.subspace.basis[[0, 2, 3], 0], node.embedding.subspace.basis[[3, 1, 2], 0]
    )


def test_a_node_goes_on_deciding_with_its_new_metrics(rng):
    moved = with_metrics(warm_node("abcdef", rng), ("a", "c", "x", "y", "f"))
    for _ in range(100):
        decision = moved.step(rng.normal(size=5))

    assert decision.timestep == 299
    basis = moved.embedding.subspace.basis
    np.testing.assert_allclose(basis.T @ basis, np.eye(basis.shape[1]), atol=1e-8)


def test_a_new_metric_has_no_past_in_the_statistics(rng):
    moved = with_metrics(warm_node("abc", rng), ("a", "new", "c"))
    before = moved.scaling.seen.copy()
    for _ in range(40):
        moved.step(np.array([0.0, 1000.0 + rng.normal(), 0.0]))

    assert before.tolist() == [192.0, 0.0, 192.0]
    # Of the first block only the vectors since the change count, 24 of 32.
    assert moved.scaling.seen.tolist() == [224.0, 24.0, 224.0]
    assert moved.scaling.mean[1] == pytest.approx(1000.0, abs=1.0)


def test_the_learned_node_survives_a_change_of_metrics_too(rng):
    names = tuple(f"m{i}" for i in range(26))
    node = make_node("default", metrics=names)
    for t in range(60):
        node.step(rng.normal(size=26), ready=float(t % 7), utilisation=50.0, time=float(t))
    moved = with_metrics(node, (*names[:20], "new"))
    labels = moved.signal.learner.record.figures().steps
    moved.step(rng.normal(size=21), ready=1.0)

    assert moved.timestep == 61
    assert labels == node.signal.learner.record.figures().steps > 0


def test_a_node_without_names_is_refused(rng):
    node = make_node("paper")
    node.step(rng.normal(size=3))
    with pytest.raises(StateError, match="must know the names of its metrics"):
        with_metrics(node, ("a",))
