"""What nodes tell each other: exact for least squares, near for the logistic head."""

from __future__ import annotations

import numpy as np
import pytest

from prontosched.decision import Evidence
from prontosched.errors import StateError
from prontosched.signals.arithmetic import Many, One
from prontosched.signals.heads import BATCH, Heads
from prontosched.signals.learned import LearnedSignal

from .runs import run
from .streams import average_precision, labels, lasting


def teach(head: Heads, inputs: np.ndarray, targets: np.ndarray) -> None:
    for x, target in zip(inputs, targets, strict=True):
        head.learn(x, [target - head.predict(x)[0]], [1.0], True)


def test_a_least_squares_head_equals_ridge_regression(rng):
    inputs, weights = rng.normal(size=(4 * BATCH, 3)), np.array([1.0, -2.0, 0.5])
    targets = inputs @ weights + 0.1 * rng.normal(size=4 * BATCH)
    head = Heads(One(), np.array([[0.3, 0.0, 0.0]]), ridge=2.0, forgetting=1.0)
    teach(head, inputs, targets)

    prior = np.array([0.3, 0.0, 0.0])
    expected = np.linalg.solve(inputs.T @ inputs + 2.0 * np.eye(3), inputs.T @ targets + 2.0 * prior)
    assert head.weights[0] == pytest.approx(expected, abs=1e-10)


def test_least_squares_statistics_add_up_exactly(rng):
    weights = np.array([1.0, -2.0, 0.5])
    streams = [rng.normal(size=(3 * BATCH, 3)) for _ in range(3)]
    prior = np.zeros((1, 3))
    parts = []
    for inputs in streams:
        head = Heads(One(), prior, forgetting=1.0)
        teach(head, inputs, inputs @ weights + 0.1 * rng.normal(size=len(inputs)) * 0.0)
        parts.append(head.share())
    together = Heads(One(), prior, forgetting=1.0)
    teach(together, np.vstack(streams), np.vstack(streams) @ weights)

    merged = Heads(One(), prior, forgetting=1.0)
    merged.start_from(sum(p[0] for p in parts), sum(p[1] for p in parts), 1.0)

    assert merged.weights == pytest.approx(together.weights, abs=1e-10)
    assert merged.inverse == pytest.approx(together.inverse, abs=1e-10)


def test_the_logistic_merge_is_near_one_head_over_all_labels(rng):
    """Each node's quadratic approximation sits around its own weights: near, not equal."""
    truth = np.array([1.2, -0.8, 0.4, 0.0])
    prior = np.zeros((1, 4))

    def learn(head, inputs, hits):
        for x, hit in zip(inputs, hits, strict=True):
            p = 1.0 / (1.0 + np.exp(-head.predict(x)[0]))
            head.learn(x, [hit - p], [max(p * (1.0 - p), 0.02)], True)

    parts, all_inputs, all_hits = [], [], []
    for _ in range(6):
        inputs = rng.normal(size=(40 * BATCH, 4))
        hits = (rng.random(len(inputs)) < 1.0 / (1.0 + np.exp(-inputs @ truth))).astype(float)
        head = Heads(One(), prior, forgetting=1.0)
        learn(head, inputs, hits)
        parts.append(head.share())
        all_inputs.append(inputs)
        all_hits.append(hits)
    together = Heads(One(), prior, forgetting=1.0)
    learn(together, np.vstack(all_inputs), np.concatenate(all_hits))

    merged = Heads(One(), prior, forgetting=1.0)
    merged.start_from(sum(p[0] for p in parts), sum(p[1] for p in parts), 1.0)

    probes = rng.normal(size=(200, 4))
    apart = np.abs(probes @ (merged.weights - together.weights)[0])
    assert 0.0 < apart.mean() < 0.1


def test_a_node_that_starts_from_a_fleet_beats_one_that_starts_from_nothing(rng):
    teachers = [LearnedSignal() for _ in range(4)]
    for teacher in teachers:
        run(teacher, lasting(rng, 3000, level=2.5))
    shared = {name: sum(t.share()[name] for t in teachers) for name in teachers[0].share()}
    ready = lasting(rng, 500, level=2.5)
    taught = LearnedSignal()
    taught.start_from(shared)

    assert taught.learner.trust() == 1.0
    label = labels(ready)[20:]
    gain = average_precision(run(taught, ready).score[20:], label)
    assert gain > average_precision(run(LearnedSignal(), ready).score[20:], label)


