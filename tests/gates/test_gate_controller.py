"""The controller: verdicts reach the scheduler, and trouble never reaches the loop."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from examples.slurm_cluster import wait_for
from prontosched.errors import IntegrationError
from prontosched.gates.controller import Controller, Dispatcher, GateStatus
from prontosched.gates.gate import Observed, Rank, Verdict
from prontosched.gates.policy import Rules
from prontosched.gates.sweep import sweep
from tests.gates.memory_gate import ListingMemoryGate, MemoryGate, RankingMemoryGate
from tests.gates.verdicts import busy_at, quiet_at

EAGER = Rules(enforce=True, min_hold_seconds=0, min_accept_seconds=0)


def attending() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "pronto-gate-memory"]


def test_first_use_is_shadow_mode_and_changes_nothing() -> None:
    gate = MemoryGate("n1")
    status = Controller(gate, "n1").settle(busy_at(0), 0.0)

    assert (status.mode, status.state, status.refusals) == ("shadow", "would-be-closed", 1)
    assert gate.changes() == []


def test_shadow_mode_opens_what_an_enforcing_run_left_closed() -> None:
    gate = MemoryGate("n1")
    gate.refuse("n1", busy_at(0))
    Controller(gate, "n1").settle(busy_at(0), 0.0)

    assert gate.owned() == []


def test_shadow_mode_lives_the_same_rules_as_enforcing() -> None:
    gate = MemoryGate("n1")
    gate.reasons["n1"] = "disk is failing"
    status = Controller(gate, "n1").settle(busy_at(0), 0.0)

    assert (status.state, status.refusals) == ("closed-by-other", 0)


def test_standing_counts_the_time_spent_refusing() -> None:
    controller = Controller(MemoryGate("n1"), "n1", rules=EAGER)
    controller.settle(busy_at(100), 100.0)
    controller.settle(busy_at(110), 110.0)
    controller.settle(quiet_at(115), 115.0)
    status = controller.settle(quiet_at(130), 130.0)

    assert status.refused_seconds == pytest.approx(15.0)
    assert (status.refusals, status.accepts, status.state) == (1, 1, "open")


def test_steady_verdicts_leave_the_scheduler_in_peace() -> None:
    gate = MemoryGate("n1")
    controller = Controller(gate, "n1", rules=Rules(enforce=True, observe_seconds=20))
    for now in range(100):
        controller.settle(quiet_at(now), float(now))

    assert len(gate.calls) == 5


def test_steady_refusal_is_renewed_long_before_it_lapses() -> None:
    gate = MemoryGate("n1")
    controller = Controller(gate, "n1", rules=Rules(enforce=True, observe_seconds=20))
    for now in range(600):
        controller.settle(busy_at(now), float(now))

        assert not gate.observe("n1").lapsed(now + 15.0)
    assert len(gate.changes()) <= 25


def test_administrators_drain_between_two_looks_is_left_alone() -> None:
    gate = MemoryGate("n1")
    controller = Controller(gate, "n1", rules=EAGER)
    controller.settle(quiet_at(0), 0.0)
    gate.reasons["n1"] = "disk is failing"
    status = controller.settle(busy_at(1), 1.0)

    assert status.state == "closed-by-other"
    assert gate.changes() == []


def test_error_is_never_read_as_open() -> None:
    gate = MemoryGate("n1")
    gate.broken = IntegrationError("slurmctld is away")
    status = Controller(gate, "n1", rules=EAGER).settle(quiet_at(0), 0.0)

    assert (status.state, status.errors, status.last_error) == ("unknown", 1, "slurmctld is away")


def test_scheduler_that_is_away_is_asked_less_and_less_often() -> None:
    gate = MemoryGate("n1")
    gate.broken = IntegrationError("slurmctld is away")
    controller = Controller(gate, "n1", rules=EAGER)
    for now in range(300):
        controller.settle(busy_at(now), float(now))

    assert 6 <= len(gate.calls) <= 12


def test_clock_set_back_does_not_put_off_the_next_try() -> None:
    gate = MemoryGate("n1")
    gate.broken = IntegrationError("slurmctld is away")
    controller = Controller(gate, "n1", rules=EAGER)
    controller.settle(busy_at(3600), 3600.0)
    gate.broken = None

    assert controller.settle(busy_at(0), 0.0).state == "closed-by-us"


def test_scheduler_that_comes_back_is_used_again() -> None:
    gate = MemoryGate("n1")
    gate.broken = IntegrationError("slurmctld is away")
    controller = Controller(gate, "n1", rules=EAGER)
    controller.settle(busy_at(0), 0.0)
    gate.broken = None
    status = controller.settle(busy_at(5), 5.0)

    assert (status.state, gate.owned()) == ("closed-by-us", ["n1"])


@pytest.mark.parametrize("error", [IntegrationError("away"), RuntimeError("bug"), KeyError("n1")])
def test_no_error_of_a_gate_reaches_the_loop(error: Exception) -> None:
    gate = MemoryGate("n1")
    gate.broken = error
    controller = Controller(gate, "n1", rules=EAGER)
    controller.apply(busy_at(time.time()), time.time())
    wait_for(lambda: controller.status.errors == 1, 5, "the error to be counted")

    assert not controller.close()


def test_slow_scheduler_does_not_hold_up_the_loop() -> None:
    gate = MemoryGate("n1")
    gate.stuck.clear()
    controller = Controller(gate, "n1", rules=EAGER)
    for _ in range(2000):
        status = controller.apply(busy_at(time.time()), time.time())
    assert (status.state, gate.calls) == ("unknown", [])
    controller.apply(quiet_at(time.time()), time.time())
    gate.stuck.set()

    wait_for(lambda: controller.status.state == "open", 5, "an answer")
    assert len(gate.calls) < 12
    assert controller.close()


def test_node_that_goes_on_accepting_wakes_nobody() -> None:
    settled = []

    class Counting(Controller):
        def settle(self, verdict: Verdict | None, now: float) -> GateStatus:
            settled.append(now)
            return super().settle(verdict, now)

    controller = Counting(MemoryGate("n1"), "n1", rules=EAGER)
    controller.apply(quiet_at(time.time()), time.time())
    wait_for(lambda: controller.status.state == "open", 5, "the first look")
    for _ in range(500):
        controller.apply(quiet_at(time.time()), time.time())
    time.sleep(0.05)
    assert len(settled) <= 2

    controller.apply(busy_at(time.time()), time.time())
    wait_for(lambda: controller.status.state == "closed-by-us", 5, "the refusal")
    assert controller.close()


def test_closing_a_stuck_controller_gives_up_in_time() -> None:
    gate = MemoryGate("n1")
    gate.stuck.clear()
    controller = Controller(gate, "n1", rules=EAGER)
    controller.apply(busy_at(time.time()), time.time())

    assert not controller.close(timeout=0.2)
    gate.stuck.set()
    wait_for(lambda: not attending(), 5, "the thread to end")


def test_silent_loop_leaves_the_node_closed_no_longer_than_its_verdict() -> None:
    gate = MemoryGate("n1")
    controller = Controller(gate, "n1", rules=Rules(enforce=True, min_hold_seconds=60))
    controller.apply(busy_at(time.time(), seconds=1.5), time.time())
    wait_for(lambda: gate.owned() == ["n1"], 5, "the refusal")
    waited = wait_for(lambda: gate.owned() == [], 5, "the node to open by itself")

    assert waited < 2.5
    assert controller.close()


def test_closing_opens_the_node_and_ends_the_thread() -> None:
    gate = MemoryGate("n1")
    controller = Controller(gate, "n1", rules=EAGER)
    controller.apply(busy_at(time.time()), time.time())
    wait_for(lambda: gate.owned() == ["n1"], 5, "the refusal")

    assert controller.close()
    assert gate.owned() == []
    wait_for(lambda: not attending(), 5, "the thread to end")


def test_verdict_after_closing_starts_nothing() -> None:
    gate = MemoryGate("n1")
    controller = Controller(gate, "n1", rules=EAGER)
    controller.close()
    calls = len(gate.calls)
    controller.apply(busy_at(time.time()), time.time())

    wait_for(lambda: not attending(), 5, "the thread to end")
    assert len(gate.calls) == calls


def test_node_closed_by_another_tool_just_before_our_call_is_not_counted_as_ours() -> None:
    class Late(MemoryGate):
        def refuse(self, node: str, verdict: Verdict) -> None:
            self.reasons[node] = "disk is failing"
            super().refuse(node, verdict)

    gate = Late("n1")
    status = Controller(gate, "n1", rules=EAGER).settle(busy_at(0), 0.0)

    assert (status.state, status.refusals) == ("closed-by-other", 0)
    seen = gate.observe("n1")
    assert (seen.state, seen.detail) == ("closed-by-other", "disk is failing")


def many(gate: MemoryGate, rules: Rules = EAGER, threads: int = 4) -> tuple[Dispatcher, list[Controller]]:
    """Return a dispatcher and a controller for each node of a gate."""
    dispatcher = Dispatcher(gate, threads=threads)
    return dispatcher, [Controller(gate, node, rules=rules, dispatcher=dispatcher) for node in gate.reasons]


def calm(controllers: list[Controller]) -> None:
    """Hand an acceptance over to each."""
    for controller in controllers:
        controller.apply(quiet_at(time.time()), time.time())


def ended(dispatcher: Dispatcher, controllers: list[Controller]) -> bool:
    """Close all controllers, and tell whether they ended."""
    for controller in controllers:
        controller.close(timeout=0.0)
    return dispatcher.join(5.0)


def test_many_nodes_share_a_few_threads_and_all_are_closed_and_opened() -> None:
    gate = MemoryGate(*(f"n{number}" for number in range(300)))
    gate.stuck.clear()
    dispatcher, controllers = many(gate)
    for _ in range(3):
        for controller in controllers:
            controller.apply(busy_at(time.time()), time.time())
    wait_for(lambda: len(attending()) == 4, 5, "the threads")
    gate.stuck.set()
    wait_for(lambda: len(gate.owned()) == 300, 10, "the refusals")
    assert len(attending()) == 4

    assert ended(dispatcher, controllers)
    assert gate.owned() == []
    wait_for(lambda: not attending(), 5, "the threads to end")


def test_a_slow_call_for_one_node_holds_up_no_other() -> None:
    held = threading.Event()

    class SlowForOne(MemoryGate):
        def refuse(self, node: str, verdict: Verdict) -> None:
            if node == "n0":
                held.wait(60)
            super().refuse(node, verdict)

    gate = SlowForOne(*(f"n{number}" for number in range(20)))
    dispatcher, controllers = many(gate)
    for controller in controllers:
        controller.apply(busy_at(time.time(), seconds=1.5), time.time())
    wait_for(lambda: len(gate.owned()) == 19, 5, "the others' refusals")
    # Nobody hands over another verdict: each is opened when its own ends.
    wait_for(lambda: gate.owned() == [], 10, "the others to open by themselves")
    for controller in controllers:
        controller.close(timeout=0.0)

    assert not dispatcher.join(0.3)
    held.set()
    assert dispatcher.join(5.0)
    assert gate.owned() == []


def test_nodes_end_in_the_order_told_whatever_is_at_work_or_due() -> None:
    held = threading.Event()

    class SlowForOne(MemoryGate):
        def observe(self, node: str) -> Observed:
            found = super().observe(node)
            if node == "n9" and self.reasons[node]:
                held.wait(60)
            return found

    gate = SlowForOne(*(f"n{number}" for number in range(10)))
    dispatcher, controllers = many(gate, replace(EAGER, observe_seconds=0.05), threads=1)
    for controller in controllers:
        controller.apply(busy_at(time.time()), time.time())
    wait_for(lambda: gate.calls.count(("observe", "n9")) == 2, 5, "another look at the last node")
    # By now all are due, the first node first.
    for controller in reversed(controllers):
        controller.close(timeout=0.0)
    held.set()

    assert dispatcher.join(5.0)
    opened = [node for what, node in gate.calls if what == "accept"]
    assert opened == [f"n{number}" for number in reversed(range(10))]


def test_many_nodes_are_looked_at_in_one_call() -> None:
    gate = ListingMemoryGate(*(f"n{number}" for number in range(100)))
    dispatcher, controllers = many(gate, Rules(enforce=True, observe_seconds=1.0))
    calm(controllers)
    wait_for(lambda: gate.calls.count(("list", "")) >= 2, 10, "a second look at all nodes")
    assert ended(dispatcher, controllers)

    # Only the first few, before there were many, were asked for alone.
    assert sum(what == "observe" for what, _ in gate.calls) <= 16
    assert {controller.status.state for controller in controllers} == {"open"}


def all_know_of(error: Exception) -> tuple[ListingMemoryGate, Dispatcher, list[Controller]]:
    """A gate of many nodes that is broken, and controllers that have all met its error."""
    gate = ListingMemoryGate(*(f"n{number}" for number in range(100)))
    gate.broken = error
    dispatcher, controllers = many(gate)
    calm(controllers)
    wait_for(lambda: all(one.status.errors for one in controllers), 10, "all to know")
    return gate, dispatcher, controllers


def test_a_failed_look_at_all_nodes_is_not_made_again_for_each() -> None:
    gate, dispatcher, controllers = all_know_of(IntegrationError("away"))
    assert gate.calls.count(("list", "")) <= 3
    gate.broken = None

    def recovered() -> bool:
        calm(controllers)
        return all(one.status.state == "open" for one in controllers)

    wait_for(recovered, 15, "all to recover")
    assert ended(dispatcher, controllers)


def test_a_node_that_is_due_keeps_its_turn_whatever_is_handed_over_meanwhile() -> None:
    turns = threading.Semaphore(0)

    class OneAtATime(MemoryGate):
        def observe(self, node: str) -> Observed:
            self.calls.append(("observe", node))
            turns.acquire()
            return Observed("closed-by-other", "disk is failing")

    gate = OneAtATime("n0", "n1", "n2")
    dispatcher, controllers = many(gate, Rules(enforce=True, observe_seconds=0), threads=1)
    for number in range(1, 7):
        for controller in controllers:
            controller.apply(busy_at(time.time()), time.time())
        wait_for(lambda number=number: len(gate.calls) == number, 5, "the next look")
        turns.release()

    assert sorted(node for _, node in gate.calls[:6]) == ["n0", "n0", "n1", "n1", "n2", "n2"]
    turns.release(100)
    assert ended(dispatcher, controllers)


def test_a_node_that_accepts_while_its_refusal_is_taken_up_is_opened_at_once() -> None:
    gate, entered, go = MemoryGate("n1"), threading.Event(), threading.Event()
    controller = Controller(gate, "n1", rules=EAGER)
    settle = controller.settle
    settle(quiet_at(time.time()), time.time())

    def held_up(verdict: Verdict | None, now: float) -> GateStatus:
        entered.set()
        go.wait(60)
        return settle(verdict, now)

    controller.settle = held_up  # type: ignore[method-assign]
    controller.apply(busy_at(time.time()), time.time())
    assert entered.wait(5)
    for _ in range(2):
        controller.apply(quiet_at(time.time()), time.time())
    go.set()
    wait_for(lambda: controller.status.accepts == 1, 5, "the node to open without another verdict")

    assert (controller.status.refusals, gate.owned()) == (1, [])
    assert controller.close()


def test_a_look_at_all_nodes_that_takes_long_is_not_made_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prontosched.gates.controller._LISTING_SECONDS", 0.2)

    class Slow(ListingMemoryGate):
        def observe_all(self) -> dict[str, Observed]:
            time.sleep(0.5)
            return super().observe_all()

    gate = Slow(*(f"n{number}" for number in range(60)))
    dispatcher, controllers = many(gate)
    calm(controllers)
    wait_for(lambda: all(one.status.state == "open" for one in controllers), 20, "all to be seen")

    assert gate.calls.count(("list", "")) <= 5
    assert ended(dispatcher, controllers)


def test_a_look_at_all_nodes_that_breaks_has_failed_for_all() -> None:
    gate, dispatcher, controllers = all_know_of(OSError("the system has no process left"))

    assert sum(what == "observe" for what, _ in gate.calls) <= 16
    gate.broken = None
    assert ended(dispatcher, controllers)


def test_a_look_at_all_nodes_before_a_change_that_failed_is_not_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The scheduler closes the node and answers too late; then the node accepts again."""
    monkeypatch.setattr("prontosched.gates.controller._LISTING_SECONDS", 600.0)

    class Late(ListingMemoryGate):
        def refuse(self, node: str, verdict: Verdict) -> None:
            super().refuse(node, verdict)
            raise IntegrationError("no answer in time")

    gate = Late(*(f"n{number}" for number in range(20)))
    dispatcher, controllers = many(gate, replace(EAGER, max_refusing=1.0))
    calm(controllers)
    wait_for(lambda: all(one.status.state == "open" for one in controllers), 10, "all to be seen")
    controllers[0].apply(busy_at(time.time()), time.time())
    wait_for(lambda: controllers[0].status.errors == 1, 5, "the refusal to fail")
    assert gate.owned() == ["n0"]

    def opened() -> bool:
        controllers[0].apply(quiet_at(time.time()), time.time())
        return gate.owned() == []

    wait_for(opened, 10, "the node to open")
    assert ended(dispatcher, controllers)


