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

from prontosched.agent.http import api as requests
from prontosched.agent.http.api import build_app, description
from prontosched.agent.http.auth import Access
from prontosched.agent.http.connections import BoundedSite, Connections
from prontosched.agent.store.decision_log import HISTORY_FIELDS
from prontosched.agent.store.state import Disk
from tests.agent.machine import Machine, make_agent
from tests.agent.test_api import TOKEN, asking


@pytest.fixture
def url(tmp_path):
    """A live agent on a free port, in a thread of its own."""
    found: list[str] = []
    ready, stop = threading.Event(), threading.Event()

    async def serve():
        agent = make_agent(Machine(), interval=0.05, disk=Disk(tmp_path, "machine"))
        runner = web.AppRunner(build_app(agent, Access(token=TOKEN)), access_log=None)
        await runner.setup()
        listen = asyncio.get_running_loop().create_server
        await BoundedSite(runner, Connections(), lambda make: listen(make, "127.0.0.1", 0)).start()
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
            *("--header", f"Authorization: Bearer {TOKEN}"),
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
        await agent.close()
        return found

    described = {(method, path) for path, methods in description()["paths"].items() for method in methods}

    assert asyncio.run(routes()) == described


def test_every_query_parameter_is_described_and_every_described_one_is_taken():
    """A name that no route knows is refused with those that the route has."""

    async def ask(client):
        for path, methods in description()["paths"].items():
            if "get" not in methods or path == "/v1/ping":
                continue
            response = await client.get(path, params={"nonsense": "1"})
            told[path] = (response.status, (await response.json())["error"])

    told = {}
    asking(ask, disk=None)

    for path, (status, error) in told.items():
        given = [
            description()["components"]["parameters"][p["$ref"].rpartition("/")[2]] if "$ref" in p else p
            for p in description()["paths"][path]["get"]["parameters"]
        ]
        names = ", ".join(sorted(p["name"] for p in given)) or "nothing"
        assert (status, error) == (400, f"the query may have {names}, got 'nonsense'"), path


def test_the_bounds_described_are_those_that_are_checked():
    job = description()["components"]["schemas"]["Job"]["properties"]
    history = {p.get("name"): p for p in description()["paths"]["/v1/history"]["get"]["parameters"]}

    assert set(job) == requests.JOB_FIELDS
    assert job["id"]["pattern"] == requests.ID_PATTERN
    assert job["cpus"]["maximum"] == requests.MAX_CPUS
    assert job["ttl"]["maximum"] == requests.MAX_TTL_SECONDS
    assert job["ttl"]["default"] == requests.DEFAULT_TTL_SECONDS
    assert job["pid"]["maximum"] == requests.MAX_PID
    assert job["node"]["maxLength"] == requests.NODE_CHARACTERS
    assert history["points"]["schema"]["maximum"] == requests.MAX_POINTS


def test_points_of_the_history_are_described_as_the_log_gives_them():
    point = description()["components"]["schemas"]["History"]["properties"]["points"]["items"]

    assert set(point["properties"]) == set(HISTORY_FIELDS)
