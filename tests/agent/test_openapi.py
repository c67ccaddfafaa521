"""The description against the server, by schemathesis: a short run of what `make soak` does at length."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from aiohttp import web

from prontosched.agent.access import Access
from prontosched.agent.api import build_app
from prontosched.agent.disk import Disk
from prontosched.agent.openapi import description
from tests.agent.machine import Machine, make_agent


@pytest.fixture
def url(tmp_path):
    """A live agent on a free port, in a thread of its own."""
    found: list[str] = []
    ready, stop = threading.Event(), threading.Event()

    async def serve():
        agent = make_agent(Machine(), interval=0.05, disk=Disk(tmp_path, "machine"))
        runner = web.AppRunner(build_app(agent, Access()), access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        ended = asyncio.Event()
        loop = asyncio.create_task(agent.run(ended))
        found.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
        ready.set()
        while not stop.is_set():
            await asyncio.sleep(0.05)
        ended.set()
        await loop
        await runner.cleanup()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(60)
    yield found[0]
    stop.set()
    thread.join(20)


def fuzz(url: str, examples: int, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    tool = Path(sys.executable).with_name("st")
    if not tool.exists() and shutil.which("st") is None:
        pytest.skip("schemathesis is not installed")
    return subprocess.run(
        [
            *(str(tool), "run", f"{url}/openapi.json", "--checks", "all", "--exclude-path", "/v1/stream"),
            *("--max-examples", str(examples), "--seed", "1", "--request-timeout", "20"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
    )


def test_schemathesis_finds_nothing(url, tmp_path):
    found = fuzz(url, 2, tmp_path)

    assert found.returncode == 0, found.stdout[-4000:]


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_schemathesis_finds_nothing_at_length(url, tmp_path):
    found = fuzz(url, 300, tmp_path)

    assert found.returncode == 0, found.stdout[-4000:]


def test_every_route_is_described_and_every_description_is_a_route():
    async def routes():
        agent = make_agent(Machine())
        app = build_app(agent, Access())
        found = {
            (route.method.lower(), route.resource.canonical)
            for route in app.router.routes()
            if route.method != "HEAD"
        }
        await agent.abandon()
        return found

    described = {(method, path) for path, methods in description()["paths"].items() for method in methods}

    assert asyncio.run(routes()) == described
