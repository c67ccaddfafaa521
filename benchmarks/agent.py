"""The agent under load, next to an empty endpoint of the same server.

Covers: 200 keep-alive connections, open loop at half the rate that the empty endpoint
reaches: requests are due at fixed times whether or not the last one was answered, and
latency counts from when a request was due. The endpoints take turns in short stretches
and the middle one of their 99th percentiles counts, so that a busy moment of the machine
decides nothing.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.http_load import Connections, closed_loop, open_loop
from benchmarks.row import Row
from prontosched.errors import ProntoError

CONNECTIONS = 200
STRETCHES = 9
STRETCH_SECONDS = 1.5
EMPTY, DECISION = "/v1/ping", "/v1/decision"


def agent_rows() -> Iterator[Row]:
    """Measure a real agent on this machine, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [sys.executable, "-m", "prontosched", "agent", "--listen", "127.0.0.1:0", "--state", folder],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            url = _address(process, folder)
            rate, begin, latencies = asyncio.run(_measure(int(url.rpartition(":")[2])))
            lag = max(event["loop"]["lag_seconds"] for event in _events(url) if event["time"] >= begin)
            resident = _resident_bytes(process.pid)
        finally:
            process.terminate()
            process.wait(timeout=30)
    empty, decision = (float(np.median(latencies[path])) for path in (EMPTY, DECISION))
    yield Row("requests per second, empty endpoint, closed loop", rate, "1/s", better="more")
    yield Row("p99 of the empty endpoint at half that rate", empty * 1000, "ms")
    yield Row(f"p99 of {DECISION} / p99 of the empty endpoint", decision / empty, "ratio", 2.0)
    yield Row("latest tick of the loop meanwhile", lag * 1000, "ms", 200.0)
    yield Row("memory of the agent (RSS)", resident / 2**20, "MB", 70.0)


async def _measure(port: int) -> tuple[float, float, dict[str, list[float]]]:
    latencies: dict[str, list[float]] = {EMPTY: [], DECISION: []}
    async with Connections(port, CONNECTIONS) as connections:
        for path in latencies:
            await closed_loop(connections, path, 0.5)
        rate = max([await closed_loop(connections, EMPTY, 1.5) for _ in range(2)])
        begin = time.time()
        for _ in range(STRETCHES):
            for path, seen in latencies.items():
                spent = await open_loop(connections, path, rate=rate / 2, seconds=STRETCH_SECONDS)
                seen.append(float(np.percentile(spent, 99)))
    return rate, begin, latencies


def _address(process: subprocess.Popen[bytes], folder: str) -> str:
    """Wait until the agent has noted where it answers."""
    note = Path(folder) / "address.json"
    for _ in range(600):
        if note.exists():
            return str(json.loads(note.read_text())["url"])
        if process.poll() is not None:
            break
        time.sleep(0.05)
    raise ProntoError("an agent must start to be measured, got none: try `pronto agent`")


def _events(url: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{url}/v1/recent", timeout=10) as response:
        found: list[dict[str, Any]] = json.load(response)["events"]
    return found


def _resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    return 0
