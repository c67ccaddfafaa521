"""A node: from a vector to a decision, and back from bytes."""

from __future__ import annotations

import copy
import gc
import json
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prontosched.errors import SettingsError, StateError
from prontosched.pipeline import EMBEDDINGS, FPCAEdge
from prontosched.pipeline.node import Node
from prontosched.pipeline.presets import make_node
from prontosched.signals import RejectJob
from prontosched.subspace import Subspace, distance, summarise
from prontosched.telemetry.synthetic import SyntheticFleet

GOLDEN = Path(__file__).parent.parent / "golden"


def stream(
    steps: int, seed: int = 0, features: int = 24, **options: Any
) -> list[tuple[np.ndarray, float, float]]:
    fleet = SyntheticFleet(1, features, seed=seed, **options)
    steps_seen = (fleet.step() for _ in range(steps))
    return [(s.vectors[0], float(s.ready[0]), float(s.utilisation[0])) for s in steps_seen]


def test_a_surge_raises_the_paper_signal_and_a_quiet_stream_does_not(rng: np.random.Generator) -> None:
    node = make_node("paper", absolute=True)
    factors = rng.standard_normal(20)
    quiet = [node.step(factors * rng.standard_normal() + 0.1 * rng.standard_normal(20)) for _ in range(300)]
    surge = node.step(factors * 40.0)

    assert surge.raised
    assert "direction" in surge.reason
    assert sum(d.raised for d in quiet) < 0.1 * len(quiet)


def test_no_vector_has_a_say_in_its_own_verdict() -> None:
    """The subspace a vector is projected on must not have seen that vector."""
    node = make_node("paper")
    vectors = stream(60)
    for t, (y, _, _) in enumerate(vectors):
        before = node.embedding.subspace
        node.step(y)
        assert node.evidence is not None
        assert (node.evidence.subspace is None) == (before is None)
        if t and before is not None:
            assert node.evidence.timestep == t


def test_a_flat_stream_never_raises_the_signal() -> None:
    node = make_node("paper", absolute=True)

    assert not any(node.step(np.full(10, 3.3)).raised for _ in range(500))


def test_warming_up_accepts_and_says_so() -> None:
    decision = make_node("paper").step(np.ones(5))

    assert decision.accept
    assert "warming up" in decision.reason


def test_the_paper_preset_has_the_papers_settings() -> None:
    node = make_node("paper")
    assert isinstance(node.embedding, FPCAEdge)
    assert isinstance(node.signal, RejectJob)

    assert (node.embedding.rank, node.embedding.block_size, node.embedding.forgetting) == (4, 10, 1.0)
    assert (node.detector.lag, node.detector.threshold, node.detector.influence) == (10, 3.5, 0.5)
    assert (node.signal.threshold, node.signal.absolute, node.signal.weights) == (1.0, False, "normalised")


def test_the_baselines_have_the_settings_that_the_paper_page_says() -> None:
    made = {name: make_node("paper", embedding=name) for name in sorted(EMBEDDINGS)}
    for node in made.values():
        for y in np.random.default_rng(0).standard_normal((40, 12)):
            node.step(y)

    assert {node.embedding.settings()["rank"] for node in made.values()} == {4}
    assert made["spirit"].embedding.settings()["forgetting"] == 0.96
    assert made["frequent-directions"].embedding.state()["rows"].shape == (8, 12)
    # 40 vectors in blocks of 12, as many as there are metrics, leave 4.
    assert made["power-method"].embedding.state()["held"] == 4
    assert {name: node.signal.settings()["weights"] for name, node in made.items()} == {
        "fpca": "normalised",
        "spirit": "normalised",
        "frequent-directions": "harmonic",
        "power-method": "harmonic",
    }


@pytest.mark.parametrize("embedding", sorted(EMBEDDINGS))
def test_a_node_of_one_metric_restored_after_every_vector_goes_on_bit_for_bit(embedding: str) -> None:
    rng = np.random.default_rng(3)
    node, twin = (make_node("paper", embedding=embedding, weights="raw") for _ in range(2))
    for t in range(200):
        # A counter that resets: the one direction stays, its strength and the range of its values do not.
        y = np.array([10.0 * (t % 40) + rng.standard_normal()])
        assert twin.step(y) == node.step(y), t
        twin = Node.from_bytes(twin.to_bytes())


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda node: pickle.loads(pickle.dumps(node))])
@pytest.mark.parametrize("embedding", sorted(EMBEDDINGS))
@pytest.mark.parametrize("preset", ["paper", "default"])
def test_a_copied_or_pickled_node_goes_on_bit_for_bit(embedding: str, preset: str, copied: Any) -> None:
    vectors = stream(120, features=16)
    node = make_node(preset, embedding=embedding)
    for y, ready, _ in vectors[:75]:
        node.step(y, ready=ready)

    twin = copied(node)

    for y, ready, _ in vectors[75:]:
        node.step(y, ready=ready)
        twin.step(y, ready=ready)
    assert twin.to_bytes() == node.to_bytes()


