"""Memory over many timesteps: a tenth of the long run here, all of it in `make soak`."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, gc, json, sys, tempfile
from pathlib import Path
from prontosched.agent.config import make_agent
from prontosched.agent.config import source_of
from prontosched.settings import AgentSettings

steps, source = int(sys.argv[1]), sys.argv[2]

def resident():
    gc.collect()
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))

async def go(folder):
    settings = AgentSettings(source=source, state=Path(folder), interval=0.001, log_megabytes=1, log_age=864.0)
    agent = make_agent(settings, source_of(settings))
    agent.disk.log.max_bytes = 150_000  # full, and pruned, before the warm-up ends
    sizes = []
    warm = 4000 if steps < 10_000 else 18_000
    while agent.pace.ticks < warm + steps:
        if agent.pace.ticks == warm:
            sizes.append(resident())
        await agent.pace.wait()
        await agent.tick()
        if agent.pace.ticks % 50 == 0:
            agent.announce(f"j{agent.pace.ticks}", cpus=0.1, ttl=0.5)
            watcher = agent.events.watch()
            agent.events.leave(watcher)
    sizes.append(resident())
    faults = dict(agent.faults)
    await agent.abandon()
    return sizes, faults, agent.nodes.tally.decisions

with tempfile.TemporaryDirectory() as folder:
    sizes, faults, decisions = asyncio.run(go(folder))
print(json.dumps({"before": sizes[0], "after": sizes[1], "faults": faults, "decisions": decisions}))
"""


def grow(steps: int, source: str) -> dict:
    """Run some timesteps to warm up and `steps` more; return what was resident between and after, in kB."""
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(steps), source],
        capture_output=True,
        text=True,
        check=False,
        timeout=3000,
        env={"OPENBLAS_NUM_THREADS": "1", "PATH": "/usr/bin:/bin", "MALLOC_ARENA_MAX": "2"},
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    return json.loads(ran.stdout)


def test_memory_does_not_grow_after_the_warm_up():
    found = grow(3600, "generated")

    assert found["decisions"] == 7600
    assert not found["faults"]
    # A page here and there is the allocator's; a leak of one small object per timestep would be more.
    assert found["after"] - found["before"] <= 200, found


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("source", ["generated", "linux"])
def test_memory_does_not_grow_over_36000_timesteps(source):
    found = grow(36_000, source)

    assert found["decisions"] == 54_000
    # One small object kept per timestep would be a megabyte; the allocator settles within half of one.
    assert found["after"] - found["before"] <= 512, found


MONTH = """
import asyncio, gc, json, os, sys, tempfile, time
from pathlib import Path
from prontosched.agent.config import make_agent, source_of
from prontosched.agent.loop import Pace
from prontosched.settings import AgentSettings

ticks, seconds = int(sys.argv[1]), float(sys.argv[2])
now = [time.monotonic()]

def measured(agent, folder):
    gc.collect()
    with open("/proc/self/status") as file:
        resident = next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))
    return {
        "ticks": agent.pace.ticks,
        "resident": resident,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "state": (Path(folder) / "generated.state").stat().st_size,
        "log": agent.disk.log.size_bytes,
    }

async def go(folder):
    settings = AgentSettings(source="generated", state=Path(folder), interval=1.0, log_megabytes=1, probe=False)
    agent = make_agent(settings, source_of(settings))
    agent.disk._clock = agent.pace.clock = lambda: now[0]
    agent.wall = lambda: 1.7e9 + now[0]
    agent.disk.log.max_bytes = 400_000  # full, and pruned, before the first is measured
    found, begin = [], time.monotonic()
    while agent.pace.ticks < ticks and time.monotonic() - begin < seconds:
        agent.pace.begin()
        await agent.tick()
        now[0] += 1.0
        if agent.pace.ticks % 100 == 0:
            agent.announce(f"j{agent.pace.ticks}", cpus=0.1, ttl=5.0)
        while agent.disk._busy:  # a month takes minutes here, and a disk as long as it takes
            await asyncio.sleep(0.0005)
        if agent.pace.ticks % min(5000, ticks // 20) == 0:
            found.append(measured(agent, folder))
    if not found or found[-1]["ticks"] != agent.pace.ticks:
        found.append(measured(agent, folder))
    faults, decisions = dict(agent.faults), agent.nodes.tally.decisions
    await agent.abandon()
    return {"found": found, "faults": faults, "decisions": decisions}

with tempfile.TemporaryDirectory() as folder:
    print(json.dumps(asyncio.run(go(folder))))
"""


def month(ticks: int, seconds: float) -> dict:
    """Run so many simulated seconds, or for so long; return what was measured on the way."""
    ran = subprocess.run(
        [sys.executable, "-c", MONTH, str(ticks), str(seconds)],
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds + 120,
        env={"OPENBLAS_NUM_THREADS": "1", "PATH": "/usr/bin:/bin", "MALLOC_ARENA_MAX": "2"},
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    return json.loads(ran.stdout)


def check_flat(found: dict, kilobytes: int) -> None:
    """The second half of the run is as large as the first."""
    points = found["found"]
    half = [point for point in points if point["ticks"] >= points[-1]["ticks"] / 2]
    first, last = half[0], half[-1]
    assert found["decisions"] == last["ticks"]
    assert not found["faults"], found["faults"]
    assert last["descriptors"] <= first["descriptors"] + 2, found
    assert last["resident"] - first["resident"] <= kilobytes, found
    assert last["state"] <= 1.1 * first["state"], found
    assert max(point["log"] for point in points) <= 400_000 + 1_200_000, found


def test_simulated_hours_are_flat():
    check_flat(month(2000, 20.0), kilobytes=4096)


@pytest.mark.soak
@pytest.mark.timeout(15_000)
def test_a_simulated_month_is_flat():
    found = month(2_592_000, 14_000.0)

    check_flat(found, kilobytes=1024)
    assert found["decisions"] == 2_592_000
