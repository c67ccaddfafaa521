"""What every embedding must satisfy, run on all of them."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable

import numpy as np
import pytest

from prontosched.pipeline import (
    EMBEDDINGS,
    Embedding,
    FPCAEdge,
    FrequentDirections,
    PowerMethod,
    Spirit,
)

Make = Callable[[], Embedding]
MAKERS: dict[str, Make] = {
    "fpca": lambda: FPCAEdge(rank=3, block_size=6),
    "fpca-forgetting": lambda: FPCAEdge(rank=3, block_size=6, forgetting=0.9),
    "fpca-adaptive": lambda: FPCAEdge(rank=3, block_size=8, energy_bounds=(0.01, 0.1)),
    "fpca-canonical": lambda: FPCAEdge(rank=3, block_size=8, energy_bounds=(0.01, 0.1), growth="canonical"),
    "spirit": lambda: Spirit(rank=3),
    "spirit-adaptive": lambda: Spirit(rank=3, energy_bounds=(0.95, 0.98)),
    "frequent-directions": lambda: FrequentDirections(rank=3),
    "power-method": lambda: PowerMethod(rank=3, block_size=12),
}


@pytest.fixture(params=sorted(MAKERS))
def make(request: pytest.FixtureRequest) -> Make:
    return MAKERS[request.param]


def stream(rng: np.random.Generator, features: int = 12, steps: int = 200) -> np.ndarray:
    factors = rng.standard_normal((features, 3)) * [5.0, 3.0, 1.5]
    return factors @ rng.standard_normal((3, steps)) + 0.2 * rng.standard_normal((features, steps))


def assert_sound(embedding: Embedding) -> None:
    subspace = embedding.subspace
    if subspace is None:
        return
    assert np.isfinite(subspace.basis).all()
    assert np.isfinite(subspace.singular_values).all()
    assert np.abs(subspace.basis.T @ subspace.basis - np.eye(subspace.rank)).max() < 1e-7
    assert (np.diff(subspace.singular_values) <= 1e-9 * subspace.singular_values[0]).all()


def test_every_embedding_is_registered_by_its_name() -> None:
    assert {kind.name for kind in (FPCAEdge, Spirit, FrequentDirections, PowerMethod)} == set(EMBEDDINGS)


def test_the_leading_direction_is_found(make: Make, rng: np.random.Generator) -> None:
    embedding, data = make(), stream(rng, steps=400)
    embedding.learn_many(data)
    leading = np.linalg.svd(data, full_matrices=False)[0][:, 0]

    assert embedding.subspace is not None
    assert np.linalg.norm(embedding.subspace.basis.T @ leading) > 0.97


def test_learning_one_by_one_equals_learning_many(make: Make, rng: np.random.Generator) -> None:
    one, many, data = make(), make(), stream(rng)
    for y in data.T:
        one.learn_one(y)
    many.learn_many(data)

    assert one.subspace is not None
    assert many.subspace is not None
    np.testing.assert_allclose(one.subspace.basis, many.subspace.basis, atol=1e-12)
    np.testing.assert_allclose(one.subspace.singular_values, many.subspace.singular_values, rtol=1e-12)


@pytest.mark.parametrize(
    "columns",
    [
        np.zeros((8, 60)),
        np.full((8, 60), 3.0),
        np.outer(np.arange(8.0), np.ones(60)),
        np.outer(np.arange(8.0), np.arange(60.0) - 30),
        np.eye(8)[:, [0, 1] * 30],
        np.ones((1, 60)),
        np.arange(120.0).reshape(2, 60),
    ],
    ids=["zero", "constant", "duplicated", "rank one", "two axes", "one metric", "two metrics"],
)
def test_poor_streams_leave_a_sound_basis(make: Make, columns: np.ndarray) -> None:
    embedding = make()
    for y in columns.T:
        embedding.learn_one(y)
        assert_sound(embedding)


def test_an_idle_stretch_does_not_spoil_what_comes_after(make: Make, rng: np.random.Generator) -> None:
    embedding = make()
    embedding.learn_many(stream(rng))
    embedding.learn_many(np.zeros((12, 100)))
    data = stream(rng, steps=400)
    embedding.learn_many(data)
    leading = np.linalg.svd(data, full_matrices=False)[0][:, 0]

    assert_sound(embedding)
    assert embedding.subspace is not None
    assert np.linalg.norm(embedding.subspace.basis.T @ leading) > 0.9


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e308, -1e308, 1e-308])
def test_no_value_crashes_or_poisons(make: Make, rng: np.random.Generator, bad: float) -> None:
    embedding, data = make(), stream(rng)
    data[3, 50] = bad
    data[:, 90] = bad
    for y in data.T:
        embedding.learn_one(y)
        assert_sound(embedding)


def test_fewer_vectors_than_the_rank_are_no_error(make: Make, rng: np.random.Generator) -> None:
    embedding = make()
    embedding.learn_one(rng.standard_normal(5))

    assert_sound(embedding)


def test_the_vector_handed_in_is_not_kept(make: Make, rng: np.random.Generator) -> None:
    data, reused, fresh = stream(rng), make(), make()
    buffer = np.zeros(12)
    for y in data.T:
        buffer[:] = y
        reused.learn_one(buffer)
        buffer[:] = np.nan
        fresh.learn_one(y.copy())

    assert reused.subspace is not None
    assert fresh.subspace is not None
    np.testing.assert_allclose(reused.subspace.basis, fresh.subspace.basis, atol=1e-12)


def test_a_restored_embedding_goes_on_bit_for_bit(make: Make, rng: np.random.Generator) -> None:
    data, embedding = stream(rng), make()
    embedding.learn_many(data[:, :77])
    copied = {
        name: value.copy() if isinstance(value, np.ndarray) else value
        for name, value in embedding.state().items()
    }
    restored = type(embedding)(**embedding.settings())
    restored.restore(copied)
    for y in data[:, 77:].T:
        embedding.learn_one(y)
        restored.learn_one(y)
        if embedding.subspace is not None:
            assert restored.subspace is not None
            np.testing.assert_array_equal(embedding.subspace.basis, restored.subspace.basis)

    assert embedding.samples == restored.samples


def held_bytes(embedding: Embedding) -> int:
    total = 0
    for value in vars(embedding).values():
        if isinstance(value, np.ndarray):
            total += value.base.nbytes if isinstance(value.base, np.ndarray) else value.nbytes
        else:
            total += sys.getsizeof(value)
    return total


def test_memory_does_not_grow_with_the_stream(make: Make, rng: np.random.Generator) -> None:
    embedding, data = make(), stream(rng, steps=1000)
    embedding.learn_many(data)
    gc.collect()
    before = held_bytes(embedding)
    for _ in range(4):
        embedding.learn_many(data)
    gc.collect()

    assert held_bytes(embedding) <= before + 64


def test_a_subspace_is_the_same_object_until_it_changes(make: Make, rng: np.random.Generator) -> None:
    embedding = make()
    embedding.learn_many(stream(rng))

    assert embedding.subspace is embedding.subspace


def test_rank_must_be_positive(make: Make) -> None:
    with pytest.raises(ValueError, match="rank must be at least 1, got 0"):
        type(make())(rank=0)
