"""Exporters on loopback: small ones that say what a test wants, and the real node_exporter."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.processes import free_port
from tests.requirements import require_program


class Exporter:
    """A page of metrics that a test can change while it is served."""

    def __init__(self) -> None:
        self.page = ""
        self.status = 200
        self.headers: list[str] = []
        self.answer: Callable[[BaseHTTPRequestHandler], None] | None = None
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                exporter.headers.append(self.headers.get("Authorization", ""))
                if exporter.answer is not None:
                    exporter.answer(self)
                    return
                body = exporter.page.encode()
                self.send_response(exporter.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *arguments: None  # type: ignore[method-assign]
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def exporters(count: int) -> Iterator[list[Exporter]]:
    running = [Exporter() for _ in range(count)]
    try:
        yield running
    finally:
        for exporter in running:
            exporter.close()


@contextmanager
def node_exporter() -> Iterator[str]:
    program = require_program("prometheus-node-exporter", "node_exporter")
    address = f"127.0.0.1:{free_port()}"
    process = subprocess.Popen(
        [program, f"--web.listen-address={address}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        host, port = address.split(":")
        end = time.monotonic() + 20
        while True:
            try:
                socket.create_connection((host, int(port)), timeout=1).close()
                break
            except OSError:
                assert time.monotonic() < end, "node_exporter did not answer in 20 s"
                time.sleep(0.05)
        yield address
    finally:
        process.terminate()
        process.wait()
