"""Bad days of a real Linux machine, seen through the agent."""

from __future__ import annotations

import asyncio
import math
import re
import shutil
import subprocess
import sys

from prontosched.telemetry.linux import LinuxSource
from tests.agent.machine import make_agent, next_tick
from tests.telemetry.machines import FROZEN

STORM = """
import threading, time
end = time.monotonic() + 4
while time.monotonic() < end:
    threads = [threading.Thread(target=time.sleep, args=(0.05,)) for _ in range(250)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
"""


def watch(source, ticks, *, between=lambda i: None):
    agent = make_agent(source, interval=0.05, timeout=5)
    ready = []

    async def go():
        for i in range(ticks):
            between(i)
            await next_tick(agent)
            await agent.tick()
            ready.append(agent.known().ready)
        await agent.close()

    asyncio.run(go())
    return agent, ready


def test_a_thousand_threads_appearing_and_dying_stop_no_decision():
    with subprocess.Popen([sys.executable, "-c", STORM]) as storm:
        agent, ready = watch(LinuxSource(interval_seconds=0.05), 60)
        storm.wait(60)

    assert agent.nodes.tally.decisions == 60
    assert not agent.faults
    assert all(math.isnan(value) or value >= 0.0 for value in ready)


def test_counters_that_start_again_give_no_fault_and_no_negative_ready(tmp_path):
    root = tmp_path / "root"
    shutil.copytree(FROZEN / "first", root, symlinks=True)
    stat = root / "proc" / "stat"
    text = stat.read_text()

    def between(i):
        # Time goes on for ten ticks, then the machine seems to have started anew.
        factor = 0.001 if i >= 10 else 1.0 + 0.001 * i
        stat.write_text(re.sub(r"\b\d{4,}\b", lambda found: str(int(int(found[0]) * factor)), text))

    agent, ready = watch(LinuxSource(root, interval_seconds=0.05), 25, between=between)
    vector = agent.nodes.only.node.evidence.vector

    assert agent.nodes.tally.decisions == 25
    assert not agent.faults
    assert all(math.isnan(value) or value >= 0.0 for value in ready)
    assert abs(vector).max() < 1e3


def test_a_machine_that_loses_its_files_is_no_telemetry_and_comes_back(tmp_path):
    root = tmp_path / "root"
    shutil.copytree(FROZEN / "first", root, symlinks=True)

    def between(i):
        if i == 10:
            (root / "proc").rename(root / "gone")
        if i == 20:
            (root / "gone").rename(root / "proc")

    agent, _ = watch(LinuxSource(root, interval_seconds=0.05), 30, between=between)

    assert agent.pace.ticks == 30
    assert 15 <= agent.nodes.tally.decisions <= 30
    assert not agent.answer().stale
