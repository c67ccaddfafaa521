"""What the Kubernetes extender adds to one scheduling cycle, in a process of its own."""

from __future__ import annotations

import asyncio
import http.client
import json
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
from aiohttp import web

from benchmarks.row import Row
from prontosched.gates.extender import Extender, Ledger
from prontosched.gates.gate import Verdict
from prontosched.gates.policy import Rules

NODES = 1000
CYCLES = 400


class FixedDecisions:
    """A tenth of the nodes refuse, the others are more or less calm."""

    def verdict(self, node: str) -> Verdict | None:
        """Return what the node's agent last said."""
        number = int(node[1:])
        return Verdict(number % 10 == 0, (number % 97) / 100.0, "CPU Ready 12 % expected", time.time() + 60.0)


def extender_rows() -> Iterator[Row]:
    """Measure filter and prioritize as kube-scheduler asks for them, node names only."""
    names = [f"n{number}" for number in range(NODES)]
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.extender"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        connection = http.client.HTTPConnection("127.0.0.1", int(process.stdout.readline()), timeout=30)
        spent = []
        for cycle in range(CYCLES + 50):
            pod = {"metadata": {"name": f"p{cycle}", "namespace": "default"}, "spec": {"containers": []}}
            begin = time.perf_counter()
            left = _ask(connection, "/filter", {"Pod": pod, "NodeNames": names})["NodeNames"]
            _ask(connection, "/prioritize", {"Pod": pod, "NodeNames": left})
            spent.append(time.perf_counter() - begin)
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait()
    name = f"extender, {NODES} nodes: filter and prioritize of one pod"
    yield Row(f"{name}, median", float(np.median(spent[50:])) * 1000, "ms")
    yield Row(f"{name}, p99", float(np.percentile(spent[50:], 99)) * 1000, "ms", 5.0)


def _ask(connection: http.client.HTTPConnection, path: str, body: object) -> dict[str, list[str]]:
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    data = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"{path} must be answered with 200, got {answer.status}: {data[:200]!r}")
    found = json.loads(data)
    return found if isinstance(found, dict) else {}


async def _serve() -> None:
    rules = Rules(enforce=True, veto=True, max_refusing=0.25)
    runner = web.AppRunner(Extender(Ledger(FixedDecisions(), rules)).application())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve())
