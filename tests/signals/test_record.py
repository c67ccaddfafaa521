"""The node's own record: truthful in the shadow and while enforcing, and acted upon."""

from __future__ import annotations

import numpy as np
import pytest

from prontosched.decision import Evidence
from prontosched.signals.learned import LearnedSignal

from .runs import run
from .streams import labels, lasting, unforeseeable


def test_in_the_shadow_the_record_is_what_happened(rng):
    ready = lasting(rng, 3000, level=2.0)
    signal = LearnedSignal(hourly_limit=0.6)

    said = run(signal, ready)

    label, raised = labels(ready)[:-5], said.raised[:-5]
    standing = signal.standing()
    # The past fades with a half-life of 10,000 steps, hence not exactly.
    assert standing.downtime == pytest.approx(raised.mean(), abs=0.02)
    assert standing.recall == pytest.approx((raised & label).sum() / label.sum(), abs=0.03)
    assert standing.precision == pytest.approx((raised & label).sum() / raised.sum(), abs=0.03)
    assert standing.recall > 2.0 * standing.downtime
    assert 1.0 <= standing.lead_steps <= 5.0


def enforce(signal: LearnedSignal, rng: np.random.Generator, steps: int) -> tuple[float, float]:
    """Run jobs on a node whose demand wanders: a job taken at a bad moment brings contention on.

    Returns the precision and recall the signal would have had in the shadow.
    """
    demand = np.log(lasting(rng, steps, level=3.0) / 5.0)
    chance = 1.0 / (1.0 + np.exp(-3.0 * demand))
    brings = rng.random(steps) < chance
    refused = np.zeros(steps, dtype=bool)
    wanted = np.zeros(steps, dtype=bool)
    for t in range(steps):
        # Contention now is the work of a job accepted one to three steps ago.
        due = [brings[t - k] and not refused[t - k] for k in (1, 2, 3) if t >= k]
        ready = 8.0 if any(due) else 4.0 * chance[t]
        signal.decide(Evidence(t, ready=ready))
        wanted[t] = signal.learner.wanted[0]
        refused[t] = signal.decide_raised
    following = np.zeros(steps, dtype=bool)
    for k in (1, 2, 3, 4, 5):
        for back in (1, 2, 3):
            shift = k - back
            if shift >= 0:
                following[: steps - shift] |= brings[shift:]
    return float((wanted & following).sum() / wanted.sum()), float(
        (wanted & following).sum() / following.sum()
    )


class Watched(LearnedSignal):
    """Remembers its last decision."""

    decide_raised = False

    def decide(self, evidence):
        decision = super().decide(evidence)
        self.decide_raised = decision.raised
        return decision


def test_the_record_stays_truthful_while_enforcing(rng):
    signal = Watched(enforcing=True, explore=0.2, budget=0.3, hourly_limit=1.0)

    precision, _ = enforce(signal, rng, 9000)

    # Taken at face value, refusals that work would count as false alarms.
    assert signal.standing().precision == pytest.approx(precision, abs=0.12)


@pytest.mark.parametrize("explore", [0.0, 0.05, 0.2])
def test_the_share_of_exceptions_is_as_asked(rng, explore):
    ready = lasting(rng, 5000, level=5.0)
    signal = LearnedSignal(explore=explore, enforcing=True)

    said = run(signal, ready)

    admission = signal.learner.admission
    assert admission.excepted / (admission.excepted + said.raised.sum()) == pytest.approx(
        explore, abs=0.4 * explore
    )


def test_exceptions_are_the_same_for_the_same_seed_and_differ_for_another(rng):
    ready = lasting(rng, 1500, level=5.0)

    said = [run(LearnedSignal(enforcing=True, explore=0.3, seed=s), ready).raised for s in (1, 1, 2)]

    assert np.array_equal(said[0], said[1])
    assert not np.array_equal(said[0], said[2])


def test_nothing_is_excepted_in_the_shadow(rng):
    signal = LearnedSignal(explore=1.0)

    said = run(signal, lasting(rng, 800, level=5.0))

    assert said.raised.any()
    assert signal.learner.admission.excepted == 0.0


def test_a_signal_no_better_than_a_coin_gives_way_to_the_present_value(rng):
    signal = LearnedSignal(likelihood=0.18)

    said = run(signal, unforeseeable(rng, 9000))

    assert signal.standing().better_than_coin is False
    assert "no better than a coin lately: acting on the present value" in said.reasons[-1]


def test_it_returns_when_it_is_better_again(rng):
    signal = LearnedSignal(likelihood=0.18)
    run(signal, unforeseeable(rng, 7000))
    assert signal.standing().better_than_coin is False

    run(signal, lasting(rng, 6000, level=2.0), first=7000)

    assert signal.standing().better_than_coin is True


def test_a_signal_that_foresees_is_not_demoted(rng):
    signal = LearnedSignal()

    run(signal, lasting(rng, 7000, level=2.0))

    assert signal.standing().better_than_coin is True


def test_little_is_not_judged(rng):
    signal = LearnedSignal()

    run(signal, unforeseeable(rng, 1000))

    assert signal.standing().better_than_coin is None


@pytest.mark.parametrize("horizon", [1, 5])
def test_contention_that_goes_on_has_one_onset(horizon):
    signal = LearnedSignal(horizon=horizon)
    run(signal, np.where(np.arange(400) % 50 < 10, 20.0, 0.1))

    # Young, the signal goes by the present value: it foresees no onset, and every step after one.
    assert signal.learner.record.foreseen == 0.0


@pytest.mark.parametrize("explore", [0.2, 0.5, 1.0])
@pytest.mark.parametrize("horizon", [1, 5, 30])
def test_the_share_of_exceptions_is_as_asked_where_contention_never_ends(explore, horizon):
    said = run(LearnedSignal(explore=explore, horizon=horizon, enforcing=True), np.full(8000, 20.0))

    assert 1.0 - said.raised.mean() == pytest.approx(explore, rel=0.08)
