"""`pronto run` and `pronto status`, as real processes, with an agent and without."""

from __future__ import annotations

import itertools
import json
import signal
import sys
import time
from pathlib import Path

import pytest

from prontosched.agent.http.client import Client
from prontosched.agent.store import socket_folders
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
    assert "announced by 2 jobs" in err
    assert "gave up after" in err


def test_after_its_patience_it_runs_all_the_same_and_says_so(start, agent):
    block(agent)
    process = start("run", "--patience", "2s", "--", "echo", "ran")
    out, err = process.communicate(timeout=60)

    assert out == "ran\n"
    assert "patience is over" in err
    assert "started now it would take about 2.1 times as long" in err


def test_it_waits_while_contended_whatever_a_budget_says_and_starts_when_it_is_over(start, tmp_path):
    """A machine that drowns for some seconds: its budget holds it open, but nobody gains by starting there."""
    trace = tmp_path / "drowning.csv"
    rows = [f"{80 + i % 3},90.0,100.0" for i in range(100)] + [f"{5 + i % 3},0.2,5.0" for i in range(1000)]
    trace.write_text("\n".join(["load,cpu_ready,utilisation", *rows]) + "\n")
    start("agent", *listen(), "--interval", "0.1", "--trace", str(trace), "--budget", "0.01")
    url = address(tmp_path)
    wait_for(lambda: ask(url, "/v1/decision")["state"] == "contended")
    status = start("status")
    told, _ = status.communicate(timeout=60)
    begin = time.monotonic()
    process = start("run", "--patience", "100s", "--", "echo", "ran")
    out, err = process.communicate(timeout=120)

    assert status.returncode == 3
    assert told.startswith("drowning: contended, held open: ")
    assert out == "ran\n"
    assert "waiting: " in err
    assert "running after " in err
    assert time.monotonic() - begin < 60


def test_it_does_not_wait_for_contention_that_is_only_expected_while_its_cpus_are_free(start, tmp_path):
    """A node that refuses for an hour after contention: a job on a lone machine gains nothing by waiting for that."""
    trace = tmp_path / "held.csv"
    values = [f"{80 + i % 3},90.0,100.0" for i in range(30)] + [f"{5 + i % 3},0.2,15.0" for i in range(3000)]
    rows = [f"{1000 + i / 10},{value}" for i, value in enumerate(values)]
    trace.write_text("\n".join(["timestamp,load,cpu_ready,utilisation", *rows]) + "\n")
    start("agent", *listen(), "--interval", "0.1", "--trace", str(trace), "--hold", "1h", "--cpus", "2")
    url = address(tmp_path)
    wait_for(
        lambda: (found := ask(url, "/v1/decision"))["state"] == "refusing" and found["cpu_ready_percent"] < 5
    )
    wide = start("run", "--cpus", "2", "--timeout", "4s", "--", "echo", "ran")
    process = start("run", "--patience", "100s", "--", "echo", "ran")
    out, err = process.communicate(timeout=120)
    held = ask(url, "/v1/decision")
    wide_out, _ = wide.communicate(timeout=60)

    assert out == "ran\n"
    assert "its CPUs are free now, so that waiting would not pay" in err
    assert held["state"] == "refusing"
    assert (wide_out, wide.returncode) == ("", 75)


def test_the_earlier_of_patience_and_timeout_ends_the_waiting(start, agent):
    block(agent)
    process = start("run", "--patience", "30s", "--timeout", "0.5s", "--", "echo", "ran")
    out, _ = process.communicate(timeout=60)

    assert (out, process.returncode) == ("", 75)


def test_a_short_job_does_not_wait_for_longer_than_that_saves(start, agent):
    """It would take twice as long, so that waiting for more than its length cannot pay."""
    block(agent)
    process = start("run", "--length", "1s", "--", "echo", "ran")
    begin = time.monotonic()
    out, err = process.communicate(timeout=60)

    assert out == "ran\n"
    assert time.monotonic() - begin < 20
    assert "so that waiting would not pay" in err
    assert "takes about 2 s instead of 1 s now" in err


def test_one_that_is_considerate_waits_for_the_others_too(start, agent):
    block(agent)
    process = start("run", "--length", "0.1s", "--considerate", "--timeout", "2s", "--", "echo", "ran")
    out, _ = process.communicate(timeout=60)

    assert (out, process.returncode) == ("", 75)


def test_more_cpus_than_the_machine_has_are_refused_in_words_before_it_waits(start, agent):
    process = start("run", "--cpus", "64", "--", "echo", "ran")
    out, err = process.communicate(timeout=60)
    alone = start("run", "--agent", "none", "--cpus", "100000", "--", "echo", "ran")
    _, told = alone.communicate(timeout=60)

    assert (out, process.returncode, alone.returncode) == ("", 1, 1)
    assert "cpus must be at most 2, as many as the node has, got 64" in err
    assert "--cpus must be at most " in told
    assert "watching" not in told


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


