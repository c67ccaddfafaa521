"""Slurm's weights: jobs prefer calm nodes, and an administrator's weight comes back."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from examples.slurm_cluster import SlurmCluster, wait_for
from prontosched.errors import SettingsError
from prontosched.gates.controller import Controller
from prontosched.gates.gate import Rank, Verdict
from prontosched.gates.policy import Rules
from prontosched.gates.slurm import SlurmGate, base_weight, rank_of
from prontosched.gates.sweep import release, sweep
from tests.gates.test_slurm import HEALTHCHECK, agent_to_kill, finished
from tests.gates.verdicts import busy

PREFER = Rules(enforce=True, observe_seconds=0)


def ranked(slurm: SlurmCluster, node: str, level: int = 3, seconds: float = 300.0) -> SlurmGate:
    gate = SlurmGate(conf=slurm.conf)
    gate.prefer(node, Rank(level, 0.6, False, time.time() + seconds), busy())
    return gate


def set_by_administrator(slurm: SlurmCluster, node: str) -> tuple[int, str]:
    slurm.call("scontrol", "update", f"nodename={node}", "weight=40", "comment=rack 7, slot 2")
    return status(slurm, node)


def status(slurm: SlurmCluster, node: str) -> tuple[int, str]:
    found = SlurmGate(conf=slurm.conf).commands.node(node)
    return found.weight, found.comment


def test_jobs_go_to_calm_nodes_first_and_to_the_contended_one_when_they_are_full(slurm: SlurmCluster) -> None:
    controller = Controller(SlurmGate(conf=slurm.conf), "n1", rules=PREFER)
    controller.settle(busy(score=0.9), time.time())
    few = [slurm.submit("sleep 3", "-n1") for _ in range(6)]
    wait_for(lambda: all(slurm.jobs()[n]["node"] for n in few), 30, "six jobs to start", slurm.logs)
    assert "n1" not in {slurm.jobs()[number]["node"] for number in few}
    # Three nodes of two CPUs are full: nothing is refused, so the seventh runs at once.
    more = slurm.submit("true", "-n1")
    wait_for(lambda: slurm.jobs()[more]["node"] == "n1", 3, "the seventh job on n1", slurm.logs)
    wait_for(lambda: finished(slurm, [*few, more]), 30, "the jobs to finish", slurm.logs)

    assert "DRAIN" not in slurm.state("n1")
    assert controller.close()
    assert status(slurm, "n1") == (1, "")


@pytest.mark.parametrize("way", ["restore", "level 0", "release", "sweep", "health check"])
def test_administrators_weight_and_comment_are_put_back(slurm: SlurmCluster, way: str) -> None:
    before = set_by_administrator(slurm, "n2")
    gate = ranked(slurm, "n2", seconds=-1.0 if way in ("sweep", "health check") else 300.0)
    assert status(slurm, "n2")[0] == 43
    if way == "restore":
        gate.restore("n2")
    elif way == "level 0":
        gate.prefer("n2", Rank(0, 0.0, False, time.time() + 300), busy())
    elif way == "release":
        release(SlurmGate(conf=slurm.conf))
    elif way == "sweep":
        sweep(SlurmGate(conf=slurm.conf), now=time.time())
    else:
        check(slurm, "n2")

    assert status(slurm, "n2") == before


def check(slurm: SlurmCluster, node: str) -> None:
    subprocess.run([str(HEALTHCHECK)], env={**slurm.env, "SLURMD_NODENAME": node}, check=True, timeout=20)


def test_health_check_leaves_a_rank_alone_that_still_counts(slurm: SlurmCluster) -> None:
    ranked(slurm, "n2")
    before = status(slurm, "n2")
    check(slurm, "n2")

    assert status(slurm, "n2") == before


@pytest.mark.parametrize("way", ["restore", "health check"])
def test_weight_that_an_administrator_set_over_ours_is_theirs(slurm: SlurmCluster, way: str) -> None:
    gate = ranked(slurm, "n2", seconds=-1.0)
    slurm.call("scontrol", "update", "nodename=n2", "weight=70")
    if way == "restore":
        gate.restore("n2")
    else:
        check(slurm, "n2")
    assert status(slurm, "n2") == (70, "")
    gate.prefer("n2", Rank(2, 0.4, False, time.time() + 300), busy())

    assert status(slurm, "n2")[0] == 72


def test_weights_of_slurm_conf_after_a_reconfiguration_are_ranked_anew(slurm: SlurmCluster) -> None:
    gate = ranked(slurm, "n2", level=4)
    slurm.call("scontrol", "reconfigure")
    wait_for(lambda: status(slurm, "n2")[0] == 1, 20, "the weight of slurm.conf", slurm.logs)
    found = gate.observe("n2").rank
    assert found is not None
    assert found.expired(time.time())
    # A controller of 23.11 and later starts anew for this, and takes nothing for a moment.
    wait_for(
        lambda: Controller(gate, "n2", rules=PREFER).settle(busy(score=0.9), time.time()).level == 4,
        20,
        "the rank of before",
        slurm.logs,
    )

    assert status(slurm, "n2")[0] == 5


def test_steady_contention_changes_a_weight_once_and_renews_it_rarely(slurm: SlurmCluster) -> None:
    gate, updates = SlurmGate(conf=slurm.conf), []
    update = gate.commands.update
    gate.commands.update = lambda node, **changes: (updates.append(changes), update(node, **changes))  # type: ignore
    controller = Controller(gate, "n2", rules=Rules(enforce=True))
    began = time.time()
    for second in range(0, 600, 5):
        controller.settle(
            Verdict(True, 0.7 + 0.1 * (second % 2), "busy", began + second + 60), began + second
        )

    assert len([changes for changes in updates if "weight" in changes]) == 1
    assert len(updates) <= 5


def test_killed_agent_leaves_no_weight_where_a_watch_runs(slurm: SlurmCluster) -> None:
    before = set_by_administrator(slurm, "n2")
    command = [sys.executable, "-m", "prontosched", "gate", "watch", "--gate", "slurm"]
    command += ["--option", f"conf={slurm.conf}", "--every", "0.5"]
    with agent_to_kill(slurm, "n2", seconds=4) as agent:
        watch = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            assert status(slurm, "n2")[0] > 40
            agent.send_signal(signal.SIGKILL)
            wait_for(lambda: status(slurm, "n2") == before, 15, "the weight to come back", slurm.logs)
        finally:
            watch.terminate()
            out, err = watch.communicate(timeout=60)

    assert "slurm: restored n2" in out, err


@pytest.mark.parametrize(
    ("comment", "weight", "base"),
    [
        ("", 7, 7),
        ("rack 7", 7, 7),
        ("[pronto: weight 5+2, level 2, chance 0.4, accepting, until 2026-11-15T21:09:45Z]", 7, 5),
        ("[pronto: weight 5+2, level 2, chance 0.4, accepting, until 2026-11-15T21:09:45Z] x", 7, 7),
        ("[pronto: weight 5+2, level 2, chance 0.4, accepting, until 2026-11-15T21:09:45Z]", 8, 8),
        ("[pronto: weight 5+2, level 2, chance 0.4, accepting, until 2026-11-15T21:09:45Z] New=a B=", 7, 5),
        ("[pronto: weight edited by hand]", 7, 7),
        ("[pronto: weight 99999999999999999999+1, level 2]", 7, 7),
    ],
)
def test_only_a_mark_that_fits_its_weight_tells_the_administrators(
    comment: str, weight: int, base: int
) -> None:
    from prontosched.gates.slurm import SlurmNode

    node = SlurmNode("n1", frozenset({"IDLE"}), "", "", (), (), weight, comment)
    found = rank_of(node)

    assert base_weight(node) == base
    assert found is None or (found.level == 2) == (base == 5)


def test_step_that_is_no_weight_is_refused() -> None:
    with pytest.raises(SettingsError, match="weight_step must be from 0 to 1000000, got -1"):
        SlurmGate(conf=Path("slurm.conf"), weight_step=-1)
