"""The Helm chart in a real API server: installed, run, upgraded, uninstalled.

With the newest version that was built; PRONTO_TEST_KUBERNETES=1.36.4 takes another.
"""

from __future__ import annotations

import base64
import json
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from prontosched.gates.kubernetes import ACCEPTING_CONDITION, CONTENDED_CONDITION, KEY
from prontosched.gates.kubernetes_client import STRATEGIC, ApiError, ApiServer
from tests import processes
from tests.gates.chart import CHART, ENGINES, MODES, helm, render, require_engine, settings
from tests.gates.kubernetes_cluster import BINARIES, Cluster, require_kubernetes
from tests.processes import free_port, wait_for

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
        cluster.clear()


class Installed:
    """What the chart installed, with the arguments, files and accounts of its pods, on this machine.

    Each node is an address of the loopback. Of `n1` a trace says that it is contended.
    """

    def __init__(self, cluster: Cluster, folder: Path, stack: ExitStack) -> None:
        self.cluster = cluster
        self.folder = folder
        self.stack = stack
        self.ports = {"7077": free_port(), "7090": free_port()}
        for secret in cluster.admin.call("GET", PLACES["Secret"] + OURS)["items"]:
            for name, value in secret["data"].items():
                (folder / name).write_bytes(base64.b64decode(value))

    def agent(self, node: str, address: str, *, ready: float) -> subprocess.Popen[bytes]:
        """Add a node and run its agent, which listens at its address."""
        self.cluster.add_node(node)
        at = {"status": {"addresses": [{"type": "InternalIP", "address": address}]}}
        self.cluster.admin.patch_node(node, at, kind=STRATEGIC, status=True)
        trace = self.folder / f"{node}.csv"
        rows = "".join(f"{second},{ready + second % 3},{second % 5}\n" for second in range(100))
        trace.write_text("t,cpu_ready,load\n" + rows)
        given = self.arguments("DaemonSet/pronto-agent", "agent")
        places = {"0.0.0.0": address, "/host": "/", "$(NODE_NAME)": node}
        for old, new in {**places, "/var/lib/pronto": str(self.folder / node)}.items():
            given = [argument.replace(old, new) for argument in given]
        replayed = [f"--trace={trace}", "--repeat", "--interval=0.2", "--no-probe"]
        listen = f"--listen={address}:{self.ports['7077']}"
        access = self.access("pronto-agent", pod=self.pod(node)) if "--gate=kubernetes" in given else {}
        return self.stack.enter_context(processes.started(*given, *replayed, listen, **access))

    def pod(self, node: str) -> dict[str, Any]:
        """Put the pod of an agent on a node, and return it."""
        container = {"name": "agent", "image": "none"}
        spec = {"serviceAccountName": "pronto-agent", "nodeName": node, "containers": [container]}
        body = {"metadata": {"name": f"agent-{node}"}, "spec": spec}
        place = "/api/v1/namespaces/pronto/pods"
        delete = f"{place}/agent-{node}", {"gracePeriodSeconds": 0}
        self.stack.callback(self.cluster.admin.call, "DELETE", *delete)
        return self.cluster.admin.call("POST", place, body)

    def extender(self) -> subprocess.Popen[bytes]:
        """Run the extender."""
        return self.stack.enter_context(
            processes.started(
                *self.arguments("Deployment/pronto-scheduler", "extender"), **self.access("pronto-extender")
            )
        )

    def scheduler(self) -> None:
        """Run the second scheduler with the rights of its account."""
        access = json.loads((self.cluster.folder / "kubeconfig").read_text())
        access["users"][0]["user"]["token"] = self.access("pronto-extender")["PRONTO_KUBERNETES_TOKEN"]
        (self.folder / "kubeconfig").write_text(json.dumps(access))
        config = self.cluster.admin.call("GET", f"{PLACES['ConfigMap']}/pronto-scheduler")["data"]
        body = yaml.safe_load(self.here(config["scheduler.yaml"]))
        body["clientConnection"] = {"kubeconfig": str(self.folder / "kubeconfig")}
        (self.folder / "scheduler.json").write_text(json.dumps(body))
        program, arguments = str(BINARIES / "kube-scheduler"), [f"--config={self.folder / 'scheduler.json'}"]
        self.stack.enter_context(
            started(self.folder / "scheduler.log", program, *arguments, "--secure-port=0")
        )

    def access(self, account: str, *, pod: dict[str, Any] | None = None) -> dict[str, str]:
        """Return the settings by which an account reaches the API server, with the token that its pod has."""
        asked: dict[str, Any] = {"expirationSeconds": 3600}
        if pod is not None:
            named = {key: pod["metadata"][key] for key in ("name", "uid")}
            asked["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", **named}
        place = f"{PLACES['ServiceAccount']}/{account}/token"
        return {
            "PRONTO_KUBERNETES_URL": self.cluster.url,
            "PRONTO_KUBERNETES_TOKEN": self.cluster.admin.call("POST", place, {"spec": asked})["status"][
                "token"
            ],
            "PRONTO_KUBERNETES_CA": str(self.cluster.folder / "cert" / "apiserver.crt"),
        }

    def arguments(self, workload: str, container: str) -> list[str]:
        kind, name = workload.split("/")
        pod = self.cluster.admin.call("GET", f"{PLACES[kind]}/{name}")["spec"]["template"]["spec"]
        (found,) = (one for one in pod["containers"] if one["name"] == container)
        return [self.here(argument) for argument in found["args"]]

    def here(self, text: str) -> str:
        """Return a text with the ports and folders of this test."""
        for old, new in {**self.ports, "/etc/pronto/secrets": self.folder}.items():
            text = text.replace(old, str(new))
        return text

    def condition(self, node: str) -> str:
        found = {c["type"]: c["status"] for c in self.cluster.admin.node(node)["status"]["conditions"]}
        return str(found.get(ACCEPTING_CONDITION, ""))

    def placed(self, *names: str) -> set[str]:
        """Add pods for the second scheduler, and return the nodes that they were put on."""
        for name in names:
            self.cluster.add_pod(name, schedulerName="pronto")
        wait_for(lambda: all(map(self.cluster.placed, names)), what="pods placed by the second scheduler")
        return {self.cluster.placed(name) for name in names}


