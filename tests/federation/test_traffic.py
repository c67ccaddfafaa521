"""The traffic of many agents over a real bus, counted at both ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from prontosched.federation.tree import Tree

from .buses import Bus

ROOT = Path(__file__).parents[2]


def carried(
    bus: Bus, *, processes: int, agents: int, seconds: float, every: float
) -> tuple[dict, list[dict]]:
    """Run aggregators and simulated agents as processes; return what each end counted."""
    address = f"{bus.url}/traffic?shards=5"
    pronto = [sys.executable, "-m", "prontosched"]
    names = [part for name in [*Tree(shards=5).shard_names(), ""] for part in ("--name", name)]
    above = subprocess.Popen(
        [*pronto, "aggregate", "--nats", address, *names, "--json", "--epsilon", "1", "--takeover", "1"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        for line in above.stderr:
            if b"root: speaking" in line:
                break
        loads = [
            subprocess.Popen(
                [*pronto, "federation", "load", "--nats", address, "--agents", str(agents), "--seconds", str(seconds),
                 "--every", str(every), "--prefix", f"load{index}", "--json"],
                cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )
            for index in range(processes)
        ]  # fmt: skip
        sent = []
        for process in loads:
            out, err = process.communicate(timeout=seconds + 120)
            assert process.returncode == 0, err.decode()
            sent.append(json.loads(out))
        above.terminate()
        out, err = above.communicate(timeout=30)
        assert above.returncode == 0, err.decode()
        return json.loads(out), sent
    finally:
        if above.poll() is None:
            above.kill()
            above.communicate(timeout=10)


def check(found: dict, sent: list[dict], agents: int) -> None:
    inner = [state for state in found["aggregators"] if state["aggregator"] != "root"]
    assert all(one["arrived"] and not one["refused"] and one["sessions"] == 1 for one in sent)
    assert sum(state["children"] for state in inner) == agents
    assert sum(state["heard"] for state in inner) == sum(one["summaries"] for one in sent)
    assert sum(state["rejected"] for state in inner) == 0


def test_all_that_simulated_agents_send_is_heard(bus: Bus) -> None:
    found, sent = carried(bus, processes=2, agents=20, seconds=3.0, every=0.5)

    check(found, sent, agents=40)
    assert sum(one["summaries"] for one in sent) == 2 * 20 * 6


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_the_traffic_of_500_agents_is_carried_for_five_minutes_without_loss(bus: Bus) -> None:
    found, sent = carried(bus, processes=4, agents=125, seconds=300.0, every=2.0)

    check(found, sent, agents=500)
    assert sum(one["summaries"] for one in sent) == 500 * 150
