"""The record of probes: by state, with intervals, told or not, across restarts; and under a real load."""

from __future__ import annotations

import asyncio
import json
import math
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prontosched.agent.followers import ProbeFollower, make_probe, probe_view
from prontosched.agent.http.metrics import exposition
from prontosched.agent.record import ProbeRecord, StateProbes
from prontosched.agent.views import status
from prontosched.student import t_quantile
from prontosched.telemetry.linux import LinuxSource
from prontosched.telemetry.probe import ProbeResult
from tests.agent.machine import Machine, make_agent
from tests.processes import at_normal_priority
from tests.telemetry.cgroups import weighty
from tests.telemetry.machines import FROZEN


def filled(pattern: list[tuple[str, float]], times: int = 1) -> ProbeRecord:
    record = ProbeRecord()
    for _ in range(times):
        for state, slowdown in pattern:
            record.note(state, slowdown)
    return record


def test_an_idle_machine_has_nothing_to_tell() -> None:
    record = filled([("accepting", 1.01)], 50)

    assert "there is nothing to tell yet" in record.words()
    assert not record.told


def test_states_that_differ_are_told_apart_with_intervals() -> None:
    calm = [("accepting", value) for value in (1.0, 1.02, 1.05)]
    busy = [("refusing", value) for value in (2.0, 2.5, 2.4)]
    record = filled([*calm, *busy], 5)

    figures = record.figures()

    assert figures["told"] is True
    assert figures["needed"] == 0
    refusing = figures["states"]["refusing"]
    assert refusing["low"] <= 2.3 <= refusing["high"]
    assert record.words() == (
        "probes while accepting took 1.02 x as long (1.02 to 1.02), while refusing 2.30 x as long (2.30 to 2.30)"
    )


def test_too_few_say_how_many_more_are_needed() -> None:
    record = filled([("accepting", 1.0), ("refusing", 2.0)], 4)

    assert record.needed() == 6
    assert "about 6 more probes are needed to tell" in record.words()


def test_one_long_stretch_does_not_pass_for_many(rng: np.random.Generator) -> None:
    """Forty probes of one refusal are one stretch or two: not enough to tell of refusals."""
    record = filled([("accepting", 1.0)], 40)
    for _ in range(20):
        record.note("refusing", 3.0 + rng.normal())

    assert record.by_state["refusing"].stretches == 1
    assert not record.told


def test_intervals_hold_the_true_mean_as_often_as_they_say(rng: np.random.Generator) -> None:
    """Stretches that differ among themselves, which intervals from single probes would take for many."""
    held = 0
    for _ in range(200):
        record = ProbeRecord()
        for _ in range(12):
            level = 2.0 + 0.5 * rng.normal()
            for _ in range(6):
                record.note("refusing", level + 0.1 * rng.normal())
            record.note("accepting", 1.0)
        one = record.by_state["refusing"]
        held += abs(one.mean - 2.0) <= one.error

    assert 0.9 <= held / 200 <= 1.0


def test_states_alike_need_more_than_can_be_said_or_many() -> None:
    pattern = [("accepting", 1.5), ("accepting", 1.1), ("refusing", 1.0), ("refusing", 1.4)]
    record = filled(pattern, 10)

    assert record.needed() is None
    assert record.words().endswith("no difference so far")


def test_held_open_is_compared_where_nothing_was_refused() -> None:
    record = filled([("accepting", 1.0), ("contended", 2.0)], 20)

    assert record.compared == "contended"
    assert "while contended" in record.words()


def test_it_survives_a_restart() -> None:
    record = filled([("accepting", 1.2), ("refusing", 2.0), ("refusing", 3.0)], 8)
    again = ProbeRecord()
    again.restore(record.state())

    assert again.figures() == record.figures()
    again.note("refusing", 2.5)
    assert again.by_state["refusing"].count == 17


@pytest.mark.parametrize("kept", [np.zeros(3), np.full(17, math.nan), "text", None])
def test_what_does_not_fit_is_left_out(kept: Any) -> None:
    record = ProbeRecord()
    record.restore({"refusing": kept})

    assert record.by_state["refusing"].count == 0


class Slow:
    """A probe that finds the same at every step."""

    note = ""
    count = held_back = 0
    wait_seconds = 15.0
    last = ProbeResult(2.0, "accepting", 0.05)

    def poll(self, now: float, *, ready: float, state: str) -> ProbeResult | None:
        return ProbeResult(2.0, state, 0.05)

    def close(self) -> None:
        return


def test_the_agent_keeps_it_with_its_node_and_shows_it() -> None:
    agent = make_agent(Machine(), followers=[ProbeFollower(Slow())])  # type: ignore[arg-type]
    for _ in range(6):
        asyncio.run(agent.tick())

    page = exposition(agent).decode()
    assert 'pronto_probe_slowdown_bucket{le="2.0",state="accepting"} 6.0' in page
    assert 'pronto_probe_slowdown_bucket{le="1.5",state="accepting"} 0.0' in page
    assert 'pronto_probe_slowdown_sum{state="accepting"} 12.0' in page
    shown = status(agent)["probe"]
    assert shown["record"]["states"]["accepting"]["probes"] == 6
    assert shown["last"]["slowdown"] == 2.0
    assert agent.nodes.only.state()["probes_accepting"][0] == 6


def test_where_there_is_none_it_says_why() -> None:
    agent = make_agent(Machine())
    asyncio.run(agent.tick())

    assert probe_view(agent)["note"] == (
        "no probe runs: it measures the agent's own machine, and source machine reads others"
    )


def test_files_of_another_machine_are_not_probed() -> None:
    source = LinuxSource(FROZEN / "first")

    assert make_probe(source) is None
    source.close()


def drive(folder: Path, cycles: int) -> dict[str, Any]:
    """Run the driver, with the CPUs to itself where cgroups allow that."""
    driver = [sys.executable, "-m", "tests.agent.probe_driver", str(folder), str(cycles)]
    pipe = subprocess.PIPE
    with weighty() as cgroup, subprocess.Popen(driver, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            at_normal_priority(process.pid)
            if cgroup is not None:
                (cgroup / "cgroup.procs").write_text(str(process.pid))
            out, _ = process.communicate("go\n", timeout=180)
        finally:
            process.kill()
    found: dict[str, Any] = json.loads(out)
    return found


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="needs /proc with schedstat")
def test_a_real_load_shows_accepted_and_refused_moments_apart(tmp_path: Path) -> None:
    found = drive(tmp_path, 12)

    record = found["record"]
    accepting, refusing = record["states"]["accepting"], record["states"]["refusing"]
    assert record["told"] is True, record
    assert refusing["slowdown"] > 1.3 * accepting["slowdown"]
    assert accepting["stretches"] >= 3


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="needs /proc with schedstat")
def test_without_any_load_it_says_that_there_is_nothing_to_tell(tmp_path: Path) -> None:
    record = drive(tmp_path, 0)["record"]

    assert record["told"] is False
    assert record["states"]["refusing"]["probes"] == 0
    assert "there is nothing to tell yet" in record["words"]


@pytest.mark.parametrize("stretches", [2, 3, 12, 40])
def test_intervals_are_students(stretches: int) -> None:
    one = StateProbes()
    slowdowns = [1.0 + 0.1 * (i % 3) for i in range(stretches)]
    for slowdown in slowdowns:
        one.add(slowdown)
        one.close()
    spread = statistics.stdev(slowdowns) / math.sqrt(stretches)

    assert one.error == pytest.approx(t_quantile(stretches - 1) * spread, rel=1e-9)
