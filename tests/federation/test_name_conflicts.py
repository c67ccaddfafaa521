"""Two agents under one name are noticed; an agent that starts again is not two."""

from __future__ import annotations

import dataclasses
import json
import logging
import threading

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from prontosched.cli.federation import command
from prontosched.errors import FederationError
from prontosched.federation.address import Address
from prontosched.federation.aggregator import CONFLICT_SUMMARIES, MAX_FORMER, Aggregator, NameConflicts
from prontosched.federation.link import LocalLink
from prontosched.federation.member import Member
from prontosched.federation.message import MAX_CLASHES, GlobalView, Summary, clash_note
from prontosched.federation.monitor import take_snapshot
from prontosched.federation.nats import NatsLink
from prontosched.federation.publisher import Propagation
from prontosched.federation.service import AggregatorDiscovery, AggregatorService, run_services
from prontosched.pipeline.presets import make_node

from .buses import Bus, eventually
from .fleets import factor_data, summary_of
from .simulated import METRICS, Simulated, Stream
from .test_message import example, known, packed

ONE = np.ones((4, 3))


def said(incarnation: int, sequence: int, name: str = "n") -> Summary:
    return summary_of(name, ONE, rank=1, incarnation=incarnation, sequence=sequence)


def heard(*versions: tuple[int, int], expiry: float = 180.0) -> Aggregator:
    """An aggregator that heard these, one per second."""
    aggregator = Aggregator("", expiry_seconds=expiry)
    for now, (incarnation, sequence) in enumerate(versions):
        aggregator.receive(said(incarnation, sequence), now=float(now))
    return aggregator


def test_two_who_speak_in_turn_clash() -> None:
    aggregator = heard((1, 1), (1, 2), (5, 1), (1, 3), (5, 2), (1, 4))

    assert aggregator.conflicts.names == ("n",)
    assert aggregator.merged().clashes == ("n",)
    assert aggregator.merged().nodes == 1


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.lists(st.integers(0, 40), max_size=40))
def test_restarts_duplicates_and_replays_are_no_clash(lives: list[int], replayed: list[int]) -> None:
    """Whatever was heard before may be heard again at any time."""
    aggregator = Aggregator("")
    past: list[tuple[int, int]] = []
    for incarnation, words in enumerate(lives, 1):
        for sequence in range(1, words + 1):
            past.append((incarnation * 10, sequence))
            aggregator.receive(said(*past[-1]), now=float(len(past)))
            for number in replayed:
                aggregator.receive(said(*past[number % len(past)]), now=float(len(past)))

    assert aggregator.conflicts.names == ()


def test_one_late_word_of_the_former_is_no_clash() -> None:
    assert CONFLICT_SUMMARIES == 2
    assert heard((1, 1), (5, 1), (1, 2), (5, 2), (5, 3)).conflicts.names == ()


def test_an_aggregator_that_starts_in_the_middle_notices_too() -> None:
    """What lies on the bus is the newest of one of the two."""
    assert heard((5, 7), (1, 3), (5, 8)).conflicts.names == ()
    assert heard((5, 7), (1, 3), (5, 8), (1, 4), (5, 9), (1, 5)).conflicts.names == ("n",)


def test_a_clash_outlives_a_restart_of_the_newer_one() -> None:
    aggregator = heard((1, 1), (5, 1), (1, 2), (1, 3), (9, 1), (1, 4), expiry=4.0)
    aggregator.receive(said(9, 2), now=8.0)
    aggregator.expire(8.0)
    assert aggregator.conflicts.names == ("n",)


def test_a_clash_ends_when_one_of_the_two_has_another_name() -> None:
    aggregator = heard((1, 1), (5, 1), (1, 2), (1, 3), expiry=10.0)
    assert aggregator.merged().clashes == ("n",)
    aggregator.receive(said(5, 2), now=12.0)
    aggregator.expire(12.0)
    assert aggregator.merged().clashes == ("n",)
    aggregator.expire(14.0)
    assert aggregator.merged().clashes == ()
    # And when one says goodbye, which is all that both have said.
    gone = heard((1, 1), (5, 1), (1, 2), (1, 3))
    gone.forget("n")
    assert gone.conflicts.names == ()


def test_aggregators_that_take_over_from_each_other_do_not_clash() -> None:
    aggregator = Aggregator("")
    for now, (incarnation, sequence) in enumerate([(1, 1), (5, 1), (1, 2), (5, 2), (1, 3), (1, 4)]):
        summary = dataclasses.replace(said(incarnation, sequence, "rack"), merged=True)
        aggregator.receive(summary, now=float(now))

    assert aggregator.conflicts.names == ()


def test_what_is_remembered_is_bounded() -> None:
    clashes = NameConflicts(180.0)
    for incarnation in range(1000, 0, -1):
        clashes.older("n", (incarnation, 1), 0.0)

    assert len(clashes._former["n"].sequences) == MAX_FORMER
    aggregator = Aggregator("")
    for number in range(2 * MAX_CLASHES):
        for now, version in enumerate([(1, 1), (5, 1), (1, 2), (1, 3)]):
            aggregator.receive(said(*version, name=f"n{number:03d}"), now=float(now))
    assert len(aggregator.merged().clashes) == MAX_CLASHES
    assert "n000, n001, n002, n003, n004 and 27 more" in clash_note(aggregator.merged().clashes)


