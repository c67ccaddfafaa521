"""The load generator keeps to its plan, its time and its share."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tools.load.__main__ import command
from tools.load.run import WORKER, run_load
from tools.load.schedule import Action, Event, Schedule, plan_load

LINUX = pytest.mark.skipif(not Path("/proc/stat").exists(), reason="needs Linux")


def test_the_same_seed_gives_the_same_plan() -> None:
    assert plan_load(seed=3, seconds=900, cpus=4) == plan_load(seed=3, seconds=900, cpus=4)
    assert plan_load(seed=3, seconds=900, cpus=4) != plan_load(seed=4, seconds=900, cpus=4)


@given(
    seed=st.integers(0, 2**31),
    seconds=st.floats(1, 5000),
    cpus=st.integers(1, 128),
    share=st.floats(0.01, 1.0),
)
def test_no_plan_breaks_its_bounds(seed: int, seconds: float, cpus: int, share: float) -> None:
    plan = plan_load(seed=seed, seconds=seconds, cpus=cpus, share=share, memory_megabytes=100)

    assert plan.planned_share <= share * (1 + 1e-9)
    for event in plan.events:
        assert event.start + event.seconds <= seconds * (1 + 1e-9)
        for action in event.actions:
            assert event.start - 1e-6 <= action.start
            assert action.start + action.seconds <= event.start + event.seconds + 1e-6
            assert action.kind != "memory" or action.level <= 100


def test_a_long_plan_has_abrupt_and_announced_contention_and_neither() -> None:
    events = plan_load(seed=1, seconds=3600, cpus=2).events

    assert {event.kind for event in events} == {
        *("hum", "abrupt", "announced", "creeping", "forks", "mix", "io", "memory")
    }
    announced = [event for event in events if event.kind == "announced"]
    assert all(event.lead_seconds >= 4 for event in announced)
    for event in announced:
        burst = min(action.start for action in event.actions if action.kind == "spin")
        signs = [action for action in event.actions if action.kind != "spin"]
        assert burst - min(action.start for action in signs) == pytest.approx(event.lead_seconds)
    assert any(not event.contention for event in events if event.kind != "hum")


@pytest.mark.parametrize(("share", "seconds"), [(0.0, 10), (1.5, 10), (0.5, 0)])
def test_impossible_bounds_are_refused(share: float, seconds: float) -> None:
    with pytest.raises(ValueError, match=r"must be (in \(0, 1\]|positive), got"):
        plan_load(seed=1, seconds=seconds, cpus=2, share=share)


def one(*actions: Action, seconds: float, cpu_seconds: float = 1.0, share: float = 1.0) -> Schedule:
    event = Event("abrupt", 0.0, seconds, 0.0, True, cpu_seconds, actions)
    return Schedule(seed=0, seconds=seconds + 0.3, cpus=2, share=share, memory_megabytes=8, events=(event,))


@LINUX
@pytest.mark.parametrize("ramp", ["0", "1"])
@pytest.mark.parametrize(("kind", "level"), [("spin", "0.5"), ("forks", "2"), ("io", "4"), ("memory", "8")])
def test_every_kind_of_action_takes_its_time_and_ends(kind: str, level: str, ramp: str) -> None:
    began = time.monotonic()

    done = subprocess.run(
        [sys.executable, "-I", "-S", str(WORKER), kind, "0.3", level, ramp], capture_output=True, timeout=30
    )

    assert (done.returncode, done.stderr) == (0, b"")
    assert time.monotonic() - began >= 0.3


@LINUX
def test_a_load_takes_cpu_time_and_ends_on_time() -> None:
    schedule = one(Action("spin", 0.0, 1.0, 1.0), Action("io", 0.1, 0.9, 4.0, ramp=True), seconds=1.0)

    report = run_load(schedule)

    assert 0.0 < report.cpu_seconds < 4.0
    assert report.seconds < 8.0
    assert report.skipped == []


@LINUX
def test_an_event_that_would_break_the_share_is_skipped_and_said_so() -> None:
    lines: list[str] = []

    report = run_load(
        one(Action("spin", 0.0, 0.3, 1.0), seconds=0.3, cpu_seconds=99.0), progress=lines.append
    )

    assert len(report.skipped) == 1
    assert "skipped, the CPU share is used up" in lines[0]
    assert report.cpu_seconds < 0.1


@LINUX
def test_stopping_ends_all_processes_at_once() -> None:
    asked = iter([False, False, False, True, True])

    report = run_load(
        one(Action("spin", 0.0, 60.0, 1.0), Action("memory", 0.0, 60.0, 4.0), seconds=60.0),
        stopped=lambda: next(asked, True),
    )

    assert report.seconds < 10


@LINUX
def test_a_worker_ends_when_its_parent_is_gone() -> None:
    script = f"""
import os, subprocess, sys
worker = subprocess.Popen([sys.executable, "-I", "-S", {str(WORKER)!r}, "spin", "60", "0.2", "0", str(os.getpid())])
print(worker.pid, flush=True)
sys.stdin.read()
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.communicate()

    end = time.monotonic() + 10
    while _alive(worker) and time.monotonic() < end:
        time.sleep(0.05)
    assert not _alive(worker)


def _alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_the_command_prints_its_plan_as_json() -> None:
    result = CliRunner().invoke(command, ["--plan", "--for", "5m", "--seed", "9", "--json"])

    plan = json.loads(result.stdout)
    assert plan["seed"] == 9
    assert plan["planned_share"] <= 0.35
    assert plan["cpus"] == len(os.sched_getaffinity(0))


@LINUX
def test_the_command_writes_what_it_did(tmp_path: Path) -> None:
    out = tmp_path / "load.json"

    result = CliRunner().invoke(command, ["--for", "1s", "--schedule", str(out)])

    report = json.loads(out.read_text())
    assert result.exit_code == 0
    assert [event["kind"] for event in report["done"]] == ["hum"]
    assert report["share"] < 0.5
