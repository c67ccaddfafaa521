"""Slurm's gates on a real controller with four nodes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from examples.slurm_cluster import SlurmCluster, running_cluster, wait_for
from prontosched.errors import IntegrationError, SettingsError
from prontosched.gates.controller import Controller
from prontosched.gates.gate import Verdict
from prontosched.gates.slurm import SlurmFeatureGate, SlurmGate, read_node
from prontosched.gates.sweep import release, sweep
from tests.gates.verdicts import busy, eager, quiet
from tests.requirements import require_program, require_root, require_slurm

ROOT = Path(__file__).parents[2]
HEALTHCHECK = ROOT / "deploy" / "slurm" / "pronto-healthcheck"
ADMIN = "disk is failing"


def admin_drains(slurm: SlurmCluster, node: str) -> str:
    slurm.call("scontrol", "update", f"nodename={node}", "state=drain", f"reason={ADMIN}")
    return slurm.field(node, "Reason")


def replace_scontrol(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Let a shell script in a folder be what is called as scontrol."""
    program = folder / "scontrol"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def drained(slurm: SlurmCluster) -> list[str]:
    """Return the nodes that we hold closed."""
    return sorted(name for name, one in SlurmGate(conf=slurm.conf).observe_all().items() if one.ours)


def finished(slurm: SlurmCluster, numbers: list[str]) -> bool:
    jobs = slurm.jobs()
    return all(jobs[number]["state"] == "COMPLETED" for number in numbers)


@contextmanager
def agent_to_kill(slurm: SlurmCluster, node: str, *, seconds: float) -> Iterator[subprocess.Popen[bytes]]:
    script = str(Path(__file__).with_name("dying_agent.py"))
    process = subprocess.Popen([sys.executable, script, str(slurm.conf), node, str(seconds)])
    try:
        wait_for(lambda: "DRAIN" in slurm.state(node), 60, "the agent to close its node", slurm.logs)
        yield process
    finally:
        process.kill()
        process.wait()


def renewed(slurm: SlurmCluster, node: str) -> None:
    """Wait until a living agent has moved the end of its verdict, without opening the node."""
    reason = slurm.field(node, "Reason")
    wait_for(lambda: slurm.field(node, "Reason") != reason, 60, "the agent to renew its verdict", slurm.logs)
    assert "DRAIN" in slurm.state(node)


def test_refusing_node_gets_no_job_until_it_accepts(slurm: SlurmCluster) -> None:
    gate = SlurmGate(conf=slurm.conf)
    gate.refuse("n2", busy())
    numbers = [slurm.submit("true") for _ in range(8)]
    wait_for(lambda: finished(slurm, numbers), 60, "the jobs to finish", slurm.logs)
    assert "n2" not in {slurm.jobs()[number]["node"] for number in numbers}
    waiting = slurm.submit("true", "-w", "n2")
    gate.accept("n2")

    wait_for(lambda: finished(slurm, [waiting]), 60, "the job that waits for n2", slurm.logs)


@pytest.mark.parametrize(
    "reason", ["a Comment=b Extra=c", "x (score 9, until 2001-01-01T00:00:00Z) y", "[root@2026]"]
)
def test_no_reason_makes_a_valid_mark_look_ended(slurm: SlurmCluster, reason: str) -> None:
    gate = SlurmGate(conf=slurm.conf)
    gate.refuse("n2", Verdict(True, 0.5, reason, time.time() + 60))
    subprocess.run([str(HEALTHCHECK)], env={**slurm.env, "SLURMD_NODENAME": "n2"}, check=True, timeout=20)

    assert sweep(gate, now=time.time()).kept == ["n2"]


def test_running_job_finishes_on_a_node_that_refuses(slurm: SlurmCluster) -> None:
    number = slurm.submit("sleep 1", "-w", "n3")
    wait_for(lambda: slurm.jobs()[number]["state"] == "RUNNING", 60, "the job to start", slurm.logs)
    gate = SlurmGate(conf=slurm.conf)
    gate.refuse("n3", busy())

    assert gate.observe("n3").ours
    wait_for(lambda: slurm.jobs()[number]["state"] == "COMPLETED", 60, "the job to finish", slurm.logs)