def test_names_travel_with_summaries_and_views_and_older_messages_are_read() -> None:
    summary = dataclasses.replace(example(), merged=True, clashes=("rack/a", "rack/b"))
    view = GlobalView.of(summary, 7)

    assert Summary.from_bytes(summary.to_bytes(), known(summary)).clashes == ("rack/a", "rack/b")
    assert GlobalView.from_bytes(view.to_bytes(), known(summary)).clashes == ("rack/a", "rack/b")
    assert Summary.from_bytes(packed(summary), known(summary)).clashes == ()
    assert b"clashes" not in example().to_bytes()


@pytest.mark.parametrize("value", ["rack/a", [1], ["x" * 201], ["n"] * (MAX_CLASHES + 1), {"a": 1}])
def test_names_that_are_none_are_refused(value: object) -> None:
    with pytest.raises(FederationError, match="at most 32 names as clashes"):
        Summary.from_bytes(packed(example(), clashes=value), known(example()))


def test_a_clash_is_worth_a_message() -> None:
    rule = Propagation()
    summary = example()
    rule.sent(summary, now=0.0)

    assert rule.due(summary, now=1.0) is None
    assert rule.due(dataclasses.replace(summary, clashes=("n",)), now=1.0) == "clashes changed"


def test_both_agents_say_once_that_they_share_a_name(caplog: pytest.LogCaptureFixture) -> None:
    fleet = Simulated(["paris/r1/n1", "paris/r1/n2"])
    fleet.step(15)
    twin = Member(LocalLink(fleet.board), "paris/r1/n1", tree=fleet.tree, rule=fleet.rule())
    node, stream = make_node("paper", metrics=METRICS), Stream(50)
    with caplog.at_level(logging.WARNING):
        for _ in range(60):
            # Both within one turn of the aggregator, the twin always a little earlier.
            twin.step(node, node.step(stream.read()))
            fleet.step()

    assert fleet.view.clashes == ("paris/r1/n1",)
    assert fleet.view.nodes == 2
    assert twin.view.clashes == fleet.nodes["paris/r1/n1"][1].view.clashes == ("paris/r1/n1",)
    assert fleet.nodes["paris/r1/n2"][1]._views.clashes == ()
    # The two agents and the aggregator above them, once each.
    assert [record.getMessage() for record in caplog.records] == [clash_note(["paris/r1/n1"])] * 3
    seen = take_snapshot(LocalLink(fleet.board), tree=fleet.tree)
    assert seen.clashes == ("paris/r1/n1",)

    twin.leave()
    fleet.step(200)
    assert fleet.view.clashes == ()
    assert fleet.nodes["paris/r1/n1"][1]._views.clashes == ()


def test_on_a_real_bus_a_restart_is_none_and_a_twin_is_shown_by_the_command(tmp_path) -> None:
    bus = Bus(tmp_path).start()
    place = Address.parse(f"{bus.url}/clash?epsilon=0&max_age=0.5")
    links = [NatsLink(place, name=name) for name in ("above", "one", "restarted", "twin")]
    found = AggregatorDiscovery(
        links[0], place.tree, lambda name: AggregatorService(links[0], Aggregator(name), tree=place.tree)
    )
    stop = threading.Event()
    work = threading.Thread(target=run_services, args=(found.services, stop, lambda line: None))
    work.start()
    data = factor_data(np.random.default_rng(0), len(METRICS), 200).T

    class Agent:
        def __init__(self, link: NatsLink) -> None:
            self.member = Member(link, "rack/n1")
            self.node = make_node("paper", metrics=METRICS)

        def step(self) -> None:
            self.member.step(self.node, self.node.step(data[self.node.timestep % len(data)]))

    def spoken(*agents: Agent, until) -> None:
        def once() -> bool:
            for agent in agents:
                agent.step()
            return bool(until())

        eventually(once, seconds=30.0, message="what the agents wait for")

    try:
        first = Agent(links[1])
        spoken(first, until=lambda: first.member.view and first.member.view.nodes == 1)
        second = Agent(links[2])
        revision = first.member.view.revision
        spoken(second, until=lambda: second.member.view and second.member.view.revision > revision + 4)
        assert second.member.view.clashes == ()

        twin = Agent(links[3])
        spoken(second, twin, until=lambda: second.member.view.clashes and twin.member.view.clashes)
        address = f"{bus.url}/clash"
        text = CliRunner().invoke(command, ["--nats", address]).output
        assert clash_note(["rack/n1"]) in text
        assert json.loads(CliRunner().invoke(command, ["--nats", address, "--json"]).output)["clashes"] == [
            "rack/n1"
        ]
    finally:
        stop.set()
        work.join(10)
        for link in links:
            link.close()
        bus.kill()
