"""What the settings of an agent open, and telemetry made up for want of a real one."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path
from time import time

import numpy as np
import pytest

from prontosched.agent.config import local_source, make_agent, source_of
from prontosched.errors import SettingsError
from prontosched.settings import AgentSettings
from prontosched.telemetry import SOURCES
from prontosched.telemetry.linux import LinuxSource
from prontosched.telemetry.synthetic import ANNOUNCED, SyntheticSource
from tests.telemetry.machines import FROZEN


def test_this_machine_is_read_by_default() -> None:
    source = source_of(AgentSettings(name="here", interval=2.0, source_option=("threads=false",)))

    assert isinstance(source, LinuxSource)
    assert source.interval_seconds == 2.0
    assert source.read()[0].node == "here"


def test_an_unknown_source_is_refused_with_all_that_are_known() -> None:
    known = ", ".join(sorted([*SOURCES, "generated"]))
    with pytest.raises(SettingsError, match=f"no source is called 'nowhere': known are {known}"):
        source_of(AgentSettings(source="nowhere"))


@pytest.mark.parametrize(
    ("settings", "missing"),
    [
        (AgentSettings(source="prometheus"), "give --target URL"),
        (AgentSettings(source="vsphere", target=("a", "b")), "needs one vCenter, got 2"),
        (AgentSettings(source="trace"), "give --trace FILE"),
    ],
    ids=lambda value: getattr(value, "source", ""),
)
def test_a_source_that_lacks_something_says_how_to_give_it(settings: AgentSettings, missing: str) -> None:
    with pytest.raises(SettingsError, match=missing):
        source_of(settings)


def test_a_trace_begins_again_where_asked_to_and_ends_otherwise(tmp_path: Path) -> None:
    trace = tmp_path / "short.csv"
    trace.write_text("load,cpu_ready\n1,0.5\n2,0.5\n")
    once = AgentSettings(source="trace", trace=trace)
    source = source_of(once)
    assert [source.read()[0].vector[0] for _ in range(2)] == [1.0, 2.0]
    with pytest.raises(EOFError):
        source.read()

    again = source_of(replace(once, repeat=True))

    assert [again.read()[0].vector[0] for _ in range(5)] == [1.0, 2.0, 1.0, 2.0, 1.0]


def test_a_trace_takes_the_options_of_its_source(tmp_path: Path) -> None:
    trace = tmp_path / "named.csv"
    trace.write_text("load,rdy,left,out\n1,0.5,3,4\n")
    options = ("ready=rdy", "exclude=left,out")
    sample = source_of(AgentSettings(source="trace", trace=trace, source_option=options)).read()[0]

    assert sample.ready == 0.5
    assert sample.metrics == ("load",)


def test_a_machine_that_cannot_be_read_is_made_up_and_said_so(tmp_path: Path) -> None:
    settings, source, why = local_source(AgentSettings(root=tmp_path, name="laptop"))

    assert settings.source == source.name == "generated"
    assert [sample.node for sample in source.read()] == ["laptop"]
    assert "instead of this machine" in why


def test_generated_nodes_live_at_the_time_of_the_clock_under_names_in_racks() -> None:
    now = iter([1.7e9, 1.7e9 + 1.5])
    source = SyntheticSource.live(70, node="paris", clock=lambda: next(now))
    first, second = source.read(), source.read()

    assert {sample.timestamp for sample in first} == {1.7e9}
    assert {sample.timestamp for sample in second} == {1.7e9 + 1.5}
    assert [first[0].node, first[69].node] == ["paris/rack-00/n00", "paris/rack-02/n69"]
    assert first[0].metrics is second[69].metrics


def test_generated_nodes_are_the_same_for_the_same_seed() -> None:
    same, again, other = (SyntheticSource.live(3, seed=seed, clock=time) for seed in (1, 1, 2))
    for _ in range(20):
        one, two, three = same.read(), again.read(), other.read()

    assert np.array_equal([s.vector for s in one], [s.vector for s in two])
    assert not np.array_equal([s.vector for s in one], [s.vector for s in three])


def test_generated_contention_comes_and_goes_on_every_node_and_is_announced() -> None:
    source = SyntheticSource.live(20, clock=time)
    steps = [source.read() for _ in range(800)]
    ready = np.array([[sample.ready for sample in step] for step in steps])
    forks = [i for i, name in enumerate(steps[0][0].metrics) if name.startswith("fork_rate")]
    vectors = np.array([[sample.vector[forks] for sample in step] for step in steps])
    level = ((vectors - vectors.mean(axis=(0, 1))) / vectors.std(axis=(0, 1))).mean(axis=2)
    contended = ready >= 5.0
    starts = np.argwhere(contended[ANNOUNCED:] & ~contended[ANNOUNCED - 1 : -1])

    assert contended.any(axis=0).all()
    assert 0.1 < contended.mean() < 0.4
    # Just before contention begins the metrics that announce it stand above their mean.
    before = np.mean([level[t + ANNOUNCED - 1, node] for t, node in starts])
    assert before > level.mean() + 0.5


@pytest.mark.parametrize(("given", "capacities"), [(None, [2.0, 96.0, 1.0]), (8.0, [8.0, 8.0, 8.0])])
def test_room_for_jobs_follows_the_cpus_of_the_machine_that_is_read(tmp_path, given, capacities):
    """Two at first, whatever this machine has; then 94 are added, and then all but one are taken away."""
    shutil.copytree(FROZEN / "first", tmp_path, dirs_exist_ok=True)
    stat = tmp_path / "proc/stat"
    first = stat.read_text()
    more = first.replace("intr ", "".join(f"cpu{n} 1 1 1 1 1 1 1 1 0 0\n" for n in range(2, 96)) + "intr ")
    less = "".join(line for line in first.splitlines(keepends=True) if not line.startswith("cpu1"))
    settings = AgentSettings(root=str(tmp_path), keep=False, probe=False, cpus=given)

    async def follow() -> list[float]:
        agent = make_agent(settings, source_of(settings))
        agent.announced("n1")
        found = []
        for text in (first, more, less):
            stat.write_text(text)
            await agent.tick()
            found.append(agent.capacity)
            assert agent.announced("n1").capacity == agent.capacity
        await agent.close()
        return found

    assert asyncio.run(follow()) == capacities