def test_administrators_drain_survives_everything_we_do(slurm: SlurmCluster) -> None:
    reason = admin_drains(slurm, "n1")
    gate = SlurmGate(conf=slurm.conf)
    controller = Controller(gate, "n1", rules=eager())
    for verdict in (busy(), quiet(), busy(score=1.0), quiet()):
        assert controller.settle(verdict, time.time()).state == "closed-by-other"
    controller.close()
    release(gate)
    sweep(gate, now=time.time() + 1e6)

    assert slurm.field("n1", "Reason") == reason
    assert "DRAIN" in slurm.state("n1")


def test_administrators_drain_survives_however_slow_our_commands_are(
    slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They drain the node after we have seen our own mark, and before a program started then could undo it."""
    gate = SlurmGate(conf=slurm.conf)
    gate.refuse("n1", busy())
    log = tmp_path / "log"
    log.touch()
    real = require_program("scontrol")
    slow = f'echo begun >>{log}\nsleep 2\n{real} "$@"\ncode=$?\necho done >>{log}\nexit $code'
    replace_scontrol(tmp_path, monkeypatch, slow)
    accepting = threading.Thread(target=gate.accept, args=("n1",))
    accepting.start()

    def looked() -> bool:
        words = log.read_text().split()
        late = "done" in words and words.count("begun") == 2 and words.index("done") < 2
        return late or "DRAIN" not in slurm.state("n1")

    wait_for(looked, 60, "our look at the node", slurm.logs)
    reason = admin_drains(slurm, "n1")
    accepting.join(60)

    assert slurm.field("n1", "Reason") == reason
    assert "DRAIN" in slurm.state("n1")


def test_nodes_whose_refusals_are_over_are_opened_in_three_calls(
    slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many they are: on a busy machine each call takes long, and the last node waits for all."""
    gate = SlurmGate(conf=slurm.conf)
    for node in ("n1", "n2", "n3"):
        gate.refuse(node, Verdict(True, 0.5, "over", time.time() - 1.0))
    gate.refuse("n4", busy())
    calls = tmp_path / "calls"
    replace_scontrol(tmp_path, monkeypatch, f'echo >>{calls}\nexec {require_program("scontrol")} "$@"')
    swept = sweep(gate, now=time.time())

    assert (swept.opened, swept.kept, swept.failed) == (["n1", "n2", "n3"], ["n4"], {})
    assert len(calls.read_text().splitlines()) == 3
    assert drained(slurm) == ["n4"]


def test_nodes_with_long_names_are_opened_in_lines_that_every_scontrol_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that is built without readline takes a line of 4,096 letters for the end, and ends well."""
    gate, lines = SlurmGate(), []
    monkeypatch.setattr(
        gate.commands, "undrain", lambda names, chosen: lines.append(",".join(names)) or names
    )
    nodes = [f"ip-10-0-{number}.{'long-' * 10}region.compute.internal" for number in range(250)]

    assert gate.accept_lapsed(nodes, 0.0) == nodes
    assert max(map(len, lines)) < 4000
    assert len(lines) <= 10


def test_a_node_that_an_administrator_took_over_stays_closed_beside_those_that_are_opened(
    slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = SlurmGate(conf=slurm.conf)
    for node in ("n1", "n2", "n3"):
        gate.refuse(node, Verdict(True, 0.5, "over", time.time() - 1.0))
    listed = gate.observe_all()
    reason = admin_drains(slurm, "n1")
    gate.refuse("n3", busy())
    monkeypatch.setattr(gate, "observe_all", lambda: listed)
    swept = sweep(gate, now=time.time())

    assert (swept.opened, swept.kept, swept.failed) == (["n2"], ["n3"], {})
    assert slurm.field("n1", "Reason") == reason
    assert "DRAIN" in slurm.state("n1")
    assert drained(slurm) == ["n3"]


def test_reason_in_any_script_closes_the_node_and_is_read_again(slurm: SlurmCluster) -> None:
    gate = SlurmGate(conf=slurm.conf)
    gate.refuse("n1", busy(reason="Überlast durch 計算 – " + "very " * 60))

    assert gate.observe("n1").detail.startswith("pronto: Überlast durch 計算 – very very")
    assert sweep(gate, now=time.time()).kept == ["n1"]


def test_what_people_set_for_their_own_eyes_does_not_change_what_is_read(
    slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, verdict = SlurmGate(conf=slurm.conf), busy()
    gate.refuse("n2", verdict)
    monkeypatch.setenv("SLURM_TIME_FORMAT", "%a %T")

    assert gate.observe("n2").valid_until == int(verdict.valid_until)


def test_at_most_the_set_share_of_nodes_refuses_and_the_calmest_give_way(slurm: SlurmCluster) -> None:
    gate = SlurmGate(conf=slurm.conf)
    scores = {"n1": 0.3, "n2": 0.9, "n3": 0.1, "n4": 0.7}
    controllers = {node: Controller(gate, node, rules=eager(0.5)) for node in scores}
    for _ in range(2):
        for node, controller in controllers.items():
            controller.settle(busy(score=scores[node]), time.time())

            assert len(drained(slurm)) <= 2
    assert drained(slurm) == ["n2", "n4"]
    assert "enough other nodes refuse" in controllers["n1"].status.why
    assert controllers["n2"].status.floor == "counted at slurm, at most 50% of the nodes"


def test_nodes_that_close_at_the_same_time_end_within_their_places(slurm: SlurmCluster) -> None:
    """Slurm cannot compare and set, so all four may count before any has closed."""
    gate = SlurmGate(conf=slurm.conf)
    controllers = [Controller(gate, node, rules=eager(0.5)) for node in slurm.nodes]

    def settled() -> bool:
        for controller, score in zip(controllers, (0.1, 0.2, 0.6, 0.9), strict=True):
            controller.apply(busy(score=score), time.time())
        time.sleep(0.3)
        return drained(slurm) == ["n3", "n4"]

    wait_for(settled, 60, "the two nodes that are worst off alone to refuse", slurm.logs)
    assert settled()
    assert all(controller.close() for controller in controllers)
    assert gate.owned() == []


def test_user_who_may_not_change_nodes_is_told_who_may(
    slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_root()
    as_nobody = 'exec setpriv --reuid=65534 --regid=65534 --clear-groups /usr/bin/scontrol "$@"'
    replace_scontrol(tmp_path, monkeypatch, as_nobody)

    with pytest.raises(
        IntegrationError, match="run as root, as SlurmUser, or as a user with AdminLevel=Operator"
    ):
        SlurmGate(conf=slurm.conf).refuse("n1", busy())
    assert "DRAIN" not in slurm.state("n1")


def test_nodes_drained_by_administrators_leave_fewer_places(slurm: SlurmCluster) -> None:
    admin_drains(slurm, "n3")
    admin_drains(slurm, "n4")
    gate = SlurmGate(conf=slurm.conf)
    for node, score in (("n1", 0.9), ("n2", 0.3)):
        Controller(gate, node, rules=eager(0.5)).settle(busy(score=score), time.time())

    assert len(drained(slurm)) == 1


def test_node_that_is_down_stays_down_when_we_accept(slurm: SlurmCluster) -> None:
    gate = SlurmGate(conf=slurm.conf)
    states = []
    # Its daemon may register in between, which opens the node without us: rarely, and not each time.
    while len(states) < 5 and not any(state.startswith("DOWN") for state in states):
        gate.refuse("n4", busy())
        reason = slurm.field("n4", "Reason").rsplit(" [", 1)[0]
        slurm.call("scontrol", "update", "nodename=n4", "state=down", f"reason={reason}")
        gate.accept("n4")
        states.append(slurm.state("n4"))
        slurm.call("scontrol", "update", "nodename=n4", "state=resume", check=False)

    assert any(state.startswith("DOWN") for state in states), states


def test_killed_agent_leaves_no_node_closed_where_a_watch_runs(slurm: SlurmCluster) -> None:
    reason = admin_drains(slurm, "n1")
    command = [sys.executable, "-m", "prontosched", "gate", "watch", "--gate", "slurm"]
    command += ["--option", f"conf={slurm.conf}", "--every", "0.5"]
    with agent_to_kill(slurm, "n2", seconds=4) as agent:
        watch = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            renewed(slurm, "n2")
            agent.send_signal(signal.SIGKILL)
            wait_for(lambda: "DRAIN" not in slurm.state("n2"), 60, "the node to open", slurm.logs)
        finally:
            watch.terminate()
            out, err = watch.communicate(timeout=60)

    assert (watch.returncode, "slurm: opened n2" in out) == (0, True), err
    assert slurm.field("n1", "Reason") == reason


def test_killed_agent_leaves_no_node_closed_where_slurmd_runs_the_health_check(tmp_path: Path) -> None:
    require_slurm()
    # slurmd gives its health check no environment but SLURMD_NODENAME.
    program = tmp_path / "healthcheck"
    program.write_text(f"#!/bin/sh\nSLURM_CONF={tmp_path}/slurm.conf exec {HEALTHCHECK}\n")
    program.chmod(0o755)
    options = f"HealthCheckProgram={program}\nHealthCheckInterval=1\nHealthCheckNodeState=ANY"
    with running_cluster(tmp_path, nodes=3, extra=options) as slurm:
        reason = admin_drains(slurm, "n1")
        soft = SlurmFeatureGate(conf=slurm.conf)
        soft.refuse("n3", busy(2))
        with agent_to_kill(slurm, "n2", seconds=4) as agent:
            renewed(slurm, "n2")
            agent.send_signal(signal.SIGKILL)
            wait_for(lambda: "DRAIN" not in slurm.state("n2"), 60, "the node to open", slurm.logs)
        wait_for(lambda: soft.observe("n3").state == "open", 60, "the feature to come back", slurm.logs)

        assert slurm.field("n1", "Reason") == reason


@pytest.mark.parametrize(
    "reason", ["pronto: edited by hand", "pronto: x (score 1, until 2026-99-99T00:00:00Z)"]
)
def test_health_check_opens_a_node_whose_mark_cannot_be_read(slurm: SlurmCluster, reason: str) -> None:
    slurm.call("scontrol", "update", "nodename=n2", "state=drain", f"reason={reason}")
    subprocess.run([str(HEALTHCHECK)], env={**slurm.env, "SLURMD_NODENAME": "n2"}, check=True, timeout=20)

    assert "DRAIN" not in slurm.state("n2")


def test_a_reason_that_is_no_text_hides_no_node_and_ends_no_gate(slurm: SlurmCluster) -> None:
    odd = os.fsdecode(b"reason=disk \xff\xfe fails\x85State=IDLE")
    slurm.call("scontrol", "update", "nodename=n4", "state=drain", odd)
    gate = SlurmGate(conf=slurm.conf)
    gate.refuse("n2", busy(60))

    assert gate.owned() == ["n2"]
    assert not gate.observe("n4").ours
    assert {n for n, one in gate.observe_all().items() if one.state == "closed-by-other"} == {"n4"}
    gate.accept("n2")
    slurm.call("scontrol", "update", "nodename=n4", "state=resume")


def test_health_check_leaves_valid_marks_and_other_drains_alone(slurm: SlurmCluster) -> None:
    reason = admin_drains(slurm, "n1")
    SlurmGate(conf=slurm.conf).refuse("n2", busy(60))
    SlurmFeatureGate(conf=slurm.conf).refuse("n3", busy(60))
    for node in slurm.nodes:
        subprocess.run([str(HEALTHCHECK)], env={**slurm.env, "SLURMD_NODENAME": node}, check=True, timeout=20)

    assert slurm.field("n1", "Reason") == reason
    assert SlurmGate(conf=slurm.conf).owned() == ["n2"]
    assert SlurmFeatureGate(conf=slurm.conf).owned() == ["n3"]


def test_opt_in_jobs_avoid_a_softly_refusing_node_and_others_do_not(slurm: SlurmCluster) -> None:
    gate = SlurmFeatureGate(conf=slurm.conf)
    for node in ("n1", "n2", "n3"):
        gate.refuse(node, busy())
    opted = [slurm.submit("true", "-C", "pronto_admit") for _ in range(4)]
    other = slurm.submit("true", "-w", "n1")
    wait_for(lambda: finished(slurm, [*opted, other]), 60, "the jobs to finish", slurm.logs)

    assert {slurm.jobs()[number]["node"] for number in opted} == {"n4"}


def test_feature_gate_says_what_to_do_where_the_feature_is_missing(slurm: SlurmCluster) -> None:
    with pytest.raises(IntegrationError, match=r"add Features=gpu_ok to its line in slurm\.conf"):
        SlurmFeatureGate(conf=slurm.conf, feature="gpu_ok").observe("n1")


def test_feature_gate_leaves_an_occupied_extra_field_alone(slurm: SlurmCluster) -> None:
    slurm.call("scontrol", "update", "nodename=n1", "extra=rack 7, slot 2")

    with pytest.raises(IntegrationError, match="extra field of n1 must be free"):
        SlurmFeatureGate(conf=slurm.conf).refuse("n1", busy())
    assert slurm.field("n1", "ActiveFeatures") == "pronto_admit"


def test_feature_that_is_no_plain_word_is_refused() -> None:
    with pytest.raises(SettingsError, match="letters, digits and underscores, got 'a,b'"):
        SlurmFeatureGate(feature="a,b")


def test_controller_that_does_not_answer_is_an_error_within_the_timeout(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    conf = tmp_path / "slurm.conf"
    text = slurm.conf.read_text()
    port = next(line for line in text.splitlines() if line.startswith("SlurmctldPort="))
    conf.write_text(text.replace(port, "SlurmctldPort=1"))
    started = time.monotonic()

    with pytest.raises(IntegrationError, match=r"scontrol .* (must answer within 2 s|failed)"):
        SlurmGate(conf=conf, timeout=2).observe("n1")
    assert time.monotonic() - started < 10


def test_configuration_that_is_missing_is_an_error_that_says_what_to_name(tmp_path: Path) -> None:
    require_program("scontrol")
    conf = tmp_path / "slurm.conf"
    conf.write_text("NotASetting=1\n")

    with pytest.raises(
        IntegrationError, match=r"onfiguration file: name slurm\.conf with the gate's option conf=PATH"
    ):
        SlurmGate(conf=conf).observe("n1")


def test_missing_commands_are_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(IntegrationError, match="scontrol must be on the PATH"):
        SlurmGate().observe("n1")


LINE = (
    "NodeName=n2 Arch=x86_64 CoresPerSocket=1  CPUAlloc=0 CPUTot=2 CPULoad=1.3 AvailableFeatures={features} "
    "ActiveFeatures={features} Gres=(null) NodeAddr=127.0.0.1 Port=41735 Version=22.05.8 "
    "OS=Linux 6.1 #1 SMP  RealMemory=500 Sockets=2 Boards=1 State={state} ThreadsPerCore=1 Weight=1 "
    "Partitions=all  BootTime=None CapWatts=n/a ExtSensorsTemp=n/s{tail}\n"
)


@pytest.mark.parametrize(
    ("tail", "reason", "extra"),
    [
        ("", "", ""),
        (" Reason=disk is failing [root@2026-11-15T21:08:36]", "disk is failing", ""),
        (" Reason=a [agent@corp.example@2026-11-15T21:08:36]", "a", ""),
        (" Reason=a [b] State=DOWN [root@2026-11-15T21:08:36] Comment=x", "a [b] State=DOWN", ""),
        (" Reason=a [me@2026-11-15T21:08:36] Comment=b Reason=c Extra=d e", "a", "d e"),
        (" Comment=b Extra=pronto: x", "", "pronto: x"),
        (" Extra=d", "", "d"),
        (" Reason=a [me@2026-11-15T21:08:36] ReservationName=maint", "a", ""),
        (" Extra=d e InstanceId=i-1 InstanceType=m5.large", "", "d e"),
        (" Reason=a [me@2026-11-15T21:08:36] Comment=b Extra=d InstanceId=i-1  ReservationName=x", "a", "d"),
    ],
)
def test_free_text_of_a_node_is_not_taken_for_fields(tail: str, reason: str, extra: str) -> None:
    node = read_node(LINE.format(features="(null)", state="IDLE+DRAIN", tail=tail))

    assert (node.name, node.reason, node.extra, node.available) == ("n2", reason, extra, ())
    assert node.flags == {"IDLE", "DRAIN"}


def replace_squeue(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Let a shell script in a folder be what is called as squeue."""
    program = folder / "squeue"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_only_jobs_of_the_own_cluster_are_asked_for_whatever_people_look_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_squeue(tmp_path, monkeypatch, "echo ${SQUEUE_PARTITION:-all} $*")
    monkeypatch.setenv("SQUEUE_PARTITION", "gpu")
    (said,) = SlurmGate().commands.waiting()

    assert said.startswith("all ")
    assert " --local " in said


@pytest.mark.parametrize(
    ("reason", "starved"),
    [
        ("Resources", True),
        ("ReqNodeNotAvail, UnavailableNodes:n2", True),
        ("Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions", True),
        ("ReqNodeNotAvail, Reserved for maintenance", False),
        ("Priority", False),
        ("Dependency", False),
    ],
)
def test_jobs_that_wait_for_nodes_are_told_from_those_that_wait_for_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str, starved: bool
) -> None:
    replace_squeue(tmp_path, monkeypatch, f"echo '{reason}'")

    assert SlurmGate().starved() is starved


