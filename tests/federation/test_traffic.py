"""The traffic of many agents over a real bus, counted at both ends."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections import defaultdict
from pathlib import Path

import nats
import pytest

from prontosched.federation.message import read_fields

from .buses import Bus

ROOT = Path(__file__).parents[2]


class Listener:
    """Hear every summary on the bus and note its number, in a thread of its own."""

    def __init__(self, url: str) -> None:
        self.numbers: defaultdict[str, set[tuple[int, int]]] = defaultdict(set)
        self.heard = 0
        self._url = url
        self._ready, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._listen()))

    def __enter__(self) -> Listener:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10)

    async def _listen(self) -> None:
        client = await nats.connect(self._url)

        async def note(message: nats.aio.msg.Msg) -> None:
            self.heard += 1
            found = read_fields(message.data, "summary")
            self.numbers[found["node"]].add((found["incarnation"], found["sequence"]))

        await client.subscribe("$KV.pronto-traffic-summaries.>", cb=note)
        await client.flush()
        self._ready.set()
        while not self._stop.is_set():
            await asyncio.sleep(0.05)
        await client.flush()
        await client.close()


def carried(
    bus: Bus, *, processes: int, agents: int, seconds: float, every: float
) -> tuple[dict, list[dict]]:
    """Run aggregators and simulated agents as processes; return what each end counted."""
    address = f"{bus.url}/traffic?shards=5"
    pronto = [sys.executable, "-m", "prontosched"]
    names = [part for name in [*(f"~{number:04d}" for number in range(5)), ""] for part in ("--name", name)]
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
                [sys.executable, "-m", "benchmarks", "traffic", "--nats", address, "--agents", str(agents),
                 "--for", str(seconds), "--every", str(every), "--prefix", f"load{index}", "--json"],
                cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )
            for index in range(processes)
        ]  # fmt: skip
        sent = []
        for process in loads:
            out, err = process.communicate(timeout=seconds + 120)
            assert process.returncode == 0, err.decode()
            sent.append(json.loads(out))
        shown = subprocess.run(
            [*pronto, "federation", "--nats", address, "--json"],
            cwd=ROOT,
            capture_output=True,
            check=True,
            timeout=120,
        )
        above.terminate()
        out, err = above.communicate(timeout=60)
        assert above.returncode == 0, err.decode()
        return {**json.loads(out), "rows": json.loads(shown.stdout)["rows"]}, sent
    finally:
        if above.poll() is None:
            above.kill()
            above.communicate(timeout=60)


def check(found: dict, sent: list[dict], agents: int) -> None:
    """All ends counted the same, and of every agent the last summary is held."""
    inner = [state for state in found["aggregators"] if state["aggregator"] != "root"]
    total = sum(one["summaries"] for one in sent)
    assert all(one["arrived"] and not one["refused"] for one in sent)
    assert sum(state["children"] for state in inner) == agents
    # A slow acknowledgement makes a sender repeat itself, so more than all may be heard.
    assert sum(state["heard"] for state in inner) >= total
    print(f"{total} summaries sent, {sum(s['heard'] for s in inner)} heard by the aggregators")
    assert sum(row["sent"] for row in found["rows"] if not row["aggregator"]) == total
    assert sum(state["rejected"] for state in inner) == 0


def check_numbers(listener: Listener, sent: list[dict], each: int) -> None:
    """Nothing was lost: of every agent each number from the first to the last was heard."""
    agents = {name: numbers for name, numbers in listener.numbers.items() if name.startswith("load")}
    print(f"{listener.heard} heard by a listener, of {len(agents)} agents")
    assert len(agents) == sum(one["agents"] for one in sent)
    for name, numbers in agents.items():
        assert len({incarnation for incarnation, _ in numbers}) == 1, name
        assert {sequence for _, sequence in numbers} == set(range(1, each + 1)), name


def test_all_that_simulated_agents_send_is_heard(bus: Bus) -> None:
    with Listener(bus.url) as listener:
        found, sent = carried(bus, processes=2, agents=20, seconds=3.0, every=0.5)

    check(found, sent, agents=40)
    check_numbers(listener, sent, each=6)
    assert sum(one["summaries"] for one in sent) == 2 * 20 * 6


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_the_traffic_of_500_agents_is_carried_for_five_minutes_without_loss(bus: Bus) -> None:
    with Listener(bus.url) as listener:
        found, sent = carried(bus, processes=4, agents=125, seconds=300.0, every=2.0)

    check(found, sent, agents=500)
    check_numbers(listener, sent, each=150)
    assert sum(one["summaries"] for one in sent) == 500 * 150