def test_a_node_shares_what_it_learned_itself_and_never_what_it_took_up(rng):
    teacher, pupil = LearnedSignal(), LearnedSignal()
    run(teacher, lasting(rng, 2500, level=2.5))
    run(pupil, lasting(rng, 400, level=2.5))
    own = pupil.share()

    pupil.start_from(teacher.share())

    for name, value in pupil.share().items():
        np.testing.assert_allclose(value, own[name], rtol=1e-7, atol=1e-7, err_msg=name)
    run(pupil, lasting(rng, 600, level=2.5), first=400)
    later = pupil.share()
    assert 900 < later["labels"][0] < 1000
    # What the constant input counts, faded: no more than its own labels.
    assert own["information"][1, 0, 0] + 450 < later["information"][1, 0, 0] < later["labels"][0]


def test_nodes_that_take_up_from_each_other_do_not_swell_what_they_share(rng):
    nodes = [LearnedSignal() for _ in range(3)]
    for node in nodes:
        run(node, lasting(rng, 400, level=2.5))

    def fleet():
        return {name: sum(node.share()[name] for node in nodes) for name in nodes[0].share()}

    before = fleet()
    for _ in range(5):
        for node in nodes:
            node.start_from(fleet())

    for name, value in fleet().items():
        np.testing.assert_allclose(value, before[name], rtol=1e-6, atol=1e-6, err_msg=name)


def test_labels_that_wait_keep_their_places_when_a_node_takes_up_what_others_know(rng):
    teacher, pupil = LearnedSignal(), LearnedSignal()
    run(teacher, lasting(rng, 1500, level=2.5))
    run(pupil, lasting(rng, 300, level=2.5))
    heads = pupil.learner.heads
    place = heads.labels % BATCH
    assert place > 0

    pupil.start_from(teacher.share())

    assert heads.labels % BATCH == place
    assert pupil.learner.trust() == 1.0


def test_what_was_taken_up_is_known_after_a_restart(rng):
    teacher, pupil, twin = LearnedSignal(), LearnedSignal(), LearnedSignal()
    run(teacher, lasting(rng, 1500, level=2.5))
    run(pupil, lasting(rng, 300, level=2.5))
    pupil.start_from(teacher.share())
    twin.restore(pupil.state())

    for name, value in twin.share().items():
        assert np.array_equal(value, pupil.share()[name]), name


def test_a_node_from_before_takes_up_and_shares_as_one_that_borrowed_nothing(rng):
    signal, twin = LearnedSignal(), LearnedSignal()
    run(signal, lasting(rng, 300, level=2.5))
    state = {name: value for name, value in signal.state().items() if "borrowed" not in name}
    state = {name: value for name, value in state.items() if "credit" not in name}
    twin.restore(state)

    for name, value in twin.share().items():
        assert np.array_equal(value, signal.share()[name]), name


def test_shared_information_with_a_negative_direction_is_refused():
    shared = LearnedSignal().share()
    shared["information"][0] -= 100.0 * np.eye(37)
    signal = LearnedSignal()

    with pytest.raises(StateError, match="must be a sum of squares"):
        signal.start_from(shared)

    assert not signal.learner.heads.fleet_prior.any()


def test_shared_statistics_of_another_shape_are_refused():
    shared = LearnedSignal().share()
    shared["information"] = shared["information"][:, :5, :5]

    with pytest.raises(StateError, match="2 heads and 37 inputs"):
        LearnedSignal().start_from(shared)


def test_shared_statistics_that_are_not_finite_are_refused():
    shared = LearnedSignal().share()
    shared["weighted"][0, 0] = np.nan

    with pytest.raises(StateError, match="must be finite"):
        LearnedSignal().start_from(shared)


def test_nothing_shared_is_the_persistence_start():
    signal, fresh = LearnedSignal(), LearnedSignal()

    signal.start_from(fresh.share())

    assert signal.decide(Evidence(0, ready=4.0)).score == pytest.approx(
        fresh.decide(Evidence(0, ready=4.0)).score
    )


def test_heads_of_many_nodes_learn_only_where_told(rng):
    many = Heads(Many(3), np.zeros((1, 2)))
    for _ in range(BATCH):
        x = rng.normal(size=(3, 2))
        many.learn(x, [np.ones(3)], [np.ones(3)], np.array([True, False, True]))

    assert many.labels.tolist() == [BATCH, 0, BATCH]
    assert not many.weights[1].any()
    assert many.weights[0].any()
