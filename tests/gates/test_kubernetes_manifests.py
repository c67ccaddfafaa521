"""What lies in deploy/kubernetes says what this version understands."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from prontosched.cli import cli
from prontosched.gates.agent_client import Addresses
from prontosched.gates.kubernetes import KEY
from tests.requirements import require_program

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def pods(path: Path) -> list[dict[str, Any]]:
    return [
        d["spec"]["template"]["spec"] for d in documents(path) if d["kind"] in ("DaemonSet", "Deployment")
    ]


def containers(path: Path) -> list[dict[str, Any]]:
    return [one for pod in pods(path) for one in pod["containers"] if one["image"].startswith("prontosched")]


OURS = [(path, one) for path in MANIFESTS for one in containers(path)]


@pytest.mark.parametrize(("path", "container"), OURS, ids=[f"{p.stem}-{c['name']}" for p, c in OURS])
def test_every_argument_of_a_container_is_one_the_command_takes(
    path: Path, container: dict[str, Any]
) -> None:
    arguments = list(container["args"])
    context = click.Context(cli)
    command: click.Command = cli
    while isinstance(command, click.Group):
        found = command.get_command(context, arguments.pop(0))
        assert found is not None
        command = found
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}

    assert {argument.partition("=")[0] for argument in arguments} <= known


@pytest.mark.parametrize("name", ["agent-taint.yaml", "agent-extender.yaml"])
def test_agents_see_the_hosts_processes_and_files_and_nothing_more(name: str) -> None:
    pod = pods(DEPLOY / "kubernetes" / name)[0]
    (agent,) = pod["containers"]
    mounts = {mount["mountPath"]: mount for mount in agent["volumeMounts"]}

    assert pod["hostPID"] is True
    assert mounts["/host/proc"]["readOnly"]
    assert mounts["/host/sys"]["readOnly"]
    assert agent["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert agent["securityContext"]["runAsNonRoot"] is True
    assert {"operator": "Exists"} in pod["tolerations"]


def test_everything_starts_in_shadow_mode() -> None:
    arguments = [argument for _, container in OURS for argument in container["args"]]

    assert "--enforce" not in arguments
    assert arguments.count("--shadow") == 2


def test_what_must_run_while_nodes_refuse_tolerates_our_taint() -> None:
    for path in MANIFESTS:
        for pod in pods(path):
            assert any(t.get("key") in (KEY, None) and t["operator"] == "Exists" for t in pod["tolerations"])


def test_scheduler_passes_over_an_extender_that_fails_and_asks_where_it_listens() -> None:
    config, deployment = documents(DEPLOY / "kubernetes" / "scheduler.yaml")
    (extender,) = yaml.safe_load(config["data"]["scheduler.yaml"])["extenders"]
    (beside,) = (c for c in deployment["spec"]["template"]["spec"]["containers"] if c["name"] == "extender")
    arguments = dict(argument.lstrip("-").split("=", 1) for argument in beside["args"] if "=" in argument)

    assert extender["ignorable"] is True
    assert extender["nodeCacheCapable"] is True
    assert extender["urlPrefix"] == f"http://{arguments['listen']}/"
    assert Addresses(arguments["agents"]).template == "https://{address}:7077"


def test_rights_are_no_more_than_the_gates_need() -> None:
    roles = {
        document["metadata"]["name"]: document["rules"]
        for name in ("rbac.yaml", "rbac-veto.yaml")
        for document in documents(DEPLOY / "kubernetes" / name)
        if document["kind"] == "ClusterRole"
    }
    nodes = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "patch"]}
    status = {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]}

    pods = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}
    assert roles == {
        "pronto-agent": [nodes, status],
        "pronto-agent-veto": [pods],
        "pronto-extender": [nodes, status],
    }


def test_secrets_script_makes_a_certificate_that_its_authority_vouches_for(tmp_path: Path) -> None:
    require_program("openssl")
    subprocess.run(
        ["sh", str(DEPLOY / "kubernetes" / "make-secrets.sh"), str(tmp_path)], check=True, capture_output=True
    )
    checked = subprocess.run(
        ["openssl", "verify", "-CAfile", "ca.crt", "-verify_hostname", "pronto-agent", "tls.crt"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert checked.stdout.strip() == "tls.crt: OK"
    assert len((tmp_path / "token").read_text().strip()) == 64
    assert (tmp_path / "tls.key").stat().st_mode & 0o077 == 0
