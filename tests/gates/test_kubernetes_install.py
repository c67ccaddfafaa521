"""The Helm chart in a real API server: installed, upgraded, uninstalled.

With the newest version that was built; PRONTO_TEST_KUBERNETES=1.35.4 takes another.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prontosched.gates.kubernetes_client import ApiError, ApiServer
from tests.gates.chart import CHART, ENGINES, MODES, helm, render, require_engine, settings
from tests.gates.kubernetes_cluster import BINARIES, Cluster, require_kubernetes
from tests.processes import wait_for

# Where the API server keeps each kind that the chart makes.
PLACES = {
    "ServiceAccount": "/api/v1/namespaces/pronto/serviceaccounts",
    "ConfigMap": "/api/v1/namespaces/pronto/configmaps",
    "Secret": "/api/v1/namespaces/pronto/secrets",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/pronto/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/pronto/rolebindings",
    "DaemonSet": "/apis/apps/v1/namespaces/pronto/daemonsets",
    "Deployment": "/apis/apps/v1/namespaces/pronto/deployments",
    "StatefulSet": "/apis/apps/v1/namespaces/pronto/statefulsets",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/pronto/poddisruptionbudgets",
    "ValidatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": (
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
    ),
    "PodMonitor": "/apis/monitoring.coreos.com/v1/namespaces/pronto/podmonitors",
    "PrometheusRule": "/apis/monitoring.coreos.com/v1/namespaces/pronto/prometheusrules",
}
MONITOR = ("PodMonitor", "PrometheusRule")
OURS = "?labelSelector=app.kubernetes.io/part-of=pronto"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with the definitions of the Prometheus operator where they were fetched."""
    require_kubernetes()
    made = Cluster(tmp_path_factory.mktemp("install"))
    try:
        made.start()
        made.admin.call("POST", "/api/v1/namespaces", {"metadata": {"name": "pronto"}})
        for file in sorted((ENGINES / "prometheus-operator").glob("*.json")):
            made.admin.call(
                "POST",
                "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
                json.loads(file.read_text()),
            )
        if defined():
            wait_for(lambda: _served(made.admin), what="the kinds of the Prometheus operator")
        yield made
    finally:
        made.stop()


def defined() -> bool:
    return any((ENGINES / "prometheus-operator").glob("*.json"))


def _served(admin: ApiServer) -> bool:
    try:
        return all(admin.call("GET", PLACES[kind]) is not None for kind in MONITOR)
    except ApiError:
        return False


