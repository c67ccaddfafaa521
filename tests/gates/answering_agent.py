"""An agent as far as its one answer goes, on a real socket; it keeps which paths were asked for."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

REASON = "asked by HTTP"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    paths: set[str]
    knows_enforcing: bool


class _Answer(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        self.server.paths.add(self.path)
        if "enforcing" in self.path and not self.server.knows_enforcing:
            self.send_error(400)
            return
        answer = {"accept": False, "probability": 0.9, "reason": REASON, "valid_until": time.time() + 10}
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def answering_agent(*, knows_enforcing: bool = True) -> Iterator[tuple[str, set[str]]]:
    """Run the agent; yields its address and the paths that it was asked for."""
    with _Server(("127.0.0.1", 0), _Answer) as server:
        server.paths, server.knows_enforcing = set(), knows_enforcing
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", server.paths
        finally:
            server.shutdown()
            thread.join()
