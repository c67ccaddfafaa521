"""Commands that watch by themselves, where no agent answers, decide by the settings of the agent."""

from __future__ import annotations

import json
import os
import socket

import pytest

from tests.agent.test_process import address, ask, listen, wait_for


@pytest.fixture
def settings(tmp_path):
    """Write the settings file that `start` gives its processes."""

    def write(text):
        folder = tmp_path / "config/pronto"
        folder.mkdir(parents=True)
        (folder / "pronto.toml").write_text(text)

    return write


@pytest.fixture
def busy(tmp_path):
    """A recorded machine whose CPU Ready is 20 % at every timestep."""
    trace = tmp_path / "busy.csv"
    rows = [f"{5 + i % 3},{2 + i % 2},20.0,70.0" for i in range(200)]
    trace.write_text("\n".join(["load,heat,cpu_ready,utilisation", *rows]) + "\n")
    return trace


def status(start, *arguments):
    process = start("status", "--agent", "none", "--json", *arguments)
    out, err = process.communicate(timeout=60)
    return process.returncode, json.loads(out) if out else err


@pytest.mark.parametrize(("tolerance", "code"), [("5%", 1), ("50%", 0)])
def test_status_has_the_source_and_the_tolerance_of_the_agent(start, settings, busy, tolerance, code):
    settings(f'[agent]\nsource = "trace"\ntrace = "{busy}"\ntolerance = "{tolerance}"\nname = "n1"\n')
    found, told = status(start)

    assert (found, told["cpu_ready_percent"]) == (code, 20.0), told


def test_run_and_explain_have_them_too(start, settings, busy):
    settings(f'[agent]\ntrace = "{busy}"\ntolerance = "50%"\n')
    run = start("run", "--agent", "none", "--timeout", "20s", "--", "echo", "ran")
    out, err = run.communicate(timeout=60)
    explain = start("explain", "--agent", "none", "--json")
    told, _ = explain.communicate(timeout=60)

    assert (run.returncode, out) == (0, "ran\n"), err
    assert "watching source trace" in err
    assert json.loads(told)["decision"]["cpu_ready_percent"] == 20.0


def test_of_several_nodes_one_must_be_named_and_no_other_answers_for_it(start, settings):
    settings("[agent]\nsynthetic = 3\n")
    unnamed, told = status(start)
    named, found = status(start, "--node", "generated-1")
    unknown, words = status(start, "--node", "n7")

    assert (unnamed, unknown) == (4, 4)
    assert "name one of the 3 nodes" in told
    assert "got 'n7'" in words
    assert (named in (0, 1, 3), found["node"]) == (True, "generated-1")


def test_the_chance_within_a_horizon_is_told_without_an_agent_too(start, settings, busy):
    settings(f'[agent]\ntrace = "{busy}"\n')

    assert status(start, "--horizon", "30")[1]["horizon"]["asked"] == 30


def test_files_that_only_the_agent_may_read_do_not_keep_others_from_asking(start, settings, tmp_path):
    missing = tmp_path / "token"
    settings(f'[agent]\nsynthetic = 1\ntoken-file = "{missing}"\n')
    check = start("check", "--agent", "none", "--json")
    out, err = check.communicate(timeout=60)

    assert status(start)[0] in (0, 1, 3)
    assert json.loads(out)["problems"], err


def test_an_agent_is_found_by_the_folder_of_its_settings(start, settings, tmp_path):
    folder = tmp_path / "elsewhere"
    settings(f'[agent]\nstate = "{folder}"\nsynthetic = 1\ninterval = "0.1s"\n')
    start("agent", *listen())
    noted = wait_for(lambda: json.loads((folder / "address.json").read_text()))["url"]
    wait_for(lambda: ask(noted)["nodes"] == 1)
    by_folder = start("status", "--json").communicate(timeout=60)[0]

    assert json.loads(by_folder)["asked"] == noted


def test_an_agent_of_another_user_is_found_by_the_address_of_its_settings(
    start, settings, tmp_path, free_port
):
    settings(f'[agent]\nsynthetic = 1\ninterval = "0.1s"\nlisten = "127.0.0.1:{free_port}"\n')
    start("agent")
    url = address(tmp_path)
    wait_for(lambda: ask(url)["nodes"] == 1)
    (tmp_path / "state/pronto/address.json").unlink()

    assert json.loads(start("status", "--json").communicate(timeout=60)[0])["asked"] == url


def test_a_service_manager_hears_nothing_from_who_only_watches(start, settings, busy, tmp_path):
    settings(f'[agent]\ntrace = "{busy}"\ntolerance = "50%"\n')
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path := os.fspath(tmp_path / "notify"))
        manager.setblocking(False)
        start("run", "--agent", "none", "--", "true", env={"NOTIFY_SOCKET": path}).communicate(timeout=60)

        with pytest.raises(BlockingIOError):
            manager.recv(4096)


def test_settings_that_cannot_work_here_do_not_keep_from_asking_an_agent_that_is_named(
    start, settings, tmp_path, free_port
):
    settings(f'[agent]\ntrace = "{tmp_path / "gone.csv"}"\n')
    start("agent", "--synthetic", "1", "--trace", str(tmp_path), "--source", "generated", *listen(free_port))
    url = f"http://127.0.0.1:{free_port}"
    wait_for(lambda: ask(url)["nodes"] == 1)

    assert json.loads(start("status", "--agent", url, "--json").communicate(timeout=60)[0])["asked"] == url
