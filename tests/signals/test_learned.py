"""The learned signal of one node: cold start, gaps, flat streams, state, words."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from prontosched.codec import decode, encode
from prontosched.decision import Evidence
from prontosched.errors import StateError
from prontosched.pipeline.node import Node
from prontosched.pipeline.presets import make_node
from prontosched.signals.arithmetic import Component
from prontosched.signals.learned import LearnedSignal

from .runs import run, run_node
from .streams import announced, average_precision, calibration_error, calm, labels, lasting, roc_area


def test_probabilities_are_calibrated(rng):
    ready = lasting(rng, 15_000)

    said = run(LearnedSignal(), ready)

    assert calibration_error(said.probability[500:-5], labels(ready)[500:-5]) <= 0.02


@pytest.mark.parametrize("level", [2.0, 4.0])
def test_what_is_expected_agrees_with_the_chance(rng, level):
    signal = LearnedSignal(tolerance="5%")
    said = [
        signal.decide(Evidence(t, ready=value))
        for t, value in enumerate(lasting(rng, 4000, level=level).tolist())
    ]

    assert 0.05 < np.mean([one.probability >= 0.5 for one in said]) < 0.95
    assert all(
        (one.expected_ready >= 5.0) == (one.probability >= 0.5) or one.expected_ready == 5.0 for one in said
    )


def test_it_ranks_better_than_the_present_value(rng):
    ready = lasting(rng, 6000)

    said = run(LearnedSignal(), ready)

    label = labels(ready)[1000:]
    assert average_precision(said.score[1000:], label) > 1.02 * average_precision(ready[1000:], label)


def test_cold_start_ranks_as_the_present_value_does(rng):
    ready = lasting(rng, 500, level=3.0)

    said = run(LearnedSignal(), ready)

    label = labels(ready)[20:]
    assert average_precision(said.score[20:], label) >= 0.95 * average_precision(ready[20:], label)


def test_the_learned_score_takes_over_without_a_jump(rng):
    ready = lasting(rng, 3000, level=3.0)
    signal = LearnedSignal()
    trusts = []
    for t, value in enumerate(ready.tolist()):
        signal.decide(Evidence(t, ready=value))
        trusts.append(signal.learner.trust())

    assert trusts[0] == 0.0
    assert trusts[-1] == 1.0
    assert max(np.diff(trusts)) < 0.03


def test_a_node_without_contention_never_rejects(rng):
    said = run(LearnedSignal(), calm(rng, 8000))

    assert not said.raised.any()


def test_an_idle_node_never_rejects():
    for value in (0.0, 3.0):
        for tolerance in ("5%", "p95"):
            said = run(LearnedSignal(tolerance=tolerance), np.full(1500, value))

            assert not said.raised.any()
            assert np.isfinite(said.probability).all()


def test_contention_that_never_ends_stays_within_budget():
    said = run(LearnedSignal(budget=0.1), np.full(12_000, 50.0))

    # What is saved up at the start, half of what 7,200 steps earn, may be spent once.
    assert said.raised.sum() <= 0.1 * (12_000 + 3600)


def test_gaps_in_cpu_ready_are_bridged_for_a_horizon_and_then_accepted(rng):
    ready = lasting(rng, 1500, level=3.0)
    ready[rng.random(1500) < 0.3] = math.nan
    signal = LearnedSignal()
    run(signal, ready)
    run(signal, np.full(3, 40.0), first=1500)

    said = run(signal, np.full(8, math.nan), first=1503)

    assert "going by the last known value" in said.reasons[0]
    assert said.reasons[-1] == "CPU Ready unknown for 8 steps: accepting"
    assert not said.raised[5:].any()


def test_without_cpu_ready_it_accepts_and_says_so():
    said = run(LearnedSignal(), np.full(50, math.nan))

    assert not said.raised.any()
    assert said.reasons[-1] == "CPU Ready unknown for 50 steps: accepting"


def test_infinite_and_missing_values_leave_finite_scores(rng):
    signal = LearnedSignal(tolerance="p90")
    for t, value in enumerate(lasting(rng, 1200).tolist()):
        strange = rng.choice([value, math.nan, math.inf, -math.inf, -3.0, 0.0, 1e300])
        evidence = Evidence(
            t,
            ready=strange,
            utilisation=rng.choice([0.4, math.nan, math.inf]),
            time=rng.choice([1e9 + 20.0 * t, math.nan, math.inf]),
        )
        decision = signal.decide(evidence)

        assert math.isfinite(decision.score)
        assert 0.0 <= decision.probability <= 1.0


def test_precursors_in_other_metrics_are_found_where_cpu_ready_is_blind(rng):
    vectors, ready = announced(rng, 5000)

    said, _ = run_node(vectors, ready)

    quiet = (ready < 5.0) & (np.arange(5000) >= 1000) & (np.arange(5000) < 4995)
    label = labels(ready)[quiet]
    assert 0.4 <= roc_area(ready[quiet], label) <= 0.6
    assert roc_area(said.score[quiet], label) >= 0.75


def test_the_reason_names_the_metrics_that_announce_contention(rng):
    vectors, ready = announced(rng, 4000, which=(3, 11))

    said, _ = run_node(vectors, ready)

    drivers = [r for r, up, c in zip(said.reasons, said.raised, ready, strict=True) if up and c < 5.0][-20:]
    assert sum("metric 3" in r or "metric 11" in r for r in drivers) >= 15


def test_contention_that_is_there_is_named_and_not_the_time_of_day(rng):
    ready = np.full(3000, 4.0)
    for start in np.cumsum(rng.integers(40, 160, 30)):
        ready[start : start + rng.integers(5, 40)] = 5.2

    said = run(LearnedSignal(), ready, interval=1.0)

    during = [r for r, up, c in zip(said.reasons, said.raised, ready, strict=True) if up and c > 5.0][-200:]
    assert all("driven by CPU Ready now" in reason for reason in during)


def test_metrics_that_say_nothing_change_nothing(rng):
    ready = lasting(rng, 6000)
    noise = rng.normal(size=(6000, 24))

    with_metrics, signal = run_node(noise, ready)
    without = run(LearnedSignal(), ready)

    assert signal.learner.correction.trust() == 0.0
    same = with_metrics.raised == without.raised
    assert same.mean() > 0.999


def test_a_changed_regime_is_relearned_within_two_thousand_steps(rng):
    before, ready_before = announced(rng, 4000, which=(3, 11, 17))
    after, ready_after = announced(rng, 5000, which=(1, 5, 20))
    ready = np.concatenate([ready_before, ready_after])

    said, _ = run_node(np.vstack([before, after]), ready)

    late = (np.arange(9000) >= 6000) & (np.arange(9000) < 8995) & (ready < 5.0)
    assert roc_area(said.score[late], labels(ready)[late]) >= 0.75


def test_a_restored_signal_goes_on_bit_for_bit(rng):
    vectors, ready = announced(rng, 900)
    options = {"tolerance": "p95", "hold": 2, "enforcing": True, "explore": 0.3, "seed": 4}
    node = make_node("default", **options)
    for y, value in zip(vectors[:600], ready[:600], strict=True):
        node.step(y, ready=float(value), utilisation=0.3)

    twin = Node.from_bytes(node.to_bytes())

    for y, value in zip(vectors[600:], ready[600:], strict=True):
        assert node.step(y, ready=float(value)) == twin.step(y, ready=float(value))
    state, other = node.signal.state(), twin.signal.state()
    for name, value in state.items():
        assert np.array_equal(value, other[name]), name


def test_state_is_below_200_kb_whatever_the_options(rng):
    vectors = rng.normal(size=(40, 134))
    node = make_node("default", tolerance="p95", horizon=5)
    for y in vectors:
        node.step(y, ready=1.0)

    assert len(encode("signal", 1, node.signal.state())) < 200_000


def test_state_does_not_grow_with_the_stream(rng):
    signal = LearnedSignal(tolerance="p95")
    run(signal, lasting(rng, 100))
    early = len(encode("signal", 1, signal.state()))
    run(signal, lasting(rng, 6000))

    assert len(encode("signal", 1, signal.state())) <= 1.02 * early


def test_state_survives_the_codec(rng):
    signal = LearnedSignal()
    run(signal, lasting(rng, 200))
    fields = decode(encode("signal", 1, signal.state()), kind="signal", version=1)
    twin = LearnedSignal()
    twin.restore(fields)

    assert twin.decide(Evidence(200, ready=4.0)) == signal.decide(Evidence(200, ready=4.0))


def test_state_of_another_horizon_is_refused():
    signal = LearnedSignal(horizon=3)

    with pytest.raises(StateError, match="made with other options"):
        LearnedSignal(horizon=5).restore(signal.state())


def test_incomplete_state_is_refused():
    state = LearnedSignal().state()
    del state["clock.now"]

    with pytest.raises(StateError, match="must hold 'now'"):
        LearnedSignal().restore(state)


def test_a_change_in_the_number_of_metrics_is_refused():
    signal = LearnedSignal()
    signal.decide(Evidence(0, ready=1.0, vector=np.zeros(3)))

    with pytest.raises(ValueError, match="must have 3 metrics, got 4"):
        signal.decide(Evidence(1, ready=1.0, vector=np.zeros(4)))


def test_the_reason_gives_seconds_when_the_clock_is_known(rng):
    said = run(LearnedSignal(horizon=6), lasting(rng, 20), interval=10.0)

    assert "expected within 60 s" in said.reasons[-1]


@pytest.mark.parametrize("interval", [0.937, 1.937, 97.31, 1973.1])
def test_the_reason_has_no_more_digits_than_are_known(rng, interval):
    said = run(LearnedSignal(), lasting(rng, 40), interval=interval)

    for reason in said.reasons:
        shown = re.match(r"CPU Ready (\S+) % expected within (\S+) (?:s|min),", reason)
        for number in shown.groups() if shown else ():
            assert re.fullmatch(r"\d+|\d\.\d|0\.0*[1-9]\d?", number), reason
    assert "expected within" in said.reasons[-1]


def test_no_part_has_a_dictionary_that_saving_would_make_and_every_step_pay_for():
    parts = [LearnedSignal(budget=0.1, hourly_limit=0.4, tolerance="p90").learner]
    while parts:
        part = parts.pop()
        assert not hasattr(part, "__dict__"), type(part).__name__
        parts += [one for _, one in part._parts() if isinstance(one, Component)]


def test_settings_make_the_same_signal_again():
    signal = LearnedSignal(budget=0.2, tolerance="p90", hold=3, seed=9, enforcing=True)

    assert LearnedSignal(**signal.settings()).settings() == signal.settings()


def test_what_is_remembered_stays_in_step_through_gaps(rng):
    signal = LearnedSignal()
    for t, value in enumerate(lasting(rng, 300).tolist()):
        signal.decide(Evidence(t, ready=value if t % 3 else math.nan))

    learner = signal.learner
    for x, logit, counts in zip(learner.inputs, learner.logits, learner.counts, strict=True):
        # Weights have not changed since: labels are learned from in batches.
        if counts and learner.heads.labels % 32 > 5:
            assert learner.heads.predict(x)[0] == pytest.approx(logit)


def test_saved_state_has_the_names_of_earlier_releases():
    names = set(LearnedSignal(tolerance="p95", budget=0.1, hourly_limit=0.4).state())

    assert {"features", "sight.heads.weights", "sights", "said", "heads.borrowed", "heads.credit"} <= names
    assert {"tolerance.sample.values", "admission.budget.sample.seen", "admission.limit.minutes"} <= names
    assert {"outlook.within_30.heads.inverse", "record.trusted_early", "clock.measured"} <= names
    assert len(names) == 165
