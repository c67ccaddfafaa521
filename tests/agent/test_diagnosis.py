"""What is wrong on a machine is found, most important first, with the command that mends it."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from prontosched.agent import diagnosis
from prontosched.agent.diagnosis import clock_synchronised, diagnose
from prontosched.agent.http.client import Client
from prontosched.cli import cli
from prontosched.errors import ProntoError
from prontosched.gates.gate import Verdict
from prontosched.gates.hook import HookGate
from prontosched.settings import AgentSettings
from prontosched.telemetry.linux.check import inspect_machine
from tests.processes import free_port, started, wait_for
from tests.telemetry.machines import FROZEN

REPORT = inspect_machine(FROZEN / "first", seconds=0.01)


def said(settings: AgentSettings, **given) -> dict[str, tuple[str, str]]:
    """Return the problems of a machine without an agent: what, with weight and remedy."""
    given.setdefault("root", FROZEN / "first")
    found = diagnose(settings, given.pop("report", REPORT), given.pop("agent", None), **given)
    return {one.what: (one.severity, one.remedy) for one in found}


def settings(tmp_path: Path, **given) -> AgentSettings:
    return AgentSettings(state=tmp_path / "state", **given)


def test_a_sound_machine_lacks_only_its_agent(tmp_path):
    root = tmp_path / "machine"
    shutil.copytree(FROZEN / "first", root)
    (root / "sys/fs/cgroup").mkdir(parents=True, exist_ok=True)
    (root / "sys/fs/cgroup/cgroup.controllers").write_text("cpu memory\n")
    # The kernel of the frozen machine counts 103 threads, of which six were frozen.
    (root / "proc/loadavg").write_text("0.63 1.07 1.00 2/6 3705\n")

    found = said(settings(tmp_path), report=inspect_machine(root, seconds=0.01), root=root)

    assert list(found) == ["no agent answers on this machine: nothing is decided"]


def test_what_the_kernel_hides_comes_with_its_remedy(tmp_path):
    root = tmp_path / "machine"
    shutil.copytree(FROZEN / "first", root)
    (root / "proc/pressure/cpu").unlink()
    (root / "sys/fs/cgroup/cgroup.controllers").unlink(missing_ok=True)
    changed = {"proc/*/task/*/schedstat": "hidden", "sys/fs/cgroup": "ok"}
    findings = tuple(replace(one, state=changed.get(one.path, one.state)) for one in REPORT.findings)
    found = said(settings(tmp_path), report=inspect_machine(root, seconds=0.01), root=root)
    other = said(settings(tmp_path), report=replace(REPORT, findings=findings), root=root)

    def remedy(problems: dict[str, tuple[str, str]], start: str) -> tuple[str, str]:
        return next(told for what, told in problems.items() if what.startswith(start))

    weight, mend = remedy(found, "pressure stall information is off")
    assert weight == "limits"
    assert "psi=1" in mend
    assert mend.endswith("&& sudo reboot")
    assert remedy(found, "cgroups cannot be read") == ("misleads", f"docker run -v /sys:{root}/sys:ro …")
    assert "systemd.unified_cgroup_hierarchy=1" in remedy(other, "cgroup v1")[1]
    assert remedy(other, "threads of others")[0] == "misleads"
    assert "--pid=host" in remedy(other, "threads of others")[1]


def test_threads_that_a_mount_hides_come_with_the_remount(tmp_path):
    """With hidepid=2 the agent's own threads are seen, and the kernel counts a hundred more."""
    root = tmp_path / "machine"
    shutil.copytree(FROZEN / "first", root)
    (root / "proc/self").mkdir()
    (root / "proc/self/mounts").write_text("proc /proc proc rw,nosuid,relatime,hidepid=invisible 0 0\n")

    found = said(settings(tmp_path), report=inspect_machine(root, seconds=0.01), root=root)

    assert found["threads of others cannot be read (hidden): CPU Ready is only estimated"] == (
        "misleads",
        f"sudo mount -o remount,hidepid=0 {root / 'proc'}",
    )


@pytest.mark.parametrize(
    ("shown", "mend"), [("0 0 0\n", "delayacct"), (None, "a kernel with CONFIG_SCHEDSTATS")]
)
def test_a_kernel_that_counts_no_waiting_comes_with_its_remedy(tmp_path, shown, mend):
    root = tmp_path / "machine"
    shutil.copytree(FROZEN / "first", root)
    for path in root.glob("proc/*/task/*/schedstat"):
        path.unlink() if shown is None else path.write_text(shown)

    found = said(settings(tmp_path), report=inspect_machine(root, seconds=0.01), root=root)

    weight, said_mend = found["the kernel does not count what threads wait: CPU Ready is only estimated"]
    assert weight == "misleads"
    assert mend in said_mend


def test_a_hybrid_of_both_versions_is_not_called_version_1(tmp_path):
    root = tmp_path / "machine"
    shutil.copytree(FROZEN / "first", root)
    (root / "sys/fs/cgroup/unified").mkdir()
    (root / "sys/fs/cgroup/cgroup.controllers").rename(root / "sys/fs/cgroup/unified/cgroup.controllers")

    found = said(settings(tmp_path), report=inspect_machine(root, seconds=0.01), root=root)

    assert not any("cgroup" in what for what in found)


