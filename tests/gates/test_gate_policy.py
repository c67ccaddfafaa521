"""When a gate closes and opens."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prontosched.errors import SettingsError
from prontosched.gates.gate import Observed, Rank, Verdict
from prontosched.gates.policy import LEVEL_BURST, LevelPolicy, Rules, VetoPolicy, take_rules
from tests.gates.verdicts import busy_at, quiet_at

OPEN = Observed("open")
OTHER = Observed("closed-by-other", "disk is failing")


def ours(until: float) -> Observed:
    return Observed("closed-by-us", "pronto: …", 0.5, until)


def refused(policy: VetoPolicy, now: float) -> None:
    assert policy.choose(busy_at(now), OPEN, now).action == "refuse"
    policy.done("refuse", now, now + 60)


def test_first_refusal_needs_no_waiting() -> None:
    assert VetoPolicy(Rules()).choose(busy_at(0), OPEN, 0.0).action == "refuse"


def test_accepting_verdict_waits_for_the_minimum_hold() -> None:
    policy = VetoPolicy(Rules(min_hold_seconds=20))
    refused(policy, 0.0)

    assert policy.choose(quiet_at(19.9), ours(60), 19.9).action == "leave"
    assert policy.choose(quiet_at(20), ours(60), 20.0).action == "accept"


def test_refusing_verdict_waits_for_the_minimum_accept() -> None:
    policy = VetoPolicy(Rules(min_hold_seconds=0, min_accept_seconds=20))
    refused(policy, 0.0)
    policy.done("accept", 5.0)

    assert policy.choose(busy_at(24.9), OPEN, 24.9).action == "leave"
    assert policy.choose(busy_at(25), OPEN, 25.0).action == "refuse"


def test_expired_verdict_opens_without_waiting_for_the_hold() -> None:
    policy = VetoPolicy(Rules(min_hold_seconds=1000))
    refused(policy, 0.0)

    assert policy.choose(busy_at(0), ours(60), 60.0).action == "accept"
    assert policy.choose(None, ours(60), 1.0).action == "accept"


def test_mark_is_renewed_from_half_its_time_on() -> None:
    policy = VetoPolicy(Rules())
    refused(policy, 0.0)

    assert policy.choose(busy_at(29), ours(60), 29.0).action == "leave"
    assert policy.choose(busy_at(30), ours(60), 30.0).action == "renew"


def test_mark_that_outlives_its_verdict_is_renewed_at_once() -> None:
    """A clock that ran ahead made it, and nobody would open the node in time."""
    policy = VetoPolicy(Rules())
    refused(policy, 3600.0)

    assert policy.choose(busy_at(0), ours(3660), 0.0).action == "renew"


@pytest.mark.parametrize("step", ["accepting", "refusing", "overridden"])
def test_clock_set_back_stretches_no_time(step: str) -> None:
    policy = VetoPolicy(Rules(min_hold_seconds=20, min_accept_seconds=20, override_seconds=300))
    refused(policy, 3600.0)
    if step == "accepting":
        assert policy.choose(quiet_at(0), ours(60), 0.0).action == "leave"
        assert policy.choose(quiet_at(20), ours(60), 20.0).action == "accept"
        return
    if step == "refusing":
        policy.done("accept", 3600.0)
    wait = 20.0 if step == "refusing" else 300.0
    assert policy.choose(busy_at(3601), OPEN, 3601.0).action == "leave"

    assert policy.choose(busy_at(0), OPEN, 0.0).action == "leave"
    assert policy.choose(busy_at(wait), OPEN, wait).action == "refuse"


def test_damaged_mark_is_renewed_at_once() -> None:
    policy = VetoPolicy(Rules())
    refused(policy, 0.0)

    assert policy.choose(busy_at(1), ours(math.nan), 1.0).action == "renew"


def test_node_opened_by_someone_else_stays_open_for_a_while() -> None:
    policy = VetoPolicy(Rules(override_seconds=300))
    refused(policy, 0.0)

    assert policy.choose(busy_at(10), OPEN, 10.0).action == "leave"
    assert policy.choose(busy_at(309), OPEN, 309.0).action == "leave"
    assert policy.choose(busy_at(311), OPEN, 311.0).action == "refuse"


def test_mark_undone_by_a_watchdog_is_no_override() -> None:
    policy = VetoPolicy(Rules(override_seconds=300))
    refused(policy, 0.0)

    assert policy.choose(busy_at(70), OPEN, 70.0).action == "refuse"


def test_refusal_left_by_an_earlier_run_is_taken_over() -> None:
    policy = VetoPolicy(Rules(min_hold_seconds=20))

    assert policy.choose(busy_at(0), ours(50), 0.0).action == "leave"
    assert policy.holding
    assert policy.choose(quiet_at(1), ours(50), 1.0).action == "leave"


def test_refusal_left_by_an_earlier_run_opens_on_an_accepting_verdict() -> None:
    assert VetoPolicy(Rules(min_hold_seconds=20)).choose(quiet_at(0), ours(50), 0.0).action == "accept"


@given(
    st.lists(
        st.tuples(st.floats(0, 30), st.booleans(), st.sampled_from(["ok", "other", "opened"])), max_size=60
    )
)
def test_no_sequence_touches_what_others_closed_or_breaks_a_minimum_time(
    events: list[tuple[float, bool, str]],
) -> None:
    rules = Rules(min_hold_seconds=15, min_accept_seconds=10)
    policy, seen, now = VetoPolicy(rules), OPEN, 0.0
    closed_at, opened_at = math.nan, -math.inf
    for wait, refuse, event in events:
        now += wait
        if event == "other":
            seen = OTHER
        elif event == "opened":
            seen = OPEN
        verdict = Verdict(refuse, 0.5, "why", now + 60)
        action = policy.choose(verdict, seen, now).action

        assert seen.state != "closed-by-other" or action == "leave"
        assert action != "refuse" or (refuse and seen == OPEN and now - opened_at >= 10)
        assert action != "accept" or (seen.ours and not refuse and not now - closed_at < 15)
        if action == "refuse":
            closed_at = now
        if action in ("refuse", "renew"):
            seen = ours(now + 60)
        elif action == "accept":
            seen, opened_at = OPEN, now
        policy.done(action, now, now + 60)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_refusing", 0.0),
        ("max_refusing", 1.01),
        ("max_refusing", math.nan),
        ("valid_seconds", 1.0),
        ("valid_seconds", math.inf),
        ("min_hold_seconds", -1.0),
        ("observe_seconds", math.nan),
    ],
)
def test_rules_that_break_a_promise_are_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(SettingsError, match=f"{name} must be"):
        Rules(**{name: value})


def test_rule_that_is_no_number_is_refused_by_name() -> None:
    with pytest.raises(SettingsError, match="min_hold_seconds must be a number of seconds, got 'soon'"):
        take_rules({"min_hold_seconds": "soon"}, enforce=False, max_refusing=0.5)


def followed(chances: list[float], seconds: float, *, every: float = 1.0) -> list[int]:
    """Return the level after each chance, and let every change be made."""
    policy, rank, levels = LevelPolicy(seconds), None, []
    for step, chance in enumerate(chances):
        now = step * every
        level = policy.choose(Verdict(False, chance, "why", now + 60), rank, now)
        if level != (0 if rank is None else rank.level):
            policy.done(now)
        rank = Rank(level, chance, False, now + 300) if level else None
        levels.append(level)
    return levels


def changes(levels: list[int]) -> int:
    return sum(a != b for a, b in zip([0, *levels], levels, strict=False))


def test_level_rises_at_once_and_falls_when_the_chance_has() -> None:
    assert followed([0.05, 0.9, 0.9, 0.05, 0.05], 60.0) == [0, 4, 4, 0, 0]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=400), st.sampled_from([10.0, 60.0]))
def test_level_changes_at_most_once_a_time_in_the_long_run(chances: list[float], seconds: float) -> None:
    assert changes(followed(chances, seconds)) <= LEVEL_BURST + len(chances) / seconds


@given(st.lists(st.floats(0, 1), min_size=1, max_size=100))
def test_node_out_of_changes_stays_on_the_careful_side(chances: list[float]) -> None:
    """After the burst a fall waits for two changes, a rise for one."""
    levels = followed([*chances, *[0.95] * 61], 60.0)

    assert levels[-1] == 4


def test_gate_that_takes_any_number_of_changes_gets_them() -> None:
    assert changes(followed([0.9, 0.05] * 50, 0.0)) == 100


def test_level_of_a_verdict_that_has_ended_is_nought() -> None:
    policy, rank = LevelPolicy(60.0), Rank(4, 0.9, True, 300.0)

    assert policy.choose(Verdict(True, 0.9, "why", 60.0), rank, 61.0) == 0
    assert policy.choose(None, rank, 1.0) == 0


def test_clock_set_back_earns_no_change_of_level() -> None:
    policy = LevelPolicy(60.0)
    for _ in range(3):
        policy.done(1000.0)

    assert policy.choose(Verdict(False, 0.9, "why", 900.0), None, 0.0) == 0


def test_node_that_refuses_is_ranked_as_contended_whatever_its_chance() -> None:
    assert LevelPolicy(60.0).choose(Verdict(True, 0.2, "announced jobs fill it", 60.0), None, 0.0) == 3


def test_veto_is_a_rule_of_every_gate_and_must_be_true_or_false() -> None:
    options = {"veto": "true", "conf": "x"}

    assert take_rules(options, enforce=True, max_refusing=0.5).veto is True
    assert options == {"conf": "x"}
    with pytest.raises(SettingsError, match="veto must be true or false, got 'maybe'"):
        take_rules({"veto": "maybe"}, enforce=True, max_refusing=0.5)
