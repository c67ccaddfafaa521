"""What the Helm chart renders is what this version understands, in every mode."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from prontosched import __version__
from prontosched.cli import cli
from prontosched.federation.address import Address
from prontosched.gates.agent_client import Addresses
from prontosched.gates.kubernetes import CONTENDED_CONDITION, KEY
from tests.gates.chart import CHART, MODES, helm, only, render, settings
from tests.requirements import require_program

Manifests = list[dict[str, Any]]
WORKLOADS = ("DaemonSet", "Deployment", "StatefulSet")


@pytest.fixture(scope="module", params=MODES)
def manifests(request: pytest.FixtureRequest) -> Manifests:
    return render(*MODES[request.param])


def pods(manifests: Manifests) -> list[dict[str, Any]]:
    return [d["spec"]["template"]["spec"] for d in manifests if d["kind"] in WORKLOADS]


def ours(manifests: Manifests) -> list[dict[str, Any]]:
    """Return the containers that run the command."""
    found = [container for pod in pods(manifests) for container in pod["containers"]]
    return [container for container in found if container["name"] != "kube-scheduler"]


def arguments(manifests: Manifests, container: str) -> list[str]:
    (found,) = (one for one in ours(manifests) if one["name"] == container)
    return list(found["args"])


def command_of(given: list[str]) -> tuple[click.Command, str, list[str]]:
    """Return the command that the arguments name, the prefix of its variables, and its options."""
    rest, prefix = list(given), "PRONTO"
    command: click.Command = cli
    while isinstance(command, click.Group):
        prefix += f"_{rest[0].upper()}"
        found = command.get_command(click.Context(cli), rest.pop(0))
        assert found is not None
        command = found
    return command, prefix, rest


def test_every_argument_and_variable_is_one_the_command_takes(manifests: Manifests) -> None:
    for container in ours(manifests):
        command, prefix, rest = command_of(container["args"])
        known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
        variables = {e["name"] for e in container.get("env", []) if e["name"].startswith("PRONTO_")}

        assert {argument.partition("=")[0] for argument in rest} <= known
        assert variables <= {f"{prefix}_{str(p.name).upper()}" for p in command.params}


def test_agents_see_the_hosts_processes_and_files_and_nothing_more(manifests: Manifests) -> None:
    pod = only(manifests, "DaemonSet", "pronto-agent")["spec"]["template"]["spec"]
    (agent,) = pod["containers"]
    mounts = {mount["mountPath"]: mount for mount in agent["volumeMounts"]}

    assert pod["hostPID"] is True
    assert mounts["/host/proc"]["readOnly"]
    assert mounts["/host/sys"]["readOnly"]
    assert {"operator": "Exists"} in pod["tolerations"]


def test_no_container_has_a_right_but_the_one_that_hands_the_folder_over(manifests: Manifests) -> None:
    for pod in pods(manifests):
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert context["runAsNonRoot"] is True
            assert context["readOnlyRootFilesystem"] is True
            assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod.get("initContainers", []):
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN"]}


def test_what_was_learned_lies_on_the_node_and_survives_a_rollout(manifests: Manifests) -> None:
    pod = only(manifests, "DaemonSet", "pronto-agent")["spec"]["template"]["spec"]
    (state,) = (volume for volume in pod["volumes"] if volume["name"] == "state")

    assert state["hostPath"] == {"path": "/var/lib/pronto", "type": "DirectoryOrCreate"}
    assert "--state=/var/lib/pronto" in arguments(manifests, "agent")


def test_agents_have_the_time_to_end_that_systemd_gives_them(manifests: Manifests) -> None:
    pod = only(manifests, "DaemonSet", "pronto-agent")["spec"]["template"]["spec"]
    unit = (CHART.parents[1] / "systemd" / "pronto-agent.service").read_text()

    assert f"\nTimeoutStopSec={pod['terminationGracePeriodSeconds']}\n" in unit


def test_what_must_run_while_nodes_refuse_tolerates_our_taint(manifests: Manifests) -> None:
    for pod in pods(manifests):
        assert any(t.get("key") in (KEY, None) and t["operator"] == "Exists" for t in pod["tolerations"])


def test_agents_listen_beyond_their_node_only_with_token_and_certificate(manifests: Manifests) -> None:
    given = arguments(manifests, "agent")
    listens = any(argument.startswith("--listen") for argument in given)

    assert listens == any(argument.startswith("--token-file") for argument in given)
    assert listens == any(argument.startswith("--tls-cert") for argument in given)
    assert listens == any(d["kind"] == "Secret" for d in manifests)


def test_defaults_change_nothing_in_the_cluster() -> None:
    for gate, container in (("taint", "agent"), ("extender", "extender")):
        given = arguments(render(f"gate={gate}"), container)
        assert "--shadow" in given
        assert "--enforce" not in given


@pytest.mark.parametrize(("gate", "container"), [("taint", "agent"), ("extender", "extender")])
def test_preference_obeys_without_a_veto_and_veto_adds_it(gate: str, container: str) -> None:
    veto = {"taint": "--gate-option=veto=true", "extender": "--veto"}[gate]
    preferring = arguments(render(f"gate={gate}", "mode=preference"), container)
    vetoing = arguments(render(f"gate={gate}", "mode=veto"), container)

    assert ("--enforce" in preferring, veto in preferring) == (True, False)
    assert ("--enforce" in vetoing, veto in vetoing) == (True, True)


def test_scheduler_passes_over_an_extender_that_fails_and_asks_where_it_listens() -> None:
    manifests = render("gate=extender")
    config = only(manifests, "ConfigMap", "pronto-scheduler")
    (extender,) = yaml.safe_load(config["data"]["scheduler.yaml"])["extenders"]
    given = dict(a.lstrip("-").split("=", 1) for a in arguments(manifests, "extender") if "=" in a)

    assert extender["ignorable"] is True
    assert extender["nodeCacheCapable"] is True
    assert extender["urlPrefix"] == f"http://{given['listen']}/"
    assert Addresses(given["agents"]).template == "https://{address}:7077"


def test_on_a_signed_bus_each_has_the_registered_keys_and_its_own() -> None:
    manifests = render("gate=extender", "nats.secret=bus", "nats.keys=bus-keys")
    addresses = {}
    for container in ours(manifests):
        values = {one["name"]: one.get("value") for one in container["env"]}
        (address,) = (value for name, value in values.items() if name.startswith("PRONTO_"))
        addresses[container["name"]] = address
        assert {"name": "bus", "mountPath": "/etc/pronto/bus", "readOnly": True} in container["volumeMounts"]
        given = "nats://nats/prod?keys=/etc/pronto/bus/keys"
        parsed = Address.parse((address or given).replace("$(BUS_ADDRESS)", given))
        assert parsed.keys == "/etc/pronto/bus/keys"

    def mounted(kind: str, name: str) -> list[str] | None:
        pod = only(manifests, kind, name)["spec"]["template"]["spec"]
        (keys,) = (volume["secret"] for volume in pod["volumes"] if volume["name"] == "bus")
        return [item["path"] for item in keys["items"]] if "items" in keys else None

    assert addresses == {
        "agent": None,
        "extender": "$(BUS_ADDRESS)&sign=/etc/pronto/bus/viewer.key",
        "aggregate": "$(BUS_ADDRESS)&sign=/etc/pronto/bus/$(POD_NAME).key",
    }
    assert only(manifests, "StatefulSet", "pronto-aggregate")["spec"]["replicas"] == 2
    assert mounted("DaemonSet", "pronto-agent") == ["keys"], "no private key of another reaches a node"
    assert mounted("Deployment", "pronto-scheduler") == ["keys", "viewer.key"], "nor who only looks"


def test_rights_are_no_more_than_the_gates_need() -> None:
    nodes = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "patch"]}
    status = {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]}
    pending = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}

    def roles(*values: str) -> dict[str, Any]:
        return {d["metadata"]["name"]: d["rules"] for d in render(*values) if d["kind"] == "ClusterRole"}

    assert roles("mode=preference") == {"pronto-agent": [nodes, status]}
    assert roles("mode=veto") == {"pronto-agent": [nodes, status], "pronto-agent-veto": [pending]}
    assert roles("gate=extender", "mode=veto") == {"pronto-extender": [nodes, status]}


def test_certificate_is_vouched_for_by_its_authority(tmp_path: Path) -> None:
    require_program("openssl")
    secret = only(render("gate=extender"), "Secret", "pronto-access")
    for name, value in secret["data"].items():
        (tmp_path / name).write_bytes(base64.b64decode(value))
    checked = subprocess.run(
        ["openssl", "verify", "-CAfile", "ca.crt", "-verify_hostname", "pronto-agent", "tls.crt"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert checked.stdout.strip() == "tls.crt: OK"
    assert len((tmp_path / "token").read_text()) == 48


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (["--set", "mode=enforce"], "mode"),
        (["--set", "gates=taint"], "gates"),
        (["--set", "maxRefusing=2"], "maxRefusing"),
        (["--set", "nats.keys=bus-keys"], "nats.secret"),
    ],
)
def test_values_that_cannot_be_are_refused_by_name(values: list[str], said: str) -> None:
    done = helm("template", "pronto", str(CHART), *settings(), *values)

    assert done.returncode != 0
    assert said in done.stderr


@pytest.mark.parametrize("missing", ["image.repository", "extender.schedulerImage"])
def test_image_that_is_not_named_is_asked_for(missing: str) -> None:
    done = helm("template", "pronto", str(CHART), *settings("gate=extender", f"{missing}="))

    assert done.returncode != 0
    assert f"{missing} must name" in done.stderr


def test_notes_name_the_condition_only_where_agents_write_it() -> None:
    def notes(mode: str) -> str:
        done = helm("install", "pronto", str(CHART), "--dry-run=client", *settings(f"mode={mode}"))
        return done.stdout.partition("NOTES:")[2]

    assert "Pronto runs in mode shadow: nothing is changed yet" in notes("shadow")
    assert [CONTENDED_CONDITION in notes(mode) for mode in ("shadow", "preference", "veto")] == [
        False,
        True,
        True,
    ]


def test_chart_and_package_have_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)
    assert set(values) == set(schema["properties"]) - {"global"}
