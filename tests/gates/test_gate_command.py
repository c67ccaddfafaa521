"""`pronto gate` at a terminal."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from examples.slurm_cluster import SlurmCluster
from prontosched.cli.gate import command
from prontosched.errors import IntegrationError, SettingsError
from prontosched.gates.hook import HookGate
from prontosched.gates.slurm import SlurmGate
from tests.gates.verdicts import busy


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments)


@pytest.fixture
def hook(tmp_path: Path) -> tuple[HookGate, list[str]]:
    gate = HookGate(command="true", folder=tmp_path)
    return gate, ["--gate", "hook", "--option", "command=true", "--option", f"folder={tmp_path}"]


def test_release_opens_our_drains_and_leaves_the_administrators(slurm: SlurmCluster) -> None:
    gate = SlurmGate(conf=slurm.conf)
    for node in ("n2", "n3"):
        gate.refuse(node, busy())
    slurm.call("scontrol", "update", "nodename=n1", "state=drain", "reason=disk is failing")
    result = run("release", "--gate", "slurm", "--option", f"conf={slurm.conf}", "--json")

    assert json.loads(result.stdout) == {
        "gate": "slurm",
        "opened": ["n2", "n3"],
        "restored": [],
        "kept": [],
        "failed": {},
    }
    assert ["DRAIN" in slurm.state(node) for node in slurm.nodes] == [True, False, False, False]


def test_status_shows_whose_doing_a_drain_is(slurm: SlurmCluster) -> None:
    SlurmGate(conf=slurm.conf).refuse("n2", busy(score=0.5))
    slurm.call("scontrol", "update", "nodename=n1", "state=drain", "reason=disk is failing")
    options = ["--gate", "slurm", "--option", f"conf={slurm.conf}"]
    result = run("status", *options, "--node", "n1", "--node", "n2", "--node", "n3", "--json")
    nodes = json.loads(result.stdout)["nodes"]

    assert [nodes[node]["state"] for node in ("n1", "n2", "n3")] == [
        "closed-by-other",
        "closed-by-us",
        "open",
    ]
    assert nodes["n2"]["score"] == 0.5
    assert "disk is failing" in nodes["n1"]["detail"]


def test_status_says_how_long_a_refusal_still_counts(hook: tuple[HookGate, list[str]]) -> None:
    gate, options = hook
    gate.refuse("web-1", busy(100))
    gate.refuse("web-2", busy(-5))
    result = run("status", *options)

    assert re.search(r"^hook web-1: closed-by-us for (100|[89]\d) s more  pronto: cpu_user", result.stdout)
    assert "hook web-2: closed-by-us, its verdict has ended" in result.stdout


def test_release_where_nothing_is_ours_says_so(hook: tuple[HookGate, list[str]]) -> None:
    result = run("release", *hook[1])

    assert (result.exit_code, result.stdout) == (0, "hook: no node is closed or ranked by Pronto\n")


def test_watch_once_opens_only_what_has_ended(hook: tuple[HookGate, list[str]]) -> None:
    gate, options = hook
    gate.refuse("web-1", busy(100))
    gate.refuse("web-2", busy(-5))
    result = run("watch", *options, "--once")

    assert result.stdout == "hook: opened web-2\nhook: still holding web-1\n"
    assert gate.owned() == ["web-1"]


def test_release_that_fails_ends_with_1_and_says_why(
    hook: tuple[HookGate, list[str]], tmp_path: Path
) -> None:
    gate, options = hook
    gate.refuse("web-1", busy())
    result = run("release", *(text.replace("command=true", "command=false") for text in options))

    assert result.exit_code == 1
    assert "hook web-1: hook false must end with 0" in result.stderr
    assert gate.owned() == ["web-1"]


def test_option_without_a_gate_is_asked_wrongly() -> None:
    result = run("release", "--option", "conf=x")

    assert result.exit_code == 2
    assert "--option belongs to one gate" in result.output


def test_option_that_is_no_pair_is_asked_wrongly() -> None:
    result = run("status", "--gate", "slurm", "--option", "conf")

    assert isinstance(result.exception, SettingsError)
    assert "--option must be KEY=VALUE, got 'conf'" in str(result.exception)


def test_machine_without_any_scheduler_is_an_error_that_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("prontosched.gates.registry.present_gates", list)
    result = run("release")

    assert isinstance(result.exception, IntegrationError)
    assert "name one with --gate" in str(result.exception)


def test_list_names_every_gate_that_is_installed() -> None:
    gates = json.loads(run("list", "--json").stdout)

    assert {"slurm", "slurm-feature", "htcondor", "hook"} <= set(gates)
