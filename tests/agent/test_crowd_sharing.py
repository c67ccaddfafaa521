"""Learned signals of a crowd share what they know and take up what a fleet knows, as single ones do."""

from __future__ import annotations

import numpy as np
import pytest

from prontosched.agent.crowd_members import START_AT_ONCE, CrowdMembers
from prontosched.agent.federating import FederationFollower
from prontosched.agent.fleet_node import fleet_node
from prontosched.federation import adopting
from prontosched.federation.contribution import shared_by, start_signal
from prontosched.federation.link import SUMMARIES, Board, LocalLink
from prontosched.federation.message import Summary
from prontosched.federation.nats_link import NatsLink
from prontosched.federation.schema_book import SchemaBook
from prontosched.federation.tree import Tree
from prontosched.pipeline.node_fleet import NodeFleet
from prontosched.pipeline.presets import make_fleet
from prontosched.signals.learned import LearnedFleet
from prontosched.telemetry.source import Sample
from tests.agent import test_crowd_adopting
from tests.agent.machine import Machine, make_agent
from tests.agent.test_crowd_adopting import racks

METRICS = tuple(f"m{i}" for i in range(6))
# A fixture there, and so here.
aggregated = test_crowd_adopting.aggregated


def contended(names, seed=1):
    """A source of nodes whose CPU Ready wanders above the tolerance and back."""
    rng = np.random.default_rng(seed)
    level: dict[str, float] = {}

    def give(i):
        samples = []
        for name in names:
            level[name] = 0.9 * level.get(name, 0.0) + 0.4 * rng.standard_normal()
            ready, vector = 4.0 * np.exp(level[name]), rng.standard_normal(6) + level[name]
            samples.append(Sample(name, METRICS, vector, 1000.0 + i, float(ready), 10.0))
        return samples

    return Machine(give)


class Watch(test_crowd_adopting.Watch):
    """An agent over a crowd with learned signals, stepped by hand."""

    def __init__(self, names, follower, seed=1):
        self.names = names
        self.follower = follower
        self.agent = make_agent(contended(names, seed), interval=1.0, preset="default", followers=[follower])

    @property
    def signal(self) -> LearnedFleet:
        return self.fleet.signal

    @property
    def members(self) -> CrowdMembers:
        return self.follower._crowd

    def own_labels(self):
        """How many labels each node learned from itself, and how many of others it counts as its own."""
        heads = self.signal.learner.heads
        return heads.labels - heads.credit[:, 0], heads.credit[:, 0]

    async def view_taught(self):
        """Tick until the view holds what was learned here, however long the bus takes for that."""
        await self.tick(45)
        await self.until(lambda: self.members.view is not None, "a view")
        await self.until(lambda: self.members.view.statistics, "statistics in the view")

    async def everyone_started(self):
        await self.tick()
        await self.until(lambda: self.members.started >= len(self.names), "everyone took up the statistics")


@pytest.fixture
def early(monkeypatch):
    """Nodes that take up statistics after 60 timesteps instead of 300."""
    monkeypatch.setattr(adopting, "START_TIMESTEP", 60)


@pytest.fixture
def eager():
    """A follower that speaks at every block, so that a test need not wait for a minute to pass."""
    board = Board()
    link = LocalLink(board)
    link.rule = {"epsilon": 0.0, "max_age_seconds": 0.05}
    return FederationFollower(link, board=board)


def told(board):
    """What is on the board, by node."""
    book = SchemaBook(LocalLink(board))
    values = [entry.value for entry in board.values[SUMMARIES].values() if entry.value]
    found = [Summary.from_bytes(value, book) for value in values]
    return {summary.node: summary for summary in found if not summary.merged}


def test_a_crowd_tells_what_each_of_its_signals_learned_and_nothing_before_that():
    watch = Watch(racks(70), FederationFollower.embedded())
    watch.stepped(lambda: watch.tick(30))
    young, now = watch.agent.nodes, watch.agent.pace.clock()
    board = Board()
    CrowdMembers(LocalLink(board), Tree(), str).follow(young, now, lambda: True)
    assert len(told(board)) == 70
    assert not any(summary.statistics for summary in told(board).values())

    watch = Watch(racks(70), FederationFollower.embedded())
    watch.stepped(lambda: watch.tick(75))
    crowd, now = watch.agent.nodes, watch.agent.pace.clock()
    board = Board()
    CrowdMembers(LocalLink(board), Tree(), str).follow(crowd, now, lambda: True)
    found = told(board)
    for at, name in enumerate(crowd.names):
        mine = watch.signal.share(at)
        assert mine["labels"][0] >= 64
        for key, value in mine.items():
            sent = found[name].statistics[f"learned.{key}"]
            np.testing.assert_allclose(sent, value, rtol=1e-5, atol=1e-4, err_msg=f"{key} of {name}")


