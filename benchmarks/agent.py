"""What an agent costs, and how it answers under load, next to an empty endpoint and a node_exporter.

Covers: one agent of this machine (start, memory, processor time beside a node_exporter that is asked each
second), its answers on 200 keep-alive connections, and one agent for a thousand made-up nodes. Load is an open
loop at half the rate that the empty endpoint reaches: requests are due at fixed times whether or not the last one
was answered, and latency counts from when a request was due. The endpoints take turns in short stretches and the
middle one of their 99th percentiles counts, so that a busy moment of the machine decides nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from benchmarks.core import FEATURES
from benchmarks.http_load import Connections, closed_loop, open_loop
from benchmarks.row import Row
from prontosched.errors import ProntoError
from prontosched.pipeline.node import Node
from prontosched.pipeline.presets import make_node
from prontosched.telemetry.linux import LinuxSource

CONNECTIONS = 200
STRETCHES = 9
STRETCH_SECONDS = 1.5
THREADS, QUIET_SECONDS, READINGS = 200, 60.0, 13
MANY, MANY_SECONDS = 1000, 20.0
EMPTY, DECISION = "/v1/ping", "/v1/decision"
EXPORTERS = ("prometheus-node-exporter", "node_exporter")
SLEEPERS = """
import sys, threading, time
for _ in range(int(sys.argv[1])):
    threading.Thread(target=lambda: [time.sleep(1.0) for _ in iter(int, 1)], daemon=True).start()
sys.stdin.read()
"""


def agent_rows() -> Iterator[Row]:
    """Measure real agents, each in a process of its own."""
    with tempfile.TemporaryDirectory() as folder, running_agent(folder) as (process, url):
        yield from quiet_rows(process.pid, url)
        yield from load_rows(url)
    yield from reading_rows()
    yield from many_rows()


@contextlib.contextmanager
def running_agent(folder: str, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Run an agent; yield its process and address once it answers."""
    note = Path(folder) / "address.json"
    note.unlink(missing_ok=True)
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "prontosched",
            "agent",
            "--listen",
            "127.0.0.1:0",
            "--state",
            folder,
            *options,
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(3000):
            if note.exists() or process.poll() is not None:
                break
            time.sleep(0.01)
        if not note.exists():
            raise ProntoError("an agent must start to be measured, got none: try `pronto agent`")
        yield process, str(json.loads(note.read_text())["url"])
    finally:
        process.terminate()
        process.wait(timeout=120)


def quiet_rows(pid: int, url: str) -> Iterator[Row]:
    """Measure start, processor time beside a node_exporter that is asked each second, and memory."""
    while _ask(url, DECISION)["timestep"] < 0:
        time.sleep(0.01)
    first = time.time() - _started_at(pid)
    with _threads_of_machine(THREADS) as threads, _exporter() as exporter:
        time.sleep(5.0)  # what a start costs is another matter
        pids = [pid] if exporter is None else [pid, exporter[0]]
        spent, begin = [_cpu_seconds(one) for one in pids], time.monotonic()
        while (passed := time.monotonic() - begin) < QUIET_SECONDS:
            if exporter is not None:
                with urllib.request.urlopen(exporter[1], timeout=10) as page:
                    page.read()
            time.sleep(1.0 - passed % 1.0)
        shares = [(_cpu_seconds(one) - before) / passed for one, before in zip(pids, spent, strict=True)]
    yield Row("one node at 1 s: from start to the first decision", first, "s", 2.0)
    yield Row(f"one node at 1 s, {threads} threads: share of a core", 100 * shares[0], "%", 0.6)
    if exporter is not None:
        name = "one node at 1 s: processor time / that of a node_exporter asked each second"
        yield Row(name, shares[0] / shares[1], "ratio", 1.0)
    yield Row("one node at 1 s: memory of the agent (RSS)", _resident_bytes(pid) / 2**20, "MB", 62.0)


def reading_rows() -> Iterator[Row]:
    """Measure what it costs to read this machine once a second: files, threads, and what is made of them."""
    source = LinuxSource()
    with _threads_of_machine(THREADS) as threads:
        costs = []
        for _ in range(READINGS):
            source.read()
            costs.append(source.cost_seconds)
            time.sleep(1.0)
    source.close()
    # The first ones open what the others keep open.
    cost = float(np.median(costs[3:])) * 1000
    yield Row(f"one reading of this machine, {threads} threads: processor time", cost, "ms")


def load_rows(url: str) -> Iterator[Row]:
    """Measure answers under load beside those of the empty endpoint."""
    rate, begin, latencies = asyncio.run(_load(int(url.rpartition(":")[2])))
    lag = max(
        event["loop"]["lag_seconds"] for event in _ask(url, "/v1/recent")["events"] if event["time"] >= begin
    )
    empty, decision = (float(np.median(latencies[path])) for path in (EMPTY, DECISION))
    yield Row("requests per second, empty endpoint, closed loop", rate, "1/s", better="more")
    yield Row("p99 of the empty endpoint at half that rate", empty * 1000, "ms")
    yield Row(f"p99 of {DECISION} / p99 of the empty endpoint", decision / empty, "ratio", 2.0)
    yield Row("latest tick of the loop meanwhile", lag * 1000, "ms", 200.0)


