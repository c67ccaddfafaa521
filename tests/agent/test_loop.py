"""The loop on bad days, one test each, with real threads and a real event loop."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

from prontosched.agent.nodes import Silence
from prontosched.agent.store.state import Disk, restore
from prontosched.cli.live import summary
from prontosched.telemetry.source import Sample
from tests.agent.machine import METRICS, Clock, Machine, make_agent, next_tick, sample


def run(agent, seconds=None, ticks=None):
    """Run for a while, or for a number of ticks."""

    async def go():
        stop = asyncio.Event()
        if ticks is None:
            await agent.run(stop, seconds)
            return
        while agent.pace.ticks < ticks and not agent.ended:
            await next_tick(agent)
            await agent.tick()
        await agent.close()

    asyncio.run(go())
    return agent


def test_decisions_come_at_the_cadence():
    agent = make_agent(Machine(), interval=0.02)
    began = agent.pace.clock()
    run(agent, ticks=50)
    spent = agent.pace.clock() - began

    assert agent.nodes.tally.decisions == 50
    # Never sooner, however late some were: what was missed is left out, not made up for in a burst.
    assert spent >= (49 + agent.pace.skipped) * 0.02
    assert agent.pace.skipped == 0 or agent.pace.late > 0
    assert not agent.faults


def test_a_source_that_hangs_leaves_the_loop_ticking_and_the_answer_says_so():
    release = threading.Event()

    def give(i):
        if i == 20:
            release.wait(60)
        return [sample(i)]

    agent = make_agent(Machine(give), interval=0.01, timeout=0.02, silence=Silence(0.1))

    async def go():
        stop = asyncio.Event()
        task = asyncio.create_task(agent.run(stop))
        while not (agent.pace.ticks > 25 and agent.answer().stale):
            await asyncio.sleep(0.02)
        ticks, found = agent.pace.ticks, agent.answer()
        release.set()
        while agent.answer().stale:
            await asyncio.sleep(0.005)
        again = agent.answer()
        stop.set()
        await task
        return ticks, found, again

    ticks, found, again = asyncio.run(asyncio.wait_for(go(), 60))
    assert ticks > 25
    assert found.stale
    assert "no telemetry for" in found.reason
    assert found.accept
    assert not again.stale
    assert agent.faults["source"] > 1


def test_a_source_that_raises_is_counted_and_asked_again():
    def give(i):
        if i % 3 == 0:
            raise OSError("input/output error")
        return [sample(i)]

    agent = run(make_agent(Machine(give)), ticks=31)

    assert agent.faults == {"source": 11}
    assert agent.nodes.tally.decisions == 20
    assert "input/output error" in agent.last_fault


def test_unknown_metrics_do_not_stop_decisions():
    def give(i):
        vector = np.full(5, np.nan)
        vector[i % 5] = 1.0
        return [sample(i, vector=vector)]

    agent = run(make_agent(Machine(give)), ticks=60)

    assert agent.nodes.tally.decisions == 60
    assert not agent.faults


def test_a_vector_without_one_number_is_no_telemetry():
    clock = Clock()

    def give(i):
        return [sample(i, vector=np.full(5, np.nan) if i >= 5 else None)]

    agent = make_agent(Machine(give), clock=clock, silence=Silence(10.0))

    async def go():
        for _ in range(40):
            agent.pace.begin()
            await agent.tick()
            clock.now += 1.0
        found = agent.answer()
        await agent.close()
        return found

    found = asyncio.run(go())
    assert found.stale
    assert found.reason == (
        "no telemetry for 36 s (source: telemetry is missing, n1: not a single number): accepting, as set"
    )


def test_infinite_values_do_not_stop_decisions():
    def give(i):
        vector = np.ones(5) * (i % 7)
        vector[i % 5] = np.inf if i % 2 else -np.inf
        return [sample(i, vector=vector)]

    agent = run(make_agent(Machine(give)), ticks=60)

    assert agent.nodes.tally.decisions == 60
    assert not agent.faults


def test_metrics_that_vanish_for_a_while_cost_nothing():
    def give(i):
        return [sample(i, metrics=METRICS[:3] if 20 <= i < 23 else METRICS)]

    agent = run(make_agent(Machine(give), patience=5), ticks=60)

    assert agent.nodes.only.rebuilds == 0
    assert not agent.faults


def test_metrics_gone_and_new_for_good_rebuild_the_node_warm():
    new = (*METRICS[:3], "snow")

    def give(i):
        return [sample(i, metrics=new if i >= 40 else METRICS)]

    agent = run(make_agent(Machine(give), patience=5), ticks=80)

    assert agent.nodes.only.rebuilds == 1
    assert agent.nodes.features == 4
    assert agent.nodes.only.node.timestep == 80
    assert agent.nodes.only.node.metrics == new
    assert not agent.faults


def test_ten_thousand_metrics_are_decided_on():
    names = tuple(f"m{i}" for i in range(10_000))
    rng = np.random.default_rng(1)

    def give(i):
        return [Sample("n1", names, rng.normal(size=10_000), 1000.0 + i, 1.0, 10.0)]

    agent = run(make_agent(Machine(give), interval=0.001), ticks=40)

    assert agent.nodes.tally.decisions == 40
    assert agent.nodes.features == 10_000
    assert not agent.faults


@pytest.mark.parametrize("jump", [-86_400.0 * 400, 86_400.0 * 400])
def test_a_jump_of_the_clock_neither_stops_nor_ages_decisions(jump):
    wall = Clock(1_000_000.0)

    def give(i):
        if i == 30:
            wall.now += jump
        return [Sample("n1", METRICS, np.sin(np.arange(5) + i), wall.now + i, 1.0, 10.0)]

    agent = make_agent(Machine(give), wall=wall)
    run(agent, ticks=60)

    assert agent.nodes.tally.decisions == 60
    assert not agent.faults
    assert not agent.answer().stale
    assert agent.answer().valid_until > wall.now


def test_a_follower_that_breaks_stops_nobody():
    class Broken:
        name = "broken"

        def follow(self, agent):
            raise RuntimeError("gate on fire")

        def status(self):
            return {}

        def close(self):
            raise RuntimeError("still on fire")

    agent = run(make_agent(Machine(), followers=[Broken()]), ticks=10)

    assert agent.faults["broken"] == 11
    assert agent.nodes.tally.decisions == 10


def test_the_end_of_a_trace_ends_the_loop():
    def give(i):
        if i == 12:
            raise EOFError
        return [sample(i)]

    agent = run(make_agent(Machine(give)), seconds=20)

    assert agent.ended
    assert agent.nodes.tally.decisions == 12


def test_a_restart_continues_warm_with_the_very_same_node(tmp_path):
    first = run(make_agent(Machine(), disk=Disk(tmp_path, "machine")), ticks=57)
    second = make_agent(Machine(), disk=Disk(tmp_path, "machine"))
    restore(second.nodes, second.disk)
    run(second, ticks=1)

    assert second.nodes.message.endswith("warm, 5 metrics")
    assert second.nodes.only.node.timestep == first.nodes.only.node.timestep + 1 == 58
    np.testing.assert_array_equal(
        second.nodes.only.node.embedding.subspace.basis, first.nodes.only.node.embedding.subspace.basis
    )
    assert second.nodes.only.record.timesteps == 58


def test_saved_state_of_other_metrics_is_not_used(tmp_path):
    run(make_agent(Machine(), disk=Disk(tmp_path, "machine")), ticks=30)
    other = tuple("uvwxyz")
    agent = make_agent(Machine(lambda i: [sample(i, metrics=other)]), disk=Disk(tmp_path, "machine"))
    restore(agent.nodes, agent.disk)
    run(agent, ticks=25)

    assert agent.nodes.only.node.timestep == 25
    assert agent.nodes.only.message == "starting cold: the saved state is of other metrics"
    assert not agent.faults


def test_every_tick_is_in_the_decision_log(tmp_path):
    agent = run(make_agent(Machine(), disk=Disk(tmp_path, "machine")), ticks=45)
    found = agent.disk.log.history("n1", 0.0, 1e12, 1)
    agent.disk.log.close()

    assert found[0]["timesteps"] == 45


def test_several_nodes_decide_apart_and_survive_a_restart(tmp_path):
    def give(i):
        return [
            Sample(name, METRICS, np.sin(np.arange(5) + k + 0.7 * i), 1000.0 + i, float(k), 10.0)
            for k, name in enumerate(("a", "b/c", "d"))
            if not (name == "d" and i < 10)
        ]

    first = run(make_agent(Machine(give), disk=Disk(tmp_path, "machine")), ticks=30)
    second = make_agent(Machine(give), disk=Disk(tmp_path, "machine"))
    restore(second.nodes, second.disk)
    run(second, ticks=1)

    assert first.nodes.names == ["a", "b/c", "d"]
    assert first.nodes.tally.decisions == 30 + 30 + 20
    assert second.nodes.message.endswith("warm, 3 nodes")
    assert second.nodes["b/c"].node.timestep == 31


def test_a_node_that_was_alone_goes_on_when_a_second_appears():
    def give(i):
        names = ("n1", "n2") if i >= 10 else ("n1",)
        return [Sample(name, METRICS, np.sin(np.arange(5) + i), 1000.0, 1.0, 10.0) for name in names]

    agent = run(make_agent(Machine(give)), ticks=20)

    assert agent.nodes["n1"].node.timestep == 20
    assert agent.nodes["n2"].node.timestep == 10
    assert agent.nodes.tally.decisions == 30


@pytest.mark.parametrize("preset", ["paper", "default"])
def test_many_nodes_decide_each_and_tolerates_those_that_come_and_go(preset):
    rng = np.random.default_rng(5)
    names = [f"n{k:03d}" for k in range(150)]

    def give(i):
        here = names[:100] if i < 10 else [n for n in names if rng.random() < 0.9]
        return [Sample(n, METRICS, rng.normal(size=5), 1000.0 + i, 1.0, 10.0) for n in here]

    agent = run(make_agent(Machine(give), preset=preset), ticks=40)

    assert len(agent.nodes.names) == 150
    assert not agent.faults
    assert agent.answer("n149").reason
    assert agent.nodes["n000"].evidence.subspace.rank >= 1
    with pytest.raises(KeyError, match="name one of the 150 nodes: --node NAME, or "):
        agent.answer()
    with pytest.raises(KeyError, match="no node 'nobody' among 150"):
        agent.answer("nobody")


def test_announcing_is_atomic_of_many_that_ask_at_once():
    agent = make_agent(Machine(), capacity=2.0, capacity_factor=1.0)

    async def go():
        await next_tick(agent)
        await agent.tick()
        asked = [agent.announce(f"j{i}", cpus=1, ttl=30, unless=("refusing",)) for i in range(10)]
        await agent.close()
        return [counted for counted, _ in asked]

    # 0.2 CPUs are busy: a second job of one would exceed two, the first meets nothing announced.
    assert asyncio.run(go()) == [True] + [False] * 9


def test_sigterm_in_the_middle_of_a_block_saves_the_block(tmp_path):
    agent = make_agent(Machine(), disk=Disk(tmp_path, "machine"), interval=0.01)
    run(agent, ticks=37)
    later = make_agent(Machine())
    restore(later.nodes, Disk(tmp_path, "machine"))
    later.nodes.begin([sample(37)], 0.0)
    later.nodes.step(sample(37), 0.0)

    assert later.nodes.only.node.timestep == 38
    assert later.nodes.only.node.embedding.blocks == 3
    assert (
        later.nodes.only.node.embedding.state()["slab"].shape[0]
        > later.nodes.only.node.embedding.state()["known"]
    )


def test_what_a_source_says_besides_its_samples_cannot_end_the_loop():
    machine = Machine()
    machine.cpus = None  # no number
    agent = run(make_agent(machine, count_cpus=True), ticks=5)

    assert agent.nodes.tally.decisions == 5
    assert agent.faults["source"] == 5


def test_a_cpu_ready_of_minus_one_is_unknown_everywhere():
    agent = run(make_agent(Machine(lambda i: [sample(i, ready=-1.0)])), ticks=5)

    assert agent.answer().as_json()["cpu_ready_percent"] is None
    assert agent.nodes.tally.ready_count == 0


def test_the_summary_does_not_promise_what_was_not_written(tmp_path, caplog):
    disk = Disk(tmp_path / "state", "machine")
    agent = make_agent(Machine(), disk=disk)
    disk.state.path = tmp_path / "file" / "machine.state"
    (tmp_path / "file").write_text("no folder")
    run(agent, ticks=3)

    # A log that is written does not mean that the state is.
    assert not [one for one in caplog.messages if "writing again" in one]
    assert "is kept in" not in summary(agent)
    assert "not all that it learned could be written" in summary(agent)
