"""Users of the same machine: they announce jobs over a socket, and keep only each other waiting."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from prontosched.agent.followers import GateFollower
from prontosched.agent.http.client import Client, NotAllowedError
from prontosched.agent.jobs import USER_JOBS, USER_TTL_SECONDS, AnnouncedJobs
from prontosched.agent.store import socket_folders, socket_name
from prontosched.gates.policy import Rules
from tests.agent.machine import Machine, make_agent
from tests.agent.test_process import address, ask, listen, wait_for
from tests.gates.memory_gate import MemoryGate
from tests.requirements import require_root

NOBODY = 65534


@pytest.fixture
def agent(start, tmp_path):
    """An agent of a machine with two CPUs that is quiet for ever."""
    trace = tmp_path / "quiet.csv"
    trace.write_text("load,cpu_ready,utilisation\n" + "".join(f"{5 + i % 3},0.5,5.0\n" for i in range(50)))
    start(
        "agent",
        *listen(),
        "--interval",
        "0.1",
        "--preset",
        "paper",
        "--trace",
        str(trace),
        "--repeat",
        "--cpus",
        "2",
    )
    url = address(tmp_path)
    wait_for(lambda: ask(url)["tally"]["decisions"] > 2)
    return url


AS_NOBODY = f"""
import encodings.idna, json, os, sys
from pathlib import Path
# Read before the rights are gone: the interpreter may lie where only root looks.
import prontosched.agent.http.auth, prontosched.agent.standalone, prontosched.cli.run
from prontosched.agent.http.client import Client
from prontosched.agent.store import socket_folders
from prontosched.cli import main
os.setgroups([]), os.setgid({NOBODY}), os.setuid({NOBODY})
"""


def as_nobody(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program as an ordinary user."""
    require_root()
    return subprocess.run(
        [sys.executable, "-c", AS_NOBODY + program, *arguments],
        capture_output=True, text=True, check=False, timeout=60, env={**os.environ, "HOME": "/nowhere"},
    )  # fmt: skip


def announced(url: str, *bodies: dict) -> list[list]:
    """Announce jobs as an ordinary user; return the statuses and answers."""
    done = as_nobody(
        """
client = Client(sys.argv[1], folders=socket_folders(Path("/nowhere")))
allowed = (400, 403, 404, 409, 503)
print(json.dumps([client._ask("POST", "/v1/jobs", body, allowed=allowed) for body in json.loads(sys.argv[2])]))
""",
        url,
        json.dumps(bodies),
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_without_a_token_nobody_announces_over_tcp(agent):
    for method, path, body in (("POST", "/v1/jobs", b'{"id": "a"}'), ("DELETE", "/v1/jobs/a", None)):
        request = urllib.request.Request(
            agent + path, body, {"Content-Type": "application/json"}, method=method
        )
        with pytest.raises(urllib.error.HTTPError, match="403") as refused:
            urllib.request.urlopen(request, timeout=5)
        assert "with a token" in json.load(refused.value)["error"]
    with pytest.raises(NotAllowedError, match="with a token"):
        Client(agent).announce("a", cpus=1, ttl=5, if_uncontended=False)


def test_the_socket_is_for_announcing_only_and_goes_with_the_agent(start, agent, tmp_path):
    port = int(agent.rpartition(":")[2])
    path = socket_folders(tmp_path)[0] / socket_name(port)
    assert path.stat().st_mode & 0o777 == 0o666
    for asked, status in (
        (b"GET /v1/status", b"404"),
        (b"GET /v1/jobs", b"405"),
        (b"DELETE /v1/jobs/a", b"204"),
    ):
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(str(path))
            peer.sendall(asked + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert peer.recv(100).split()[1] == status
    os.kill(ask(agent)["pid"], 15)
    wait_for(lambda: not path.exists())


def test_an_ordinary_user_keeps_only_other_users_waiting(agent):
    first, second = announced(
        agent,
        {"id": "a", "cpus": 2, "ttl": 60},
        {"id": "b", "cpus": 1, "ttl": 60},
    )
    assert first[0] == 200
    assert second[0] == 503
    assert "the jobs that one user announces may have 2 CPUs, got 3" in second[1]["error"]
    # What schedulers are told does not move; another user meets the job.
    assert ask(agent, "/v1/decision")["state"] == "accepting"
    client = Client(agent, folders=socket_folders(Path("/nowhere")))
    assert client.announce("root", cpus=1, ttl=1, if_uncontended=True)[0]
    client.withdraw("root")
    [[status, met]] = announced(agent, {"id": "c", "cpus": 1, "if_uncontended": True})
    assert (status, met["state"]) == (409, "refusing")
    # Nobody takes back what is not theirs.
    client.withdraw("a")
    assert ask(agent)["jobs"]["count"] == 1


def test_pronto_run_works_for_ordinary_users(agent):
    done = as_nobody("main()", "run", "--agent", agent, "--timeout", "20s", "--", "id", "-u")

    assert (done.stdout, done.returncode) == (f"{NOBODY}\n", 0), done.stderr


def test_without_a_socket_pronto_run_looks_and_counts_nothing(start, agent, monkeypatch):
    """As at another user's agent: it tells how things stand."""
    process = start("run", "--agent", agent, "--", "echo", "ran", env={"RUNTIME_DIRECTORY": "/nowhere"})
    out, err = process.communicate(timeout=60)

    assert (out, process.returncode) == ("ran\n", 0), err


def test_one_user_has_so_many_jobs_and_leaves_room_for_others_and_for_schedulers():
    announced = AnnouncedJobs(capacity=4)
    for i in range(USER_JOBS):
        announced.add(str(i), cpus=0.01, ttl=1e6, now=0.0, uid=1000)

    with pytest.raises(OverflowError, match=f"at most {USER_JOBS} jobs"):
        announced.add("more", cpus=0.01, ttl=30, now=0.0, uid=1000)
    announced.add("0", cpus=2, ttl=30, now=0.0, uid=1001)
    announced.add("0", cpus=2, ttl=30, now=0.0)
    assert announced.full() is None
    assert announced.full(2, among_users=True) is not None
    announced.expire(USER_TTL_SECONDS)
    assert len(announced) == 0


@pytest.mark.parametrize("uid", [None, 1000])
def test_announced_jobs_close_no_gate_and_renew_no_drain(uid):
    gate = MemoryGate("n1")
    follower = GateFollower(gate, Rules(enforce=True, max_refusing=1.0, min_accept_seconds=0.0))
    agent = make_agent(Machine(), followers=[follower])

    async def go():
        for i in range(20):
            agent.announce(f"job{i}", cpus=0.1 if uid else 100, ttl=60, uid=uid)
            await agent.tick()
        found = agent.answer()
        await asyncio.sleep(0.2)
        await agent.close()
        return found

    found = asyncio.run(go())

    assert found.accept == (uid is not None)
    assert follower.status()["refusals"] == 0
    assert [call for call in gate.calls if call[0] in ("refuse", "renew")] == []
