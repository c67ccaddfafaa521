"""`pronto run` and `pronto status`, as real processes, with an agent and without."""

from __future__ import annotations

import itertools
import json
import signal
import sys
import time

import pytest

from tests.agent.test_process import address, ask, listen, wait_for

ROWS = 50


@pytest.fixture
def agent(start, tmp_path):
    """An agent on a recorded machine that is quiet for ever."""
    trace = tmp_path / "quiet.csv"
    rows = [f"{5 + i % 3},{2 + i % 2},0.5,5.0" for i in range(ROWS)]
    trace.write_text("\n".join(["load,heat,cpu_ready,utilisation", *rows]) + "\n")
    quiet = ("--interval", "0.1", "--preset", "paper", "--trace", str(trace), "--repeat", "--name", "quiet")
    start("agent", *listen(), *quiet, "--cpus", "2")
    url = address(tmp_path)
    wait_for(lambda: ask(url)["tally"]["decisions"] > 2)
    return url


def test_with_an_agent_the_command_runs_and_its_exit_code_is_ours(start, agent):
    process = start(
        "run", "--timeout", "60s", "--", sys.executable, "-c", "print('hello'); raise SystemExit(7)"
    )
    out, _ = process.communicate(timeout=60)

    assert out == "hello\n"
    assert process.returncode == 7


def test_the_command_has_the_environment_it_was_given(start, agent, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    process = start("run", "--", "env", env={"OPENBLAS_NUM_THREADS": "3", "HELLO": "world"})
    out, _ = process.communicate(timeout=60)

    assert {"OPENBLAS_NUM_THREADS=3", "HELLO=world"} <= set(out.splitlines())
    assert "OMP_NUM_THREADS" not in out


def test_signals_reach_the_command_and_its_death_is_ours(start, agent):
    program = "import time; print('up', flush=True); time.sleep(60)"
    process = start("run", "--", sys.executable, "-c", program)
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)

    assert process.returncode == -signal.SIGTERM


def test_a_rejecting_node_makes_it_wait_and_on_timeout_exit_75_without_running(start, agent, tmp_path):
    block(agent)
    marker = tmp_path / "ran"
    process = start("run", "--timeout", "1.5s", "--", "touch", str(marker))
    begin = time.monotonic()
    _, err = process.communicate(timeout=60)

    assert process.returncode == 75
    assert time.monotonic() - begin >= 1.4
    assert not marker.exists()
    assert "waiting: " in err
    assert "announced by 1 job" in err
    assert "gave up after" in err


def test_anyway_runs_after_the_timeout(start, agent):
    block(agent)
    process = start("run", "--timeout", "0.5s", "--anyway", "--", "echo", "ran")
    out, err = process.communicate(timeout=60)

    assert out == "ran\n"
    assert "running anyway" in err


def test_several_at_once_are_admitted_one_after_the_other(start, agent):
    """Each needs the whole node, so that at any moment only one may run."""
    program = "import os, sys, time; t = time.time(); time.sleep(0.6); print(t, time.time())"
    processes = [
        start("run", "--timeout", "60s", "--cpus", "2", "--ttl", "30", "--", sys.executable, "-c", program)
        for _ in range(4)
    ]
    spans = sorted(tuple(map(float, process.communicate(timeout=60)[0].split())) for process in processes)

    assert len(spans) == 4
    for (_, end), (begin, _) in itertools.pairwise(spans):
        assert begin >= end - 0.05


def test_an_unknown_command_is_127_and_leaves_nothing_announced(start, agent):
    process = start("run", "--", "no-such-command-anywhere")
    _, err = process.communicate(timeout=60)

    assert process.returncode == 127
    assert "No such file" in err
    assert ask(agent)["jobs"]["count"] == 0


def test_options_of_the_command_are_left_to_it(start, agent):
    process = start("run", "--", "echo", "--timeout", "-n", "--json")
    out, _ = process.communicate(timeout=60)

    assert out == "--timeout -n --json\n"


def test_without_an_agent_it_watches_by_itself_for_a_few_seconds(start, tmp_path):
    process = start(
        "run", "--timeout", "100s", "--anyway", "--agent", "http://127.0.0.1:9", "--", "echo", "ran"
    )
    _, refused = process.communicate(timeout=60)
    alone = start("run", "--agent", "none", "--timeout", "8s", "--anyway", "--", "echo", "ran")
    out, err = alone.communicate(timeout=60)

    assert process.returncode == 1
    assert "an agent must answer at http://127.0.0.1:9" in refused
    assert out == "ran\n"
    assert "no agent answers: watching this machine" in err


def test_status_prints_decision_and_reason(start, agent):
    plain = start("status")
    out, _ = plain.communicate(timeout=60)
    machine = start("status", "--json")
    found = json.loads(machine.communicate(timeout=60)[0])

    assert out.startswith("quiet: accepting: ")
    assert found["asked"] == agent
    assert found["reason"]


def test_status_can_tell_by_its_exit_code(start, agent):
    block(agent)
    process = start("status")
    out, _ = process.communicate(timeout=60)
    nobody = start("status", "--agent", "http://127.0.0.1:9")
    _, err = nobody.communicate(timeout=60)
    wrong = start("status", "--horizon", "0")
    wrong.communicate(timeout=60)

    assert (process.returncode, nobody.returncode, wrong.returncode) == (1, 4, 2)
    assert "quiet: refusing: " in out
    assert "nothing enforces this" in out
    assert "an agent must answer at http://127.0.0.1:9" in err
    assert "3 CPUs announced" in out


def test_status_without_an_agent_watches_by_itself(start):
    process = start("status", "--agent", "none", "--json")
    out, err = process.communicate(timeout=60)
    found = json.loads(out)

    assert process.returncode == {"accepting": 0, "refusing": 1}[found["state"]], err
    assert found["asked"] is None
    assert isinstance(found["accept"], bool)
    assert 2.5 <= found["seconds"] <= 15.0
    assert found["cpu_ready_percent"] is not None


def block(url):
    """Announce a job that fills the node for a minute."""
    import urllib.request

    body = json.dumps({"id": "blocker", "cpus": 3, "ttl": 60}).encode()
    request = urllib.request.Request(
        f"{url}/v1/jobs", data=body, headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=5) as response:
        assert json.load(response)["announced"]
