"""The capacity floor, by counting and by leases."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prontosched.federation.leases import RefusalLeases
from prontosched.federation.link import LocalBus, LocalLink
from prontosched.gates.controller import Controller
from prontosched.gates.dask import WorkerView, may_pause
from prontosched.gates.extender import Ledger
from prontosched.gates.gate import Verdict
from prontosched.gates.policy import (
    HELD_MARGIN,
    CountedFloor,
    Floor,
    LeaseFloor,
    NodeReport,
    closable,
    closed_nodes,
    floor_for,
    may_close,
    places,
)
from prontosched.simulation.rules import ClusterGate
from tests.gates.memory_gate import ListingMemoryGate, MemoryGate, RankingMemoryGate
from tests.gates.verdicts import GivenDecisions, busy_at, eager, quiet_at

NODES = ("n1", "n2", "n3", "n4")


def busy(score: float, now: float = 0.0) -> Verdict:
    return busy_at(now, score=score)


def test_scheduler_that_can_count_holds_the_floor_without_leases() -> None:
    floor = floor_for(ListingMemoryGate(*NODES), share=0.5, leases=None)

    assert isinstance(floor, CountedFloor)
    assert floor.how == "counted at memory, at most 50% of the nodes"


def test_without_leases_and_counting_the_floor_says_that_it_is_off() -> None:
    floor = floor_for(MemoryGate(*NODES), share=0.5, leases=None)

    assert type(floor) is Floor
    assert floor.allow("n1", busy(0.1), 0.0)
    assert floor.how.startswith("off")


def shared_leases(share: float, nodes: int) -> RefusalLeases:
    """Leases in this process, with the rule that an agent hands them."""
    return RefusalLeases(
        LocalLink(LocalBus()), lambda words, count: closed_nodes(words, nodes=count, share=share), nodes=nodes
    )


def test_leases_come_before_counting() -> None:
    leases = shared_leases(0.5, 4)

    assert isinstance(floor_for(ListingMemoryGate(*NODES), share=0.5, leases=leases), LeaseFloor)


def in_arrays(chance: float, share: float) -> bool:
    return bool(closable(np.array([True]), np.array([chance]), share=share, held=np.array([True]))[0])


def by_name(chance: float, share: float) -> bool:
    return may_close("n1", {"n1": NodeReport(True, chance, held=True)}, nodes=1, share=share)


def by_counting(chance: float, share: float) -> bool:
    gate = ListingMemoryGate("n1", "n2")
    gate.reasons["n2"] = "disk is failing"
    return CountedFloor(gate.observe_all, "memory", share).allow("n1", busy(chance), 0.0)


def by_leases(chance: float, share: float) -> bool:
    return LeaseFloor(shared_leases(share, 1)).allow("n1", busy(chance), 0.0)


def by_dask(chance: float, share: float) -> bool:
    return may_pause("a", chance, {"a": WorkerView(True, True, chance)}, share)


def by_the_extender(chance: float, share: float) -> bool:
    ledger = Ledger(GivenDecisions({"n1": busy(chance)}), eager(share))
    ledger.see(["n1"], 0.0)
    return bool(ledger.settle(0.0))


def by_the_simulator(chance: float, share: float) -> bool:
    gate = ClusterGate(1, eager(share))
    return bool(gate.close(np.array([True]), np.array([chance]), starved=False)[0])


@pytest.mark.parametrize("share", [0.25, 1.0])
@pytest.mark.parametrize("chance", [0.0, 0.05, 0.9])
@pytest.mark.parametrize(
    "closes", [in_arrays, by_name, by_counting, by_leases, by_dask, by_the_extender, by_the_simulator]
)
def test_lone_node_in_service_is_never_closed(
    closes: Callable[[float, float], bool], chance: float, share: float
) -> None:
    assert not closes(chance, share)


def test_calmer_node_gives_way_to_one_that_is_worse_off() -> None:
    gate = RankingMemoryGate(*NODES, "n5", "n6", "n7", "n8")
    weak, strong = (Controller(gate, node, rules=eager(0.125)) for node in ("n1", "n2"))
    weak.settle(busy(0.6), 0.0)
    assert [node for node in NODES if gate.observe(node).ours] == ["n1"]
    # The place is taken, and no agent touches another's node: the first gives way by itself.
    strong.settle(busy(0.9), 1.0)
    weak.settle(busy(0.6), 2.0)
    strong.settle(busy(0.9), 3.0)

    assert [node for node in NODES if gate.observe(node).ours] == ["n2"]


def test_near_equals_do_not_take_turns() -> None:
    gate = RankingMemoryGate(*NODES, "n5", "n6", "n7", "n8")
    controllers = {node: Controller(gate, node, rules=eager(0.125)) for node in ("n1", "n2")}
    for now in range(20):
        for number, (_, controller) in enumerate(sorted(controllers.items())):
            controller.settle(busy(0.7 + 0.04 * ((now + number) % 2), float(now)), float(now))

    assert sum(controller.status.refusals for controller in controllers.values()) == 1


def test_node_held_open_by_an_option_keeps_calmer_ones_open() -> None:
    """It does not refuse, so it cannot be closed: then nothing calmer is."""
    gate = RankingMemoryGate(*NODES, "n5", "n6", "n7", "n8")
    Controller(gate, "n1", rules=eager()).settle(Verdict(False, 0.9, "held open by a budget", 60.0), 0.0)
    status = Controller(gate, "n2", rules=eager(0.5)).settle(busy(0.7, 1), 1.0)

    assert (status.state, status.withheld) == ("open", 1)
    assert gate.ranks["n1"].level == 4


def test_fleet_that_is_contended_throughout_stays_open() -> None:
    gate = RankingMemoryGate(*NODES)
    controllers = [Controller(gate, node, rules=eager(0.5)) for node in NODES]
    for now in range(3):
        for controller in controllers:
            controller.settle(busy(0.8, float(now)), float(now))

    assert [node for node in NODES if gate.observe(node).ours] == []


def test_refusal_without_a_readable_score_keeps_no_place() -> None:
    gate = RankingMemoryGate(*NODES)
    gate.reasons["n1"] = "pronto: edited by hand"
    status = Controller(gate, "n1", rules=eager(0.25)).settle(quiet_at(0.0), 0.0)

    assert status.state == "open"


@settings(deadline=None)
@given(
    nodes=st.integers(1, 12),
    share=st.floats(0.05, 1.0),
    asks=st.lists(st.tuples(st.integers(0, 11), st.floats(0, 1), st.booleans()), max_size=60),
)
def test_counted_refusals_never_exceed_their_places(
    nodes: int, share: float, asks: list[tuple[int, float, bool]]
) -> None:
    names = [f"n{i}" for i in range(nodes)]
    gate = ListingMemoryGate(*names)
    controllers = [Controller(gate, name, rules=eager(share)) for name in names]
    for now, (index, score, refuse) in enumerate(asks):
        verdict = Verdict(refuse, score, "why", now + 1000.0)
        controllers[index % nodes].settle(verdict, float(now))

        assert len(gate.owned()) <= places(nodes, share)
        assert nodes > 1 or gate.owned() == []


words = st.tuples(st.booleans(), st.floats(0, 1))


def settled(controllers: dict[str, Controller], fleet: dict[str, tuple[bool, float]], now: float) -> None:
    """Let every node hear what the others say, and act on it."""
    for turn in range(3):
        for name, controller in controllers.items():
            refuse, chance = fleet[name]
            controller.settle(Verdict(refuse, chance, "why", now + 60.0), now + turn / 10)


@pytest.mark.parametrize("floor", ["counted", "leases"])
@settings(max_examples=60, deadline=None)
@given(
    stream=st.lists(st.lists(words, min_size=6, max_size=6), min_size=1, max_size=5),
    share=st.floats(0.1, 0.9),
)
def test_no_node_is_closed_that_is_calmer_than_one_left_open(
    floor: str, stream: list[list[tuple[bool, float]]], share: float
) -> None:
    """By any floor; nodes that are closed already count a margin more, against taking turns."""
    names = [f"n{i}" for i in range(6)]
    gate = RankingMemoryGate(*names)
    gate.level_seconds = 0.0
    leases = shared_leases(share, 6) if floor == "leases" else None
    controllers = {name: Controller(gate, name, rules=eager(share), leases=leases) for name in names}
    for now, said in enumerate(stream):
        fleet = dict(zip(names, said, strict=True))
        settled(controllers, fleet, 100.0 * now)
        closed = [name for name in names if gate.observe(name).ours]

        assert len(closed) <= places(6, share)
        assert all(fleet[name][0] for name in closed)
        # Chances are told to within the twentieth by which they must move to be told again.
        calmest = min((fleet[name][1] for name in closed), default=1.0)
        assert all(fleet[name][1] <= calmest + HELD_MARGIN + 0.1 for name in names if name not in closed)


def test_two_nodes_that_close_at_the_same_moment_leave_the_one_that_is_worse_off() -> None:
    """The scheduler cannot compare and set: both counted before either closed."""
    gate = ListingMemoryGate(*NODES)
    other = busy(0.8)

    class Racing(ListingMemoryGate):
        def refuse(self, node: str, verdict: Verdict) -> None:
            super().refuse("n2", other)
            super().refuse(node, verdict)

    gate.__class__ = Racing
    Controller(gate, "n1", rules=eager(0.25)).settle(busy(0.5), 0.0)

    assert gate.owned() == ["n2"]


def test_controller_gives_way_when_its_lease_goes_to_a_node_that_is_worse_off() -> None:
    gate = MemoryGate(*NODES)
    leases = shared_leases(0.25, 4)
    weak, strong = (Controller(gate, node, rules=eager(0.25), leases=leases) for node in ("n1", "n2"))
    weak.settle(busy(0.4), 0.0)
    assert gate.owned() == ["n1"]
    strong.settle(busy(0.9), 1.0)
    status = weak.settle(busy(0.4, 2), 2.0)

    assert gate.owned() == ["n2"]
    assert (status.state, status.withheld) == ("open", 1)
    assert "worse off" in status.why


def test_a_node_without_a_lease_asks_its_scheduler_no_more_often_than_a_closed_one() -> None:
    class Queued(RankingMemoryGate):
        def starved(self) -> bool:
            self._call("queue", "")
            return super().starved()

    gate = Queued(*NODES)
    leases = shared_leases(0.25, 4)
    rules = replace(eager(0.25), observe_seconds=60)
    first, second = (Controller(gate, node, rules=rules, leases=leases) for node in ("n1", "n2"))
    first.settle(busy(0.9), 0.0)
    gate.calls.clear()
    for moment in range(10):
        second.settle(busy(0.8, moment), float(moment))

    assert second.status.withheld == 1
    # Its rank is written once, and it is looked at before and after that.
    assert [what for what, _ in gate.calls] == ["observe", "prefer", "observe"]
    first.settle(Verdict(False, 0.0, "nothing spikes", 71.0), 11.0)
    assert second.settle(busy(0.8, 12), 12.0).state == "closed-by-us"


def test_queue_that_starves_opens_the_node_before_any_minimum_time() -> None:
    gate = RankingMemoryGate(*NODES)
    controller = Controller(gate, "n1", rules=replace(eager(0.25), min_hold_seconds=1000))
    assert controller.settle(busy(0.9), 0.0).state == "closed-by-us"
    gate.waiting = True
    status = controller.settle(busy(0.9, 11), 11.0)

    assert (status.state, gate.observe("n1").state) == ("open", "open")
    assert "jobs wait and no open node can take them" in status.why
    gate.waiting = False
    assert controller.settle(busy(0.9, 12), 12.0).state == "closed-by-us"


def test_lease_is_given_back_when_the_node_opens() -> None:
    gate = MemoryGate(*NODES)
    leases = shared_leases(0.25, 4)
    controller = Controller(gate, "n1", rules=eager(0.25), leases=leases)
    controller.settle(busy(0.4), 0.0)
    assert list(leases.refusing()) == ["n1"]
    controller.settle(Verdict(False, 0.0, "nothing spikes", 61.0), 1.0)

    assert leases.refusing() == {}


def test_lease_is_given_back_when_someone_else_closes_the_node() -> None:
    gate = MemoryGate(*NODES)
    leases = shared_leases(0.25, 4)
    controller = Controller(gate, "n1", rules=eager(0.25), leases=leases)
    controller.settle(busy(0.4), 0.0)
    gate.reasons["n1"] = "disk is failing"
    controller.settle(busy(0.4), 1.0)

    assert leases.refusing() == {}
    assert gate.reasons["n1"] == "disk is failing"


def test_unknown_score_counts_as_calm() -> None:
    gate = ListingMemoryGate(*NODES)
    gate.refuse("n2", busy(0.01))

    assert not CountedFloor(gate.observe_all, "memory", 0.25).allow("n1", busy(math.nan), 0.0)
