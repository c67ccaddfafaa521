"""Fixtures: a free port, and `pronto` as a real process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes import free_port


@pytest.fixture(name="free_port")
def a_free_port() -> int:
    """A port of the loopback that nothing listens on."""
    return free_port()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start `pronto …` as a real process with its own home; killed at the end of the test."""
    started: list[subprocess.Popen[str]] = []

    def go(*arguments: str, **options: Any) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            "HOME": str(tmp_path),
            "XDG_STATE_HOME": str(tmp_path / "state"),
            "XDG_CONFIG_HOME": str(tmp_path / "config"),
            **options.pop("env", {}),
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "prontosched", *arguments],
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **options,
        )
        started.append(process)
        return process

    yield go
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
