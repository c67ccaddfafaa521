"""One agent for machines that run none: pages of metrics, each a node."""

from __future__ import annotations

import itertools
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.agent.test_process import address, ask, listen, wait_for

PAGE = """# TYPE node_cpu_seconds_total counter
node_cpu_seconds_total{{cpu="0",mode="idle"}} {idle}
node_cpu_seconds_total{{cpu="0",mode="user"}} {user}
# TYPE node_load1 gauge
node_load1 {load}
# TYPE node_memory_MemFree_bytes gauge
node_memory_MemFree_bytes {free}
"""


class Exporter:
    """A page of metrics that moves with every look."""

    def __init__(self) -> None:
        count = itertools.count()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                i = next(count)
                page = PAGE.format(idle=100 + 0.1 * i, user=50 + 0.05 * i, load=i % 5, free=1e9 + i * 1e6)
                body = page.encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments):
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()
        self.target = f"127.0.0.1:{self.server.server_port}"

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(10)


@pytest.fixture
def exporters():
    made = [Exporter() for _ in range(3)]
    yield made
    for exporter in made:
        exporter.stop()


def test_each_target_is_a_node_and_one_that_dies_is_alone_in_it(start, tmp_path, exporters):
    targets = [word for exporter in exporters for word in ("--target", exporter.target)]
    start(
        "agent", *listen(), "--source", "prometheus", *targets, "--interval", "0.2", "--valid", "1.5s",
        "--preset", "paper",
    )  # fmt: skip
    url = address(tmp_path)
    nodes = wait_for(lambda: len(ask(url, "/v1/nodes")["nodes"]) == 3 and ask(url, "/v1/nodes")["nodes"])
    exporters[0].server.shutdown()
    exporters[0].server.server_close()
    dead = wait_for(lambda: [n for n in ask(url, "/v1/nodes")["nodes"] if n["stale"]])
    alive = [n for n in ask(url, "/v1/nodes")["nodes"] if not n["stale"]]

    assert len({node["node"] for node in nodes}) == 3
    assert len(dead) == 1
    assert exporters[0].target in dead[0]["node"]
    assert "no telemetry for" in dead[0]["reason"]
    assert dead[0]["accept"]
    assert len(alive) == 2
    assert ask(url)["nodes"] == 3
