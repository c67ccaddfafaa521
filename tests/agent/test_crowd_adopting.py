"""Nodes of a crowd adopt the global view as single nodes do."""

from __future__ import annotations

import asyncio
import threading
import time

import numpy as np
import pytest

from prontosched.agent.crowd_members import ADOPT_AT_ONCE, NEW_AT_ONCE, CrowdMembers
from prontosched.agent.federating import FederationFollower
from prontosched.federation.address import Address
from prontosched.federation.aggregator import Aggregator
from prontosched.federation.discovery import Discovery
from prontosched.federation.link import Board, LocalLink
from prontosched.federation.nats_link import NatsLink
from prontosched.federation.service import AggregatorService, run_all
from prontosched.federation.tree import Tree
from prontosched.pipeline import node as adoption
from prontosched.subspace import distance
from tests.agent.machine import make_agent
from tests.agent.test_api import asking, get
from tests.agent.test_federation_view import check_schema, fleet_of, settled
from tests.federation.buses import Bus

SECONDS = 30.0


class Watch:
    """An agent over a crowd whose names a test may add to, stepped by hand."""

    def __init__(self, names, follower, **given):
        self.names = names
        self.follower = follower
        self.agent = make_agent(fleet_of(names, **given), interval=1.0, followers=[follower])

    @property
    def fleet(self):
        return self.agent.nodes.fleet

    def place(self, name):
        return self.agent.nodes.names.index(name)

    async def tick(self, count=1):
        for _ in range(count):
            await self.agent.tick()

    async def until(self, holds, what):
        end = time.monotonic() + SECONDS
        while not holds():
            assert time.monotonic() < end, f"{what} did not come true: {self.follower.status()}"
            await self.tick()
            await asyncio.sleep(0)

    async def everyone_adopted(self):
        await self.until(lambda: self.follower.adopted >= len(self.names), "everyone adopted a view")

    def stepped(self, *actions):
        async def go():
            try:
                for action in actions:
                    await action()
            finally:
                await self.agent.abandon()

        asyncio.run(go())


def racks(count, start=0):
    return [f"rack-{i // 25}/n{i:03d}" for i in range(start, start + count)]


def projects(fleet, at):
    """Whether the last vector of a node was projected, on the fleet's view alone."""
    return fleet.subspace(at) is None and fleet.view(at) is not None and bool(np.any(fleet._projections[at]))


def test_late_nodes_of_an_embedded_crowd_project_from_their_first_vectors():
    watch = Watch(racks(80), FederationFollower.embedded())
    late, later = racks(4, 80), racks(3, 90)

    async def rebuilt():
        before = int(watch.fleet.timestep.max())
        watch.names += late
        await watch.tick(8)
        # No room for them: a larger fleet goes on, and those who came have the view at once.
        assert watch.fleet.timestep.max() == before + 8
        assert all(projects(watch.fleet, watch.place(name)) for name in late)

    async def beside():
        await watch.tick(60)
        watch.names += later
        # The first two vectors of a node only give it a scale.
        await watch.tick(6)
        assert all(projects(watch.fleet, watch.place(name)) for name in later)
        assert watch.fleet.timestep[:84].min() == 74

    watch.stepped(watch.everyone_adopted, rebuilt, beside)

    status = watch.follower.status()
    assert status["adopted"] >= 80 + 84 + 3
    assert status["errors"] == 0


def test_a_node_unlike_the_others_drops_the_view_after_its_first_block():
    odd = "rack-3/odd"
    watch = Watch(racks(80), FederationFollower.embedded(), odd=odd)

    async def joins():
        watch.names.append(odd)
        await watch.tick(6)
        at = watch.place(odd)
        assert projects(watch.fleet, at)
        await watch.tick(40)
        apart = distance(watch.fleet.view(at), watch.fleet.subspace(at))
        others = [
            distance(watch.fleet.view(i), watch.fleet.subspace(i)) for i in range(len(watch.names)) if i != at
        ]
        assert apart < 0.02
        assert np.median(others) > 2 * apart

    watch.stepped(watch.everyone_adopted, joins)


