"""Projections stay one continuous signal when the directions turn."""

from __future__ import annotations

import numpy as np
import pytest

from prontosched.pipeline import FPCAEdge
from prontosched.pipeline.projection import Projector, SpikeDetector
from prontosched.subspace import Subspace


def test_a_mirrored_direction_gives_the_same_projection(rng: np.random.Generator) -> None:
    basis, _ = np.linalg.qr(rng.standard_normal((8, 2)))
    projector, y = Projector(lag=3), rng.standard_normal(8)
    before = projector.project(Subspace(basis, np.ones(2)), y)
    after = projector.project(Subspace(-basis, np.ones(2)), y)

    np.testing.assert_allclose(before, after)


def test_a_first_direction_points_where_its_metrics_sum_up_positive() -> None:
    projector = Projector(lag=3)
    projector.project(Subspace(np.array([[-0.6], [-0.8]]), np.ones(1)), np.ones(2))

    assert projector.subspace is not None
    assert projector.subspace.basis.sum() > 0


def test_the_window_holds_the_past_on_the_new_basis(rng: np.random.Generator) -> None:
    vectors = rng.standard_normal((7, 5))
    first, _ = np.linalg.qr(rng.standard_normal((5, 2)))
    second, _ = np.linalg.qr(rng.standard_normal((5, 2)))
    projector = Projector(lag=4, orient=False)
    one, other = Subspace(first, np.ones(2)), Subspace(second, np.ones(2))
    for y in vectors[:6]:
        projector.project(one, y)
    assert projector.window is None
    projector.project(other, vectors[6])
    assert projector.window is not None
    oldest_first = np.roll(projector.window, -projector.slot, axis=1)

    np.testing.assert_allclose(oldest_first, second.T @ vectors[2:6].T)


def spike_rate_after_updates(orient: bool, reproject: bool, rng: np.random.Generator) -> float:
    """Return the share of projections that spike in the three steps after an update."""
    embedding, projector = FPCAEdge(rank=4, block_size=10, forgetting=0.95), Projector(10, orient=orient)
    detector = SpikeDetector(10)
    factors = rng.standard_normal((30, 6)) * [2.0, 1.8, 1.6, 1.5, 1.4, 1.3]
    loads = np.zeros(6)
    known = mirrored = None
    spiked = seen = 0
    for t in range(3000):
        loads = 0.9 * loads + 0.43 * rng.standard_normal(6)
        y = factors @ loads + 0.3 * rng.standard_normal(30)
        own = embedding.subspace
        if own is not None and own is not known:
            # As an embedding gives them whose directions have no sign of their own.
            known, mirrored = (
                own,
                Subspace(own.basis * rng.choice([-1.0, 1.0], own.rank), own.singular_values),
            )
        projections = projector.project(mirrored, y)
        if reproject and projector.window is not None:
            detector.refill(projector.window, projector.slot)
        spikes = detector.detect(projections) if projections else None
        if spikes is not None and t % 10 < 3:
            spiked += sum(abs(s) for s in spikes)
            seen += len(spikes)
        embedding.learn_one(y)
    return spiked / seen


def test_alignment_and_reprojection_keep_updates_from_looking_like_spikes(rng: np.random.Generator) -> None:
    seed = int(rng.integers(1000))
    neither = spike_rate_after_updates(False, False, np.random.default_rng(seed))
    aligned = spike_rate_after_updates(True, False, np.random.default_rng(seed))
    both = spike_rate_after_updates(True, True, np.random.default_rng(seed))

    assert both < aligned < neither
    assert both < neither / 2


def test_subspaces_of_one_lineage_are_taken_as_they_are(rng: np.random.Generator) -> None:
    embedding, projector = FPCAEdge(rank=3, block_size=5), Projector(5)
    before: Subspace | None = None
    for _ in range(200):
        y = rng.standard_normal(12) * np.linspace(3.0, 1.0, 12)
        projector.project(embedding.subspace, y)
        own = embedding.subspace
        if own is not None:
            assert projector.subspace is own
            if before is not None and before is not own:
                assert (np.sum(own.basis * before.basis, axis=0) >= 0.0).all()
        before = own
        embedding.learn_one(y)


def test_a_view_from_elsewhere_and_the_own_one_after_it_keep_their_signs(rng: np.random.Generator) -> None:
    embedding, projector = FPCAEdge(rank=2, block_size=5), Projector(5)
    for y in rng.standard_normal((10, 6)):
        embedding.learn_one(y)
        projector.project(embedding.subspace, y)
    own, y = embedding.subspace, rng.standard_normal(6)
    assert own is not None
    usual = projector.project(own, y)

    np.testing.assert_allclose(projector.project(Subspace(-own.basis, own.singular_values), y), usual)
    np.testing.assert_allclose(projector.project(own, y), usual)


def test_lag_must_be_positive() -> None:
    with pytest.raises(ValueError, match="lag must be at least 1"):
        Projector(0)
