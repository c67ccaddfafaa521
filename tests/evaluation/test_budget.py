"""Online thresholds hold a budget and know only the past."""

from __future__ import annotations

import numpy as np
import pytest

from prontosched.evaluation.replay import BudgetThresholds
from prontosched.signals.arithmetic import One
from prontosched.signals.policy import Budget

BUDGETS = (0.02, 0.1, 0.3)


def run(scores: np.ndarray) -> np.ndarray:
    thresholds = BudgetThresholds(scores.shape[1], BUDGETS)
    # In pieces, as a replay hands them over.
    return np.concatenate([thresholds.decide(part) for part in np.array_split(scores, 5)])


def test_realised_downtime_is_the_budget_on_a_steady_stream(rng: np.random.Generator) -> None:
    raised = run(rng.normal(size=(8000, 3)))

    assert np.allclose(raised.mean(axis=0), BUDGETS, rtol=0.1)


def test_realised_downtime_comes_back_after_the_scores_change_level(rng: np.random.Generator) -> None:
    scores = rng.normal(size=(40_000, 1))
    scores[5000:] += 3.0

    late = run(scores)[25_000:].mean(axis=0)[0]

    assert np.allclose(late, BUDGETS, rtol=0.35)


def test_decisions_depend_on_the_past_only(rng: np.random.Generator) -> None:
    scores = rng.normal(size=(600, 2))
    changed = scores.copy()
    changed[301:] = 50.0

    assert np.array_equal(run(scores)[:301], run(changed)[:301])


def test_streams_do_not_touch_each_other(rng: np.random.Generator) -> None:
    scores = rng.normal(size=(3000, 2))
    scores[100:900, 1] = np.nan

    assert np.array_equal(run(scores)[:, 0], run(scores[:, :1])[:, 0])


def test_a_score_that_says_nothing_never_raises() -> None:
    assert not run(np.full((100, 1), np.nan)).any()


def test_a_budget_outside_zero_and_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"between 0 and 1, got \(0\.0,\)"):
        BudgetThresholds(1, (0.0,))


def test_thresholds_are_those_of_a_learned_signal_with_the_same_budget(rng: np.random.Generator) -> None:
    scores = rng.gamma(2.0, size=(4000, 1)).round(2)
    budgets = [Budget(One(), share) for share in BUDGETS]
    expected = []
    for score in scores[:, 0].tolist():
        raised = [score > budget.threshold() for budget in budgets]
        for budget, refused in zip(budgets, raised, strict=True):
            budget.learn(score)
            budget.spend(refused)
        expected.append(raised)

    assert np.array_equal(run(scores)[:, 0], expected)
