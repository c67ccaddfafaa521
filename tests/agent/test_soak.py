"""Memory over many timesteps: a tenth of the long run here, all of it in `make soak`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.agent.simulated_month import LOG_BYTES, MONTH, read_points

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
    agent.reader.timeout = 30.0  # a busy machine may keep a reading waiting; every tick is to decide
    agent.disk.log.max_bytes = 150_000  # full, and pruned, before the warm-up ends
    sizes = []
    warm = 4000 if steps < 10_000 else 18_000
    while agent.pace.ticks < warm + steps:
        if agent.pace.ticks == warm:
            sizes.append(resident())
        await asyncio.sleep(agent.pace.remaining())
        agent.pace.begin()
        await agent.tick()
        if agent.pace.ticks % 50 == 0:
            agent.announce(f"j{agent.pace.ticks}", cpus=0.1, ttl=0.5)
            watcher = agent.events.watch()
            agent.events.leave(watcher)
    sizes.append(resident())
    faults = dict(agent.faults)
    await agent.close()
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
    # Up to 320 kB were seen to be the allocator's; one decision row kept per timestep would be 1,500.
    assert found["after"] - found["before"] <= 700, found


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("source", ["generated", "linux"])
def test_memory_does_not_grow_over_36000_timesteps(source):
    found = grow(36_000, source)

    assert found["decisions"] == 54_000
    # One small object kept per timestep would be a megabyte; the allocator settles within half of one.
    assert found["after"] - found["before"] <= 512, found


def simulate(folder: Path, ticks: int, seconds: float) -> list[dict]:
    """Run so many simulated seconds, or for so long; return what was measured on the way."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.agent.simulated_month", str(folder), str(ticks), str(seconds)],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=seconds + 120,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"},
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    return read_points(folder)


def check_flat(points: list[dict], kilobytes: int) -> None:
    """The second half of each process's run is as large as the first."""
    for process in {point["process"] for point in points}:
        own = [point for point in points if point["process"] == process]
        first, *_, last = [point for point in own if point["own_ticks"] >= own[-1]["own_ticks"] / 2]
        assert last["decisions"] == last["own_ticks"]
        assert not last["faults"], last["faults"]
        assert last["descriptors"] <= first["descriptors"] + 2, (first, last)
        assert last["resident"] - first["resident"] <= kilobytes, (first, last)
        assert last["state"] <= 1.1 * first["state"], (first, last)
        assert max(point["log"] for point in own) <= LOG_BYTES + 1_200_000, own[-1]


def test_simulated_hours_are_flat_and_go_on_after_a_restart(tmp_path):
    simulate(tmp_path, 1600, 60.0)
    points = simulate(tmp_path, 2000, 60.0)

    assert points[-1]["ticks"] == 2000
    assert points[-1]["own_ticks"] == 400
    check_flat(points, kilobytes=4096)


@pytest.mark.soak
@pytest.mark.timeout(15_000)
def test_a_simulated_month_is_flat():
    """The month goes on from where the last call ended, if $PRONTO_TEST_MONTH names a folder to keep it in."""
    kept = os.environ.get("PRONTO_TEST_MONTH")
    # In memory where that can be: a disk that waits for its platter at every save would take most of the time.
    memory = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as fresh:
        points = simulate(Path(kept or fresh), MONTH, 14_000.0)

    check_flat(points, kilobytes=1024)
    assert points[-1]["ticks"] == MONTH