@pytest.mark.parametrize("embedding", sorted(EMBEDDINGS))
@pytest.mark.parametrize("preset", ["paper", "default"])
def test_a_node_restored_in_mid_stream_goes_on_bit_for_bit(embedding: str, preset: str) -> None:
    vectors = stream(140, features=16)
    node = make_node(preset, embedding=embedding)
    for t, (y, ready, busy) in enumerate(vectors):
        restored = Node.from_bytes(node.to_bytes()) if t in (0, 1, 9, 10, 11, 37, 90) else None
        if restored is not None:
            twin = restored
        elif t == 0:
            continue
        expected = node.step(y, ready=ready, utilisation=busy, time=float(t))
        found = twin.step(y, ready=ready, utilisation=busy, time=float(t))
        assert repr(found) == repr(expected), t


def test_a_time_in_milliseconds_is_told_and_counts_as_unknown() -> None:
    node = make_node()
    with pytest.warns(
        UserWarning, match="must be in seconds, got 1700000000000, .*: divide milliseconds by 1000"
    ):
        node.step(np.ones(3), ready=1.0, time=1.7e12)

    assert node.evidence is not None
    assert np.isnan(node.evidence.time)


@pytest.mark.filterwarnings("ignore:time must be in seconds")
@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12))
def test_no_input_crashes_a_node_or_poisons_it_for_longer_than_it_lasts(seed: int, features: int) -> None:
    rng = np.random.default_rng(seed)
    node = make_node("paper", absolute=True)
    odd = np.array([np.nan, np.inf, -np.inf, 1e308, -1e308, 0.0, 1e-308, 1e17])
    for t in range(260):
        y = rng.standard_normal(features)
        if 100 <= t < 130:
            y = rng.choice(odd, features)
        decision = node.step(y, ready=rng.choice(odd), utilisation=rng.choice(odd), time=rng.choice(odd))
        assert np.isfinite(decision.score)
    subspace = node.embedding.subspace

    assert subspace is not None
    assert np.isfinite(subspace.basis).all()
    assert np.abs(subspace.basis.T @ subspace.basis - np.eye(subspace.rank)).max() < 1e-7
    assert node.step(np.full(features, 50.0)).score != 0.0


def test_state_is_bounded_and_does_not_grow() -> None:
    node = make_node("paper")
    sizes = []
    for t, (y, _, _) in enumerate(stream(1200, features=20)):
        node.step(y)
        if t > 100 and node.timestep % 320 == 0:
            sizes.append(len(node.to_bytes()))

    assert max(sizes) - min(sizes) < 200


@pytest.mark.parametrize("cut", [0, 3, 50, -1])
def test_truncated_state_is_refused(cut: int) -> None:
    data = make_node("paper").to_bytes()

    with pytest.raises(StateError, match=r"must|does not match"):
        Node.from_bytes(data[:cut])


def test_state_without_what_a_node_needs_is_refused() -> None:
    from prontosched.codec import encode

    with pytest.raises(StateError, match="node state must hold everything a node needs"):
        Node.from_bytes(encode("node", 1, {"embedding": "fpca"}))


def test_an_adopted_view_serves_from_the_first_vector_and_fades() -> None:
    vectors = stream(3000, features=20)
    teacher = make_node("paper")
    for y, _, _ in vectors[:1000]:
        teacher.step(y)
    view = teacher.embedding.subspace
    assert view is not None
    node = make_node("paper")
    node.adopt(view, samples=teacher.embedding.samples)
    node.step(vectors[0][0])
    assert node.evidence is not None

    assert node.evidence.subspace is not None
    for y, _, _ in vectors[1:]:
        node.step(y)
    assert distance(node.view, node.embedding.subspace) == 0.0


def test_an_adopted_view_never_enters_what_the_node_propagates(rng: np.random.Generator) -> None:
    vectors = stream(100, features=20)
    alone, adopting = make_node("paper"), make_node("paper")
    foreign = summarise(rng.standard_normal((20, 50)), rank=4)
    assert foreign is not None
    adopting.adopt(foreign, samples=50)
    for y, _, _ in vectors:
        alone.step(y)
        adopting.step(y)
    own = adopting.embedding.subspace
    assert own is not None
    assert alone.embedding.subspace is not None

    np.testing.assert_array_equal(own.basis, alone.embedding.subspace.basis)


@pytest.mark.parametrize("scaling", [True, False])
@pytest.mark.parametrize("wrong", [np.ones(4), np.ones(1), np.ones((3, 1)), np.float64(1.0)])
def test_a_vector_of_another_length_is_refused_and_changes_nothing(wrong: np.ndarray, scaling: bool) -> None:
    node = make_node("paper", scaling=scaling)
    node.step(np.ones(3))
    before = node.to_bytes()
    for one in (node, Node.from_bytes(before)):
        with pytest.raises(ValueError, match="a vector must have 3 numbers, one per metric, got shape"):
            one.step(wrong)
        assert one.to_bytes() == before


