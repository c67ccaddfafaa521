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
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from benchmarks.http_load import Connections, closed_loop, open_loop
from benchmarks.row import Row
from prontosched.errors import ProntoError

CONNECTIONS = 200
STRETCHES = 9
STRETCH_SECONDS = 1.5
MANY, MANY_SECONDS = 1000, 20.0
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
    yield from many_rows()


def many_rows() -> Iterator[Row]:
    """Measure one agent for a thousand made-up nodes at a second each: ticks, answers meanwhile, a restart."""
    with tempfile.TemporaryDirectory() as folder:
        process, url, _ = _start_many(folder)
        try:
            node = quote(_ask(url, "/v1/nodes")["nodes"][MANY // 2]["node"], safe="")
            before, cpu = _ask(url, "/v1/status")["loop"], _cpu_seconds(process.pid)
            spent, end = [], time.monotonic() + MANY_SECONDS
            while time.monotonic() < end:
                begin = time.perf_counter()
                _ask(url, f"{DECISION}?node={node}")
                spent.append(time.perf_counter() - begin)
                time.sleep(0.005)
            after = _ask(url, "/v1/status")["loop"]
            ticks = after["ticks"] - before["ticks"]
            cpu = _cpu_seconds(process.pid) - cpu
            resident = _resident_bytes(process.pid)
        finally:
            process.terminate()
            process.wait(timeout=120)
        process, _, warm = _start_many(folder)
        process.terminate()
        process.wait(timeout=120)
    name = f"{MANY} nodes at 1 s"
    yield Row(f"{name}: processor time of a tick", cpu / max(ticks, 1) * 1000, "ms", 1000.0)
    yield Row(f"{name}: p99 of {DECISION} meanwhile", float(np.percentile(spent, 99)) * 1000, "ms", 50.0)
    yield Row(f"{name}: a restart until all are warm", warm, "s", 5.0)
    yield Row(f"{name}: memory of the agent (RSS)", resident / 2**20, "MB", 400.0)


def _start_many(folder: str) -> tuple[subprocess.Popen[bytes], str, float]:
    """Start an agent for many nodes; return it once all have decided, where it answers, and how long that took."""
    begin = time.monotonic()
    (Path(folder) / "address.json").unlink(missing_ok=True)
    options = ("--listen", "127.0.0.1:0", "--state", folder, "--synthetic", str(MANY))
    process = subprocess.Popen(
        [sys.executable, "-m", "prontosched", "agent", *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = _address(process, folder)
    while _ask(url, "/v1/status")["tally"]["decisions"] < MANY:
        time.sleep(0.02)
    return process, url, time.monotonic() - begin


def _ask(url: str, path: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}{path}", timeout=30) as response:
        found: dict[str, Any] = json.load(response)
    return found


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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
    found: list[dict[str, Any]] = _ask(url, "/v1/recent")["events"]
    return found


def _resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    return 0
