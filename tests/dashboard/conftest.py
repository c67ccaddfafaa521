"""A real browser, and agents to look at."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
ARTEFACTS = Path(__file__).parent.parent.parent / "artefacts"

Start = Callable[..., str]


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    """A browser, closed with the module: its driver runs an event loop that others must not meet."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def artefacts() -> Path:
    """Where screenshots are kept."""
    ARTEFACTS.mkdir(exist_ok=True)
    return ARTEFACTS


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    """Start `pronto up` with options; gives its address. All are stopped at the end."""
    running: list[subprocess.Popen[str]] = []

    def up(*options: str) -> str:
        process = subprocess.Popen(
            [sys.executable, "-m", "prontosched", "up", "--listen", "127.0.0.1:0", "--for", "600s", *options],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )
        running.append(process)
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if found := re.search(r"open (https?://\S+?)/\s*$", line):
                return found.group(1)
        raise AssertionError(f"the agent did not start: {said}")

    yield up
    for process in running:
        process.send_signal(signal.SIGTERM)
    for process in running:
        process.wait(20)
        assert process.stderr is not None
        process.stderr.close()