def run(cluster: Cluster, *arguments: str) -> str:
    done = helm(
        *arguments,
        "--namespace",
        "pronto",
        KUBECONFIG=str(cluster.folder / "kubeconfig"),
        HELM_NO_PLUGINS="1",
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def present(cluster: Cluster) -> set[tuple[str, str]]:
    """Return kind and name of everything of ours in the cluster."""
    return {
        (kind, item["metadata"]["name"])
        for kind, place in PLACES.items()
        if kind not in MONITOR or defined()
        for item in cluster.admin.call("GET", place + OURS)["items"]
    }


def token(cluster: Cluster) -> str:
    return str(cluster.admin.call("GET", f"{PLACES['Secret']}/pronto-access")["data"]["token"])


def test_installed_upgraded_and_uninstalled_with_nothing_left(cluster: Cluster) -> None:
    run(cluster, "install", "pronto", str(CHART), *settings("gate=extender"))
    assert present(cluster) == {(d["kind"], d["metadata"]["name"]) for d in render("gate=extender")}
    first = token(cluster)

    run(cluster, "upgrade", "pronto", str(CHART), "--reuse-values", "--set", "mode=veto")
    assert token(cluster) == first, "an upgrade must not cut agents and extender off from each other"

    run(cluster, "upgrade", "pronto", str(CHART), *settings("gate=taint", "mode=veto"))
    assert present(cluster) == {(d["kind"], d["metadata"]["name"]) for d in render("mode=veto")}

    run(cluster, "uninstall", "pronto")
    assert present(cluster) == set()


@pytest.mark.parametrize("mode", MODES)
def test_api_server_takes_every_manifest_strictly(cluster: Cluster, mode: str) -> None:
    if "monitor" in mode and not defined():
        pytest.skip(
            "needs the Prometheus operator's definitions: sh tests/engines/build.sh prometheus-operator"
        )
    for manifest in render(*MODES[mode]):
        place = PLACES[manifest["kind"]] + "?dryRun=All&fieldValidation=Strict"
        answer = cluster.admin.call("POST", place, manifest)

        assert answer["metadata"]["name"] == manifest["metadata"]["name"]


def allowed(cluster: Cluster, account: str, verb: str, resource: str, group: str = "") -> bool:
    """Return whether the API server lets an account of the chart do it, in the whole cluster."""
    name, _, part = resource.partition("/")
    asked = {
        "spec": {
            "user": f"system:serviceaccount:pronto:{account}",
            "resourceAttributes": {"verb": verb, "resource": name, "subresource": part, "group": group},
        }
    }
    place = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    return bool(cluster.admin.call("POST", place, asked)["status"]["allowed"])


def test_agents_may_do_what_they_need_and_no_more(cluster: Cluster) -> None:
    run(cluster, "install", "pronto", str(CHART), *settings("mode=preference"))
    try:
        wait_for(lambda: allowed(cluster, "pronto-agent", "patch", "nodes"), what="the agent's rights")
        assert allowed(cluster, "pronto-agent", "patch", "nodes/status")
        for verb, resource in (
            ("delete", "nodes"),
            ("update", "nodes"),
            ("list", "pods"),
            ("get", "secrets"),
            ("create", "pods"),
            ("create", "pods/eviction"),
        ):
            assert not allowed(cluster, "pronto-agent", verb, resource), (verb, resource)
        run(cluster, "upgrade", "pronto", str(CHART), *settings("mode=veto"))
        wait_for(lambda: allowed(cluster, "pronto-agent", "list", "pods"), what="sight of pending pods")
        run(cluster, "upgrade", "pronto", str(CHART), *settings("gate=extender"))
        wait_for(lambda: not allowed(cluster, "pronto-agent", "get", "nodes"), what="an agent without rights")
    finally:
        run(cluster, "uninstall", "pronto")


def test_pods_come_up_on_every_node_and_a_rollout_ends(cluster: Cluster, tmp_path: Path) -> None:
    manager = BINARIES / "kube-controller-manager"
    if not manager.exists():
        pytest.skip("needs kube-controller-manager: sh tests/engines/build.sh kubernetes")
    kwok = require_engine("kwok")
    access = str(cluster.folder / "kubeconfig")
    for name in ("n1", "n2", "n3"):
        cluster.add_node(name)
    with (
        started(tmp_path / "manager.log", str(manager), f"--kubeconfig={access}", "--leader-elect=false"),
        started(
            tmp_path / "kwok.log",
            *(kwok, f"--kubeconfig={access}", "--manage-all-nodes=true"),
            f"--config={ENGINES / 'kwok-stages.yaml'}",
        ),
    ):
        run(cluster, "install", "pronto", str(CHART), *settings(), "--wait", "--timeout=60s")
        try:
            agents = cluster.admin.call("GET", f"{PLACES['DaemonSet']}/pronto-agent")["status"]
            assert (agents["desiredNumberScheduled"], agents["numberReady"]) == (3, 3)
            change = settings("mode=preference")
            run(cluster, "upgrade", "pronto", str(CHART), *change, "--wait", "--timeout=60s")
        finally:
            run(cluster, "uninstall", "pronto", "--wait", "--timeout=60s")
        assert present(cluster) == set()


class started:  # noqa: N801, a context in the manner of contextlib
    """A program that runs for the length of a block."""

    def __init__(self, log: Path, *command: str) -> None:
        self.log = log
        self.command = command

    def __enter__(self) -> None:
        with self.log.open("wb") as log:
            self.process: subprocess.Popen[bytes] = subprocess.Popen(self.command, stdout=log, stderr=log)

    def __exit__(self, *_: Any) -> None:
        self.process.kill()
        self.process.wait()
