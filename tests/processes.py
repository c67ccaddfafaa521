"""Free ports, waiting for a condition, and `pronto` as a real process or called: for the tests of any folder."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

import pytest

from examples.slurm_cluster import free_port as free_port
from prontosched.cli import main


def wait_for(condition: Callable[[], Any], *, seconds: float = 60.0, what: str = "") -> Any:
    """Return the first true value of `condition`, or fail with `what`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds} s: {what or condition}")


def at_normal_priority(process: int) -> None:
    """Give a process normal priority, whatever the tests themselves run at; skip where that is not allowed.

    Waiting below normal priority is not in CPU Ready, so a load that inherits `nice` would not count.
    """
    try:
        os.setpriority(os.PRIO_PROCESS, process, min(0, os.getpriority(os.PRIO_PROCESS, process)))
    except PermissionError:
        pytest.skip("a load must run at normal priority: run the tests without nice, or as root")


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


def called(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a `pronto` command in this process, which is ten times as fast as in one of its own."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main(arguments)
    code = ended.value.code
    return subprocess.CompletedProcess(
        arguments, code if isinstance(code, int) else 0, out.getvalue(), err.getvalue()
    )
