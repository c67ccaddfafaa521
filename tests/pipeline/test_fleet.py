"""A fleet decides as separate nodes do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prontosched.decision import FleetDecision, FleetEvidence
from prontosched.pipeline import FPCAEdge
from prontosched.pipeline.fleet import CHUNK, Fleet
from prontosched.pipeline.node import Node
from prontosched.pipeline.presets import make_fleet, make_node
from prontosched.signals import RejectJob, RejectJobFleet
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


def compare(options: dict[str, Any], seed: int, steps: int = 240, features: int = FEATURES) -> int:
    """Step a fleet and separate nodes; return how often these refuse."""
    rng = np.random.default_rng(seed)
    Y, present = vectors(rng, steps, features), presence(rng, steps)
    fleet = make_fleet(nodes=NODES, features=features, **options)
    nodes = [make_node(**options) for _ in range(NODES)]
    raised = 0
    for t in range(steps):
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


def test_evidence_of_a_node_is_that_of_a_separate_node(rng: np.random.Generator) -> None:
    seen: list[FleetEvidence] = []

    class Watched(RejectJobFleet):
        def decide(self, evidence: FleetEvidence) -> FleetDecision:
            # The fleet goes on learning in these arrays.
            seen.append(
                evidence._replace(
                    singular_values=evidence.singular_values.copy(), basis=evidence.basis.copy()
                )
            )
            return super().decide(evidence)

    fleet = Fleet(2, FEATURES, Watched(2), rank=3, spare=1, block_size=10, scaling=Scaling())
    node = Node(FPCAEdge(rank=3, spare=1, block_size=10), RejectJob(), scaling=Scaling())
    for step in range(35):
        Y = rng.standard_normal((2, FEATURES))
        fleet.step(Y)
        node.step(Y[1])
        together, apart = seen[-1], node.evidence
        assert together.embedded[1] == (step >= 10)
        assert together.samples[1] == apart.samples
        if apart.subspace is None:
            continue
        np.testing.assert_allclose(together.projections[1], apart.projections, atol=1e-9)
        np.testing.assert_allclose(together.singular_values[1], apart.subspace.singular_values, atol=1e-9)
        np.testing.assert_allclose(together.basis[1], apart.subspace.basis, atol=1e-9)


def test_the_comparison_meets_refusals(rng: np.random.Generator) -> None:
    assert compare({"preset": "paper", "absolute": True}, seed=int(rng.integers(1000))) > 10


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
