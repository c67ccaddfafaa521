"""Free ports, waiting for a condition, and `pronto` as a real process: for the tests of any folder."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def free_port() -> int:
    """A port of the loopback that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(condition: Callable[[], Any], *, seconds: float = 20.0, what: str = "") -> Any:
    """Return the first true value of `condition`, or fail with `what`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds} s: {what or condition}")


@contextmanager
def started(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a `pronto` command until the end of the block."""
    process = subprocess.Popen(
        [sys.executable, "-c", "from prontosched.cli import main; main()", *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
