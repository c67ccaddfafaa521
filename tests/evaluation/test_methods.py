"""Methods: every one sees the past only, and new signals appear by themselves."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from prontosched.errors import SettingsError
from prontosched.evaluation import methods as registry
from prontosched.evaluation.inputs import Setting
from prontosched.evaluation.methods import MethodContext, choose
from prontosched.evaluation.replay import make_runners
from prontosched.evaluation.scorers import AlignedRows, Coin
from prontosched.signals import SIGNALS, RejectJob, RejectJobFleet, SignalKind
from prontosched.telemetry.scaling import Scaling

NODES = ("a", "b", "c")
STEPS, FEATURES = 560, 6


def series(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    vectors = rng.normal(size=(STEPS, len(NODES), FEATURES)).cumsum(axis=0)
    return vectors, rng.gamma(1.0, 2.0, size=(STEPS, len(NODES)))


def play(name: str, vectors: np.ndarray, ready: np.ndarray) -> np.ndarray:
    setting = Setting(methods=(name,), truth="5")
    chunk = MethodContext(NODES, FEATURES, 20.0, "5", setting)
    (runner,) = make_runners(choose((name,)), chunk)
    scaled = np.stack([Scaling().scale_many(vectors[:, node]) for node in range(len(NODES))], axis=1)
    scores = []
    for start in range(0, STEPS, 140):
        block = slice(start, start + 140)
        step = np.repeat(np.arange(start, start + 140)[:, None], len(NODES), axis=1)
        rows = AlignedRows(
            ready=ready[block], utilisation=ready[block] * 10, time=20.0 * step, present=np.ones(step.shape, bool),
            timestep=step, threshold=np.full(step.shape, 5.0), scaled=scaled[block],
        )  # fmt: skip
        (said,) = runner.run(rows)
        scores.append(np.where(np.isfinite(said.score), said.score, -1e9))
    return np.concatenate(scores)


@pytest.mark.parametrize("name", sorted(registry.methods()))
def test_a_score_does_not_depend_on_what_comes_after(name: str, rng: np.random.Generator) -> None:
    vectors, ready = series(rng)
    other_vectors, other_ready = vectors.copy(), ready.copy()
    other_vectors[300:] += 5.0
    other_ready[300:] += 50.0

    before = play(name, vectors, ready)[:300]

    assert np.array_equal(before, play(name, other_vectors, other_ready)[:300])


@pytest.mark.parametrize("name", ["ready", "ewma", "zscore", "utilisation"])
def test_plain_rules_score_high_values_higher(name: str) -> None:
    ready = np.ones((STEPS, 3)) + 0.01 * np.arange(STEPS)[:, None] % 0.05
    ready[500] = 30.0

    scores = play(name, np.zeros((STEPS, 3, FEATURES)), ready)

    assert (scores[500] > scores[400:500].max(axis=0)).all()


def test_boosting_learns_what_follows(rng: np.random.Generator) -> None:
    ready = np.ones((STEPS, 3))
    ready[7::20] = 3.0  # announces
    ready[10::20] = 9.0  # the spike, three steps later

    scores = play("boosting", np.zeros((STEPS, 3, FEATURES)), ready + 0.01 * rng.random(ready.shape))

    late = np.arange(STEPS) >= 505
    announced = late & (np.arange(STEPS) % 20 == 7)
    calm = late & (np.arange(STEPS) % 20 == 14)
    assert scores[announced].min() > scores[calm].max()


@pytest.fixture
def newcomer() -> Iterator[str]:
    SIGNALS["newcomer"] = SignalKind(RejectJob, RejectJobFleet)
    yield "newcomer"
    del SIGNALS["newcomer"]


def test_a_registered_signal_appears_by_itself(newcomer: str, rng: np.random.Generator) -> None:
    assert newcomer in registry.default_methods()
    assert np.array_equal(play(newcomer, *series(rng)).shape, (STEPS, 3))


def test_an_unknown_method_is_named_with_those_there_are() -> None:
    with pytest.raises(SettingsError, match=r"method must be one of .*paper.*, got 'magic'"):
        choose(("magic",))


def test_random_numbers_of_a_node_do_not_depend_on_its_neighbours(rng: np.random.Generator) -> None:
    def draws(nodes: tuple[str, ...]) -> list[float]:
        coin = Coin(nodes, 0.1, 7)
        rows = type("R", (), {"ready": np.zeros((5, len(nodes)))})()
        return coin.score(rows).score[:, nodes.index("b")].tolist()

    assert draws(("a", "b", "c")) == draws(("b",))


def test_a_budget_outside_the_measured_curve_is_refused() -> None:
    with pytest.raises(SettingsError, match="budget must be from 2% to 30%"):
        Setting(methods=("ready",), budget=0.5)
