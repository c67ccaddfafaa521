"""The extender's ear on the federation's bus."""

from __future__ import annotations

import math

from prontosched.cli.extender_bus import BusDecisions
from prontosched.federation.link import DECISIONS, LocalBus, LocalLink
from prontosched.federation.message import DecisionMessage
from prontosched.federation.tree import place
from prontosched.gates.gate import Verdict


class Bus:
    """A bus whose clock is 1,000 s ahead of this machine's."""

    def __init__(self) -> None:
        self.board = LocalBus(clock=lambda: 2000.0)
        self.link = LocalLink(self.board)
        self.decisions = BusDecisions(LocalLink(self.board), valid_seconds=60.0, clock=lambda: 1000.0)

    def say(
        self, node: str, *, accept: bool, until: float, probability: float = math.nan, key: str = ""
    ) -> None:
        message = DecisionMessage(node, accept, 3.0, "busy", 2000.0, until, probability=probability)
        self.link.put(DECISIONS, place(key or node), message.to_bytes())


def test_decision_on_the_bus_counts_by_this_machines_clock() -> None:
    bus = Bus()
    bus.say("site/rack/n1", accept=False, until=2010.0, probability=0.7)

    assert bus.decisions.verdicts().get("n1") == Verdict(True, 0.7, "busy", valid_until=1010.0)


def test_decision_that_claims_to_hold_for_ever_is_cut_short() -> None:
    bus = Bus()
    bus.say("n1", accept=False, until=1e12)
    verdict = bus.decisions.verdicts().get("n1")

    assert verdict is not None
    assert (verdict.score, verdict.valid_until) == (1.0, 1060.0)


def test_newest_decision_replaces_the_one_before() -> None:
    bus = Bus()
    bus.say("n1", accept=False, until=2010.0)
    bus.say("n1", accept=True, until=2020.0)
    verdict = bus.decisions.verdicts().get("n1")

    assert verdict is not None
    assert not verdict.refuse


def test_node_that_left_is_unknown() -> None:
    bus = Bus()
    bus.say("rack/n1", accept=False, until=2010.0)
    assert bus.decisions.verdicts().get("n1") is not None
    bus.link.put(DECISIONS, place("rack/n1"), b"")

    assert bus.decisions.verdicts().get("n1") is None


def test_nobody_speaks_for_another_node() -> None:
    bus = Bus()
    bus.say("rack/n1", accept=False, until=2010.0, key="rack/n2")

    assert bus.decisions.verdicts().get("n1") is None
    assert bus.decisions.verdicts().get("n2") is None
    assert bus.decisions.unreadable == 1


def test_noise_on_the_bus_is_counted_and_passed_over() -> None:
    bus = Bus()
    bus.link.put(DECISIONS, place("n1"), b"\x00noise")
    bus.say("n2", accept=False, until=2010.0)

    assert bus.decisions.verdicts().get("n2") is not None
    assert bus.decisions.verdicts().get("n1") is None
    assert bus.decisions.unreadable == 1


def test_another_place_under_the_same_name_neither_closes_nor_opens_a_node() -> None:
    bus = Bus()
    bus.say("rack1/n1", accept=False, until=2010.0)
    bus.say("rack2/n1", accept=True, until=2010.0)
    assert bus.decisions.verdicts().get("n1") is None

    bus.link.put(DECISIONS, place("rack2/n1"), b"")
    verdict = bus.decisions.verdicts().get("n1")
    assert verdict is not None
    assert verdict.refuse


def test_a_place_whose_decision_has_ended_leaves_the_name_to_the_other() -> None:
    bus = Bus()
    bus.say("rack1/n1", accept=True, until=1990.0)
    bus.say("rack2/n1", accept=False, until=2010.0)
    verdict = bus.decisions.verdicts().get("n1")

    assert verdict is not None
    assert verdict.refuse