def test_an_unknown_command_fails_before_it_waits(start, agent, tmp_path):
    block(agent)
    plain = tmp_path / "plain"
    plain.write_text("no program")
    for word, code in (("no-such-command-anywhere", 127), ("./nowhere", 127), (str(plain), 126)):
        process = start("run", "--timeout", "60s", "--", word)
        begin = time.monotonic()
        _, err = process.communicate(timeout=60)

        assert process.returncode == code
        assert time.monotonic() - begin < 20
        assert "waiting" not in err


def test_an_unknown_command_is_127_and_leaves_nothing_announced(start, agent):
    process = start("run", "--", "no-such-command-anywhere")
    _, err = process.communicate(timeout=60)

    assert process.returncode == 127
    assert "No such file" in err
    assert ask(agent)["jobs"]["count"] == 0


def test_a_command_whose_reader_has_gone_ends_as_it_would_alone(start, agent):
    process = start("run", "--", "sh", "-c", "kill -PIPE $$; echo still here")
    out, _ = process.communicate(timeout=60)

    assert (out, process.returncode) == ("", -signal.SIGPIPE)


def test_a_script_that_names_no_interpreter_is_run_by_the_shell(start, agent, tmp_path):
    script = tmp_path / "script"
    script.write_text('echo "hello $1"; exit 5\n')
    script.chmod(0o755)
    process = start("run", "--", str(script), "world")
    out, _ = process.communicate(timeout=60)

    assert (out, process.returncode) == ("hello world\n", 5)


def test_ctrl_c_ends_the_waiting_as_it_would_end_the_command(start, agent):
    block(agent)
    process = start("run", "--timeout", "60s", "--", "echo", "ran")
    assert "waiting: " in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)

    assert (out, process.returncode) == ("", -signal.SIGINT)


def test_an_option_that_does_not_exist_is_not_taken_for_the_command(start):
    process = start("run", "--patince", "5s", "--", "echo", "ran")
    out, err = process.communicate(timeout=60)

    assert (out, process.returncode) == ("", 2)
    assert "No such option" in err
    assert "--patience" in err


def test_options_of_the_command_are_left_to_it(start, agent):
    process = start("run", "--", "echo", "--timeout", "-n", "--json")
    out, _ = process.communicate(timeout=60)

    assert out == "--timeout -n --json\n"


def test_without_an_agent_it_watches_by_itself_for_a_few_seconds(start, tmp_path):
    process = start("run", "--timeout", "100s", "--agent", "http://127.0.0.1:9", "--", "echo", "ran")
    _, refused = process.communicate(timeout=60)
    alone = start("run", "--agent", "none", "--patience", "8s", "--", "echo", "ran")
    out, err = alone.communicate(timeout=60)

    assert process.returncode == 1
    assert "an agent must answer at http://127.0.0.1:9" in refused
    assert out == "ran\n"
    assert "no agent is asked: watching this machine" in err


def test_a_user_without_a_home_runs_commands_too(start):
    process = start(
        "run", "--agent", "none", "--patience", "8s", "--state", "/proc/no/home", "--", "echo", "ran"
    )
    out, err = process.communicate(timeout=60)

    assert (out, process.returncode) == ("ran\n", 0), err
    assert "not in turn with others: /proc/no/home must be writable" in err


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

    assert process.returncode == {"accepting": 0, "refusing": 1, "contended": 3}[found["state"]], err
    assert found["asked"] is None
    assert isinstance(found["accept"], bool)
    assert found["timestep"] >= 2
    assert found["cpu_ready_percent"] is not None


def block(url):
    """Announce jobs that fill the node for a minute."""
    for name in ("one", "two"):
        assert announce(url, {"id": name, "cpus": 1.5, "ttl": 60})["announced"]


def announce(url, body):
    client = Client(url, folders=socket_folders(Path("/nowhere")))
    return client._ask("POST", "/v1/jobs", body)[1]


def test_where_an_agent_has_several_nodes_the_command_runs_on_the_one_named(start, tmp_path):
    start("agent", *listen(), "--synthetic", "3", "--interval", "0.1", "--preset", "paper")
    url = address(tmp_path)
    wait_for(lambda: ask(url)["nodes"] == 3)
    unnamed = start("run", "--patience", "0s", "--", "true")
    _, told = unnamed.communicate(timeout=60)
    named = start("run", "--node", "generated-1", "--patience", "1s", "--", "echo", "ran")
    out, err = named.communicate(timeout=60)

    assert unnamed.returncode == 1
    assert "name one of the 3 nodes: --node NAME" in told
    assert (out, named.returncode) == ("ran\n", 0), err
