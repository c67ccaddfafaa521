"""A real browser, and agents to look at."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.processes import wait_for
from tests.requirements import require_program

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
NASTY = "<img src=x onerror=alert(1)>&\"'"

Start = Callable[..., str]


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    """A browser, closed with the module: its driver runs an event loop that others must not meet."""
    chromium = require_program("chromium", "chromium-browser", "google-chrome")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def artefacts() -> Path:
    """Where screenshots are kept."""
    ARTEFACTS.mkdir(exist_ok=True)
    return ARTEFACTS


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    """Start `pronto up` with options; gives its address. All are stopped with the module."""
    running: list[subprocess.Popen[str]] = []
    readers: list[threading.Thread] = []

    def up(*options: str) -> str:
        process = subprocess.Popen(
            [sys.executable, "-m", "prontosched", "up", "--listen", "127.0.0.1:0", "--for", "900s", *options],
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
                # A pipe that nobody reads would stop the agent once its log has filled it.
                reader = threading.Thread(target=process.stderr.read, daemon=True)
                reader.start()
                readers.append(reader)
                wait_for(lambda: has_decided(found.group(1)), what="a first decision")
                return found.group(1)
        raise AssertionError(f"the agent did not start: {said}")

    yield up
    for process in running:
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGTERM)
    for process in running:
        process.wait(60)
    for reader in readers:
        reader.join(10)
    for process in running:
        assert process.stderr is not None
        process.stderr.close()


def has_decided(url: str) -> bool:
    """Tell whether an agent has decided something; one that does not let us ask counts as if it had."""
    try:
        with urllib.request.urlopen(url + "/v1/status", timeout=10) as answer:
            return bool(json.load(answer)["tally"]["decisions"])
    except urllib.error.URLError:
        return True


def planted(path: Path, *, quiet: int = 120, busy: int = 80) -> str:
    """Write a trace in which contention comes with a rise of two metrics."""
    rng = np.random.default_rng(3)
    names = [f"metric_{i}" for i in range(10)] + ["run_queue", "fork_rate", NASTY.replace('"', '""')]
    rows = ["ready,utilisation," + ",".join(f'"{name}"' for name in names)]
    load = np.zeros(4)
    factors = rng.standard_normal((13, 4))
    for t in range(quiet + busy):
        load = 0.8 * load + 0.5 * rng.standard_normal(4)
        y = 20 + factors @ load + 0.3 * rng.standard_normal(13)
        contended = t >= quiet
        y[10:12] += 60.0 * contended
        ready = 45.0 + rng.normal() if contended else 0.3
        rows.append(f"{ready:.3f},{95 if contended else 30}," + ",".join(f"{v:.4f}" for v in y))
    path.write_text("\n".join(rows) + "\n")
    return str(path)


@pytest.fixture(scope="module")
def node(start: Start, tmp_path_factory: pytest.TempPathFactory) -> str:
    """One node under planted contention, with markup in its name and in a metric's."""
    folder = tmp_path_factory.mktemp("planted")
    trace = planted(folder / f"{NASTY}.csv")
    return start("--trace", trace, "--repeat", "--interval", "0.1", "--state", str(folder / "state"))


@pytest.fixture(scope="module")
def fleet(start: Start) -> str:
    """A thousand nodes in one process."""
    return start("--synthetic", "1000", "--no-keep", "--interval", "1")


@pytest.fixture(scope="module")
def hundreds(start: Start) -> str:
    """Three hundred nodes in one process, which soon have directions and a tree."""
    return start("--synthetic", "300", "--no-keep", "--interval", "0.5")


@pytest.fixture(scope="module")
def dozen(start: Start) -> str:
    """Twelve nodes in one process."""
    return start("--synthetic", "12", "--no-keep", "--interval", "0.5")


def fetch(url: str) -> Any:
    """Return the JSON at an address."""
    with urllib.request.urlopen(url, timeout=20) as answer:
        return json.load(answer)


def until(page: Any, condition: str, *, timeout: float = 20000, arg: Any = None) -> None:
    """Wait for a condition in the page; the page's own policy forbids the browser driver's way, which is eval."""
    end = time.monotonic() + timeout / 1000
    while time.monotonic() < end:
        if page.evaluate(condition, arg):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"did not come true in {timeout} ms: {condition}")


class Watched:
    """A page whose complaints are kept."""

    def __init__(
        self, browser: Any, url: str, *, size: tuple[int, int] = (1280, 900), **options: Any
    ) -> None:
        self.context = browser.new_context(viewport={"width": size[0], "height": size[1]}, **options)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on(
            "console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None
        )
        self.page.on("pageerror", lambda e: self.complaints.append(str(e)))
        self.page.on("dialog", lambda d: (self.complaints.append(d.message), d.dismiss()))
        self.page.on("request", lambda r: self.requests.append(r.url))
        self.page.goto(url, wait_until="domcontentloaded")

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()
