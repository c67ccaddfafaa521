"""A fleet decides as separate nodes do."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prontosched.decision import FleetDecision, FleetEvidence
from prontosched.pipeline import FPCAEdge
from prontosched.pipeline import node as adoption
from prontosched.pipeline.fleet import CHUNK, Fleet
from prontosched.pipeline.node import Node
from prontosched.pipeline.presets import make_fleet, make_node
from prontosched.signals import RejectJob, RejectJobFleet
from prontosched.subspace import Subspace, distance
from prontosched.telemetry.scaling import Scaling

NODES, FEATURES = 5, 12


def vectors(rng: np.random.Generator, steps: int, features: int = FEATURES) -> np.ndarray:
    """Streams with NaN, infinite and constant metrics, surges, and nodes that go idle."""
    factors = rng.standard_normal((NODES, features, 3))
    Y = np.einsum("mdr,tmr->tmd", factors, rng.standard_normal((steps, NODES, 3)))
    Y += 0.3 * rng.standard_normal(Y.shape)
    Y[rng.random((steps, NODES)) < 0.03] *= 8.0
    Y[rng.random(Y.shape) < 0.02] = np.nan
    Y[rng.random((steps, NODES)) < 0.01] = np.nan
    Y[rng.random(Y.shape) < 0.002] = rng.choice([np.inf, -np.inf, 1e308])
    Y[:, 0, :4] = 7.0
    Y[steps // 2 :, 3, :] = 5.0
    return Y


def presence(rng: np.random.Generator, steps: int) -> np.ndarray:
    """A late joiner, a leaver, and a stretch in which nodes come and go."""
    present = np.ones((steps, NODES), bool)
    present[: steps // 8, 4] = False
    present[3 * steps // 4 :, 2] = False
    middle = slice(steps // 3, steps // 2)
    present[middle] &= rng.random((steps // 2 - steps // 3, NODES)) < 0.7
    return present


def some_view(rng: np.random.Generator, features: int, rank: int) -> Subspace:
    """What a fleet might know: `rank` directions, stronger and weaker ones."""
    basis = np.linalg.qr(rng.standard_normal((features, rank)))[0]
    return Subspace(basis, np.sort(rng.lognormal(1.0, 1.0, rank))[::-1])


def compare(
    options: dict[str, Any],
    seed: int,
    steps: int = 240,
    features: int = FEATURES,
    views: tuple[int, ...] | None = None,
) -> int:
    """Step a fleet and separate nodes; with `views` they adopt some, of these ranks, now and then."""
    rng = np.random.default_rng(seed)
    Y, present = vectors(rng, steps, features), presence(rng, steps)
    fleet = make_fleet(nodes=NODES, features=features, **options)
    nodes = [make_node(**options) for _ in range(NODES)]
    # Some before the first vector, the late joiner among them.
    adopting = np.zeros((steps, NODES), bool)
    if views is not None:
        adopting = rng.random((steps, NODES)) < 0.02
        adopting[0, [1, 4]] = True
        adopting[3, 2] = True
    block = options.get("embedding_options", {}).get("block_size", 10)
    raised = 0
    for t in range(steps):
        for i in np.flatnonzero(adopting[t]):
            if nodes[i].timestep > block and nodes[i].timestep % block == 0:
                # Then the signs of directions may differ.
                continue
            view, samples = some_view(rng, features, int(rng.choice(views))), float(rng.lognormal(0.0, 2.0))
            nodes[i].adopt(view, samples=samples)
            fleet.adopt(int(i), view, samples=samples)
        together = fleet.step(Y[t], present=present[t])
        for i in np.flatnonzero(present[t]):
            apart = nodes[i].step(Y[t, i])
            assert together.score[i] == pytest.approx(apart.score, abs=1e-9)
            if abs(apart.score - apart.threshold) > 1e-9:
                assert bool(together.raised[i]) == apart.raised, (t, i)
                assert fleet.reason(i) == apart.reason
            raised += apart.raised
    return raised


@settings(max_examples=12, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(
        [
            {},
            {"forgetting": 0.95},
            {"energy_bounds": (0.01, 0.1)},
            {"energy_bounds": (0.08, 0.2), "rank": 2, "holdoff": 3},
            {"block_size": 5, "rank": 3},
            {"spare": 2},
        ]
    ),
    # Fewer metrics than the past and a block have rows, and more.
    st.sampled_from([FEATURES, 30]),
    st.sampled_from([6, 10, 25]),
    st.booleans(),
    st.sampled_from([0, 4]),
)
def test_a_fleet_scores_and_decides_as_separate_nodes_do(
    seed: int, embedding: dict[str, Any], features: int, lag: int, scaling: bool, hold: int
) -> None:
    options = {
        "preset": "paper",
        "absolute": True,
        "embedding_options": embedding,
        "lag": lag,
        "scaling": scaling,
        "hold": hold,
    }

    compare(options, seed, features=features)


@settings(max_examples=16, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(
        [
            {},
            {"forgetting": 0.95},
            {"energy_bounds": (0.01, 0.1)},
            {"energy_bounds": (0.08, 0.2), "rank": 2, "holdoff": 3, "max_rank": 8},
            {"block_size": 5, "rank": 3},
            {"spare": 0},
            {"spare": 2},
        ]
    ),
    st.sampled_from([FEATURES, 30]),
    st.sampled_from([6, 10, 25]),
    st.booleans(),
    st.booleans(),
    # From a view that is let go soon, while some nodes adopt their next, to one that never is.
    st.sampled_from([10.0, 40.0, 500.0]),
)
def test_nodes_of_a_fleet_adopt_views_as_separate_nodes_do(
    seed: int,
    embedding: dict[str, Any],
    features: int,
    lag: int,
    scaling: bool,
    absolute: bool,
    half_life: float,
) -> None:
    options = {
        "preset": "paper",
        "absolute": absolute,
        "embedding_options": embedding,
        "lag": lag,
        "scaling": scaling,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adoption, "ADOPTED_HALF_LIFE", half_life)

        compare(options, seed, features=features, views=(1, 2, 3))


def test_evidence_of_a_node_with_a_view_is_that_of_a_separate_node(rng: np.random.Generator) -> None:
    seen: list[FleetEvidence] = []

    class Watched(RejectJobFleet):
        def decide(self, evidence: FleetEvidence) -> FleetDecision:
            seen.append(evidence)
            return super().decide(evidence)

    fleet = Fleet(2, FEATURES, Watched(2), rank=3, spare=1, block_size=10, scaling=Scaling())
    node = Node(FPCAEdge(rank=3, spare=1, block_size=10), RejectJob(), scaling=Scaling())
    view = some_view(rng, FEATURES, 3)
    for target in (node.adopt, partial(fleet.adopt, 1)):
        target(view, samples=0.5)
    for _ in range(35):
        Y = rng.standard_normal((2, FEATURES))
        fleet.step(Y)
        node.step(Y[1])
        together, apart = seen[-1], node.evidence
        assert together.embedded[1]
        assert together.samples[1] == apart.samples
        np.testing.assert_allclose(together.projections[1], apart.projections, atol=1e-9)
        np.testing.assert_allclose(together.singular_values[1], apart.subspace.singular_values, atol=1e-9)
        np.testing.assert_allclose(together.basis[1], apart.subspace.basis, atol=1e-9)
    assert node.view is not node.embedding.subspace


@pytest.mark.parametrize("scaling", [True, False])
def test_the_last_evidence_of_a_node_is_that_of_a_separate_one(
    rng: np.random.Generator, scaling: bool
) -> None:
    Y = rng.standard_normal((37, 2, FEATURES)).cumsum(axis=0)
    Y[36, 0] *= 20.0
    fleet = make_fleet("paper", nodes=2, features=FEATURES, scaling=scaling)
    node = make_node("paper", scaling=scaling)
    assert isinstance(fleet, Fleet)
    assert fleet.evidence(0).spikes is None
    for t in range(37):
        fleet.step(Y[t])
        node.step(Y[t, 0])
    found, expected = fleet.evidence(0), node.evidence

    assert expected is not None
    assert (found.timestep, found.samples) == (expected.timestep, expected.samples)
    assert found.spikes == expected.spikes
    assert found.spikes is not None
    assert any(found.spikes)
    np.testing.assert_allclose(found.projections, expected.projections, rtol=1e-9)
    assert found.t_squared == pytest.approx(expected.t_squared)
    assert found.spe == pytest.approx(expected.spe, rel=1e-6)


def test_a_view_is_let_go_and_takes_its_memory_with_it(rng: np.random.Generator) -> None:
    fleet, plain = (make_fleet("paper", nodes=3, features=8) for _ in range(2))
    fleet.adopt(1, some_view(rng, 8, 4), samples=0.1)
    last = int(np.ceil(adoption.ADOPTED_HALF_LIFE * np.log2(adoption.ADOPTED_SAMPLES) / 10)) * 10
    scale = rng.lognormal(0.0, 1.0, 8)
    for step in range(last + 1):
        assert (fleet._views is None) == (step > last)
        Y = scale * rng.standard_normal((3, 8))
        fleet.step(Y)
        plain.step(Y)

    assert fleet._views is None
    for node in range(3):
        own, view, other = fleet.kept(node), fleet.view(node), plain.kept(node)
        np.testing.assert_array_equal(np.abs(own.basis), np.abs(other.basis))
        np.testing.assert_array_equal(own.singular_values, other.singular_values)
        np.testing.assert_array_equal(view.basis, fleet.subspace(node).basis)


def test_adopting_leaves_what_a_node_learned_itself_untouched(rng: np.random.Generator) -> None:
    fleet, plain = (make_fleet("paper", nodes=3, features=8) for _ in range(2))
    for step in range(45):
        if step % 20 == 3:
            fleet.adopt(1, some_view(rng, 8, 4), samples=0.1)
        Y = rng.standard_normal((3, 8))
        together, apart = fleet.step(Y), plain.step(Y)
        np.testing.assert_array_equal(together.score[[0, 2]], apart.score[[0, 2]])

    np.testing.assert_array_equal(fleet.kept(1).basis, plain.kept(1).basis)
    np.testing.assert_array_equal(fleet.kept(1).singular_values, plain.kept(1).singular_values)
    assert distance(fleet.view(1), fleet.subspace(1)) > 0.1
    np.testing.assert_array_equal(fleet.view(0).basis, fleet.subspace(0).basis)


def test_a_view_with_more_directions_than_nodes_have_is_adopted_by_its_leading_ones(
    rng: np.random.Generator,
) -> None:
    options = {"preset": "paper", "embedding_options": {"rank": 2}}
    fleet, node = make_fleet(nodes=2, features=8, **options), make_node(**options)
    view = some_view(rng, 8, 5)
    fleet.adopt(0, view, samples=0.1)
    node.adopt(view, samples=0.1)
    Y = rng.standard_normal((40, 2, 8))
    fleet.step(Y[0])
    node.step(Y[0, 0])
    assert distance(fleet.view(0), view.cut(2)) == pytest.approx(0.0, abs=1e-9)
    for row in Y[1:]:
        fleet.step(row)
        node.step(row[0])

    np.testing.assert_allclose(np.abs(fleet.view(0).basis), np.abs(node.evidence.subspace.basis), atol=1e-9)


@pytest.mark.parametrize(
    ("node", "features", "samples", "message"),
    [
        (0, 8, 0.0, "samples must be positive, got 0.0"),
        (0, 5, 1.0, "must have 8 metrics as this fleet has, got 5: align it"),
        (3, 8, 1.0, "node must be from 0 to 2, got 3"),
        (-1, 8, 1.0, "node must be from 0 to 2, got -1"),
    ],
)
def test_a_view_that_cannot_be_adopted_is_refused(
    rng: np.random.Generator, node: int, features: int, samples: float, message: str
) -> None:
    fleet = make_fleet("paper", nodes=3, features=8)

    with pytest.raises(ValueError, match=message):
        fleet.adopt(node, some_view(rng, features, 2), samples=samples)
    fleet.step(rng.standard_normal((3, 8)))


def test_the_comparison_meets_refusals(rng: np.random.Generator) -> None:
    assert compare({"preset": "paper", "absolute": True}, seed=int(rng.integers(1000))) > 10


@pytest.mark.parametrize("embedding", ["spirit", "frequent-directions", "power-method"])
def test_other_embeddings_step_as_separate_nodes(embedding: str) -> None:
    compare({"preset": "paper", "embedding": embedding}, seed=3, steps=60)
    compare({"preset": "paper", "embedding": embedding}, seed=3, steps=60, views=(2,))


@pytest.mark.parametrize("features", [8, 30])
def test_one_bad_node_never_disturbs_another(rng: np.random.Generator, features: int) -> None:
    count = CHUNK + 3
    good, bad = (make_fleet("paper", nodes=count, features=features, absolute=True) for _ in range(2))
    for _ in range(60):
        Y = rng.standard_normal((count, features))
        spoiled = Y.copy()
        spoiled[1] = np.nan
        spoiled[2] = 1e308
        spoiled[-1] = 0.0
        clean, dirty = good.step(Y), bad.step(spoiled)
        others = np.r_[0, 3 : count - 1]
        np.testing.assert_array_equal(clean.score[others], dirty.score[others])
        assert np.isfinite(dirty.score).all()


def test_a_fleets_subspaces_are_those_of_its_nodes(rng: np.random.Generator) -> None:
    fleet = make_fleet("paper", nodes=3, features=10)
    nodes: list[Node] = [make_node("paper") for _ in range(3)]
    for _ in range(55):
        Y = rng.standard_normal((3, 10))
        fleet.step(Y)
        for node, y in zip(nodes, Y, strict=True):
            node.step(y)
    for i, node in enumerate(nodes):
        own, found = node.embedding.subspace, fleet.subspace(i)
        assert own is not None
        assert found is not None
        np.testing.assert_allclose(own.singular_values, found.singular_values, rtol=1e-10)
        np.testing.assert_allclose(np.abs(own.basis), np.abs(found.basis), atol=1e-9)


def test_a_wrong_shape_is_refused() -> None:
    fleet = make_fleet("paper", nodes=3, features=10)

    with pytest.raises(ValueError, match=r"Y must be \(3, 10\), got \(10, 3\)"):
        fleet.step(np.zeros((10, 3)))


def test_a_fleet_refuses_growth_rules_it_has_no_array_form_for() -> None:
    with pytest.raises(ValueError, match="must grow by its spare direction, got growth='canonical'"):
        make_fleet(
            "paper",
            nodes=2,
            features=8,
            embedding_options={"energy_bounds": (0.01, 0.1), "growth": "canonical"},
        )