def test_a_command_that_may_not_be_run_is_an_error_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_squeue(tmp_path, monkeypatch, "")
    (tmp_path / "squeue").chmod(0o644)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(IntegrationError, match="squeue must be a program that can be run: Permission denied"):
        SlurmGate().starved()


@pytest.mark.parametrize(
    ("state", "closed", "drained"),
    [
        ("IDLE", False, False),
        ("MIXED+PLANNED", False, False),
        ("IDLE+NOT_RESPONDING", False, False),
        ("ALLOCATED+DRAIN", True, True),
        ("IDLE*+DRAIN", True, True),
        ("DOWN*", True, False),
        ("IDLE+MAINTENANCE+RESERVED", True, False),
    ],
)
def test_state_tells_closed_from_busy(state: str, closed: bool, drained: bool) -> None:
    node = read_node(LINE.format(features="a,b", state=state, tail=""))

    assert (node.closed, node.drained, node.active) == (closed, drained, ("a", "b"))


def test_line_that_is_no_node_is_an_error_that_shows_it() -> None:
    with pytest.raises(IntegrationError, match="got 'Node n9 not found'"):
        read_node("Node n9 not found")


def test_health_check_is_executable() -> None:
    assert os.access(HEALTHCHECK, os.X_OK)


def test_daemons_of_a_cluster_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    require_slurm()
    require_program("setpriv")
    code = f"""if True:
        import time
        from pathlib import Path
        from examples.slurm_cluster import SlurmCluster

        cluster = SlurmCluster(Path({str(tmp_path)!r}), nodes=1)
        cluster.start()
        print(*(process.pid for process in cluster._running), flush=True)
        time.sleep(600)
    """
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as parent:
        assert parent.stdout is not None
        daemons = [Path("/proc", pid) for pid in parent.stdout.readline().split()]
        parent.kill()

    assert len(daemons) == 3
    wait_for(lambda: not any(path.exists() for path in daemons), 30, "the daemons to end")
