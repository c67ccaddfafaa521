from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from prontosched import codec
from prontosched.agent import followers, store
from prontosched.agent.nodes import GROUP_NODES
from prontosched.agent.store import state
from prontosched.agent.store.decision_log import DecisionRow
from prontosched.errors import NewerStateError, StateError
from tests.agent.machine import Machine, make_agent, sample


def test_what_was_saved_comes_back(tmp_path):
    file = state.StateFiles(tmp_path, "a")
    file.save(0, {"form": "one", "count": 3, "values": np.array([1.0, 2.0])})
    (fields,), message = file.load()
    file.close()

    assert fields["count"] == 3
    assert "continuing from" in message


def test_without_a_file_the_start_is_cold(tmp_path):
    file = state.StateFiles(tmp_path / "deep" / "er", "a")
    found = file.load()
    file.close()

    assert found == ([], "starting cold: there is no saved state yet")


@pytest.mark.parametrize("damage", [b"", b"PRON", b"\0" * 4000, None])
def test_a_damaged_file_is_set_aside_and_named_once(tmp_path, damage, caplog):
    path = tmp_path / "a.state"
    file = state.StateFiles(tmp_path, "a")
    file.save(0, {"form": "one", "count": 3})
    good = path.read_bytes()
    path.write_bytes(good[:-3] + b"xyz" if damage is None else damage)
    fields, message = file.load()
    file.close()

    assert fields == []
    assert message == "starting cold: what was saved cannot be used"
    assert caplog.text.count("is damaged") == caplog.text.count("set aside as a.state.corrupt") == 1
    assert not path.exists()
    assert (tmp_path / "a.state.corrupt").exists()


def test_every_truncation_is_noticed(tmp_path):
    path = tmp_path / "a.state"
    file = state.StateFiles(tmp_path, "a")
    file.save(0, {"form": "one", "values": np.arange(5.0)})
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert file.load()[0] == []
    file.close()


def test_a_file_of_a_newer_version_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "a.state"
    newer = codec.encode(state.KIND, state.VERSION + 1, {"secret": 1})
    path.write_bytes(newer)
    file = state.StateFiles(tmp_path, "a")
    with pytest.raises(NewerStateError, match=r"a\.state: .*written by a newer Pronto; upgrade"):
        file.load()
    file.close()

    assert path.read_bytes() == newer


def test_a_second_agent_is_refused_and_told_who_holds_the_file(tmp_path):
    file = state.StateFiles(tmp_path, "a")
    program = (
        "import sys; from pathlib import Path; from prontosched.agent.store.state import StateFiles\n"
        "from prontosched.errors import StateError\n"
        "try: StateFiles(Path(sys.argv[1]), 'a')\n"
        "except StateError as error: print(error)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=30, check=True
    )
    file.close()

    assert f"process {os.getpid()} holds it" in found.stdout
    assert "--state another folder" in found.stdout


def test_a_killed_writer_leaves_the_old_file_whole(tmp_path):
    """Writes in a loop and is killed at a random moment, many times."""
    path = tmp_path / "a.state"
    program = (
        "import sys, numpy as np; from pathlib import Path; from prontosched.agent.store.state import StateFiles\n"
        "file = StateFiles(Path(sys.argv[1]), 'a'); print('ready', flush=True)\n"
        "i = 0\n"
        "while True:\n"
        "    i += 1; file.save(0, {'i': i, 'values': np.full(2000, float(i))})\n"
    )
    rng = np.random.default_rng(3)
    for _ in range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        process.stdout.readline()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05 + 0.1 * rng.random())
        process.kill()
        process.wait(60)
        process.stdout.close()
        fields = state.read_state(path)
        assert set(fields["values"]) == {float(fields["i"])}
    state.sweep(path)

    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_the_folder_follows_the_standard():
    assert str(store.default_folder({"HOME": "/home/me"})) == "/home/me/.local/state/pronto"
    assert str(store.default_folder({"HOME": "/home/me", "XDG_STATE_HOME": "not/absolute"})).startswith(
        "/home/me"
    )
    assert str(store.default_folder({"STATE_DIRECTORY": "/var/lib/pronto"})) == "/var/lib/pronto"


