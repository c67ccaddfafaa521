"""Nodes that stood on their own go on with all they know when there are enough of them for a crowd."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from prontosched.agent.crowd import Crowd
from prontosched.agent.disk import Disk
from prontosched.agent.federating import FederationFollower
from prontosched.agent.several import SeveralNodes
from prontosched.agent.shards import ShardFiles
from prontosched.telemetry.source import Sample
from tests.agent.machine import Machine, make_agent
from tests.agent.test_crowd import METRICS, crowd_with, named, sampled

BEFORE = 75


class Growing:
    """A source of 60 nodes, and of 70 from a step on."""

    def __init__(self, grows_at=BEFORE, few=60, many=70, give=sampled):
        self.step = 0
        self.grows_at, self.few, self.many, self.give = grows_at, few, many, give

    def __call__(self, _):
        count = self.few if self.step < self.grows_at else self.many
        self.step += 1
        return self.give(named(count), self.step - 1)


def run(agent, ticks):
    async def go():
        for _ in range(ticks):
            await agent.tick()
        await agent.abandon()

    asyncio.run(go())


def decisions(agent, names):
    found = [agent.known(name).decision for name in names]
    return np.array([(one.raised, one.score, one.threshold, one.probability, one.timestep) for one in found])


@pytest.mark.parametrize("preset", ["default", "paper"])
def test_nodes_decide_in_a_crowd_as_they_would_have_alone(preset):
    grown = make_agent(Machine(Growing()), preset=preset)
    alone = make_agent(Machine(Growing(grows_at=10**6)), preset=preset)
    run(grown, BEFORE + 25)
    run(alone, BEFORE + 25)

    assert isinstance(grown.nodes, Crowd)
    assert isinstance(alone.nodes, SeveralNodes)
    np.testing.assert_allclose(decisions(grown, named(60)), decisions(alone, named(60)), rtol=1e-9, atol=1e-9)
    assert decisions(grown, named(10, 60))[:, 4].tolist() == [24] * 10
    assert grown.nodes.message == "60 of 60 nodes that stood on their own go on"
    assert grown.nodes.tally.decisions == 60 * BEFORE + 70 * 25


def test_growing_is_no_turn_of_the_signal():
    agent = make_agent(Machine(Growing()), preset="paper")

    async def go():
        for _ in range(BEFORE):
            await agent.tick()
        before = {name: agent.known(name) for name in named(60)}
        await agent.tick()
        for name, known in before.items():
            after = agent.known(name)
            if after.decision.raised == known.decision.raised:
                assert after.changed_at == known.changed_at
                assert name not in agent.nodes.changed
            else:
                assert name in agent.nodes.changed
        await agent.abandon()

    asyncio.run(go())


def test_nodes_saved_on_their_own_go_on_in_a_crowd_after_a_restart(tmp_path):
    first = make_agent(Machine(Growing()), disk=Disk(tmp_path, "machine"))
    run(first, BEFORE)
    fields = first.state()
    second = make_agent(Machine(Growing(grows_at=0)))
    second.watched.restore(fields)
    run(second, 1)

    assert isinstance(second.nodes, Crowd)
    steps = dict(zip(second.nodes.names, second.nodes.fleet.timestep.tolist(), strict=False))
    assert [steps[name] for name in named(60)] == [BEFORE + 1] * 60
    assert [steps[name] for name in named(10, 60)] == [1] * 10


def test_nodes_with_other_metrics_go_on_with_the_crowds():
    def give(names, step):
        found = sampled(names, step)
        for i in (3, 5):
            sample = found[i]
            found[i] = Sample(
                sample.node,
                METRICS[1:],
                sample.vector[1:],
                sample.timestamp,
                sample.ready,
                sample.utilisation,
            )
        return found

    agent = make_agent(Machine(Growing(give=give)))
    run(agent, BEFORE + 30)

    fleet = agent.nodes.fleet
    assert fleet.timestep[:60].tolist() == [BEFORE + 30] * 60
    # What it never measured has no part in what it follows.
    assert np.abs(fleet.subspace(3).basis[METRICS.index("m0")]).max() == 0.0
    assert np.abs(fleet.subspace(2).basis[METRICS.index("m0")]).max() > 0.0
    assert not agent.faults


def test_of_two_memories_of_a_node_the_longer_one_goes_on(tmp_path):
    before, files = crowd_with(preset="paper"), ShardFiles(tmp_path)
    for step in range(50):
        before.step(sampled(named(66), step), 100.0 + step)
    for number in range(before.shards):
        files.write(number, before.shard(number))
    young, old = (make_agent(Machine(Growing(grows_at=1000))) for _ in range(2))
    run(young, 20)
    run(old, 90)
    alone = {**_some(young, named(8)), **_some(old, named(5))}
    crowd = crowd_with(files.look(), preset="paper", alone=alone)
    crowd.step(sampled(named(70), 90), 200.0)

    steps = dict(zip(crowd.names, crowd.fleet.timestep.tolist(), strict=False))
    assert [steps[name] for name in named(70)] == [91] * 5 + [51] * 61 + [1] * 4


def test_a_node_that_does_not_fit_starts_cold_and_the_others_go_on(caplog):
    agent = make_agent(Machine(Growing()))
    run(agent, 40)
    members = agent.nodes.members
    strange = make_agent(Machine(Growing()), preset="default")
    run(strange, 40)
    crowd = crowd_with(preset="paper", alone={**members, **_some(strange, named(1, 7))})
    crowd.step(sampled(named(70), 40), 200.0)

    assert crowd.fleet.timestep.tolist()[:9] == [41] * 7 + [1] + [41]
    assert "rack/n00007 starts cold: a node must have the embedding" in caplog.text


def test_the_federation_hears_the_same_nodes_go_on():
    follower = FederationFollower.embedded()
    agent = make_agent(Machine(Growing()), interval=1.0, followers=[follower])
    run(agent, BEFORE + 40)

    status = follower.status()
    assert status["errors"] == 0
    assert status["members"] == 70
    assert status["clashes"] == []


def _some(agent, names):
    return {name: agent.nodes.members[name] for name in names}
