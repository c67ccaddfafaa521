"""An agent for many nodes as a real process, killed and brought back."""

from __future__ import annotations

import json
import signal
import subprocess

from tests.agent.test_process import address, ask, listen, wait_for
from tests.requirements import require_root

MADE_UP = ("--synthetic", "100", "--interval", "0.1")
FEW = ("--synthetic", "40", "--interval", "0.1")


def timesteps(url, nodes=(0, 20, 70, 99)):
    names = [one["node"] for one in ask(url, "/v1/nodes")["nodes"]]
    return [ask(url, f"/v1/decision?node={names[i]}")["timestep"] for i in nodes]


def brought_back(start, tmp_path, made_up=MADE_UP):
    (tmp_path / "state/pronto/address.json").unlink(missing_ok=True)
    process = start("agent", *listen(), *made_up)
    url = address(tmp_path)
    wait_for(lambda: ask(url)["tally"]["decisions"] >= int(made_up[1]))
    return process, url


def test_killed_at_any_moment_nodes_go_on_warm_and_after_a_clean_end_with_all(start, tmp_path):
    nodes = (0, 15, 31, 39)

    def began_at(url):
        """Timesteps that nodes had, at least, when this process began."""
        found = timesteps(url, nodes)
        return [step - ask(url)["tally"]["decisions"] // 40 for step in found]

    process, url = brought_back(start, tmp_path, FEW)
    wait_for(lambda: ask(url)["disk"]["saves"] > 3, seconds=60)
    before, saves = timesteps(url, nodes), ask(url)["disk"]["saves"]
    # Three groups, in turn: by then everyone was saved once more.
    wait_for(lambda: ask(url)["disk"]["saves"] >= saves + 4, seconds=60)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    process, url = brought_back(start, tmp_path, FEW)
    killed, last, status = began_at(url), timesteps(url, nodes), ask(url)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    _, url = brought_back(start, tmp_path, FEW)
    stopped = began_at(url)

    assert status["nodes"] == 40
    assert not status["faults"]
    assert all(was <= now for was, now in zip(before, killed, strict=True)), (before, killed)
    assert "warm, 40 nodes" in err
    # Asking takes a few timesteps.
    assert all(was - 10 <= now for was, now in zip(last, stopped, strict=True)), (last, stopped)


def test_of_damaged_files_only_their_nodes_start_cold(start, tmp_path):
    process, url = brought_back(start, tmp_path)
    wait_for(lambda: min(timesteps(url)) > 30)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    folder = tmp_path / "state/pronto/generated.nodes"
    (folder / "0001.state").write_bytes(b"garbage")
    (folder / "0004.state").write_bytes((folder / "0004.state").read_bytes()[:-40])
    process, url = brought_back(start, tmp_path)
    first, second, third, fourth = timesteps(url)
    process.kill()
    _, err = process.communicate(timeout=60)

    assert max(second, third) < 30 < min(first, fourth)
    assert "warm, 68 nodes" in err
    assert err.count("was set aside as") == 2
    assert (folder / "0001.state.corrupt").read_bytes() == b"garbage"


def test_a_disk_too_small_for_many_nodes_stops_no_decision(start, tmp_path):
    require_root()
    folder = tmp_path / "tiny"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(folder)], check=True)
    try:
        options = ("--state", str(folder), "--for", "8s", "--json")
        process = start("agent", *listen(), *MADE_UP, *options)
        out, err = process.communicate(timeout=60)
        left = [path.name for path in folder.rglob(".*.state.*")]
    finally:
        subprocess.run(["umount", str(folder)], check=True)
    found = json.loads(out)

    assert process.returncode == 0, err
    assert found["tally"]["decisions"] > 2000
    assert found["disk"]["save_errors"] > 0
    assert set(found["faults"]) == {"disk"}
    assert "cannot write, going on without" in err
    assert left == []
