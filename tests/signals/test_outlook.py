"""Chances of contention within further horizons."""

from __future__ import annotations

import numpy as np
import pytest

from prontosched.decision import Evidence
from prontosched.signals.arithmetic import One
from prontosched.signals.heads import HORIZONS, Heads
from prontosched.signals.learned import LearnedSignal

from .streams import lasting


def outlooks(signal: LearnedSignal, ready: np.ndarray, *, interval: float = 1.0) -> np.ndarray:
    found = []
    for t, value in enumerate(ready.tolist()):
        signal.decide(Evidence(t, ready=value, time=1.7e9 + interval * t))
        found.append(signal.outlook())
    return np.array([[chance for _, chance in pairs] for pairs in found])


@pytest.mark.parametrize("horizon", [5, 12])
def test_every_horizon_is_offered_and_longer_ones_are_never_less_likely(rng, horizon):
    signal = LearnedSignal(horizon=horizon)

    chances = outlooks(signal, lasting(rng, 1500))

    steps = [ahead for ahead, _ in signal.outlook()]
    assert steps == sorted({*HORIZONS, horizon})
    assert np.all(np.diff(chances, axis=1) >= 0.0)


def test_chances_within_thirty_steps_come_true(rng):
    ready = lasting(rng, 9000, level=1.0)

    chances = outlooks(LearnedSignal(), ready)[:, 1]

    windows = np.lib.stride_tricks.sliding_window_view(ready[1:], 30)
    happened = (windows >= 5.0).any(axis=1)[3000:]
    said = chances[3000 : 3000 + happened.size]
    assert said.mean() == pytest.approx(happened.mean(), abs=0.05)
    assert said[happened].mean() > said[~happened].mean() + 0.1


def test_contention_that_always_ends_soon_is_likely_to_return_later():
    ready = np.where(np.arange(6000) % 100 < 10, 20.0, 0.5)

    chances = outlooks(LearnedSignal(), ready)

    calm = np.arange(6000) % 100 == 30
    calm[:3000] = False
    assert chances[calm, 0].max() < 0.2
    assert chances[calm, 2].min() > 0.8


def test_a_node_without_cpu_ready_has_no_outlook():
    signal = LearnedSignal()

    before = signal.outlook()
    for t in range(20):
        signal.decide(Evidence(t))

    assert before == signal.outlook() == ()


def test_a_restored_outlook_goes_on_bit_for_bit(rng):
    ready = lasting(rng, 1400)
    signal = LearnedSignal()
    outlooks(signal, ready[:900])
    twin = LearnedSignal()
    twin.restore(signal.state())

    assert np.array_equal(outlooks(signal, ready[900:]), outlooks(twin, ready[900:]))


@pytest.mark.parametrize(("batch", "size"), [(4, 21), (32, 14)])
def test_a_batch_of_labels_adds_its_information_to_what_is_left_of_the_past(rng, batch, size):
    heads = Heads(One(), np.zeros((1, size)), batch=batch)
    X, errors, curvatures = (
        rng.normal(size=(batch, size)),
        rng.normal(size=batch),
        rng.uniform(0.02, 1.0, batch),
    )

    for x, error, curvature in zip(X, errors.tolist(), curvatures.tolist(), strict=True):
        heads.learn(x, [error], [curvature], True)

    information = heads.fade * heads.ridge * np.eye(size) + (X.T * curvatures) @ X
    np.testing.assert_allclose(heads.inverse[0], np.linalg.inv(information), rtol=0, atol=1e-12)
    np.testing.assert_allclose(
        heads.weights[0], np.linalg.solve(information, X.T @ errors), rtol=0, atol=1e-12
    )
