"""Directions followed beyond those shown."""

from __future__ import annotations

import numpy as np
import pytest

from prontosched.pipeline import FPCAEdge
from prontosched.pipeline.fpca import FPCAEdgeFleet
from prontosched.pipeline.presets import make_fleet, make_node
from prontosched.subspace import Subspace, distance, summarise


def crowded(rng: np.random.Generator, steps: int = 600, features: int = 40) -> np.ndarray:
    """Columns with more directions of nearly one strength than are followed."""
    factors = rng.standard_normal((features, 8)) * np.linspace(1.3, 1.0, 8)
    return factors @ rng.standard_normal((8, steps)) + 0.5 * rng.standard_normal((features, steps))


def followed(Y: np.ndarray, **options: int) -> FPCAEdge:
    embedding = FPCAEdge(rank=4, block_size=10, **options)
    embedding.learn_many(Y)
    return embedding


def test_spare_directions_bring_those_shown_closer_to_the_whole_stream(rng: np.random.Generator) -> None:
    apart = []
    for _ in range(5):
        Y = crowded(rng)
        exact = summarise(Y, rank=4)
        apart.append([distance(followed(Y, spare=k).subspace, exact) for k in (0, 4)])

    without, with_spare = np.mean(apart, axis=0)
    assert with_spare < 0.8 * without


def test_those_shown_are_the_leading_part_of_those_kept(rng: np.random.Generator) -> None:
    embedding = followed(crowded(rng), spare=3)
    shown, kept = embedding.subspace, embedding.kept

    assert shown is not None
    assert kept is not None
    assert (shown.rank, kept.rank) == (4, 7)
    np.testing.assert_array_equal(shown.basis, kept.basis[:, :4])
    np.testing.assert_array_equal(shown.singular_values, kept.singular_values[:4])


def test_without_spare_directions_those_kept_are_those_shown(rng: np.random.Generator) -> None:
    embedding = followed(crowded(rng))
    assert embedding.kept is embedding.subspace


def test_a_restored_embedding_has_its_spare_directions_again(rng: np.random.Generator) -> None:
    Y = crowded(rng)
    embedding, other = followed(Y[:, :305], spare=2), FPCAEdge(rank=4, block_size=10, spare=2)
    other.restore(embedding.state())
    for one in (embedding, other):
        one.learn_many(Y[:, 305:])

    assert embedding.kept is not None
    assert other.kept is not None
    np.testing.assert_array_equal(embedding.kept.basis, other.kept.basis)


def test_a_fleet_keeps_what_its_nodes_keep(rng: np.random.Generator) -> None:
    fleet, node = make_fleet("default", nodes=3, features=40), make_node("default")
    for y in crowded(rng, steps=95).T:
        fleet.step(np.stack([y, -y, y[::-1]]))
        node.step(y)
    one, other = fleet.kept(0), node.embedding.kept

    assert one is not None
    assert other is not None
    assert one.rank == other.rank == 5
    assert distance(one, other) < 1e-9
    np.testing.assert_allclose(one.singular_values, other.singular_values)


def test_the_past_read_off_the_eigenvectors_is_the_past_projected_again(rng: np.random.Generator) -> None:
    embedding = FPCAEdgeFleet(4, 40, FPCAEdge(rank=4, block_size=10), lag=10)
    Y = rng.standard_normal((30, 4, 40)) * np.linspace(3.0, 1.0, 40)
    for vectors in Y:
        turned = embedding.learn(vectors, slice(0, 4))

    [(nodes, recent)] = turned
    assert nodes.tolist() == [0, 1, 2, 3]
    np.testing.assert_allclose(recent, np.einsum("mrd,tmd->mrt", embedding.rows, Y[-10:]), atol=1e-10)


def test_a_negative_number_of_spare_directions_is_refused() -> None:
    with pytest.raises(ValueError, match="spare must be at least 0 directions, got -1"):
        FPCAEdge(spare=-1)


def test_a_subspace_of_the_wrong_shape_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"basis must be \(d, r\) with r singular values, got \(3, 2\) and \(1,\)"
    ):
        Subspace(np.zeros((3, 2)), np.zeros(1))
