"""An agent that sees only the load that this process makes, in turns, and a probe beside it: run as a process.

Prints one JSON object with the probe's record. Alone in a heavy cgroup it has the CPUs to itself.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from pathlib import Path

from prontosched.agent.config import make_nodes
from prontosched.agent.followers import ProbeFollower, probe_view
from prontosched.agent.loop import Agent, Reader
from prontosched.agent.pace import Pace
from prontosched.settings import AgentSettings
from prontosched.telemetry.linux import LinuxSource
from prontosched.telemetry.probe import Probe
from tests.telemetry.cgroups import CPUS, spinning, view_of

INTERVAL = 0.2


def alternate(
    agent: Agent, root: Path, cycles: int, stop: asyncio.Event, loop: asyncio.AbstractEventLoop
) -> None:
    """Make load until some probes met a refusal, then none until as many met acceptance; until both are told apart."""
    while agent.nodes.only is None:  # until the first sample
        time.sleep(0.01)
    for _ in range(cycles):
        if agent.nodes.only.probes.told:
            break
        wait_for_probes(agent, "accepting", 8)
        with spinning(3 * CPUS) as processes:
            view_of(root, *processes)
            wait_for_probes(agent, "refusing", 8)
    loop.call_soon_threadsafe(stop.set)


def wait_for_probes(agent: Agent, state: str, more: int) -> None:
    while agent.nodes.only is None:  # until the first sample
        time.sleep(0.01)
    aim = agent.nodes.only.probes.by_state[state].count + more
    end = time.monotonic() + 40.0
    while agent.nodes.only.probes.by_state[state].count < aim and time.monotonic() < end:
        time.sleep(0.05)


async def main(root: Path, cycles: int) -> None:
    sys.stdin.readline()
    view_of(root)
    source = LinuxSource(root, INTERVAL, "n1")
    nodes = make_nodes(AgentSettings(interval=INTERVAL), source)
    probe = ProbeFollower(Probe(every_seconds=0.1))
    agent = Agent(Reader(source, timeout=2.0), nodes, Pace(INTERVAL), followers=[probe])
    stop = asyncio.Event()
    if cycles:
        arguments = (agent, root, cycles, stop, asyncio.get_running_loop())
        threading.Thread(target=alternate, args=arguments, daemon=True).start()
    await agent.run(stop, 120.0 if cycles else 5.0)
    print(json.dumps(probe_view(agent)))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
