"""Running scale per metric."""

from __future__ import annotations

import numpy as np
import pytest

from prontosched.telemetry.scaling import EARLY, Scaling


def warm(rng: np.random.Generator, features: int = 6, steps: int = 500) -> Scaling:
    scaling = Scaling()
    for _ in range(steps):
        scaling.scale(10.0 + 2.0 * rng.standard_normal(features))
    return scaling


def test_scaled_metrics_have_mean_zero_and_deviation_one_whatever_their_unit(
    rng: np.random.Generator,
) -> None:
    scaling = Scaling()
    units = np.array([1e-6, 1.0, 1e9])
    scaled = np.array([scaling.scale(units * (50 + 7 * rng.standard_normal(3))) for _ in range(3000)])[500:]

    np.testing.assert_allclose(scaled.mean(axis=0), 0.0, atol=0.1)
    np.testing.assert_allclose(scaled.std(axis=0), 1.0, atol=0.1)


def test_a_vector_is_scaled_before_it_enters_the_statistics() -> None:
    scaling = Scaling()
    for level in (1.0, 3.0) * 10:
        scaling.scale(np.array([level]))

    assert scaling.scale(np.array([9.0]))[0] == pytest.approx(7.0, rel=0.05)


def test_a_constant_metric_stays_at_zero() -> None:
    scaling = Scaling()

    assert all(scaling.scale(np.array([123456.789]))[0] == 0.0 for _ in range(200))


def test_unknown_values_count_and_become_the_mean(rng: np.random.Generator) -> None:
    scaling = warm(rng)
    y = np.array([10.0, np.nan, np.inf, -np.inf, 1e308, 10.0])
    scaled = scaling.scale(y)

    assert scaled[1:5].tolist() == [0.0] * 4
    assert scaling.unknown.tolist() == [0, 1, 1, 1, 1, 0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e308, 1e17])
def test_an_absurd_vector_does_not_blind_the_metric(rng: np.random.Generator, bad: float) -> None:
    scaling = warm(rng)
    before = scaling.deviation.copy()
    scaling.scale(np.full(6, bad))
    for _ in range(200):
        scaling.scale(10.0 + 2.0 * rng.standard_normal(6))

    assert (scaling.deviation < 2.0 * before).all()
    assert np.isfinite(scaling.mean).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e308])
def test_an_absurd_first_vector_is_as_if_it_had_not_been(rng: np.random.Generator, bad: float) -> None:
    scaling = Scaling()
    scaling.scale(np.full(3, bad))
    scaled = np.array([scaling.scale(10.0 + 2.0 * rng.standard_normal(3)) for _ in range(500)])[100:]

    np.testing.assert_allclose(scaled.std(axis=0), 1.0, atol=0.25)


def test_a_new_level_is_followed_within_two_half_lives(rng: np.random.Generator) -> None:
    scaling = warm(rng)
    scaled = np.array([scaling.scale(500.0 + 2.0 * rng.standard_normal(6)) for _ in range(1300)])

    assert np.abs(scaled[-1]).max() < 3.0


def test_a_metric_never_seen_stays_silent_and_its_first_values_do_not_look_infinite() -> None:
    scaling = Scaling()
    for t in range(100):
        scaling.scale(np.array([float(t % 5), np.nan]))
    assert scaling.scale(np.array([1.0, 7.0]))[1] == 0.0
    assert np.isfinite(scaling.scale(np.array([1.0, 9.0]))).all()


def test_a_restored_scaling_goes_on_bit_for_bit(rng: np.random.Generator) -> None:
    for steps in (0, 1, 5, EARLY, EARLY + 7, 200):
        scaling = Scaling()
        for _ in range(steps):
            y = rng.standard_normal(4)
            y[rng.random(4) < 0.1] = np.nan
            scaling.scale(y)
        restored = Scaling()
        restored.restore(
            {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in scaling.state().items()}
        )
        for _ in range(80):
            y = rng.standard_normal(4)
            np.testing.assert_array_equal(scaling.scale(y), restored.scale(y))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"half_life": 0.0}, "half_life must be positive, got 0"),
        ({"clip": -1.0}, "clip must be positive, got -1"),
        ({"block_size": 0}, "block_size must be at least 1, got 0"),
    ],
)
def test_parameters_out_of_range_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Scaling(**options)  # type: ignore[arg-type]


def test_many_vectors_at_once_are_scaled_as_one_after_the_other(rng: np.random.Generator) -> None:
    vectors = rng.normal(size=(300, 6)) * 10.0 ** np.arange(6)
    vectors[40:60, 2], vectors[200, 4] = np.nan, 1e19
    vectors[rng.random(300) < 0.02] *= 50.0
    single, many = Scaling(), Scaling()

    expected = np.stack([single.scale(y) for y in vectors])
    found = np.concatenate([many.scale_many(part) for part in np.array_split(vectors, 7)])

    assert np.array_equal(found, expected)
    for name, value in single.state().items():
        assert np.array_equal(many.state()[name], value), name
