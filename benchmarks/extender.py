"""What the Kubernetes extender adds to one scheduling cycle.

Extender and agents are processes of their own. The client costs next to nothing: it writes requests that
were made beforehand to one connection, as kube-scheduler keeps one, and reads the answers without parsing
them. In turn it asks an endpoint of the same server that only takes a body and sends one of the same
length: what that takes is the transport and the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from aiohttp import web

from benchmarks.row import Row
from prontosched.agent.http.auth import Access, guard
from prontosched.gates.agent_client import Addresses, PolledDecisions
from prontosched.gates.extender import Extender, Ledger
from prontosched.gates.gate import Verdict
from prontosched.gates.policy import Rules

NODES = 1000
CYCLES = 1000
WARM_CYCLES = 300
PAUSE_SECONDS = 0.01
IDLE_SECONDS = 6.0
NAMES = [f"ip-10-0-{number // 250}-{number % 250}.eu-west-1.compute.internal" for number in range(NODES)]
# As long as most.
POD = b'{"Pod": {"metadata": {"uid": "p%d", "annotations": {"note": "' + b"x" * 3000 + b'"}}}, "NodeNames": '


class HeldDecisions:
    """A tenth of the nodes refuse, the others are more or less calm."""

    def __init__(self) -> None:
        until = time.time() + 600.0
        self._verdicts = {
            name: Verdict(number % 10 == 0, number % 97 / 100.0, "CPU Ready 12 % expected", until)
            for number, name in enumerate(NAMES)
        }

    def verdicts(self) -> dict[str, Verdict]:
        """Return what the nodes' agents last said."""
        return self._verdicts


def extender_rows() -> Iterator[Row]:
    """Measure filter and prioritize as kube-scheduler asks for them, node names only."""
    for source in ("decisions in memory", "agents polled every 2 s"):
        with contextlib.ExitStack() as stack:
            agents = [_started(stack, "agents")[1]] if "polled" in source else []
            process, port = _started(stack, "extender", *agents)
            spent, empty, used = _cycles(process, port)
            idle = _cpu(process)
            time.sleep(IDLE_SECONDS)
            idle = (_cpu(process) - idle) / IDLE_SECONDS
        name = f"extender, {NODES} nodes, {source}: filter and prioritize of one pod"
        for figure, share in (("median", 50), ("p99", 99)):
            goal = 5.0 if share == 99 else None
            yield Row(f"{name}, round trip, {figure}", float(np.percentile(spent, share)) * 1000, "ms", goal)
            yield Row(f"{name}, empty answers, {figure}", float(np.percentile(empty, share)) * 1000, "ms")
        if agents:
            yield Row(f"extender, {NODES} nodes, {source}: CPU while no pod waits", idle * 100, "% of a core")
        else:
            yield Row(f"{name}, CPU of the extender, median", float(np.median(used)) * 1000, "ms")


def _started(stack: contextlib.ExitStack, *arguments: str) -> tuple[subprocess.Popen[str], str]:
    """Start a process of this module, and return it with the port that it prints."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.extender", *arguments], stdout=subprocess.PIPE, text=True
    )
    stack.callback(process.wait)
    stack.callback(process.kill)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def _cycles(process: subprocess.Popen[str], port: str) -> tuple[list[float], list[float], list[float]]:
    """Return seconds of each cycle, of as many empty answers, and the CPU seconds of the extender in a cycle."""
    spent, empty, used = [], [], []
    with socket.create_connection(("127.0.0.1", int(port)), timeout=30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        left: list[str] = json.loads(_ask(connection, _request("/filter", 0, NAMES)))["NodeNames"]
        for pod in range(WARM_CYCLES + CYCLES):
            before, begin = _cpu(process), time.perf_counter()
            filtered = _ask(connection, _request("/filter", pod, NAMES))
            ranked = _ask(connection, _request("/prioritize", pod, left))
            spent.append(time.perf_counter() - begin)
            used.append(_cpu(process) - before)
            time.sleep(PAUSE_SECONDS)
            begin = time.perf_counter()
            _ask(connection, _request(f"/empty/{len(filtered)}", pod, NAMES))
            _ask(connection, _request(f"/empty/{len(ranked)}", pod, left))
            empty.append(time.perf_counter() - begin)
            time.sleep(PAUSE_SECONDS)
    return spent[WARM_CYCLES:], empty[WARM_CYCLES:], used[WARM_CYCLES:]


def _cpu(process: subprocess.Popen[str]) -> float:
    """Return the CPU seconds that a process has used."""
    return int(Path(f"/proc/{process.pid}/schedstat").read_text().split()[0]) / 1e9


def _request(path: str, number: int, names: list[str]) -> bytes:
    body = POD % number + _listed(tuple(names))
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


@functools.cache
def _listed(names: tuple[str, ...]) -> bytes:
    return json.dumps(names).encode() + b"}"


def _ask(connection: socket.socket, request: bytes) -> bytes:
    connection.sendall(request)
    data = b""
    while (end := data.find(b"\r\n\r\n")) < 0:
        data += connection.recv(1 << 20)
    head, body = data[:end].lower(), data[end + 4 :]
    if not head.startswith(b"http/1.1 200"):
        raise RuntimeError(f"the extender must answer with 200, got {head[:80]!r}")
    length = int(head.partition(b"content-length:")[2].split()[0])
    while len(body) < length:
        body += connection.recv(1 << 20)
    return body


async def _extender(agents: str) -> None:
    rules = Rules(enforce=True, veto=True, max_refusing=0.25)
    decisions: HeldDecisions | PolledDecisions = HeldDecisions()
    background = []
    if agents:
        polled = PolledDecisions(Addresses(table=dict.fromkeys(NAMES, f"http://127.0.0.1:{agents}")))
        decisions = polled
        background.append(lambda: polled.run(lambda: NAMES))
    application = Extender(Ledger(decisions, rules), background=background).application([guard(Access())])
    application.router.add_post("/empty/{length}", _empty)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


async def _empty(request: web.Request) -> web.Response:
    await request.read()
    return web.Response(body=b"x" * int(request.match_info["length"]))


async def _agents() -> None:
    """Answer as a thousand agents would, at the least cost."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                said = {"accept": True, "probability": 0.2, "reason": "calm", "valid_until": time.time() + 60}
                body = json.dumps(said).encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_agents() if sys.argv[1] == "agents" else _extender("".join(sys.argv[2:])))
