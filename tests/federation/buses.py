"""A real nats-server on loopback, started and stopped by its own process id."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from pathlib import Path

import pytest

from tests.processes import free_port
from tests.requirements import require_program


class Bus:
    """A nats-server with JetStream; `kill` is SIGKILL, `start` brings it back on the same port."""

    def __init__(
        self,
        folder: Path,
        *,
        config: Path | None = None,
        host: str = "127.0.0.1",
        prefix: tuple[str, ...] = (),
    ):
        self.program = require_program("nats-server")
        self.folder = folder
        self.config = config
        self.host = host
        self.prefix = prefix
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._read = 0

    @property
    def url(self) -> str:
        return f"nats://{self.host}:{self.port}"

    def start(self) -> Bus:
        command = [*self.prefix, self.program, "-a", self.host, "-p", str(self.port)]
        command += ["-c", str(self.config)] if self.config else ["-js", "-sd", str(self.folder)]
        with (self.folder / "nats.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        if not self.prefix:
            self.wait()
        else:
            # In another namespace: its own greeting in the log is the only sign.
            eventually(lambda: b"Server is ready" in (self.folder / "nats.log").read_bytes()[self._read :])
            self._read = (self.folder / "nats.log").stat().st_size
        return self

    def wait(self) -> None:
        limit = time.monotonic() + 60
        while time.monotonic() < limit:
            with contextlib.suppress(OSError), socket.create_connection((self.host, self.port), timeout=0.2):
                return
            time.sleep(0.02)
        pytest.fail(
            f"nats-server did not open port {self.port}: {(self.folder / 'nats.log').read_text()[-800:]}"
        )

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(5)
            self.process = None


def eventually(condition, *, seconds: float = 60.0, message: str = "condition"):
    """Return the first true answer, or fail."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        answer = condition()
        if answer:
            return answer
        time.sleep(0.02)
    pytest.fail(f"{message} did not come true within {seconds} s")
