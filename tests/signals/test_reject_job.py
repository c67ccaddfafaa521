"""Reject-Job, the paper's signal."""

from __future__ import annotations

import numpy as np
import pytest

from prontosched.decision import Decision, Evidence
from prontosched.signals.reject_job import RejectJob
from prontosched.subspace import Subspace

SUBSPACE = Subspace(np.eye(5)[:, :4], np.array([8.0, 4.0, 4.0, 1.0]))


def decide(signal: RejectJob, spikes: list[int] | None, metrics: tuple[str, ...] | None = None) -> Decision:
    return signal.decide(
        Evidence(0, subspace=SUBSPACE, projections=[0.0] * 4, spikes=spikes, metrics=metrics)
    )


def test_two_halves_reach_the_threshold() -> None:
    decision = decide(RejectJob(), [0, 1, 1, 0])

    assert decision.score == pytest.approx(1.0)
    assert decision.raised


def test_opposite_spikes_cancel_unless_counted_by_size() -> None:
    spikes = [1, -1, -1, 0]

    assert decide(RejectJob(), spikes).score == pytest.approx(0.0)
    assert decide(RejectJob(absolute=True), spikes).score == pytest.approx(2.0)


def test_harmonic_weights_stand_in_for_singular_values() -> None:
    assert decide(RejectJob(weights="harmonic"), [0, 1, 1, 1]).score == pytest.approx(1 / 2 + 1 / 3 + 1 / 4)


def test_raw_weights_are_the_singular_values() -> None:
    assert decide(RejectJob(weights="raw"), [1, 0, 0, 1]).score == pytest.approx(9.0)


def test_a_raise_is_held_for_as_long_as_asked() -> None:
    signal = RejectJob(hold=2)
    raised = [decide(signal, spikes).raised for spikes in ([1, 0, 0, 0], *[[0, 0, 0, 0]] * 4)]

    assert raised == [True, True, True, False, False]


def test_the_reason_names_the_directions_and_the_metrics_behind_them() -> None:
    reason = decide(RejectJob(), [1, 0, 0, 0], ("run_queue", "b", "c", "d", "e")).reason

    assert "direction 1 up (weight 1.00) spiked" in reason
    assert "driven by run_queue" in reason


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threshold": 0.0}, "threshold must be positive"),
        ({"weights": "loud"}, "weights must be normalised, raw or harmonic, got 'loud'"),
        ({"hold": -1}, "hold must be at least 0"),
    ],
)
def test_parameters_out_of_range_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RejectJob(**options)  # type: ignore[arg-type]
