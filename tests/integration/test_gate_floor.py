"""The capacity floor, by counting and by leases."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prontosched.federation.leases import RefusalLeases
from prontosched.federation.link import Board, LocalLink
from prontosched.integration.floor import CountedFloor, LeaseFloor, NoFloor, floor_for
from prontosched.integration.gate import Verdict
from prontosched.integration.keeper import Keeper
from prontosched.integration.preference import places
from tests.integration.memory_gate import CountingMemoryGate, MemoryGate
from tests.integration.verdicts import busy_at, eager

NODES = ("n1", "n2", "n3", "n4")


def busy(score: float, now: float = 0.0) -> Verdict:
    return busy_at(now, score=score)


def test_scheduler_that_can_count_holds_the_floor_without_leases() -> None:
    floor = floor_for(CountingMemoryGate(*NODES), share=0.5, leases=None)

    assert isinstance(floor, CountedFloor)
    assert floor.how == "counted at memory, at most 50% of the nodes"


def test_without_leases_and_counting_the_floor_says_that_it_is_off() -> None:
    floor = floor_for(MemoryGate(*NODES), share=0.5, leases=None)

    assert isinstance(floor, NoFloor)
    assert floor.how.startswith("off")


def test_leases_come_before_counting() -> None:
    leases = RefusalLeases(LocalLink(Board()), share=0.5, nodes=4)

    assert isinstance(floor_for(CountingMemoryGate(*NODES), share=0.5, leases=leases), LeaseFloor)


def test_gate_that_cannot_count_is_no_counted_floor() -> None:
    with pytest.raises(TypeError, match="memory: it has no census"):
        CountedFloor(MemoryGate("n1"), 0.5)


def test_lone_node_in_service_may_not_refuse() -> None:
    gate = CountingMemoryGate("n1", "n2")
    gate.reasons["n2"] = "disk is failing"

    assert not CountedFloor(gate, 1.0 / 2).allow("n1", busy(0.9), 0.0)


def test_least_certain_gives_way_to_a_more_certain_node() -> None:
    gate = CountingMemoryGate(*NODES)
    floor = CountedFloor(gate, 0.5)
    for node, score in (("n1", 0.6), ("n2", 0.4)):
        assert floor.allow(node, busy(score), 0.0)
        gate.refuse(node, busy(score))

    assert not floor.allow("n3", busy(0.3), 0.0)
    assert floor.allow("n4", busy(0.9), 0.0)
    assert gate.owned() == ["n1"]


def test_refusal_without_a_readable_score_gives_way_first() -> None:
    gate = CountingMemoryGate(*NODES)
    gate.reasons.update(
        n1="pronto: edited by hand", n2="pronto: busy (score 0.1, until 2099-01-01T00:00:00Z)"
    )

    assert CountedFloor(gate, 0.5).allow("n3", busy(0.05), 0.0)
    assert gate.owned() == ["n2"]


@given(
    nodes=st.integers(1, 12),
    share=st.floats(0.05, 1.0),
    asks=st.lists(st.tuples(st.integers(0, 11), st.floats(0, 1), st.booleans()), max_size=60),
)
def test_counted_refusals_never_exceed_their_places(
    nodes: int, share: float, asks: list[tuple[int, float, bool]]
) -> None:
    names = [f"n{i}" for i in range(nodes)]
    gate = CountingMemoryGate(*names)
    keepers = [Keeper(gate, name, rules=eager(share)) for name in names]
    for now, (index, score, refuse) in enumerate(asks):
        verdict = Verdict(refuse, score, "why", now + 1000.0)
        keepers[index % nodes].settle(verdict, float(now))

        assert len(gate.owned()) <= places(nodes, share)
        assert nodes == 1 or len(gate.owned()) < nodes or share == 1.0


def test_two_nodes_that_close_at_the_same_moment_leave_the_more_certain_one() -> None:
    """The scheduler cannot compare and set: both counted before either closed."""
    gate = CountingMemoryGate(*NODES)
    other = busy(0.8)

    class Racing(CountingMemoryGate):
        def refuse(self, node: str, verdict: Verdict) -> None:
            super().refuse("n2", other)
            super().refuse(node, verdict)

    gate.__class__ = Racing
    Keeper(gate, "n1", rules=eager(0.25)).settle(busy(0.5), 0.0)

    assert gate.owned() == ["n2"]


def test_keeper_gives_way_when_its_lease_goes_to_a_more_certain_node() -> None:
    gate = MemoryGate(*NODES)
    leases = RefusalLeases(LocalLink(Board()), share=0.25, nodes=4)
    weak, strong = (Keeper(gate, node, rules=eager(0.25), leases=leases) for node in ("n1", "n2"))
    weak.settle(busy(0.4), 0.0)
    assert gate.owned() == ["n1"]
    strong.settle(busy(0.9), 1.0)
    standing = weak.settle(busy(0.4, 2), 2.0)

    assert gate.owned() == ["n2"]
    assert (standing.state, standing.withheld) == ("open", 1)
    assert "enough other nodes refuse already" in standing.why


def test_lease_is_given_back_when_the_node_opens() -> None:
    gate = MemoryGate(*NODES)
    leases = RefusalLeases(LocalLink(Board()), share=0.25, nodes=4)
    keeper = Keeper(gate, "n1", rules=eager(0.25), leases=leases)
    keeper.settle(busy(0.4), 0.0)
    assert list(leases.refusing()) == ["n1"]
    keeper.settle(Verdict(False, 0.0, "nothing spikes", 61.0), 1.0)

    assert leases.refusing() == {}


def test_lease_is_given_back_when_someone_else_closes_the_node() -> None:
    gate = MemoryGate(*NODES)
    leases = RefusalLeases(LocalLink(Board()), share=0.25, nodes=4)
    keeper = Keeper(gate, "n1", rules=eager(0.25), leases=leases)
    keeper.settle(busy(0.4), 0.0)
    gate.reasons["n1"] = "disk is failing"
    keeper.settle(busy(0.4), 1.0)

    assert leases.refusing() == {}
    assert gate.reasons["n1"] == "disk is failing"


def test_unknown_score_counts_as_least_certain() -> None:
    gate = CountingMemoryGate(*NODES)
    gate.refuse("n2", busy(0.01))

    assert not CountedFloor(gate, 0.25).allow("n1", busy(math.nan), 0.0)
