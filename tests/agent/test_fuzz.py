"""State with a right checksum and any content, and requests of any kind: refused in words, or harmless."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import time
from collections import Counter
from typing import Any

import numpy as np
import pytest

from prontosched import codec
from prontosched.agent.config import make_nodes
from prontosched.agent.nodes import NodeTable
from prontosched.agent.store.state import KIND, VERSION, _members, group_fields
from prontosched.errors import SettingsError, StateError
from prontosched.pipeline.node import STATE_KIND, STATE_VERSION
from prontosched.settings import AgentSettings, default_map, read_file
from prontosched.telemetry.source import Sample
from tests.agent.machine import Machine
from tests.agent.test_api import asking
from tests.fuzzing import HANGS_SECONDS, SECONDS, broken, count_inputs, fuzz, odd_value

pytestmark = pytest.mark.fuzz

AT_ONCE = 16
METRICS = ("load", "heat", "wind", "rain")


def sample(i: int) -> Sample:
    vector = np.sin(np.arange(4) + 0.7 * i) + 2.0
    return Sample("n1", METRICS, vector, 1.7e9 + i, 30.0 if i % 40 > 30 else 1.0, 10.0 + i % 7)


def table(preset: str) -> NodeTable:
    return make_nodes(AgentSettings(preset=preset, name="n1"), Machine())


def stepped(nodes: NodeTable, begin: int, count: int) -> None:
    for i in range(begin, begin + count):
        nodes.begin([sample(i)], float(i))
        nodes.step(sample(i), float(i))


def saved_fields(preset: str) -> dict[str, Any]:
    nodes = table(preset)
    stepped(nodes, 0, 120)
    return asyncio.run(group_fields(nodes, 0, 1.7e9))


def mutated(rng: random.Random, good: dict[str, Any]) -> dict[str, Any]:
    """Return fields of which one to three are changed or left out, also within settings."""
    fields = dict(good)
    for _ in range(rng.randint(1, 3)):
        key = rng.choice(sorted(good))
        held = good[key]
        if rng.random() < 0.05:
            fields.pop(key, None)
        elif isinstance(held, dict) and held and rng.random() < 0.8:
            inside = rng.choice(sorted(held))
            fields[key] = {**held, inside: odd_value(rng, held[inside])}
        elif isinstance(held, list) and held and rng.random() < 0.8:
            place = rng.randrange(len(held))
            fields[key] = [*held[:place], odd_value(rng, held[place]), *held[place + 1 :]]
        else:
            fields[key] = odd_value(rng, held)
    return fields


@pytest.mark.parametrize("preset", ["default", "paper"])
def test_state_with_any_content_is_refused_in_words_or_heals(preset):
    good = saved_fields(preset)
    listed = {"form": "several", "names": ["n1"], "absent": [0.0]}
    several = {**listed, **{f"0/{key}": value for key, value in good.items()}}
    inner = codec.decode(good["node"].tobytes(), kind=STATE_KIND, version=STATE_VERSION)

    def attempt(rng: random.Random) -> None:
        key, whole = rng.choice([("node", good), ("0/node", several)])
        fields = mutated(rng, whole) if rng.random() < 0.2 else dict(whole)
        try:
            if fields.get(key) is good["node"]:
                node = codec.encode(STATE_KIND, STATE_VERSION, mutated(rng, inner))
                fields[key] = np.frombuffer(node, dtype=np.uint8)
            data = codec.encode(KIND, VERSION, fields)
        except (ValueError, TypeError, StateError, OverflowError, UnicodeError):
            return  # nothing that a file could hold
        nodes = table(preset)
        with np.errstate(all="ignore"):
            read = codec.decode(data, kind=KIND, version=VERSION)
            for name, part, absent in _members(read, nodes.fallback_name):
                nodes.restore(name, part, absent)
            for i in range(120, 150):  # as the loop does: a fault is counted, and the next step comes
                with contextlib.suppress(Exception):
                    stepped(nodes, i, 1)
            node = nodes["n1"]
            assert node.decision is not None
            assert np.isfinite(node.decision.score)
            again = asyncio.run(group_fields(nodes, 0, 1.7e9))
            codec.decode(codec.encode(KIND, VERSION, again), kind=KIND, version=VERSION)

    refused, taken = fuzz(f"state-{preset}", attempt, StateError)

    assert refused > 2
    assert taken > 2


def test_any_bytes_of_state_are_refused_in_words():
    data = codec.encode(KIND, VERSION, saved_fields("paper"))

    def attempt(rng: random.Random) -> None:
        codec.decode(broken(rng, data), kind=KIND, version=VERSION)

    assert fuzz("state-bytes", attempt, StateError, seconds=SECONDS / 3)[0] > 100


BODY = {"id": "a", "cpus": 1, "ttl": 30, "if_accepted": True, "if_uncontended": False, "pid": 7, "node": "n1"}
PATHS = ["/v1/decision", "/v1/status", "/v1/nodes", "/v1/best", "/v1/explain", "/v1/history", "/v1/recent"]
PATHS += [
    "/v1/jobs/a",
    "/v1/jobs",
    "/healthz",
    "/metrics",
    "/",
    "/v1/ping",
    "/v1/federation",
    "/openapi.json",
    "/x",
]
QUERIES = ["node", "horizon", "enforcing", "from", "to", "points", "limit", "cpus", "other"]
HEADERS = [
    "Origin",
    "Host",
    "Expect",
    "Content-Encoding",
    "Transfer-Encoding",
    "Authorization",
    "Range",
    "Accept",
]
HEADERS += ["Content-Type", "Connection", "Upgrade", "Cookie", "X-Forwarded-For", "If-Modified-Since"]


def odd_text(rng: random.Random) -> str:
    words = [
        str(odd_value(rng)),
        "1e400",
        "http://[evil",
        "deflate",
        "gzip",
        "100-continue",
        "chunked",
        "br",
        "%00",
    ]
    return (
        rng.choice(words).encode("latin-1", "replace").decode("latin-1").replace("\n", " ").replace("\r", " ")
    )


def request(rng: random.Random) -> bytes:
    """Return a request that is right but for one to three things."""
    method, path = rng.choice(["GET", "GET", "POST", "POST", "DELETE", "PUT", "HEAD", "X"]), rng.choice(PATHS)
    names = rng.sample(QUERIES, rng.randint(0, 2))
    query = "&".join(
        f"{name}={rng.choice(['1', '600', 'n1', 'true', '1e400', '-1', 'nan', '%ff'])}" for name in names
    )
    headers = {"Host": "localhost", "Authorization": "Bearer 0123456789abcdef", "Connection": "close"}
    body = b""
    if method == "POST":
        fields = {
            name: odd_value(rng, value) if rng.random() < 0.2 else value for name, value in BODY.items()
        }
        body = json.dumps(fields).encode()
        body = broken(rng, body, 2) if rng.random() < 0.2 else body
        headers |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
    for _ in range(rng.randint(0, 2)):
        headers[rng.choice(HEADERS)] = odd_text(rng)[:200]
    lines = [f"{method} {path}{'?' + query if query else ''} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    data = "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n" + body
    return broken(rng, data, 2) if rng.random() < 0.1 else data


def test_requests_of_any_kind_are_answered_and_are_no_fault():
    async def go(client):
        end, numbers, statuses = time.monotonic() + SECONDS, itertools.count(), Counter()

        async def ask() -> None:
            """Send one request after another; many do so at once, since some are answered only after a while."""
            while time.monotonic() < end:
                data = request(random.Random(next(numbers)))
                reader, writer = await asyncio.open_connection(client.host, client.port)
                writer.write(data)
                try:
                    line = await asyncio.wait_for(reader.readline(), 0.5)
                except TimeoutError:  # it waits for more, as it should: there is none
                    writer.write_eof()
                    line = await asyncio.wait_for(reader.readline(), HANGS_SECONDS)
                writer.close()
                status = int(line.split()[1]) if line else 0
                assert status != 500, data
                assert not client.agent.faults, (data, client.agent.last_fault)
                statuses[status] += 1

        await asyncio.gather(*(ask() for _ in range(AT_ONCE)))
        await client.agent.tick()
        return statuses

    statuses = asking(go, seconds=SECONDS + HANGS_SECONDS)
    count_inputs("http", statuses.total())
    print(f"http: {dict(sorted(statuses.items()))}")

    assert statuses.total() > 20
    assert statuses[200] > 0


SETTINGS = b"""
[agent]
budget = 0.05
interval = "1s"
target = ["a:9100", "b:9100"]
[run]
cpus = 4
"""


def test_settings_of_any_kind_are_read_or_one_clear_line(memory_path):
    path = memory_path / "pronto.toml"
    known = {
        "agent": {"budget": "budget", "interval": "interval", "target": "target"},
        "run": {"cpus": "cpus"},
    }

    def attempt(rng: random.Random) -> None:
        path.write_bytes(broken(rng, SETTINGS))
        default_map(read_file(path), known, path)

    assert fuzz("toml", attempt, SettingsError)[0] > 50