def many_rows() -> Iterator[Row]:
    """Measure one agent for a thousand made-up nodes at a second each: ticks, answers meanwhile, a restart."""
    with tempfile.TemporaryDirectory() as folder, running_agent(folder, "--synthetic", "1") as (process, url):
        _until_decided(url, 1)
        alone = _resident_bytes(process.pid)
    stepped = make_node()
    with tempfile.TemporaryDirectory() as folder:
        with running_agent(folder, "--synthetic", str(MANY)) as (process, url):
            _until_decided(url, MANY)
            node = quote(_ask(url, "/v1/nodes")["nodes"][MANY // 2]["node"], safe="")
            cpu, ticks = _cpu_seconds(process.pid), _ask(url, "/v1/status")["loop"]["ticks"]
            spent, bare, end = [], [], time.monotonic() + MANY_SECONDS
            while time.monotonic() < end:
                asked = time.perf_counter()
                _ask(url, f"{DECISION}?node={node}")
                spent.append(time.perf_counter() - asked)
                bare.append(_bare_steps(stepped))
                time.sleep(0.05)
            # By ticks, not by time: on a machine that is short of CPUs some are left out.
            ticks = _ask(url, "/v1/status")["loop"]["ticks"] - ticks
            share = (_cpu_seconds(process.pid) - cpu) / max(ticks, 1)
            resident = _resident_bytes(process.pid)
        restarted = time.monotonic()
        with running_agent(folder, "--synthetic", str(MANY)) as (process, url):
            _until_decided(url, MANY)
            warm = time.monotonic() - restarted
    name = f"{MANY} nodes at 1 s"
    yield Row(f"{name}: share of a core", 100 * share, "%", 12.0)
    times = share / MANY / (sum(bare) / len(bare))
    yield Row(f"{name}: a node's second against a bare default step", times, "times")
    yield Row(f"{name}: memory a node", (resident - alone) / MANY / 1000, "kB", 220.0)
    yield Row(f"{name}: p99 of {DECISION} meanwhile", float(np.percentile(spent, 99)) * 1000, "ms", 50.0)
    yield Row(f"{name}: a restart until all are warm", warm, "s", 5.0)


def _bare_steps(node: Node, steps: int = 20) -> float:
    """Return the processor seconds of a step, in the same noise as what is measured beside it."""
    y = np.random.default_rng(node.timestep).standard_normal((steps, FEATURES))
    begin = time.process_time()
    for vector in y:
        node.step(vector, ready=abs(float(vector[0])), utilisation=50.0, time=float(node.timestep))
    return (time.process_time() - begin) / steps


def _until_decided(url: str, nodes: int) -> None:
    while _ask(url, "/v1/status")["tally"]["decisions"] < nodes:
        time.sleep(0.02)


@contextlib.contextmanager
def _threads_of_machine(least: int) -> Iterator[int]:
    """Yield how many threads this machine has; some that sleep are added where there are fewer than `least`."""
    here = len(list(Path("/proc").glob("[0-9]*/task/[0-9]*")))
    if here >= least:
        yield here
        return
    command = [sys.executable, "-c", SLEEPERS, str(least - here)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as sleepers:
        yield least
        assert sleepers.stdin is not None
        sleepers.stdin.close()


@contextlib.contextmanager
def _exporter() -> Iterator[tuple[int, str] | None]:
    """Run a node_exporter on loopback; yield its process and page, None where none is installed."""
    program = next((found for name in EXPORTERS if (found := shutil.which(name))), None)
    if program is None:
        yield None
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    process = subprocess.Popen(
        [program, f"--web.listen-address={address}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    page = f"http://{address}/metrics"
    try:
        for _ in range(100):
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                urllib.request.urlopen(page, timeout=10).close()
                break
            time.sleep(0.1)
        yield process.pid, page
    finally:
        process.terminate()
        process.wait(timeout=30)


def _ask(url: str, path: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}{path}", timeout=30) as response:
        found: dict[str, Any] = json.load(response)
    return found


def _fields(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _cpu_seconds(pid: int) -> float:
    return sum(map(int, _fields(pid)[11:13])) / os.sysconf("SC_CLK_TCK")


def _started_at(pid: int) -> float:
    """Return when a process started, in seconds since 1970."""
    up = float(Path("/proc/uptime").read_text().split()[0])
    return time.time() - up + int(_fields(pid)[19]) / os.sysconf("SC_CLK_TCK")


async def _load(port: int) -> tuple[float, float, dict[str, list[float]]]:
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


def _resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    return 0
