from __future__ import annotations

import json
import math

import pytest

from prontosched.agent.jobs import AnnouncedJobs
from prontosched.agent.nodes import LiveNode, Silence
from prontosched.decision import Decision

CALM = Decision(raised=False, score=0.2, threshold=1.0, reason="nothing spikes")
BUSY = Decision(raised=True, score=3.0, threshold=1.0, reason="cpu_user is rising", timestep=7)


def known(decision, *, seen_at=100.0, changed_at=90.0):
    found = LiveNode(lambda metrics: None, name="n1", now=seen_at)
    found.decision, found.changed_at = decision, changed_at
    return found


def ask(decision, *, now=101.0, clock=5000.0, announced=None, silence=None, cpus=0.0, held_by=""):
    return known(decision).answer(
        announced or AnnouncedJobs(capacity=2),
        silence or Silence(10.0),
        now=now,
        clock=clock,
        cpus=cpus,
        held_by=held_by,
    )


def test_a_fresh_decision_is_the_answer():
    found = ask(BUSY)

    assert not found.accept
    assert found.reason == "cpu_user is rising"
    assert found.since == pytest.approx(4989.0)
    assert found.valid_until == pytest.approx(5009.0)
    assert found.age_seconds == pytest.approx(1.0)


def test_without_telemetry_the_policy_answers_and_says_for_how_long():
    found = ask(BUSY, now=194.0)

    assert found.accept
    assert found.stale
    assert found.reason == "no telemetry for 94 s: accepting, as set"
    assert found.valid_until < 5000.0


def test_the_policy_can_be_to_reject():
    found = ask(CALM, now=194.0, silence=Silence(10.0, "reject"))

    assert not found.accept
    assert "no telemetry for 94 s: rejecting" in found.reason


def test_before_the_first_vector_the_policy_answers():
    found = ask(None)

    assert found.accept
    assert found.reason.startswith("no telemetry yet")
    assert found.raised is None


def test_a_jump_of_the_clock_changes_no_age_and_no_answer():
    before, after = ask(BUSY, clock=5000.0), ask(BUSY, clock=-86_400.0 * 365)

    assert before.age_seconds == after.age_seconds
    assert before.accept == after.accept
    assert after.valid_until - after.since == pytest.approx(before.valid_until - before.since)


def test_announced_jobs_reject_what_the_signal_would_accept():
    announced = AnnouncedJobs(capacity=2)
    announced.add("a", cpus=2, ttl=30, now=95.0)
    found = ask(CALM, announced=announced, cpus=1)

    assert not found.accept
    assert "2 announced by 1 job" in found.reason


def test_a_raised_signal_gives_its_own_reason_even_when_jobs_are_announced():
    announced = AnnouncedJobs(capacity=2)
    announced.add("a", cpus=9, ttl=30, now=95.0)

    assert ask(BUSY, announced=announced).reason == "cpu_user is rising"


def test_since_is_when_the_node_became_full():
    announced = AnnouncedJobs(capacity=2)
    announced.add("a", cpus=9, ttl=30, now=97.0)

    assert ask(CALM, announced=announced).since == pytest.approx(4996.0)


def test_an_answer_is_json_with_null_for_what_is_unknown():
    found = json.loads(json.dumps(ask(CALM._replace(score=math.inf)).as_json(), allow_nan=False))

    assert found["score"] is None
    assert found["cpu_ready_percent"] is None
    assert found["accept"] is True


def test_a_node_full_only_for_a_wide_job_is_so_since_it_was_asked():
    announced = AnnouncedJobs(capacity=4, factor=1.0)
    announced.add("a", cpus=2, ttl=30, now=97.0)
    found = ask(CALM, announced=announced, cpus=4)

    assert not found.accept
    assert found.since == pytest.approx(5000.0)


def test_a_refusal_is_refusing_and_a_calm_node_accepting():
    assert ask(BUSY).state == "refusing"
    assert ask(CALM).state == "accepting"


def test_a_node_that_expects_contention_and_takes_jobs_is_contended_and_says_what_holds_it_open():
    found = ask(CALM._replace(contended=True))

    assert (found.accept, found.state) == (True, "contended")
    assert found.held_by == "a setting of its signal"


def test_no_answer_is_plainly_accepting_while_contention_is_likely():
    assert ask(CALM._replace(probability=0.5)).state == "contended"
    assert ask(CALM._replace(probability=0.49)).state == "accepting"


def test_a_refusal_that_the_gate_does_not_carry_out_is_contended():
    found = ask(BUSY, held_by="the capacity floor")

    assert (found.accept, found.state, found.held_by) == (True, "contended", "the capacity floor")
    assert found.raised


def test_what_a_gate_holds_open_is_still_full_when_jobs_fill_it():
    announced = AnnouncedJobs(capacity=2)
    announced.add("a", cpus=9, ttl=30, now=97.0)
    found = ask(BUSY, announced=announced, held_by="the capacity floor")

    assert (found.accept, found.state, found.held_by) == (False, "refusing", "")


def test_without_telemetry_an_old_expectation_says_nothing_of_now():
    found = ask(CALM._replace(contended=True, probability=0.9), now=194.0)

    assert (found.state, found.held_by) == ("accepting", "")