def test_many_closed_nodes_are_counted_and_the_queue_read_for_all_at_once() -> None:
    class Queued(RankingMemoryGate):
        def starved(self) -> bool:
            self._call("queue", "")
            return super().starved()

    gate = Queued(*(f"n{number}" for number in range(100)))
    rules = replace(EAGER, veto=True, observe_seconds=1.0)
    dispatcher, controllers = many(gate, rules)

    def handed() -> bool:
        for number, controller in enumerate(controllers):
            now = time.time()
            controller.apply(busy_at(now) if number < 20 else quiet_at(now), now)
        return all(one.status.state == "closed-by-us" for one in controllers[:20])

    wait_for(handed, 10, "the refusals")
    gate.calls.clear()
    wait_for(lambda: handed() and controllers[0].status.refused_seconds > 5, 20, "some time")

    assert gate.calls.count(("list", "")) <= 4
    assert gate.calls.count(("queue", "")) <= 6
    assert ended(dispatcher, controllers)


def test_a_decision_that_turns_every_second_is_written_every_ten() -> None:
    gate = RankingMemoryGate("n1", "n2")
    controller = Controller(gate, "n1", rules=Rules(enforce=True, veto=True, max_refusing=0.01))
    gate.waiting = True  # so that it is never closed
    for second in range(60):
        controller.settle(Verdict(second % 2 == 0, 0.45, "busy", second + 60.0), float(second))

    assert gate.ranks["n1"].level == 3
    assert 2 <= sum(what == "prefer" for what, _ in gate.calls) <= 7


