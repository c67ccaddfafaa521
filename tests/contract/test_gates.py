"""What every gate must do, tried on each of them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from prontosched.errors import IntegrationError
from prontosched.gates.controller import Controller
from prontosched.gates.gate import Gate, ListingGate, PreferringGate, QueueGate, Rank, Verdict
from prontosched.gates.policy import Rules
from prontosched.gates.registry import BUILT_IN
from prontosched.gates.sweep import release, sweep
from tests.contract.gate_harness import HARNESSES, Harness, harness_of

EAGER = Rules(
    enforce=True, veto=True, min_hold_seconds=0, min_accept_seconds=0, observe_seconds=0, max_refusing=1.0
)


@pytest.fixture(scope="module", params=sorted(HARNESSES))
def started(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    with harness_of(request.param)(tmp_path_factory.mktemp(request.param)) as harness:
        yield harness


@pytest.fixture
def harness(started: Harness) -> Iterator[Harness]:
    yield started
    if started.reopen is not None:
        for node in started.nodes:
            started.reopen(node)
    for node in started.nodes:
        started.gate.accept(node)
        if isinstance(started.gate, PreferringGate):
            started.gate.restore(node)


def ranking(gate: Gate) -> PreferringGate:
    if not isinstance(gate, PreferringGate):
        pytest.skip("this gate cannot prefer")
    return gate


def rank(level: int, seconds: float = 300.0, *, refuse: bool = False) -> Rank:
    return Rank(level, (0.05, 0.2, 0.4, 0.6, 0.9)[level], refuse, time.time() + seconds)


def refusing(seconds: float = 60.0, reason: str = "cpu_user is rising", score: float = 0.75) -> Verdict:
    return Verdict(True, score, reason, time.time() + seconds)


def test_node_is_open_before_anyone_touches_it(harness: Harness) -> None:
    assert harness.gate.observe(harness.nodes[0]).state == "open"
    assert harness.gate.owned() == []


def test_refused_node_is_ours_with_score_and_expiry_read_back(harness: Harness) -> None:
    verdict = refusing()
    harness.gate.refuse(harness.nodes[0], verdict)
    observed = harness.gate.observe(harness.nodes[0])

    assert observed.state == "closed-by-us"
    assert observed.score == pytest.approx(verdict.score)
    assert verdict.valid_until - 1 <= observed.valid_until <= verdict.valid_until


def test_refusal_touches_no_other_node(harness: Harness) -> None:
    harness.gate.refuse(harness.nodes[0], refusing())

    assert harness.gate.observe(harness.nodes[1]).state == "open"
    assert harness.gate.owned() == [harness.nodes[0]]


def test_reason_is_shown_where_users_of_the_scheduler_look(harness: Harness) -> None:
    harness.gate.refuse(harness.nodes[0], refusing(reason="disk queue grows\nfast, says \"sda\" 'now' \\ σ"))

    assert "disk queue grows fast, says sda now σ" in harness.shown(harness.nodes[0])


def test_accepting_opens_what_was_refused(harness: Harness) -> None:
    harness.gate.refuse(harness.nodes[0], refusing())
    harness.gate.accept(harness.nodes[0])

    assert harness.gate.observe(harness.nodes[0]).state == "open"
    assert harness.gate.owned() == []


def test_accepting_twice_is_the_same_as_once(harness: Harness) -> None:
    harness.gate.refuse(harness.nodes[0], refusing())
    harness.gate.accept(harness.nodes[0])
    harness.gate.accept(harness.nodes[0])

    assert harness.gate.observe(harness.nodes[0]).state == "open"


def test_refusing_again_renews_reason_and_expiry(harness: Harness) -> None:
    harness.gate.refuse(harness.nodes[0], refusing(20))
    later = refusing(90, reason="memory fills", score=0.5)
    harness.gate.refuse(harness.nodes[0], later)
    observed = harness.gate.observe(harness.nodes[0])

    assert observed.valid_until == pytest.approx(later.valid_until, abs=1.0)
    assert "memory fills" in harness.shown(harness.nodes[0])


def test_restarted_agent_knows_its_own_refusal(harness: Harness) -> None:
    harness.gate.refuse(harness.nodes[0], refusing())
    other = harness.again()

    assert other.owned() == [harness.nodes[0]]
    other.accept(harness.nodes[0])
    assert harness.gate.observe(harness.nodes[0]).state == "open"


def test_node_closed_by_someone_else_is_left_as_it_is(harness: Harness) -> None:
    if harness.close is None:
        pytest.skip("this gate is a condition of its own beside the administrator's")
    node = harness.nodes[0]
    harness.close(node)
    before = harness.shown(node)
    harness.gate.refuse(node, refusing())
    harness.gate.accept(node)

    assert harness.gate.observe(node).state == "closed-by-other"
    assert harness.shown(node) == before
    assert harness.gate.owned() == []


def test_administrator_who_closes_over_our_refusal_wins(harness: Harness) -> None:
    if harness.close is None:
        pytest.skip("this gate is a condition of its own beside the administrator's")
    node = harness.nodes[0]
    harness.gate.refuse(node, refusing())
    harness.close(node)
    before = harness.shown(node)
    controller = Controller(harness.gate, node, rules=EAGER)
    controller.settle(Verdict(False, 0.0, "idle again", time.time() + 60), time.time())
    release(harness.gate)

    assert harness.shown(node) == before


def test_release_opens_every_node_of_ours(harness: Harness) -> None:
    for node in harness.nodes[:2]:
        harness.gate.refuse(node, refusing())
    swept = release(harness.gate)

    assert sorted(swept.opened) == sorted(harness.nodes[:2])
    assert [harness.gate.observe(node).state for node in harness.nodes[:2]] == ["open", "open"]


def test_sweep_opens_lapsed_nodes_and_keeps_valid_ones(harness: Harness) -> None:
    harness.gate.refuse(harness.nodes[0], refusing(5))
    harness.gate.refuse(harness.nodes[1], refusing(60))
    swept = sweep(harness.gate, now=time.time() + 10)

    assert (swept.opened, swept.kept, swept.failed) == ([harness.nodes[0]], [harness.nodes[1]], {})
    assert harness.gate.observe(harness.nodes[0]).state == "open"


def test_unknown_node_is_an_error_that_names_it(harness: Harness) -> None:
    if harness.unknown is None:
        pytest.skip("this gate takes any name")

    with pytest.raises(IntegrationError, match=harness.unknown):
        harness.gate.observe(harness.unknown)


@pytest.mark.parametrize("name", ["n[1-4]", "n1,n2", "../n1", "n1 state=down", "", "-h", "a" * 5000])
def test_name_that_could_mean_something_else_is_an_error(harness: Harness, name: str) -> None:
    with pytest.raises(IntegrationError, match="name"):
        harness.gate.observe(name)


def test_counting_gate_counts_what_it_refuses(harness: Harness) -> None:
    if not isinstance(harness.gate, ListingGate):
        pytest.skip("this gate cannot count")
    before = harness.gate.observe_all()
    harness.gate.refuse(harness.nodes[0], refusing(score=0.5))
    after = harness.gate.observe_all()

    assert after.keys() == before.keys() >= set(harness.nodes[:2])
    assert {name: seen.score for name, seen in after.items() if seen.ours} == {harness.nodes[0]: 0.5}


def test_controller_in_shadow_mode_changes_nothing(harness: Harness) -> None:
    node = harness.nodes[0]
    before = harness.shown(node)
    controller = Controller(harness.gate, node, rules=Rules(veto=True, min_accept_seconds=0))
    status = controller.settle(refusing(), time.time())

    assert (status.mode, status.state, status.refusals) == ("shadow", "would-be-closed", 1)
    assert harness.shown(node) == before
    assert harness.gate.observe(node).state == "open"


def test_controller_refuses_and_opens_when_it_is_closed(harness: Harness) -> None:
    node = harness.nodes[0]
    controller = Controller(harness.gate, node, rules=EAGER)
    status = controller.settle(refusing(), time.time())

    assert (status.state, status.errors) == ("closed-by-us", 0)
    assert controller.close()
    assert harness.gate.observe(node).state == "open"


def test_rank_is_read_back_with_level_chance_word_and_expiry(harness: Harness) -> None:
    gate, node = ranking(harness.gate), harness.nodes[0]
    for given in (rank(2), rank(4, refuse=True)):
        gate.prefer(node, given, refusing(reason="cpu_user is rising"))
        seen = harness.gate.observe(node)

        assert seen.state == "open"
        assert seen.rank is not None
        assert (seen.rank.level, seen.rank.refuse) == (given.level, given.refuse)
        assert seen.rank.chance == pytest.approx(given.chance)
        assert given.valid_until - 1 <= seen.rank.valid_until <= given.valid_until
        assert harness.gate.owned() == [node]
    assert harness.gate.observe(harness.nodes[1]).rank is None


def test_contended_node_is_preferred_less_and_restoring_leaves_no_trace(harness: Harness) -> None:
    gate, node = ranking(harness.gate), harness.nodes[0]
    assert harness.preference is not None
    before = harness.preference(node), harness.shown(node)
    gate.prefer(node, rank(3), refusing())
    assert harness.preference(node) != before[0]
    gate.restore(node)

    assert (harness.preference(node), harness.shown(node)) == before
    assert harness.gate.owned() == []
    gate.restore(node)
    assert (harness.preference(node), harness.shown(node)) == before


def test_level_nought_is_as_the_administrator_set_it(harness: Harness) -> None:
    gate, node = ranking(harness.gate), harness.nodes[0]
    assert harness.preference is not None
    before = harness.preference(node)
    gate.prefer(node, rank(3), refusing())
    gate.prefer(node, rank(0), refusing())

    assert harness.preference(node) == before
    found = harness.gate.observe(node).rank
    assert (found is not None) == gate.marks_calm
    assert found is None or found.level == 0


def test_rank_outlives_a_veto_and_a_veto_a_rank(harness: Harness) -> None:
    gate, node = ranking(harness.gate), harness.nodes[0]
    gate.prefer(node, rank(3), refusing())
    harness.gate.refuse(node, refusing())
    seen = harness.gate.observe(node)
    assert seen.ours
    assert seen.rank is not None
    harness.gate.accept(node)
    after = harness.gate.observe(node)
    assert (after.state, after.rank) == ("open", seen.rank)
    harness.gate.refuse(node, refusing())
    gate.restore(node)

    assert harness.gate.observe(node).ours
    assert harness.gate.observe(node).rank is None


def test_watchdog_restores_lapsed_ranks_and_keeps_valid_ones(harness: Harness) -> None:
    gate = ranking(harness.gate)
    gate.prefer(harness.nodes[0], rank(3, 5), refusing())
    gate.prefer(harness.nodes[1], rank(3, 300), refusing())
    swept = sweep(harness.again(), now=time.time() + 10)

    assert (swept.restored, swept.kept, swept.failed) == ([harness.nodes[0]], [harness.nodes[1]], {})
    assert harness.gate.observe(harness.nodes[0]).rank is None
    assert release(harness.again()).restored == [harness.nodes[1]]


def test_counting_gate_counts_ranks_by_the_nodes_own_word(harness: Harness) -> None:
    gate = ranking(harness.gate)
    if not isinstance(harness.gate, ListingGate):
        pytest.skip("this gate cannot count")
    gate.prefer(harness.nodes[0], rank(3, refuse=True), refusing())
    seen = harness.gate.observe_all()

    assert {name: (one.rank.level, one.rank.refuse) for name, one in seen.items() if one.rank} == {
        harness.nodes[0]: (3, True)
    }
    assert not any(one.ours for one in seen.values())


def test_controller_without_a_veto_ranks_and_never_closes(harness: Harness) -> None:
    ranking(harness.gate)
    node = harness.nodes[0]
    controller = Controller(harness.gate, node, rules=Rules(enforce=True, observe_seconds=0))
    status = controller.settle(refusing(), time.time())
    seen = harness.gate.observe(node)

    assert (seen.state, status.state, status.level) == ("open", "open", 3)
    assert seen.rank is not None
    assert controller.close()
    assert harness.gate.observe(node).rank is None


def test_controller_in_shadow_mode_ranks_nothing(harness: Harness) -> None:
    ranking(harness.gate)
    assert harness.preference is not None
    before = harness.preference(harness.nodes[0])
    controller = Controller(harness.gate, harness.nodes[0])
    status = controller.settle(refusing(), time.time())

    assert (status.mode, status.level, status.rankings) == ("shadow", 3, 1)
    assert harness.preference(harness.nodes[0]) == before


def test_no_veto_stands_while_jobs_wait_that_no_open_node_can_take(harness: Harness) -> None:
    if harness.starve is None:
        assert not isinstance(harness.gate, QueueGate)
        pytest.skip("this gate cannot tell who waits")
    node = harness.nodes[0]
    controller = Controller(harness.gate, node, rules=EAGER)
    assert controller.settle(refusing(), time.time()).state == "closed-by-us"
    relieve = harness.starve()
    try:
        status = controller.settle(refusing(), time.time())

        assert status.state == "open"
        assert "jobs wait" in status.why
    finally:
        relieve()
    controller.close()


def test_every_gate_of_ours_is_in_the_suite() -> None:
    assert set(BUILT_IN) <= set(HARNESSES)