@pytest.mark.parametrize("packaged", [True, False])
def test_the_unit_of_a_package_is_found(tmp_path, monkeypatch, packaged):
    monkeypatch.setattr(diagnosis, "UNIT_FOLDERS", (str(tmp_path / "etc"), str(tmp_path)))
    if packaged:
        (tmp_path / "pronto-agent.service").touch()

    (tmp_path / "file").write_text("in the way")
    found = said(settings(tmp_path / "file"))
    _, mend = found["no agent answers on this machine: nothing is decided"]

    # The unit's own user writes to the folder, and not who asks.
    assert any("may not be written" in what for what in found) is not packaged
    assert mend == ("sudo systemctl start pronto-agent" if packaged else "pronto agent")


def test_a_folder_that_may_not_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")

    folder = tmp_path / "file" / "state"

    found = said(AgentSettings(state=folder))

    weight, mend = found[f"{folder} may not be written: what is learned is lost at every restart"]
    assert weight == "misleads"
    # Only the folder itself is given away, never one above it, which may be the root of all.
    assert mend.startswith("sudo install -d -m 700 -o ")
    assert mend.endswith(f" {folder}")


def test_marks_that_have_ended_are_found_and_those_that_count_are_not(tmp_path):
    gate = HookGate(command=["true"], folder=tmp_path)
    gate.refuse("n1", Verdict(True, 0.9, "busy", time.time() - 60.0))
    gate.refuse("n2", Verdict(True, 0.9, "busy", time.time() + 600.0))

    found = said(settings(tmp_path, gate="hook", gate_option=("command=true", f"folder={tmp_path}")))

    assert found["n1 bears a refusal of ours at hook that has ended"] == (
        "misleads",
        "pronto gate release --gate hook",
    )
    assert not any("n2" in what for what in found)


def test_a_gate_that_cannot_work_stops_and_comes_first(tmp_path):
    found = said(settings(tmp_path, gate="hook", gate_option=("command=/no/such/program",)))

    what, (weight, mend) = next(iter(found.items()))
    assert weight == "stops"
    assert what.startswith("gate hook cannot work")
    assert mend == "pronto gate status --gate hook"


def test_a_bus_that_does_not_answer_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(diagnosis, "BUS_SECONDS", 0.5)

    found = said(settings(tmp_path, nats=f"nats://127.0.0.1:{free_port()}"))

    (weight, mend) = next(v for what, v in found.items() if what.startswith("the bus does not answer"))
    assert weight == "limits"
    assert mend.startswith("pronto federation --nats 'nats://127.0.0.1")


@pytest.mark.parametrize(("synchronised", "problems"), [(False, 1), (True, 0), (None, 0)])
def test_the_clock_counts_where_others_judge_by_it(tmp_path, monkeypatch, synchronised, problems):
    monkeypatch.setattr(diagnosis, "clock_synchronised", lambda: synchronised)
    monkeypatch.setattr(diagnosis, "BUS_SECONDS", 0.1)
    joined = said(settings(tmp_path, nats=f"nats://127.0.0.1:{free_port()}"))

    assert sum("the clock is not synchronised" in what for what in joined) == problems
    assert not any("clock" in what for what in said(settings(tmp_path)))


def test_the_kernel_tells_of_its_clock_without_being_changed():
    before = time.time()

    assert clock_synchronised() in (True, False, None)
    assert abs(time.time() - before) < 60.0


def test_an_agent_without_telemetry_is_found_out(tmp_path):
    port, target = free_port(), free_port()
    options = (
        "--source",
        "prometheus",
        "--target",
        f"http://127.0.0.1:{target}/metrics",
        "--interval",
        "0.2",
    )
    client = Client(f"http://127.0.0.1:{port}")

    def answers() -> bool:
        try:
            return bool(client.get("/v1/status")["faults"])
        except ProntoError:
            return False

    with started("agent", *options, "--listen", f"127.0.0.1:{port}", "--state", str(tmp_path / "state")):
        wait_for(answers, what="a fault of the source")
        found, pid = said(settings(tmp_path), agent=client), client.get("/v1/status")["pid"]

    what, (weight, mend) = next(iter(found.items()))
    assert what.startswith("the agent has no fresh telemetry: no decision yet (")
    assert (weight, mend) == ("stops", f"kill {pid}, and `pronto agent` again")


def test_the_command_goes_by_the_settings_of_the_agent(tmp_path):
    (tmp_path / "pronto.toml").write_text(
        f'[agent]\ngate = "hook"\ngate_option = ["command=/no/such/program"]\nstate = "{tmp_path}"\n'
    )
    check = ["--config", str(tmp_path / "pronto.toml"), "check", "--agent", "none"]
    root = ["--root", str(FROZEN / "first")]
    worded = CliRunner().invoke(cli, [*check, *root])
    found = CliRunner().invoke(cli, [*check, *root, "--json"])

    assert worded.exit_code == found.exit_code == 1
    assert worded.stdout.startswith("What is wrong, most important first:\n  stops: gate hook cannot work")
    assert json.loads(found.stdout)["problems"][0]["severity"] == "stops"
