"""The smoothed z-score detector."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prontosched.pipeline.projection import SpikeDetector


def plainly(values: np.ndarray, lag: int, threshold: float, influence: float) -> list[int | None]:
    """The detector as a textbook has it: everything recomputed from the window."""
    window: list[float] = []
    signals: list[int | None] = []
    for value in values:
        if len(window) < lag:
            window.append(float(value))
            signals.append(None)
            continue
        mean, deviation = np.mean(window), np.std(window)
        away = value - mean
        spike = 0
        if abs(away) > threshold * max(deviation, 1e-9, 1e-9 * abs(mean)):
            spike = 1 if away > 0 else -1
            value = influence * value + (1 - influence) * window[-1]
        signals.append(spike)
        window = [*window[1:], float(value)]
    return signals


def run(detector: SpikeDetector, values: np.ndarray) -> list[int | None]:
    return [None if (spikes := detector.detect([float(v)])) is None else spikes[0] for v in values]


def test_signals_agree_with_the_reference(shared_data: Path) -> None:
    with np.load(shared_data / "oracle" / "zscore.npz") as file:
        arrays = {key: file[key] for key in file.files}
    for key in [k for k in arrays if k.endswith("__signals")]:
        config = key.split("__")[2]
        lag, threshold, influence = (float(part.lstrip("lagti")) for part in config.split("_"))
        detector = SpikeDetector(int(lag), threshold, influence)
        found, filtered = [], []
        for value in arrays["z__demo__y"]:
            spikes = detector.detect([float(value)])
            found.append(0 if spikes is None else spikes[0])
            filtered.append(detector.filtered[0])

        assert found == arrays[key].astype(int).tolist(), key
        np.testing.assert_allclose(
            filtered[int(lag) :], arrays[key.replace("signals", "filtered")][int(lag) :], rtol=1e-12
        )


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([3, 10, 25]),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.sampled_from([0.0, 1e3, -1e7]),
)
def test_running_sums_decide_as_a_fresh_window_does(
    seed: int, lag: int, influence: float, level: float
) -> None:
    rng = np.random.default_rng(seed)
    values = level + np.cumsum(rng.standard_normal(300)) * rng.choice([1e-3, 1.0, 1e3])
    values[rng.integers(0, 300, 6)] += rng.choice([-1, 1], 6) * 1e5

    assert run(SpikeDetector(lag, 3.5, influence), values) == plainly(values, lag, 3.5, influence)


def test_a_flat_signal_never_spikes_through_rounding() -> None:
    detector = SpikeDetector(10)
    values = 0.1 + 1e-16 * np.arange(200) % 3

    assert set(run(detector, values)) == {None, 0}


def test_a_value_at_the_threshold_is_no_spike() -> None:
    detector = SpikeDetector(4, threshold=2.0)
    run(detector, np.array([1.0, -1.0, 1.0, -1.0]))

    assert detector.detect([2.0]) == [0]
    assert detector.detect([20.0]) == [1]


def test_both_signs_are_dampened() -> None:
    for sign in (1.0, -1.0):
        detector = SpikeDetector(4, influence=0.5)
        run(detector, np.array([1.0, 1.1, 0.9, 1.0]))
        detector.detect([1.0 + sign * 100.0])
        assert detector.filtered[0] == pytest.approx(1.0 + sign * 50.0)


def test_spikes_are_dampened_again_on_other_directions() -> None:
    detector = SpikeDetector(lag=4, influence=0.5)
    for value in (1.0, 1.1, 0.9, 1.0, 5.0):
        detector.detect([value])
    # The same vectors, each twice as long on the new direction; 10 was the spike, 2 came before it.
    detector.refill(np.array([[10.0, 2.2, 1.8, 2.0]]), slot=1, dampen=True)

    assert detector.filtered == [6.0]
    detector.refill(np.array([[10.0, 2.2, 1.8, 2.0]]), slot=1)
    assert detector.filtered == [10.0]


def test_a_refilled_ring_goes_on_from_its_oldest_value() -> None:
    straight, ring = SpikeDetector(4), SpikeDetector(4)
    straight.refill(np.array([[1.0, 2.0, 3.0, 4.0]]))
    ring.refill(np.array([[3.0, 4.0, 1.0, 2.0]]), slot=2)
    values = [5.0, 40.0, 3.0, 2.0, 9.0]

    assert [straight.detect([v]) for v in values] == [ring.detect([v]) for v in values]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lag": 1}, "lag must be at least 2"),
        ({"threshold": 0.0}, "threshold must be positive"),
        ({"influence": 1.5}, "influence must be from 0 to 1"),
    ],
)
def test_parameters_out_of_range_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SpikeDetector(**options)  # type: ignore[arg-type]


def test_spikes_are_remembered_when_the_number_of_directions_changes() -> None:
    detector = SpikeDetector(lag=3)
    for value in (1.0, 1.1, 0.9, 5.0):
        detector.detect([value])
    detector.refill(np.array([[9.0, 2.0, 2.1], [1.0, 0.0, 0.0]]), slot=1, dampen=True)
    again = SpikeDetector(lag=3)
    again.restore(detector.state())
    rows = [[2.0, 0.1], [2.0, 0.0], [9.0, 0.5]]

    assert [again.detect(row) for row in rows] == [detector.detect(row) for row in rows]
