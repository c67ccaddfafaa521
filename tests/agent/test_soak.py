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
