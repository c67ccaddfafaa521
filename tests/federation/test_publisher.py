"""When a summary is worth sending."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from prontosched.federation.message import Summary
from prontosched.federation.publisher import Propagation
from prontosched.subspace import Subspace


def test_a_drift_too_slow_for_any_one_block_still_gets_through() -> None:
    rule = Propagation(epsilon=0.05, epsilon_strength=1e9, max_age_seconds=1e9, rank=1)
    fired = 0
    for block in range(2000):
        turn = 0.002 * block
        basis = np.array([[np.cos(turn)], [np.sin(turn)], [0.0]])
        summary = dataclasses.replace(example_summary(), subspace=example_subspace(basis))
        if rule.due(summary, now=float(block)):
            rule.sent(summary, now=float(block))
            fired += 1

    assert 60 < fired < 200
    assert rule.skipped_count == 2000 - fired


def test_the_papers_trigger_is_blind_to_strength_and_not_to_rotation() -> None:
    rule = Propagation(epsilon=0.05, kind="elementwise", rank=2)
    summary = dataclasses.replace(example_summary(), subspace=example_subspace(np.eye(3)[:, :2]))
    rule.sent(summary, now=0.0)
    stronger = dataclasses.replace(summary, subspace=example_subspace(np.eye(3)[:, :2], 9.0))
    turned = np.eye(3)[:, :2] @ np.array([[0.8, -0.6], [0.6, 0.8]])
    rotated = dataclasses.replace(summary, subspace=example_subspace(turned))

    assert rule.due(stronger, now=1.0) is None
    assert rule.due(rotated, now=1.0) == "moved"
    assert Propagation(rank=2).due(stronger, now=0.0) == "first"


def test_silence_ends_at_the_maximum_age() -> None:
    rule = Propagation(max_age_seconds=60.0)
    summary = example_summary()
    rule.sent(summary, now=0.0)

    assert rule.due(summary, now=59.0) is None
    assert rule.due(summary, now=60.0) == "age"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epsilon": -1.0}, "epsilon must be at least 0"),
        ({"max_age_seconds": 0.0}, "max_age_seconds must be positive"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Propagation(**options)


def example_summary() -> Summary:
    ones = np.ones(3)
    return Summary(
        node="n",
        metrics=("a", "b", "c"),
        subspace=None,
        samples=10.0,
        mean=ones,
        deviation=ones,
        spread=0 * ones,
        counts=10 * ones,
    )


def example_subspace(basis: np.ndarray, strength: float = 1.0) -> Subspace:
    return Subspace(basis, strength * np.linspace(2, 1, basis.shape[1]))
