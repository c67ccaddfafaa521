"""A hostile neighbour, user, clock or disk: one clear answer, and the agent goes on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import threading
import time
import urllib.request

import numpy as np
import pytest

from prontosched.agent.store import default_folder, make_private
from prontosched.agent.store.decision_log import DecisionLog, DecisionRow
from prontosched.agent.store.state import MOST_READS, Disk, StateFiles, read_state, restore
from prontosched.errors import IntegrationError, StateError
from prontosched.gates.gate import Observed, Rank, read_decision
from prontosched.pipeline.node import Node
from prontosched.pipeline.presets import make_node
from tests.agent.machine import Machine, make_agent
from tests.agent.test_api import SHOWN, TOKEN, asking
from tests.agent.test_process import address, ask, listen, wait_for
from tests.requirements import require_root


def row(time: float, node: str = "n1", reason: str | None = None) -> DecisionRow:
    return DecisionRow(time, node, False, True, 0.1, 0.5, 1.0, 10.0, 1.0, reason)


# HTTP


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({"Origin": "http://[evil"}, b'{"id": "a"}', 403),
        ({}, b'{"id": "a", "pid": 1e400}', 400),
        ({}, b'{"id": "a", "pid": 1.5}', 400),
        ({"Content-Encoding": "deflate"}, b"\xff\xffnonsense", 400),
        ({"Content-Encoding": "gzip"}, b"\x1f\x8bnonsense", 400),
        ({"Expect": "nonsense"}, b'{"id": "a"}', 417),
    ],
)
def test_an_odd_request_is_refused_and_is_no_fault(headers, body, status):
    async def ask_oddly(client):
        given = {"Content-Type": "application/json", **SHOWN, **headers}
        response = await client.post("/v1/jobs", data=body, headers=given)
        return response.status, dict(client.agent.faults)

    assert asking(ask_oddly) == (status, {})


@pytest.mark.parametrize("path", ["/v1/decision", "/nowhere"])
def test_an_expectation_beyond_utf8_is_refused(path):
    async def expect(client):
        reader, writer = await asyncio.open_connection(client.host, client.port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nExpect: ".encode() + b"\xff\r\n\r\n")
        line = await reader.readline()
        writer.close()
        return line.split()[1], dict(client.agent.faults)

    assert asking(expect) == (b"417", {})


def test_a_body_that_never_comes_is_not_waited_for(monkeypatch):
    monkeypatch.setattr("prontosched.agent.http.api.BODY_SECONDS", 0.1)

    async def drip(client):
        reader, writer = await asyncio.open_connection(client.host, client.port)
        head = f"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
        writer.write(f"{head}Content-Type: application/json\r\nContent-Length: 100\r\n\r\n".encode())
        line = await reader.readline()
        writer.close()
        return line.split()[1]

    assert asking(drip) == b"408"


# What is kept


def test_a_storm_of_history_keeps_nothing_from_being_saved_and_a_kill_costs_one_block(start, tmp_path):
    process = start("agent", *listen(), "--interval", "0.1", "--source", "generated")
    url = address(tmp_path)
    wait_for(lambda: ask(url)["disk"]["saves"] > 0)
    stop = threading.Event()

    def storm():
        while not stop.is_set():
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"{url}/v1/history?points=2000", timeout=5),
            ):
                pass

    threads = [threading.Thread(target=storm) for _ in range(12)]
    for thread in threads:
        thread.start()
    try:
        saves = ask(url)["disk"]["saves"]
        wait_for(lambda: ask(url)["disk"]["saves"] >= saves + 3)
        told = ask(url, "/v1/decision")["timestep"]
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    saved = read_state(tmp_path / "state/pronto/generated.state")
    steps = Node.from_bytes(saved["node"].tobytes()).timestep
    # A block is ten timesteps, saved at most once a second, which is ten timesteps here.
    assert told - steps <= 25


def test_only_so_many_read_the_log_at_once(tmp_path):
    async def go():
        disk = Disk(tmp_path, "machine")
        held = threading.Event()
        asked = [asyncio.ensure_future(disk.read(lambda log: held.wait(30))) for _ in range(MOST_READS)]
        await asyncio.sleep(0.05)
        with pytest.raises(OverflowError, match=f"at most {MOST_READS} may read"):
            await disk.read(lambda log: None)
        held.set()
        assert await asyncio.gather(*asked) == [True] * MOST_READS
        assert await disk.read(lambda log: "again") == "again"
        await disk.close(None, 0.0)

    asyncio.run(go())


def test_damage_found_after_opening_is_set_aside_and_a_new_log_begun(tmp_path):
    log = DecisionLog(tmp_path / "log.sqlite")
    assert log.write([row(1e9 + i, reason="x" * 200) for i in range(2000)])
    with sqlite3.connect(log.path) as other:
        other.execute("pragma wal_checkpoint(truncate)")
    other.close()
    with log.path.open("r+b") as file:
        for page in range(1, os.path.getsize(log.path) // 4096):
            file.seek(4096 * page)
            file.write(b"\xa5" * 4096)
    found = [log.write([row(1e9 + 3000 + i)]) for i in range(3)]
    log.history("n1", 1e9, 1e9 + 5000, 10)

    assert found[-1]
    assert (tmp_path / "log.sqlite.corrupt").exists()
    assert log.history("n1", 1e9 + 3000, 1e9 + 5000, 1)[0]["timesteps"] == 3
    log.close()


def test_a_clock_ten_years_ahead_deletes_nothing(tmp_path):
    log = DecisionLog(tmp_path / "log.sqlite")
    for i in range(40):
        log.write([row(1.7e9 + i)])
    for i in range(40):
        log.write([row(1.7e9 + 315_000_000 + i)])
    for i in range(40):
        log.write([row(1.7e9 + 100 + i)])

    assert sum(p["timesteps"] for p in log.history("n1", 1.7e9, 1.7e9 + 1000, 10)) == 80
    log.close()


HUGE = 60_000_000
SETTINGS = "embedding_settings"
SIZES = {
    "a block of one metric": {SETTINGS: {"block_size": HUGE}, "embedding.features": 1},
    "spare directions of one metric": {SETTINGS: {"spare": HUGE}, "embedding.features": 1},
    "a block of no metric": {"scaling_settings": [600.0, 8.0, HUGE], "scaling.mean": (0,)},
    "a lag of no direction": {
        "lag": HUGE,
        "detector.windows": (0, HUGE),
        "detector.spiked": (HUGE, 0),
        "detector.held": 0,
        "detector.sums": (2, 0),
    },
    "directions without a lag": {"detector.windows": (HUGE, 0)},
    "metrics of no vector": {"embedding.features": HUGE, "embedding.slab": (0, HUGE)},
}
RESTORE = """
import json, os, resource, sys
import numpy as np
from prontosched import codec
from prontosched.errors import StateError
from prontosched.pipeline.node import STATE_KIND, STATE_VERSION, Node
from prontosched.pipeline.presets import make_node