def test_the_answer_counts_what_a_crowd_adopted():
    names = racks(80)
    found = asking(
        lambda client: settled(client, lambda found: found["adopted"] >= 80),
        machine=fleet_of(names),
        followers=[FederationFollower.embedded()],
        ticks=60,
    )

    check_schema(found)
    alone = asking(lambda client: get(client, "/v1/federation"))[1]
    assert alone["adopted"] == 0


def test_a_few_nodes_adopt_per_tick_and_none_is_forgotten(monkeypatch):
    board = Board()
    teacher = Watch(racks(70), FederationFollower(LocalLink(board), board=board))
    teacher.stepped(lambda: teacher.until(lambda: teacher.follower.status().get("view_revision"), "a view"))
    young = Watch(racks(100, 100), FederationFollower.embedded())
    young.stepped(lambda: young.tick(2))
    crowd, now = young.agent.nodes, young.agent.pace.clock()
    members = CrowdMembers(LocalLink(board), Tree(), str)
    adopted = []
    for _ in range(5):
        members.follow(crowd, now, lambda: True)
        adopted.append(members.adopted)
    assert adopted == [NEW_AT_ONCE, 2 * NEW_AT_ONCE, 3 * NEW_AT_ONCE, 100, 100]

    # Where time is short: one.
    members = CrowdMembers(LocalLink(board), Tree(), str)
    members.follow(crowd, now, lambda: False)
    assert members.adopted == 1

    # Those who project on something of their own can wait a little longer.
    own = young.fleet.embedding
    own.ranks[:50], own.strengths[:50], own.rows[:50] = 4, 1.0, np.eye(4, 16)
    members = CrowdMembers(LocalLink(board), Tree(), str)
    adopted = []
    for _ in range(9):
        members.follow(crowd, now, lambda: True)
        adopted.append(members.adopted)
    assert adopted == [32, 50, *range(50 + ADOPT_AT_ONCE, 100, ADOPT_AT_ONCE), 100]

    # Those who know enough themselves would let it go at once.
    monkeypatch.setattr(adoption, "ADOPTED_HALF_LIFE", 1.0)
    young.fleet.timestep[:] = 100
    members = CrowdMembers(LocalLink(board), Tree(), str)
    for _ in range(5):
        members.follow(crowd, now, lambda: True)
    assert members.adopted == 50


@pytest.fixture
def aggregated(tmp_path):
    """The address of a real bus with all the aggregators that its nodes need."""
    bus = Bus(tmp_path).start()
    place = Address.parse(f"{bus.url}/crowd?epsilon=0&max_age=1")
    link = NatsLink(place, name="aggregate")
    found = Discovery(
        link, place.tree, lambda name: AggregatorService(link, Aggregator(name), tree=place.tree)
    )
    stop = threading.Event()
    work = threading.Thread(target=run_all, args=(found.look, stop, lambda line: None))
    work.start()
    yield place
    stop.set()
    work.join(10)
    link.close()
    bus.kill()


def test_late_nodes_of_a_crowd_on_a_real_bus_project_on_what_another_agent_learned(aggregated):
    teacher = Watch(racks(70), FederationFollower(NatsLink(aggregated, name="teacher")))
    pupil = Watch(racks(70, 100), FederationFollower(NatsLink(aggregated, name="pupil")))
    late = racks(3, 200)

    async def taught():
        await teacher.until(lambda: teacher.follower.status()["view_revision"], "a view")

    async def learns():
        first = pupil.follower
        await pupil.until(lambda: first.status()["view_revision"], "the view is heard")
        await pupil.everyone_adopted()
        # Room for late ones, once.
        pupil.names.append("rack-4/extra")
        await pupil.tick(8)
        assert projects(pupil.fleet, 70)
        await pupil.tick(12)
        pupil.names += late
        await pupil.tick(6)
        assert all(projects(pupil.fleet, pupil.place(name)) for name in late)

    try:
        teacher.stepped(taught)
        pupil.stepped(learns)
    finally:
        teacher.follower.close()
        pupil.follower.close()

    assert pupil.follower.status()["errors"] == 0