def test_a_vector_may_be_a_list_or_whole_numbers() -> None:
    node, other = make_node("paper", scaling=False), make_node("paper", scaling=False)
    for t in range(30):
        given = [t % 7, (3 * t) % 5, t % 2]
        plain = node.step(np.array(given, dtype=np.float64))
        assert plain == other.step(given if t % 2 else np.array(given))  # type: ignore[arg-type]


def test_a_view_over_other_metrics_is_refused() -> None:
    node = make_node("paper")
    node.step(np.ones(8))

    with pytest.raises(ValueError, match="must have 8 metrics as this node has, got 5"):
        node.adopt(Subspace(np.eye(5)[:, :1], np.ones(1)), samples=10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preset": "papr"}, "preset must be one of paper, default, got 'papr'"),
        ({"embedding": "pca"}, "no embedding is called 'pca'"),
        ({"signal": "psychic"}, "no signal is called 'psychic'"),
    ],
)
def test_an_unknown_name_is_refused_with_those_known(options: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        make_node(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("embedding", sorted(EMBEDDINGS))
def test_the_influence_of_spikes_acts_on_every_embedding(embedding: str) -> None:
    vectors = stream(900, seed=5, features=32, announced=6, burst_every=60.0)
    raised = {}
    for influence in (0.0, 0.5, 1.0):
        node = make_node("paper", embedding=embedding, influence=influence)
        raised[influence] = [node.step(y).raised for y, _, _ in vectors]

    assert raised[0.0] != raised[0.5] != raised[1.0] != raised[0.0]


@pytest.mark.parametrize("embedding", ["spirit", "frequent-directions"])
def test_spikes_stay_dampened_across_a_restart(embedding: str) -> None:
    vectors = stream(300, seed=5, features=32, announced=6, burst_every=60.0)
    node = make_node("paper", embedding=embedding)
    for y, _, _ in vectors[:150]:
        spikes = node.step(y).raised
        if spikes and node.timestep > 60:
            break
    assert spikes
    again = Node.from_bytes(node.to_bytes())

    for y, _, _ in vectors[node.timestep :]:
        assert again.step(y) == node.step(y)


@pytest.mark.parametrize(("rank", "block_size", "lag"), [(4, 10, 10), (8, 20, 20)])
def test_a_node_takes_the_memory_that_it_says(rank: int, block_size: int, lag: int) -> None:
    held = []
    for features in (1000, 2000):
        vectors = np.random.default_rng(0).standard_normal((7 * block_size + 7, features))
        gc.collect()
        tracemalloc.start()
        node = make_node("paper", embedding_options={"rank": rank, "block_size": block_size}, lag=lag)
        for y in vectors:
            node.step(y)
        gc.collect()
        held.append(tracemalloc.get_traced_memory()[0] / 8)
        tracemalloc.stop()
        del node

    assert (held[1] - held[0]) / 1000 == pytest.approx(4 * rank + block_size + lag + 41, rel=0.1)


@pytest.mark.parametrize("name", sorted(path.stem for path in GOLDEN.glob("*.json")))
def test_golden_traces_give_their_exact_decisions(name: str) -> None:
    golden = json.loads((GOLDEN / f"{name}.json").read_text())
    node = make_node(**golden["node"])
    raised = [
        t
        for t, (y, ready, busy) in enumerate(stream(**golden["stream"]))
        if node.step(y, ready=ready, utilisation=busy, time=float(t)).raised
    ]

    assert raised == golden["raised"]


def test_a_node_with_an_adopted_view_restored_after_every_vector_goes_on_bit_for_bit() -> None:
    rng = np.random.default_rng(4)
    direction, adopted = rng.standard_normal(20), summarise(rng.standard_normal((20, 50)), rank=4)
    assert adopted is not None
    node, twin = make_node("paper"), make_node("paper")
    for one in (node, twin):
        one.adopt(adopted, samples=50)
    for _ in range(70):
        y = rng.standard_normal() * direction
        node.step(y)
        twin.step(y)
        twin = Node.from_bytes(twin.to_bytes())
        assert twin.to_bytes() == node.to_bytes()


@pytest.mark.parametrize("nothing", [[], {}, np.zeros(0)])
def test_a_vector_without_metrics_is_refused_in_words(nothing: Any) -> None:
    with pytest.raises(ValueError, match="at least one number, one per metric, got shape"):
        make_node().step(nothing)


def test_settings_that_cannot_be_are_refused_when_a_node_is_made() -> None:
    with pytest.raises(ValueError, match="lag must be at least 1 vector, got 0"):
        make_node(lag=0)
    with pytest.raises(ValueError, match=r"rank must be at least 1, got 1.5: give a whole number"):
        make_node(embedding_options={"rank": 1.5})