def vector(i):
    return np.sin(np.arange(4) + 0.7 * i) + 2.0

node = make_node("paper")
for i in range(60):
    node.step(vector(i))
good = codec.decode(node.to_bytes(), kind=STATE_KIND, version=STATE_VERSION)
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
peaks = {}
for name, sizes in {"nothing": {}, **json.loads(sys.argv[1])}.items():
    fields = dict(good)
    for key, value in sizes.items():
        held = good[key]
        shaped = isinstance(held, np.ndarray)
        fields[key] = np.zeros(value) if shaped else {**held, **value} if isinstance(held, dict) else value
    data = codec.encode(STATE_KIND, STATE_VERSION, fields)
    child = os.fork()
    if not child:
        try:
            node = Node.from_bytes(data)
            for i in range(60, 63):
                node.step(vector(i))
        except (StateError, ValueError):
            pass
        finally:
            os._exit(0)
    peaks[name] = os.wait4(child, 0)[2].ru_maxrss / 1024
print(json.dumps(peaks))
"""


def test_sizes_that_saved_state_only_claims_take_no_memory():
    given = {"OPENBLAS_NUM_THREADS": "1", "PATH": os.environ["PATH"]}
    program = [sys.executable, "-c", RESTORE, json.dumps(SIZES)]
    ran = subprocess.run(program, capture_output=True, text=True, check=True, timeout=300, env=given)

    peaks = json.loads(ran.stdout)
    assert peaks.keys() == {"nothing", *SIZES}
    assert max(peaks.values()) < peaks["nothing"] + 64.0, peaks


def test_a_file_of_several_nodes_with_any_values_is_no_fault(tmp_path):
    files = StateFiles(tmp_path, "machine")
    several = {"form": "several", "names": ["n1", 7], "absent": ["x", -1.0], "9" * 5000 + "/form": "one"}
    files.save(0, {**several, "saved_at": "now"})
    files.save(1, {**several, "names": 3, "absent": None, "saved_at": 10**400})
    files.close()
    nodes, disk = make_agent(Machine()).nodes, Disk(tmp_path, "machine")
    restore(nodes, disk)
    asyncio.run(disk.close(None, 0.0))

    assert nodes.message.endswith("warm, 0 nodes")


def test_a_deleted_folder_is_made_again_and_held(tmp_path):
    folder = tmp_path / "state"

    async def go():
        disk = Disk(folder, "machine")
        disk.log.write([row(1e9)])
        shutil.rmtree(folder)
        disk.state.save(0, {"form": "one"})
        assert disk.log.write([row(1e9 + 1)])
        assert disk.log.history("n1", 1e9, 1e9 + 10, 1)[0]["timesteps"] == 1
        with pytest.raises(StateError, match="one agent may use"):
            StateFiles(folder, "machine")
        await disk.close(None, 0.0)

    asyncio.run(go())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert (folder / "machine.state").exists()


def test_without_a_home_nothing_is_put_where_anyone_may_write():
    folder = default_folder({})

    assert folder.is_absolute()
    assert not folder.is_relative_to("/tmp")
    assert not folder.is_relative_to("/var/tmp")


def test_a_folder_for_state_is_private_and_no_link_that_another_made(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    (shared / "elsewhere").mkdir()
    (shared / "link").symlink_to(shared / "elsewhere")
    with pytest.raises(PermissionError, match="a link"):
        make_private(shared / "link")
    open_to_all = tmp_path / "open"
    open_to_all.mkdir(mode=0o755)
    make_private(open_to_all)

    assert stat.S_IMODE(open_to_all.stat().st_mode) == 0o700


def test_a_folder_of_another_user_is_refused(tmp_path):
    require_root()
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", 65534, 65534)

    with pytest.raises(StateError, match="a folder of another user"):
        StateFiles(tmp_path / "theirs", "machine")


# Clocks and numbers


def test_a_clock_that_jumps_between_the_first_two_samples_leaves_the_signal_its_interval():
    node = make_node("default", metrics=("a", "b"))
    node.step(np.array([1.0, 2.0]), ready=1.0, utilisation=5.0, time=0.0)
    for i in range(60):
        node.step(np.array([1.0 + i % 3, 2.0]), ready=1.0, utilisation=5.0, time=1.7e9 + i)

    assert 0.5 < float(node.signal.learner.clock.interval) < 3.0


@pytest.mark.parametrize("field", ["utilisation", "ready"])
def test_a_first_value_beyond_all_bounds_heals(field):
    node, other = (make_node("default", metrics=("a", "b")) for _ in range(2))
    node.step(np.array([1.0, 2.0]), **{"ready": 1.0, "utilisation": 5.0, field: 1e155})
    for i in range(300):
        given = {"ready": 40.0 if i % 50 > 40 else 1.0, "utilisation": 5.0}
        found = node.step(np.array([1.0 + i % 3, 2.0]), **given)
        other.step(np.array([1.0 + i % 3, 2.0]), **given)

    assert np.isfinite([found.score, found.probability]).all()


def test_a_mark_of_a_clock_an_hour_ahead_has_expired():
    now = 1.7e9

    assert Observed("closed-by-us", valid_until=now + 3660).lapsed(now)
    assert Rank(3, 0.5, False, now + 3900).expired(now)
    assert not Observed("closed-by-us", valid_until=now + 60).lapsed(now)


@pytest.mark.parametrize(
    "answer",
    [
        b'{"accept": true, "valid_until": 1' + b"0" * 400 + b"}",
        b'{"accept": true, "valid_until": 1e400}',
        b'{"accept": true, "valid_until": 1, "probability": 1' + b"0" * 400 + b"}",
        b'{"accept": true, "valid_until": 1, "probability": 1e400}',
        b"[" * 100_000,
        b"\xff\xfe",
    ],
)
def test_an_agent_that_answers_nonsense_is_told_apart(answer):
    with pytest.raises(IntegrationError):
        read_decision(answer, now=0.0, valid_seconds=60.0)


# Scraping


class Dripper(threading.Thread):
    """A target that sends its headers a byte at a time, for ever."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.server = socket.create_server(("127.0.0.1", 0), backlog=200)
        self.port = self.server.getsockname()[1]
        self.held: list[socket.socket] = []

    def run(self) -> None:
        self.server.settimeout(0.05)
        while True:
            try:
                self.held.append(self.server.accept()[0])
                self.held[-1].sendall(b"HTTP/1.1 200 OK\r\nX: ")
            except TimeoutError:
                pass
            except OSError:
                return
            for one in self.held[:]:
                try:
                    one.sendall(b"a")
                except OSError:
                    self.held.remove(one)
                    one.close()

    def end(self) -> None:
        """Close everything."""
        self.server.close()
        self.join(10)
        for one in self.held:
            one.close()


def test_targets_that_drip_their_headers_starve_no_other():
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    from prontosched.telemetry.prometheus import PrometheusSource

    class Good(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            page = b"# TYPE load gauge\nload 1.0\n"
            self.send_response(200)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Good)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    dripper = Dripper()
    dripper.start()
    bad = [f"127.0.0.1:{dripper.port}/{i}" for i in range(32)]
    good = [f"127.0.0.1:{server.server_port}/{i}" for i in range(8)]
    source = PrometheusSource([*bad, *good], interval_seconds=1.0, timeout_seconds=0.5)
    try:
        wait_for(lambda: len(source.read()) == 8, seconds=10)
        begin = time.monotonic()
        steady = [len(source.read()) for _ in range(3)]
        took = time.monotonic() - begin
    finally:
        source.close()
        server.shutdown()
        server.server_close()
        dripper.end()

    assert steady == [8, 8, 8]
    assert len(source.trouble) == 32
    assert took < 3.0


def test_an_empty_page_says_so():
    from prontosched.telemetry.prometheus import parse_page

    with pytest.raises(ValueError, match="a page must have metrics, got none"):
        parse_page("")