@pytest.mark.parametrize("mode", ["preference", "veto"])
def test_pods_go_to_calm_nodes_and_anywhere_once_agent_or_extender_are_gone(
    cluster: Cluster, tmp_path: Path, mode: str
) -> None:
    run(cluster, "install", "pronto", str(CHART), *settings("gate=extender", f"mode={mode}"))
    try:
        with ExitStack() as stack:
            installed = Installed(cluster, tmp_path, stack)
            contended = installed.agent("n1", "127.0.0.11", ready=40.0)
            for number in (2, 3):
                installed.agent(f"n{number}", f"127.0.0.1{number}", ready=0.0)
            extender = installed.extender()
            installed.scheduler()
            at = f"http://127.0.0.1:{installed.ports['7090']}/v1/nodes"
            wait_for(lambda: (shown(at, "n1") or {}).get("refuse"), what="n1 heard to refuse")
            wait_for(lambda: shown(at, "n2") and shown(at, "n3"), what="the calm nodes heard")
            if mode == "veto":
                wait_for(lambda: installed.condition("n1") == "False", what="n1 refused")

            assert "n1" not in installed.placed(*(f"calm{i}" for i in range(6)))
            assert (shown(at, "n1") or {})["closed"] == (mode == "veto")
            assert installed.condition("n1") == ("False" if mode == "veto" else "")

            contended.kill()
            wait_for(lambda: shown(at, "n1") is None, what="the end of what a dead agent said")
            if mode == "veto":
                wait_for(lambda: installed.condition("n1") == "", what="n1 open again")
            extender.kill()
            assert installed.placed("open") <= {"n1", "n2", "n3"}
    finally:
        run(cluster, "uninstall", "pronto")
        cluster.clear()


def test_agent_with_its_pods_token_marks_its_node_and_takes_the_marks_off_when_it_stops(
    cluster: Cluster, tmp_path: Path
) -> None:
    def marks() -> set[str]:
        node = cluster.admin.node("n1")
        taints = {taint["effect"] for taint in node["spec"].get("taints") or [] if taint["key"] == KEY}
        return taints | {
            c["status"] for c in node["status"]["conditions"] if c["type"] == CONTENDED_CONDITION
        }

    run(cluster, "install", "pronto", str(CHART), *settings("mode=preference"))
    try:
        with ExitStack() as stack:
            agent = Installed(cluster, tmp_path, stack).agent("n1", "127.0.0.11", ready=40.0)
            cluster.add_node("n2")
            wait_for(lambda: marks() == {"PreferNoSchedule", "True"}, what="the marks of a contended node")
            for name in ("first", "second"):
                cluster.add_pod(name)
            wait_for(lambda: cluster.placed("first") and cluster.placed("second"), what="pods placed")
            assert {cluster.placed("first"), cluster.placed("second")} == {"n2"}

            agent.terminate()
            wait_for(lambda: marks() == set(), what="a node without marks of ours")
    finally:
        run(cluster, "uninstall", "pronto")
        cluster.clear()


def shown(url: str, node: str) -> dict[str, Any] | None:
    """Return what an extender knows of a node, None while that is nothing."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            found: dict[str, Any] | None = json.load(answer)["nodes"].get(node)
            return found
    except OSError:
        return None


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
