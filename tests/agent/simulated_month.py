"""Weeks of an agent in hours: the real loop, disk and log on a simulated clock and made-up telemetry.

    python -m tests.agent.simulated_month FOLDER [TICKS] [SECONDS]

Runs until there have been TICKS ticks of a simulated second, or for SECONDS. What was measured on the way is in
FOLDER/points.jsonl. Called again it goes on from there, as an agent does that was restarted.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from prontosched.agent.config import make_agent, source_of
from prontosched.agent.loop import Agent
from prontosched.settings import AgentSettings

MONTH = 30 * 86_400
LOG_BYTES = 400_000  # full, and pruned, within the first hours
EPOCH = 1.7e9


def read_points(folder: Path) -> list[dict[str, Any]]:
    """Return what was measured so far; a line that was cut off by a kill is left out."""
    try:
        lines = (folder / "points.jsonl").read_text().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def measured(agent: Agent, folder: Path, before: int) -> dict[str, Any]:
    gc.collect()
    status = Path("/proc/self/status").read_text()
    assert agent.disk is not None
    return {
        "process": os.getpid(),
        "ticks": before + agent.pace.ticks,
        "own_ticks": agent.pace.ticks,
        "decisions": agent.nodes.tally.decisions,
        "faults": dict(agent.faults),
        "resident": int(status.partition("VmRSS:")[2].split()[0]),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "state": (folder / "generated.state").stat().st_size,
        "log": agent.disk.log.size_bytes,
    }


async def run(folder: Path, ticks: int, seconds: float) -> None:
    past = read_points(folder)
    before = past[-1]["ticks"] if past else 0
    start = time.monotonic()
    now = [start]
    settings = AgentSettings(source="generated", state=folder, interval=1.0, log_megabytes=1, probe=False)
    agent = make_agent(settings, source_of(settings))
    assert agent.disk is not None
    agent.disk._clock = agent.pace.clock = lambda: now[0]
    agent.wall = lambda: EPOCH + before + now[0] - start
    agent.disk.log.max_bytes = LOG_BYTES
    every, begin, told = min(5000, ticks // 20), time.monotonic(), time.monotonic()
    with (folder / "points.jsonl").open("a") as points:
        while before + agent.pace.ticks < ticks and time.monotonic() - begin < seconds:
            agent.pace.begin()
            await agent.tick()
            now[0] += 1.0
            if agent.pace.ticks % 100 == 0:
                agent.announce(f"j{agent.pace.ticks}", cpus=0.1, ttl=5.0)
            while agent.disk._busy:  # a month takes hours here, and a disk as long as it takes
                await asyncio.sleep(0.0005)
            if agent.pace.ticks % every == 0:
                points.write(json.dumps(measured(agent, folder, before)) + "\n")
                points.flush()
                if time.monotonic() - told > 30.0:
                    told = time.monotonic()
                    each = (told - begin) / agent.pace.ticks
                    left = (ticks - before - agent.pace.ticks) * each
                    print(
                        f"{before + agent.pace.ticks} of {ticks} ticks, {1000 * each:.2f} ms each, "
                        f"{left / 60:.0f} minutes to go",
                        file=sys.stderr,
                    )
        points.write(json.dumps(measured(agent, folder, before)) + "\n")
    await agent.close()


if __name__ == "__main__":
    given = Path(sys.argv[1])
    given.mkdir(parents=True, exist_ok=True)
    asyncio.run(
        run(
            given,
            int(sys.argv[2]) if len(sys.argv) > 2 else MONTH,
            float(sys.argv[3]) if len(sys.argv) > 3 else 1e9,
        )
    )