def test_shadow_mode_asks_nothing_about_what_it_only_remembers() -> None:
    gate = RankingMemoryGate("n1", "n2")
    controller = Controller(gate, "n1", rules=Rules(veto=True))
    for second in range(60):
        controller.settle(busy_at(second, score=0.2 if second < 20 else 0.9), float(second))

    assert (controller.status.state, controller.status.level) == ("would-be-closed", 4)
    assert gate.calls == [("observe", "n1")]


def test_a_floor_that_said_no_is_not_asked_again_at_once() -> None:
    gate = ListingMemoryGate("n1", "n2", "n3", "n4")
    first, second = (Controller(gate, node, rules=replace(EAGER, max_refusing=0.25)) for node in ("n1", "n2"))
    first.settle(busy_at(0, score=0.9), 0.0)
    gate.calls.clear()
    for moment in range(9):
        second.settle(busy_at(moment, score=0.8), float(moment))
    assert second.status.held_open.startswith("the capacity floor")
    assert [what for what, _ in gate.calls] == ["observe", "list"]

    first.settle(quiet_at(9), 9.0)
    assert second.settle(busy_at(11, score=0.8), 11.0).state == "closed-by-us"


def test_a_sweep_looks_again_only_at_what_is_over() -> None:
    gate = ListingMemoryGate(*(f"n{number}" for number in range(1000)))
    for number in range(1000):
        until = 90.0 if number % 500 == 7 else 200.0
        gate.refuse(f"n{number}", Verdict(True, 0.9, "busy", valid_until=until))
    gate.calls.clear()
    swept = sweep(gate, now=100.0)

    assert sorted(swept.opened) == ["n507", "n7"]
    assert len(swept.kept) == 998
    assert [call for call in gate.calls if call[0] == "list"] == [("list", "")]
    assert sorted(node for what, node in gate.calls if what == "observe") == ["n507", "n7"]


def test_a_mark_renewed_since_the_list_was_made_stays() -> None:
    class Renewed(ListingMemoryGate):
        def observe_all(self) -> dict[str, Observed]:
            found = super().observe_all()
            self.refuse("n1", Verdict(True, 0.9, "busy", valid_until=200.0))
            return found

    gate = Renewed("n1")
    gate.refuse("n1", Verdict(True, 0.9, "busy", valid_until=90.0))
    swept = sweep(gate, now=100.0)

    assert (swept.opened, swept.kept) == ([], ["n1"])


def test_a_sweep_opens_nodes_before_it_takes_off_ranks_and_leaves_ranks_to_the_next() -> None:
    gate = RankingMemoryGate("a", "b", "c")
    for node in ("a", "b", "c"):
        gate.ranks[node] = Rank(2, 0.5, False, 90.0)
    gate.refuse("c", Verdict(True, 0.9, "busy", valid_until=90.0))
    gate.calls.clear()
    swept = sweep(gate, now=100.0, seconds=-1.0)

    assert gate.changes() == [("accept", "c"), ("restore", "c")]
    assert (swept.opened, swept.restored, swept.kept) == (["c"], ["c"], ["a", "b"])
    assert sweep(gate, now=100.0).restored == ["a", "b"]
