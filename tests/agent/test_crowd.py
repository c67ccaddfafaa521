"""A crowd through months: nodes come, leave and come back, and the agent is killed in between."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace

import numpy as np
import pytest

from prontosched import codec
from prontosched.agent.crowd import Crowd
from prontosched.agent.crowd_members import CrowdMembers
from prontosched.agent.crowd_metrics import PATIENCE
from prontosched.agent.decision_log import DecisionLog
from prontosched.agent.explaining import Memory
from prontosched.agent.exposition import exposition
from prontosched.agent.measuring import measured
from prontosched.agent.nodes import Insight
from prontosched.agent.projected import Lineages
from prontosched.agent.shards import KIND, VERSION, ShardFiles
from prontosched.agent.views import status
from prontosched.errors import NewerStateError
from prontosched.federation.link import DECISIONS, SUMMARIES, Board, LocalLink
from prontosched.federation.tree import Tree
from prontosched.pipeline.presets import make_fleet
from prontosched.subspace import Subspace
from prontosched.telemetry.source import Sample
from tests.agent.machine import Clock, Machine, make_agent

METRICS = tuple(f"m{i}" for i in range(6))


def crowd_with(saved=None, *, preset="default", **given):
    options = given.pop("options", {})

    def build(size, metrics):
        return make_fleet(preset, nodes=size, features=len(metrics), metrics=metrics, **options)

    return Crowd(build, name="n", saved=saved, **given)


def named(count, start=0):
    return [f"rack/n{i:05d}" for i in range(start, start + count)]


def sampled(names, step, metrics=METRICS):
    """What nodes measure at a step, the same whoever else is there."""
    found = []
    for name in names:
        rng = np.random.default_rng([int(name[-5:]), step])
        vector = rng.standard_normal(len(metrics)) + np.sin(0.3 * step)
        ready = 9.0 if (step + int(name[-5:])) % 17 < 3 else 1.0
        found.append(Sample(name, metrics, vector, 1000.0 + step, ready, 10.0 * ready))
    return found


def stepped(crowd, names, steps, seconds=1.0):
    for step in steps:
        crowd.step(sampled(names, step), 100.0 + seconds * step)


def answers(crowd, names):
    found = [crowd.known(name).decision for name in names]
    return [(bool(one.raised), one.score, one.timestep, one.reason) for one in found]


def seen(fleet):
    """Timesteps that the signal of the first node has learned from."""
    return float(fleet.signal.take(np.zeros(1, np.intp))["history.steps"][0])


def saved_by(crowd, folder):
    files = ShardFiles(folder)
    for number in range(crowd.shards):
        files.write(number, crowd.shard(number))
    return files


@pytest.fixture
def killed(tmp_path):
    """A crowd of 70 that was saved after 60 steps, and its files."""
    crowd = crowd_with()
    stepped(crowd, named(70), range(60))
    saved_by(crowd, tmp_path / "crowd")
    return crowd, ShardFiles(tmp_path / "crowd")


def test_a_crowd_that_grows_goes_on_bit_for_bit():
    grown, quiet = crowd_with(), crowd_with()
    for crowd in (grown, quiet):
        stepped(crowd, named(70), range(40))
    stepped(grown, named(75), range(40, 60))
    stepped(quiet, named(70), range(40, 60))

    assert grown.fleet.nodes > 75
    assert answers(grown, named(70)) == answers(quiet, named(70))
    assert [timestep for _, _, timestep, _ in answers(grown, named(75))[70:]] == [19] * 5


def test_after_a_restart_nodes_go_on_bit_for_bit_in_whatever_order_they_come(killed):
    crowd, files = killed
    again = crowd_with(files.look())
    names = named(70)[::-1]
    for step in range(60, 90):
        crowd.step(sampled(named(70), step), float(step))
        again.step(sampled(names, step), float(step))

    assert again.names == names
    assert answers(again, names) == answers(crowd, names)


def test_a_node_that_is_late_after_a_restart_is_listed_when_it_comes_and_warm(killed):
    _, files = killed
    again = crowd_with(files.look())
    stepped(again, [*named(30, 40), *named(3, 100)], range(60, 70))
    early = list(again.names)
    stepped(again, [*named(30, 40), *named(2, 5), *named(1, 200)], range(70, 75))

    assert early == [*named(30, 40), *named(3, 100)]
    assert again.names == [*early, *named(2, 5), *named(1, 200)]
    with pytest.raises(KeyError, match="no node 'rack/n00000' among 36"):
        again.known(named(1)[0])
    assert [row[2] for row in answers(again, [*named(1, 40), *named(1, 5), *named(1, 100), *named(1, 200)])] == [
        74, 64, 9, 4,
    ]  # fmt: skip


def test_a_damaged_part_is_set_aside_and_the_others_are_used(killed, caplog):
    _, files = killed
    path = files.folder / "0001.state"
    data = bytearray(path.read_bytes())
    data[-200] ^= 1
    path.write_bytes(data)
    again = crowd_with(files.look())
    stepped(again, named(70), range(60, 61))

    timesteps = np.array([row[2] for row in answers(again, named(70))])
    assert (timesteps == 60).sum() == 38
    assert (timesteps == 0).sum() == 32
    assert (files.folder / "0001.state.corrupt").exists()
    assert "0001.state is damaged" in caplog.text


def test_a_part_of_a_newer_version_is_refused_and_left_alone(killed):
    _, files = killed
    newer = codec.encode(KIND, VERSION + 1, {})
    (files.folder / "0001.state").write_bytes(newer)
    with pytest.raises(NewerStateError, match=r"0001\.state: .*written by a newer Pronto"):
        files.look()
    assert (files.folder / "0001.state").read_bytes() == newer


def test_with_a_metric_more_or_less_a_crowd_goes_on_and_with_mostly_others_it_starts_cold(killed):
    _, files = killed
    more, fewer, other = (crowd_with(files.look()) for _ in range(3))
    more.step(sampled(named(70), 60, (*METRICS, "m6")), 60.0)
    fewer.step(sampled(named(70), 60, METRICS[:5]), 60.0)
    other.step(sampled(named(70), 60, (*METRICS[:2], "m6", "m7")), 60.0)

    assert (more.features, int(more.fleet.timestep.min())) == (7, 61)
    assert (fewer.features, int(fewer.fleet.timestep.min())) == (6, 61)
    assert (other.features, int(other.fleet.timestep.max())) == (4, 1)
    assert other.message == "starting cold: the saved nodes are of other metrics"


def test_a_metric_that_comes_to_stay_is_taken_in_and_nothing_is_forgotten(tmp_path):
    names, more = named(70), (*METRICS, "m6")
    grown, always = crowd_with(), crowd_with()

    def give(step):
        found = sampled(names, step, more)
        # One in ten nodes never has it.
        fewer = [replace(s, metrics=METRICS, vector=s.vector[:6]) for s in found]
        return fewer[:7] + found[7:] if step >= 90 else fewer

    for step in range(90 + PATIENCE + 100):
        grown.step(give(step), 100.0 + step)
        if step < 90 + PATIENCE:
            unknown = [replace(s, metrics=more, vector=np.append(s.vector[:6], np.nan)) for s in give(step)]
            always.step(unknown, 100.0 + step)
            assert grown.features == (6 if step < 90 + PATIENCE - 1 else 7)
        else:
            always.step(give(step), 100.0 + step)

    assert grown.builds == 2
    assert grown.message == "new metrics have come to stay, 1: the nodes go on with 7"
    found, expected = answers(grown, names), answers(always, names)
    assert [one[0] for one in found] == [one[0] for one in expected]
    np.testing.assert_allclose([one[1] for one in found], [one[1] for one in expected], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(grown.fleet.scaling.mean, always.fleet.scaling.mean, rtol=1e-9, atol=1e-12)
    assert (grown.fleet.scaling.seen[7:, 6] > 60).all()
    assert not grown.fleet.scaling.seen[:7, 6].any()


def test_a_crowd_killed_while_it_took_in_a_metric_goes_on_whole(killed):
    crowd, files = killed
    names, more = named(70), (*METRICS, "m6")
    for step in range(60, 60 + PATIENCE):
        crowd.step(sampled(names, step, more), 100.0 + step)
    assert crowd.features == 7
    files.look()  # as an agent does when it starts
    files.write(0, crowd.shard(0))
    again = crowd_with(files.look())
    again.step(sampled(names, 130, more), 300.0)

    steps = dict(zip(again.names, again.fleet.timestep.tolist(), strict=False))
    assert [steps[name] for name in names] == [61 + PATIENCE] * 32 + [61] * 38
    assert again.features == 7


def test_what_a_node_of_a_crowd_decided_from_can_be_seen():
    crowd = crowd_with(preset="paper")
    names = named(70)
    stepped(crowd, names, range(37))
    loud = [replace(s, vector=30.0 * s.vector) for s in sampled(names, 37)]
    crowd.step(loud, 137.0)
    seen = [crowd.insight(name) for name in names]

    assert all(one.by_spikes and one.subspace.rank == 4 for one in seen)
    assert sum(any(one.spikes) for one in seen) > 60
    np.testing.assert_allclose(seen[3].projections, seen[3].subspace.basis.T @ seen[3].vector)


def test_a_metric_that_flaps_or_that_few_have_is_left_out():
    names, more = named(70), (*METRICS, "m6")
    crowd = crowd_with(preset="paper")
    for step in range(3 * PATIENCE):
        samples = sampled(names, step, more if step % 50 else METRICS)
        samples[:10] = sampled(names[:10], step, (*METRICS, "rare"))
        crowd.step(samples, 100.0 + step)

    # Of the first samples everything is taken.
    assert crowd.features == 7
    assert crowd.builds == 1


def test_with_other_settings_nodes_go_on_and_the_signal_begins_anew(killed):
    crowd, files = killed
    again = crowd_with(files.look(), options={"budget": 0.3})
    again.step(sampled(named(70), 60), 60.0)

    assert int(again.fleet.timestep.min()) == 61
    assert np.array_equal(again.fleet.embedding.rows, crowd.fleet.embedding.rows)
    assert seen(again.fleet) <= 1.0 < 30.0 < seen(crowd.fleet)


def test_a_node_that_moved_between_two_saves_is_taken_from_the_newer_one(killed):
    crowd, files = killed
    stepped(crowd, named(70), range(60, 63))
    files.look()
    # Part 2 is saved with a node that part 0 still has.
    part = crowd.shard(0)
    part["names"] = [*named(1), *[f"other/{name}" for name in part["names"][1:]]]
    files.write(2, part)
    again = crowd_with(ShardFiles(files.folder).look())
    stepped(again, named(64), range(63, 64))

    assert answers(again, named(1))[0][2] == 63
    assert answers(again, named(1, 1))[0][2] == 60


def test_an_outage_of_everything_costs_nobody_its_place():
    crowd = crowd_with(preset="paper")
    stepped(crowd, named(70), range(5))
    crowd.step(sampled(named(10), 5), 100.0 + 30 * 86400.0)
    crowd.step(sampled(named(70), 6), 101.0 + 30 * 86400.0)

    assert crowd.builds == 1
    assert int(crowd.fleet.timestep.min()) == 6


def test_whoever_finds_no_place_is_left_out_counted_and_named_once(caplog):
    crowd = crowd_with(preset="paper", most=80)
    stepped(crowd, named(70), range(3))
    stepped(crowd, named(90), range(3, 6))

    assert len(crowd.names) == crowd.fleet.nodes == 80
    assert crowd.left_out == 30
    assert caplog.text.count("no place for more than 80 nodes: 10 are left out") == 1


def test_nodes_that_left_for_good_are_forgotten_once_they_are_many():
    crowd = crowd_with(preset="paper")
    stepped(crowd, named(100), range(3))
    stepped(crowd, named(60), range(3, 160), seconds=600.0)

    assert crowd.names == named(60)
    assert crowd.fleet.nodes == 60
    assert int(crowd.fleet.timestep.min()) == 160


def test_of_few_nodes_that_change_for_ever_only_so_many_are_remembered(monkeypatch):
    monkeypatch.setattr(Lineages, "MOST", 20)
    monkeypatch.setattr(Memory, "KEPT", 20)
    lineages, memory = Lineages(), Memory()
    for i in range(100):
        subspace = Subspace(np.eye(6)[:, :2].copy(), np.array([2.0, 1.0]))
        insight = Insight(METRICS, None, subspace, (0.0, 0.0), None)
        assert lineages.begun(f"n{i}", insight) == [0, 0]
        memory._note_block(f"n{i}", subspace)

    assert len(lineages._met) == len(lineages._began) == 20
    assert memory.status() == {"nodes": 20}


def test_jobs_announced_for_a_node_that_left_are_forgotten_with_it():
    clock = Clock()
    here = named(100)
    agent = make_agent(Machine(lambda i: sampled(here, i)), clock=clock)

    async def go():
        await agent.tick()
        agent.announce("j", cpus=1.0, ttl=30.0, node=here[-1])
        agent.announce("k", cpus=1.0, ttl=30.0, node=here[0])
        del here[60:]
        for _ in range(160):
            clock.now += 600.0
            await agent.tick()
        await agent.abandon()

    asyncio.run(go())
    assert agent.nodes.names == named(60)
    assert list(agent._announced) == named(1)
    assert b"pronto_left_out_samples_total 0.0" in exposition(agent)
    assert status(agent)["left_out"] == 0


def test_ten_thousand_names_pass_through_a_hundred_places(tmp_path):
    """Fifty nodes at a time, each batch gone for longer than the limit when the next but one comes."""
    crowd = crowd_with(preset="paper", gone_seconds=900.0)
    board = Board()
    members = CrowdMembers(LocalLink(board), Tree(), str)
    log = DecisionLog(tmp_path / "log.sqlite", max_bytes=2 * 1024 * 1024)
    sizes, held = [], []
    for batch in range(200):
        names = named(50, 50 * batch)
        for step in (2 * batch, 2 * batch + 1):
            now = 100.0 + 600.0 * step
            crowd.step(sampled(names, step), now)
            members.follow(crowd, now, lambda: True)
            log.write([], [found for found in [measured(crowd, now, now)] if found])
        if batch % 20 == 19:
            files = saved_by(crowd, tmp_path / "crowd")
            files.drop_from(crowd.shards)
            sizes.append(sum(path.stat().st_size for path in files.folder.iterdir()))
            held.append(sys.getallocatedblocks())
    log.close()

    assert crowd.fleet.nodes <= 126
    assert len(crowd.names) == len(members) <= 126
    assert set(named(50, 9950)) <= set(crowd.names)
    assert max(sizes) < 1.2 * sizes[0]
    assert held[-1] - held[0] < 2000
    assert (tmp_path / "log.sqlite").stat().st_size <= 2.5 * 1024 * 1024
    for topic in (SUMMARIES, DECISIONS):
        speaking = {key for key, entry in board.values[topic].items() if entry.value}
        assert len(speaking) <= len(members)
        assert not speaking & {name.replace("/", ".") for name in named(9000)}