def test_a_folder_that_cannot_be_made_is_an_error_a_user_can_act_on(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="give another with --state, or keep nothing with --no-keep"):
        state.StateFiles(tmp_path / "file", "a")


def test_an_address_is_found_while_its_agent_lives(tmp_path):
    store.write_address(tmp_path, "http://127.0.0.1:1234")
    assert store.read_address(tmp_path) == "http://127.0.0.1:1234"
    store.remove_address(tmp_path)

    assert store.read_address(tmp_path) is None


def test_the_address_of_a_dead_agent_is_not_used(tmp_path):
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait(60)
    (tmp_path / "address.json").write_text(f'{{"url": "http://127.0.0.1:1", "pid": {process.pid}}}')

    assert store.read_address(tmp_path) is None


def test_the_files_of_groups_that_are_no_more_are_removed(tmp_path):
    files = state.StateFiles(tmp_path, "a")
    for number in range(4):
        files.save(number, {"form": "several", "names": []})
    files.drop_from(2)
    left = sorted(path.name for path in (tmp_path / "a.nodes").iterdir())
    files.close()

    assert left == ["0001.state"]
    assert (tmp_path / "a.state").exists()


def test_many_nodes_of_an_older_release_are_set_aside_with_a_message(tmp_path, caplog):
    (tmp_path / "a.crowd").mkdir()
    (tmp_path / "a.crowd" / "0000.state").write_bytes(b"arrays")
    files = state.StateFiles(tmp_path, "a")
    files.save(0, {"form": "crowd", "nodes": 100})
    found, message = files.load()
    files.close()

    assert found == []
    assert message.startswith("starting cold")
    assert "a.crowd was set aside as a.crowd.old" in caplog.text
    assert (tmp_path / "a.crowd.old" / "0000.state").read_bytes() == b"arrays"


def nodes_of_three_files():
    nodes = make_agent(Machine()).nodes
    samples = [replace(sample(0), node=f"n{i}") for i in range(2 * GROUP_NODES + 1)]
    nodes.begin(samples, 1.0)
    for one in samples:
        nodes.step(one, 1.0)
    return nodes


def test_a_log_that_cannot_be_written_keeps_no_node_from_being_saved_at_the_end(tmp_path):
    async def go():
        disk = state.Disk(tmp_path, "machine")
        disk.log.path = tmp_path  # a folder is no database
        disk.keep([DecisionRow(1.0, "n1", False, True, *[0.0] * 5, None)], [])
        await disk.close(nodes_of_three_files(), 1.0)
        assert "unable to open" in disk.last_error

    asyncio.run(go())

    assert len(list(tmp_path.rglob("*.state"))) == 3


def test_a_disk_that_hangs_is_given_up_within_one_time_for_all(tmp_path, monkeypatch):
    monkeypatch.setattr(state, "LONGEST_END_SECONDS", 0.3)
    hangs = threading.Event()

    async def go():
        disk = state.Disk(tmp_path, "machine")
        monkeypatch.setattr(disk.log, "write", lambda rows, many=(): hangs.wait(60))
        disk.keep([DecisionRow(1.0, "n1", False, True, *[0.0] * 5, None)], [])
        disk._start({}, 1)
        begin = time.monotonic()
        await disk.close(nodes_of_three_files(), 1.0)
        hangs.set()
        return time.monotonic() - begin

    assert asyncio.run(go()) < 8.0


def test_the_unit_waits_for_as_long_as_the_agent_may_take_to_stop():
    unit = (Path(__file__).parents[2] / "deploy/systemd/pronto-agent.service").read_text()
    allowed = float(re.search(r"^TimeoutStopSec=(\d+)$", unit, flags=re.M)[1])

    assert allowed >= state.LONGEST_END_SECONDS + followers.LONGEST_CLOSING_SECONDS + 30.0


def test_the_note_of_the_address_comes_back_with_a_folder_that_was_deleted(tmp_path):
    folder = tmp_path / "state"

    async def go():
        disk = state.Disk(folder, "machine")
        disk.note_address("http://127.0.0.1:7099")
        shutil.rmtree(folder)
        await disk.close(nodes_of_three_files(), 1.0)

    asyncio.run(go())

    assert store.read_address(folder) == "http://127.0.0.1:7099"
