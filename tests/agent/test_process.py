"""The agent as a real process: what happens to real machines, done to it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from prontosched.agent.store.state import read_state
from prontosched.pipeline.node import Node
from tests.requirements import require_root

LIMIT_BYTES = 70 * 1024 * 1024


def ask(url, path="/v1/status"):
    with urllib.request.urlopen(f"{url}{path}", timeout=5) as response:
        return json.load(response)


def wait_for(holds, seconds=60.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError, KeyError):
            if found := holds():
                return found
        time.sleep(0.03)
    raise AssertionError("did not happen in time")


def address(tmp_path):
    return wait_for(lambda: json.loads((tmp_path / "state/pronto/address.json").read_text()))["url"]


def listen(port=0):
    return ("--listen", f"127.0.0.1:{port}")


def test_up_needs_nothing_and_ends_with_a_summary(start):
    process = start("up", *listen(), "--for", "2s", "--interval", "0.1")
    out, err = process.communicate(timeout=60)

    assert process.returncode == 0, err
    assert "watching linux every 0.1 s" in err
    assert "http://127.0.0.1:" in err
    assert re.search(r"\d+ decisions for \S+ in \d", out)
    assert "refused" in out
    assert "CPU Ready: mean" in out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_stops_cleanly_when_told_to(start, tmp_path, number):
    process = start("up", *listen(), "--interval", "0.1")
    url = address(tmp_path)
    wait_for(lambda: ask(url)["tally"]["decisions"] > 3)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)

    assert process.returncode == 0, err
    assert "Traceback" not in err
    assert "decisions for" in out
    assert not (tmp_path / "state/pronto/address.json").exists()


def test_killed_at_any_moment_it_continues_warm_within_one_block(start, tmp_path):
    """At 5 Hz a block of ten takes two seconds; state is saved every block, and at most once a second."""
    steps = 0
    for wait in (2.6, 2.1):
        process = start("agent", *listen(), "--interval", "0.2", "--source", "generated")
        url = address(tmp_path)
        wait_for(lambda url=url: ask(url)["disk"]["saves"] > 0)
        time.sleep(wait - 2.0)
        before = ask(url)["decision"]["timestep"]
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        saved = Node.from_bytes(read_state(tmp_path / "state/pronto/generated.state")["node"].tobytes())
        assert saved.timestep > steps
        # A block, and what came while its last save was under way.
        assert before - saved.timestep <= 12
        steps = saved.timestep
        (tmp_path / "state/pronto/address.json").unlink()
    process = start("agent", *listen(), "--for", "0.3s", "--source", "generated")
    _, err = process.communicate(timeout=60)

    assert "continuing from" in err
    assert "warm" in err


def test_two_agents_on_one_state_are_one_too_many(start, tmp_path):
    first = start("agent", *listen())
    address(tmp_path)
    second = start("agent", *listen(), "--for", "3s")
    _, err = second.communicate(timeout=60)

    assert second.returncode == 1
    assert f"process {first.pid} holds it" in err
    assert "Traceback" not in err


def test_a_port_that_is_taken_is_refused_by_agent_and_stepped_over_by_up(start, free_port):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port))
        taken.listen()
        agent = start("agent", *listen(free_port), "--for", "1s")
        _, refused = agent.communicate(timeout=60)
        up = start("up", *listen(free_port), "--for", "1s")
        _, stepped = up.communicate(timeout=60)

    assert agent.returncode == 1
    assert f"port {free_port} on 127.0.0.1 must be free, got it taken" in refused
    assert up.returncode == 0
    assert f":{free_port}/" not in stepped
    assert "http://127.0.0.1:" in stepped


def test_a_damaged_state_file_is_set_aside_with_a_message(start, tmp_path):
    folder = tmp_path / "state/pronto"
    folder.mkdir(parents=True)
    (folder / "linux.state").write_bytes(b"garbage")
    process = start("agent", *listen(), "--for", "0.5s")
    _, err = process.communicate(timeout=60)

    assert process.returncode == 0
    assert "is damaged" in err
    assert (folder / "linux.state.corrupt").read_bytes() == b"garbage"


def test_beyond_loopback_it_refuses_to_start_without_token_and_tls(start):
    process = start("agent", "--listen", "0.0.0.0:0", "--for", "1s")
    _, err = process.communicate(timeout=60)

    assert process.returncode == 1
    assert "needs a token and TLS" in err


def test_without_proc_it_says_so_and_replays_a_generated_trace(start, tmp_path):
    process = start("up", *listen(), "--root", str(tmp_path), "--interval", "0.05", "--for", "1s")
    out, err = process.communicate(timeout=60)

    assert process.returncode == 0, err
    assert "replaying a generated trace instead of this machine" in err
    assert "decisions for" in out


def test_a_disk_that_is_full_from_the_start_stops_no_decision(start, tmp_path):
    require_root()
    folder = tmp_path / "tiny"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], check=True)
    try:
        (folder / "filler").write_bytes(b"x" * 56_000)
        process = start(
            "agent", *listen(), "--state", str(folder), "--interval", "0.05", "--for", "4s", "--json"
        )
        out, err = process.communicate(timeout=60)
    finally:
        subprocess.run(["umount", str(folder)], check=True)
    found = json.loads(out)

    assert process.returncode == 0
    assert found["tally"]["decisions"] > 20
    assert found["disk"]["last_error"]
    assert "cannot write, going on without" in err


def test_it_stays_small_and_imports_nothing_heavy(start, tmp_path):
    start("agent", *listen(), "--interval", "0.02")
    url = address(tmp_path)
    pid = wait_for(lambda: ask(url)["tally"]["decisions"] > 120 and ask(url)["pid"])
    for path in ("/metrics", "/v1/explain", "/v1/history", "/openapi.json"):
        urllib.request.urlopen(url + path, timeout=5).close()
    with open(f"/proc/{pid}/status") as file:
        resident = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmRSS"))
    with open(f"/proc/{pid}/maps") as file:
        maps = file.read()

    assert resident <= LIMIT_BYTES, f"{resident / 2**20:.1f} MB"
    for heavy in ("pyarrow", "scipy", "pandas", "sklearn"):
        assert f"/{heavy}/" not in maps


def test_a_thousand_made_up_nodes_are_decided(start, tmp_path):
    process = start("up", *listen(), "--synthetic", "1000", "--json")
    url = address(tmp_path)
    wait_for(lambda: ask(url)["tally"]["decisions"] >= 2000)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=120)
    found = json.loads(out)

    assert process.returncode == 0, err
    assert found["nodes"] == 1000
    assert not found["faults"]


def test_a_log_that_nobody_reads_stops_no_decision(tmp_path):
    """Standard error is a pipe that is full before the agent writes its first line."""
    unread, full = os.pipe()
    os.set_blocking(full, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(full, b"x" * 4096)
    os.set_blocking(full, True)
    options = ("--source", "generated", "--interval", "0.05", "--state", str(tmp_path))
    process = subprocess.Popen(
        [sys.executable, "-m", "prontosched", "agent", *listen(), *options],
        stdout=subprocess.DEVNULL,
        stderr=full,
    )
    try:
        url = wait_for(lambda: json.loads((tmp_path / "address.json").read_text()))["url"]
        wait_for(lambda: ask(url)["loop"]["ticks"] > 20)
        process.send_signal(signal.SIGTERM)

        assert process.wait(60) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(60)
        os.close(unread)
        os.close(full)
