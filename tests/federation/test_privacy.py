"""Perturbation masks: the published size, and what it does at Pronto's."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prontosched.subspace import summarise

from .fleets import angle
from .masks import mask_deviation, masked_summary, symmetric_mask_deviation


def unit_block(rng: np.random.Generator, features: int, size: int) -> np.ndarray:
    """Vectors of length 1 at most, along two strong directions."""
    strong = np.linalg.qr(rng.standard_normal((features, 2)))[0] * [1.0, 0.7]
    block = strong @ rng.standard_normal((2, size)) + 0.02 * rng.standard_normal((features, size))
    return block / np.linalg.norm(block, axis=0).max()


def test_the_mask_has_the_published_size() -> None:
    assert mask_deviation(52, 10, epsilon=0.4, delta=0.05) == pytest.approx(232.5, abs=0.1)
    assert mask_deviation(52, 100_000, epsilon=0.4, delta=0.05) == pytest.approx(0.0232, abs=5e-4)
    assert symmetric_mask_deviation(52, 10, epsilon=0.4, delta=0.05) < mask_deviation(
        52, 10, epsilon=0.4, delta=0.05
    )


@given(
    features=st.integers(1, 500),
    samples=st.integers(1, 10**6),
    epsilon=st.floats(0.01, 10),
    delta=st.floats(1e-6, 0.5),
)
def test_more_samples_or_a_larger_budget_need_a_smaller_mask(
    features: int, samples: int, epsilon: float, delta: float
) -> None:
    if features**2 <= delta * math.sqrt(2 * math.pi):
        return
    size = mask_deviation(features, samples, epsilon=epsilon, delta=delta)

    assert mask_deviation(features, 2 * samples, epsilon=epsilon, delta=delta) == pytest.approx(size / 2)
    assert mask_deviation(features, samples, epsilon=2 * epsilon, delta=delta) < size


def test_the_noise_on_a_covariance_has_the_stated_deviation(rng: np.random.Generator) -> None:
    """Seen through a block of zeros, where the noise is all there is."""
    deviation = mask_deviation(20, 40, epsilon=1.0, delta=0.1)
    squares = []
    for _ in range(200):
        found = masked_summary(np.zeros((20, 40)), rank=20, epsilon=1.0, delta=0.1, rng=rng)
        assert found is not None
        squares.append(float(np.sum((found.singular_values**2 / 40) ** 2)) / 20**2)

    assert math.sqrt(np.mean(squares)) == pytest.approx(deviation, rel=0.03)


def test_with_a_budget_without_end_the_mask_changes_nothing(rng: np.random.Generator) -> None:
    block = unit_block(rng, 12, 30)
    masked = masked_summary(block, rank=2, epsilon=1e9, delta=0.5, rng=rng)
    truth = summarise(block, rank=2)

    assert masked is not None
    assert truth is not None
    assert angle(masked, truth) < 1e-3
    np.testing.assert_allclose(masked.singular_values, truth.singular_values, rtol=1e-2)


def test_at_the_block_size_of_pronto_nothing_of_the_data_is_left(rng: np.random.Generator) -> None:
    block = unit_block(rng, 52, 10)
    truth = summarise(block, rank=2)
    captured = []
    for _ in range(20):
        masked = masked_summary(block, rank=2, epsilon=0.4, delta=0.05, rng=rng)
        captured.append(float(np.sum((masked.basis.T @ truth.basis) ** 2)) / 2)

    assert np.mean(captured) < 4 * 2 / 52


def test_vectors_that_void_the_guarantee_are_refused(rng: np.random.Generator) -> None:
    with pytest.raises(ValueError, match="every vector must have length 1 at most, got 3"):
        masked_summary(np.eye(4) * 3.0, rank=2, epsilon=1.0, delta=0.1, rng=rng)


@pytest.mark.parametrize(
    "arguments",
    [
        {"features": 0, "samples": 5, "epsilon": 1.0, "delta": 0.1},
        {"features": 5, "samples": 5, "epsilon": 0.0, "delta": 0.1},
        {"features": 5, "samples": 5, "epsilon": 1.0, "delta": 1.0},
    ],
)
def test_a_budget_that_makes_no_sense_is_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        mask_deviation(**arguments)
