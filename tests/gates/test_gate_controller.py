"""The controller: verdicts reach the scheduler, and trouble never reaches the loop."""

from __future__ import annotations

import threading
import time

import pytest

from examples.slurm_cluster import wait_for
from prontosched.errors import IntegrationError
from prontosched.gates.controller import Controller, GateStatus, sweep
from prontosched.gates.gate import Observed, Rank, Verdict
from prontosched.gates.policy import Rules
from tests.gates.memory_gate import ListingMemoryGate, MemoryGate, RankingMemoryGate
from tests.gates.verdicts import busy_at, quiet_at

EAGER = Rules(enforce=True, min_hold_seconds=0, min_accept_seconds=0)


def attending() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "pronto-gate-memory"]


def test_first_use_is_shadow_mode_and_changes_nothing() -> None:
    gate = MemoryGate("n1")
    status = Controller(gate, "n1").settle(busy_at(0), 0.0)

    assert (status.mode, status.state, status.refusals) == ("shadow", "closed-by-us", 1)
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
    assert not attending()


def test_verdict_after_closing_starts_nothing() -> None:
    gate = MemoryGate("n1")
    controller = Controller(gate, "n1", rules=EAGER)
    controller.close()
    calls = len(gate.calls)
    controller.apply(busy_at(time.time()), time.time())

    assert len(gate.calls) == calls
    assert not attending()


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