def test_nodes_of_an_embedded_crowd_take_up_the_fleets_statistics(early, eager):
    watch = Watch(racks(70), eager)
    late = racks(3, 80)

    async def joined():
        own, credit = watch.own_labels()
        assert (own[:70] >= 50).all()
        assert (credit[:70] > 0).all()
        watch.names += late
        await watch.tick(40)
        taken = [watch.place(name) for name in late]
        assert watch.fleet.timestep[taken].tolist() == [40] * 3
        assert not watch.own_labels()[1][taken].any()
        await watch.until(lambda: watch.own_labels()[1][taken].all(), "late ones took them up too")
        # A larger fleet took over what the others know, and that they have taken up their part.
        assert watch.follower.status()["started"] == 73
        assert (watch.signal.learner.trust()[taken] == 1.0).all()

    watch.stepped(watch.everyone_started, joined)

    assert watch.follower.status()["errors"] == 0
    # What was taken up is not told again: the fleet has no more labels than its nodes learned from.
    view = watch.members.view
    assert 0 < view.statistics["learned.labels"][0] <= watch.own_labels()[0].sum()
    assert view.statistics["learned.information"][1, 0, 0] <= watch.own_labels()[0].sum()


def test_a_few_signals_start_per_tick_the_oldest_first_and_none_is_forgotten(early, eager):
    teacher = Watch(racks(70), eager)
    teacher.stepped(teacher.view_taught)
    pupil = Watch(racks(80, 100), FederationFollower.embedded())
    pupil.stepped(lambda: pupil.tick(20))
    crowd, now = pupil.agent.nodes, pupil.agent.pace.clock()
    steps = pupil.fleet.timestep
    steps[:60], steps[60:70], steps[70:] = 100, 1000, 1001
    steps[5] = 59

    members = CrowdMembers(LocalLink(eager._board), Tree(), str)
    started = []
    for _ in range(19):
        members.follow(crowd, now, lambda: True)
        started.append(members.started)
        # Those who soon have learned enough themselves have the least time left.
        first = min(10, members.started)
        assert np.count_nonzero(pupil.own_labels()[1][60:70]) == first
    assert started == [*range(START_AT_ONCE, 69, START_AT_ONCE), 69, 69]
    assert not pupil.own_labels()[1][[5, *range(70, 80)]].any()

    steps[5] = 60
    members.follow(crowd, now, lambda: True)
    assert members.started == 70
    # Built anew, it may start again.
    steps[5] = 10
    members.follow(crowd, now, lambda: True)
    steps[5] = 300
    members.follow(crowd, now, lambda: True)
    assert members.started == 71

    # Where time is short: one.
    members = CrowdMembers(LocalLink(eager._board), Tree(), str)
    members.follow(crowd, now, lambda: False)
    assert members.started == 1


def test_a_crowd_whose_signal_learns_nothing_takes_nothing_up(early, eager):
    teacher = Watch(racks(70), eager)
    teacher.stepped(teacher.view_taught)
    plain = test_crowd_adopting.Watch(racks(70, 100), FederationFollower.embedded())
    plain.stepped(lambda: plain.tick(20))
    plain.fleet.timestep[:] = 100
    members = CrowdMembers(LocalLink(eager._board), Tree(), str)
    for _ in range(3):
        members.follow(plain.agent.nodes, plain.agent.pace.clock(), lambda: True)

    assert members.view.statistics
    assert members.started == 0


def test_separate_nodes_in_a_crowd_share_and_start_through_their_own_signals():
    fleet = make_fleet("default", nodes=2, features=6, metrics=METRICS, embedding="spirit")
    assert isinstance(fleet, NodeFleet)
    rng = np.random.default_rng(1)
    for step in range(60):
        ready = np.array([8.0 if step % 20 < 4 else 1.0] * 2)
        fleet.step(rng.standard_normal((2, 6)), ready=ready)
    shared = shared_by(fleet_node(fleet, 0, METRICS))

    assert shared["learned.labels"][0] > 32
    assert start_signal(fleet_node(fleet, 1, METRICS), shared)
    assert fleet.members[1].signal.learner.heads.borrowed.any()
    assert not fleet.members[0].signal.learner.heads.borrowed.any()


def test_a_crowd_on_a_real_bus_takes_up_what_another_agent_learned(early, aggregated):
    teacher = Watch(racks(70), FederationFollower(NatsLink(aggregated, name="teacher")))
    pupil = Watch(racks(66, 100), FederationFollower(NatsLink(aggregated, name="pupil")), seed=2)

    try:
        teacher.stepped(teacher.view_taught)
        pupil.stepped(pupil.everyone_started)
    finally:
        teacher.follower.close()
        pupil.follower.close()

    assert pupil.follower.status()["errors"] == 0
    assert (pupil.own_labels()[1] > 0).all()
