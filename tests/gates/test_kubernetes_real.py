"""The taint gate and the manifests against a real etcd, API server and scheduler.

Skipped with a message where they are not built: `sh tests/engines/build.sh kubernetes etcd`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from prontosched.gates.controller import Controller
from prontosched.gates.gate import Rank
from prontosched.gates.kubernetes import KEY, KubernetesGate
from prontosched.gates.kubernetes_client import STRATEGIC, ApiError, ApiServer
from prontosched.gates.policy import Rules
from prontosched.gates.sweep import release, sweep
from tests.gates.chart import only, render
from tests.gates.kubernetes_cluster import BINARIES, Cluster
from tests.gates.verdicts import DEDICATED, busy, quiet
from tests.processes import wait_for

TOLERATION = {"key": KEY, "operator": "Exists", "effect": "NoSchedule"}


@pytest.fixture
def gate(kubernetes: Cluster) -> KubernetesGate:
    """A gate with the rights of the manifest and no others."""
    return KubernetesGate(kubernetes.api("agent-token"))


def taints(kubernetes: Cluster, node: str) -> list[dict[str, Any]]:
    return list(kubernetes.admin.node(node)["spec"].get("taints") or [])


def test_refusal_keeps_a_pod_pending_with_the_reason_and_accepting_places_it(
    kubernetes: Cluster, gate: KubernetesGate
) -> None:
    kubernetes.add_node("n1")
    gate.refuse("n1", busy(reason="CPU Ready expected at 12 %"))
    kubernetes.add_pod("waits")

    message = wait_for(lambda: kubernetes.unschedulable("waits"), what="a word on the pod")
    assert "pronto.io/reject: cpu-ready-expected-at-12" in message or "untolerated taint(s)" in message
    gate.accept("n1")
    wait_for(lambda: kubernetes.placed("waits") == "n1", what="the pod on n1")


def test_pods_go_elsewhere_while_one_node_refuses_and_tolerant_ones_still_come(
    kubernetes: Cluster, gate: KubernetesGate
) -> None:
    kubernetes.add_node("n1")
    kubernetes.add_node("n2")
    gate.refuse("n1", busy())
    for i in range(6):
        kubernetes.add_pod(f"job{i}")
    kubernetes.add_pod("tolerant", tolerations=[TOLERATION], nodeSelector={"kubernetes.io/hostname": "n1"})
    kubernetes.admin.patch_node("n1", {"metadata": {"labels": {"kubernetes.io/hostname": "n1"}}})

    where = wait_for(
        lambda: (
            all(kubernetes.placed(f"job{i}") for i in range(6))
            and [kubernetes.placed(f"job{i}") for i in range(6)]
        ),
        what="six pods placed",
    )
    assert where == ["n2"] * 6
    wait_for(lambda: kubernetes.placed("tolerant") == "n1", what="the tolerant pod on n1")


def test_administrators_taints_and_cordons_survive_all_that_we_do(
    kubernetes: Cluster, gate: KubernetesGate
) -> None:
    kubernetes.add_node("mine", taints=[DEDICATED])
    kubernetes.add_node("cordoned", unschedulable=True)
    for node in ("mine", "cordoned"):
        gate.refuse(node, busy())
    assert gate.owned() == ["mine"]
    assert gate.observe("cordoned").state == "closed-by-other"
    swept = release(gate)

    assert swept.opened == ["mine"]
    assert taints(kubernetes, "mine") == [DEDICATED]
    assert kubernetes.admin.node("cordoned")["spec"]["unschedulable"] is True
    assert not any(
        key.startswith("pronto.io/")
        for key in kubernetes.admin.node("mine")["metadata"].get("annotations", {})
    )


def test_write_against_an_old_version_is_refused_with_409(kubernetes: Cluster, gate: KubernetesGate) -> None:
    kubernetes.add_node("n1")
    stale = kubernetes.admin.node("n1")["metadata"]["resourceVersion"]
    gate.refuse("n1", busy())
    with pytest.raises(ApiError, match=r"409 .*object has been modified") as caught:
        gate.api.patch_node("n1", {"metadata": {"resourceVersion": stale}, "spec": {"taints": []}})

    assert caught.value.status == 409
    assert gate.observe("n1").ours


def test_rival_writers_lose_nothing_of_each_other(kubernetes: Cluster, gate: KubernetesGate) -> None:
    kubernetes.add_node("n1")
    admin = KubernetesGate(kubernetes.admin)

    def rival(number: int) -> None:
        taint = {"key": f"rival-{number}", "effect": "NoSchedule"}
        admin._change(
            "n1",
            lambda node: {
                "metadata": {"resourceVersion": node["metadata"]["resourceVersion"]},
                "spec": {"taints": [*(node["spec"].get("taints") or []), taint]},
            },
        )

    threads = [threading.Thread(target=rival, args=(i,)) for i in range(4)]
    threads.append(threading.Thread(target=gate.refuse, args=("n1", busy())))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert {taint["key"] for taint in taints(kubernetes, "n1")} == {KEY, *(f"rival-{i}" for i in range(4))}


def test_manifests_rights_are_enough_for_the_gate_and_for_nothing_else(
    kubernetes: Cluster, gate: KubernetesGate
) -> None:
    kubernetes.add_node("n1")
    gate.refuse("n1", busy())
    gate.accept("n1")
    assert list(gate.observe_all()) == ["n1"]
    gate.prefer("n1", Rank(3, 0.6, False, time.time() + 60), busy())
    gate.restore("n1")
    for path in ("/api/v1/pods", "/api/v1/secrets"):
        with pytest.raises(ApiError, match=r"403 .*forbidden"):
            gate.api.call("GET", path)
    with pytest.raises(ApiError, match=r"403 .*forbidden"):
        gate.api.call("DELETE", "/api/v1/nodes/n1")


def test_preference_keeps_pods_off_a_contended_node_while_others_are_there(
    kubernetes: Cluster, gate: KubernetesGate
) -> None:
    kubernetes.add_node("n1")
    kubernetes.add_node("n2")
    controller = Controller(gate, "n1", rules=Rules(enforce=True))
    controller.settle(busy(score=0.9), time.time())
    for i in range(4):
        kubernetes.add_pod(f"job{i}")
    names = [f"job{i}" for i in range(4)]
    wait_for(lambda: all(kubernetes.placed(name) for name in names), what="four pods placed")
    assert {kubernetes.placed(name) for name in names} == {"n2"}
    # Nothing is refused: where the calm node cannot take a pod, the contended one does.
    kubernetes.admin.patch_node("n2", {"spec": {"unschedulable": True}})
    kubernetes.add_pod("last")
    wait_for(lambda: kubernetes.placed("last") == "n1", what="the last pod on n1")

    assert controller.close()
    assert taints(kubernetes, "n1") == []


def conditions(kubernetes: Cluster, node: str) -> dict[str, dict[str, Any]]:
    return {one["type"]: one for one in kubernetes.admin.node(node)["status"]["conditions"]}


def test_condition_tells_contention_and_leaves_everyone_elses_alone(
    kubernetes: Cluster, gate: KubernetesGate
) -> None:
    kubernetes.add_node("n1")
    ready = conditions(kubernetes, "n1")["Ready"]
    controller = Controller(gate, "n1", rules=Rules(enforce=True, observe_seconds=0))
    now = time.time()
    controller.settle(quiet(), now)
    calm = conditions(kubernetes, "n1")["CPUContended"]
    assert (calm["status"], calm["reason"]) == ("False", "NoContentionExpected")
    controller.settle(busy(score=0.9, reason="CPU Ready 41 % expected within 5 s"), now)
    found = conditions(kubernetes, "n1")

    assert found["Ready"] == ready
    assert (found["CPUContended"]["status"], found["CPUContended"]["reason"]) == (
        "True",
        "ContentionExpected",
    )
    assert found["CPUContended"]["message"] == "pronto: CPU Ready 41 % expected within 5 s"
    assert controller.close()
    assert set(conditions(kubernetes, "n1")) == {"Ready"}


def test_heartbeat_of_a_calm_node_is_no_transition(kubernetes: Cluster, gate: KubernetesGate) -> None:
    kubernetes.add_node("n1")
    controller = Controller(gate, "n1", rules=Rules(enforce=True, prefer_seconds=2.0, observe_seconds=0))
    controller.settle(quiet(), time.time())
    first = conditions(kubernetes, "n1")["CPUContended"]

    def beaten() -> bool:
        controller.settle(quiet(), time.time())
        return conditions(kubernetes, "n1")["CPUContended"]["lastHeartbeatTime"] > first["lastHeartbeatTime"]

    wait_for(beaten, what="another heartbeat")
    assert conditions(kubernetes, "n1")["CPUContended"]["lastTransitionTime"] == first["lastTransitionTime"]


def test_rank_of_a_dead_agent_is_taken_off_with_its_condition(
    kubernetes: Cluster, gate: KubernetesGate
) -> None:
    kubernetes.add_node("n1")
    Controller(gate, "n1", rules=Rules(enforce=True, prefer_seconds=2.0)).settle(busy(), time.time())
    swept = sweep(gate, now=time.time() + 3.0)

    assert swept.restored == ["n1"]
    assert (taints(kubernetes, "n1"), set(conditions(kubernetes, "n1"))) == ([], {"Ready"})


def test_agent_may_write_only_what_is_ours_and_only_to_its_own_node(kubernetes: Cluster) -> None:
    for name in ("mine", "other"):
        kubernetes.add_node(name)
    made = [d for d in render() if d["kind"].startswith("ValidatingAdmission")]
    role = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
    account = "system:serviceaccount:pronto:pronto-agent"
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": account}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "pronto-agent"}
    binding = {"metadata": {"name": "own-node-test"}, "roleRef": reference, "subjects": [subject]}
    kubernetes.admin.call("POST", role, binding)
    for manifest in made:
        kubernetes.admin.call("POST", PLACES[manifest["kind"]], manifest)
    # What a pod's token says of it, as the API server itself reads it.
    agent = KubernetesGate(ImpersonatingServer(kubernetes, account, node="mine"))
    try:
        wait_for(lambda: _refused(agent, "other"), what="the policy to be in force", seconds=30)
        agent.prefer("mine", Rank(3, 0.6, False, time.time() + 60), busy())
        agent.refuse("mine", busy())
        agent.accept("mine")
        agent.restore("mine")
        for change in (
            {"spec": {"unschedulable": True}},
            {"spec": {"taints": [{"key": "evil", "effect": "NoSchedule"}]}},
            {"metadata": {"labels": {"role": "control-plane"}}},
        ):
            with pytest.raises(ApiError, match="pronto-own-node"):
                agent.api.patch_node("mine", change)
        sick = {"type": "Ready", "status": "False"}
        with pytest.raises(ApiError, match="pronto-own-node"):
            agent.api.patch_node("mine", {"status": {"conditions": [sick]}}, kind=STRATEGIC, status=True)
        nameless = KubernetesGate(ImpersonatingServer(kubernetes, account, node=""))
        with pytest.raises(ApiError, match="pronto-own-node"):
            nameless.refuse("mine", busy())
    finally:
        for manifest in made:
            path = f"{PLACES[manifest['kind']]}/{manifest['metadata']['name']}"
            kubernetes.admin.call("DELETE", path)
        kubernetes.admin.call("DELETE", f"{role}/own-node-test")


def _refused(gate: KubernetesGate, node: str) -> bool:
    try:
        gate.refuse(node, busy())
    except ApiError as error:
        return "pronto-own-node" in str(error)
    return False


class ImpersonatingServer(ApiServer):
    """The API server, spoken to as a pod's account on one node."""

    def __init__(self, cluster: Cluster, account: str, *, node: str) -> None:
        authority = cluster.folder / "cert" / "apiserver.crt"
        super().__init__(cluster.url, token="admin-token", ca_file=authority, timeout_seconds=10)
        self.extra = {"Impersonate-User": account}
        if node:
            self.extra["Impersonate-Extra-authentication.kubernetes.io%2fnode-name"] = node

    def headers(self) -> dict[str, str]:
        return {**super().headers(), **self.extra}


def test_taint_of_a_dead_agent_is_taken_off_once_its_verdict_has_lapsed(
    kubernetes: Cluster, gate: KubernetesGate
) -> None:
    kubernetes.add_node("dead")
    kubernetes.add_node("alive")
    gate.refuse("dead", busy(1.0))
    gate.refuse("alive", busy(60.0))
    swept = sweep(gate, now=time.time() + 2.0)

    assert (swept.opened, swept.kept) == (["dead"], ["alive"])
    assert taints(kubernetes, "dead") == []


def test_release_command_opens_every_node_of_ours_and_no_other(
    kubernetes: Cluster, gate: KubernetesGate
) -> None:
    for name in ("n1", "n2"):
        kubernetes.add_node(name)
        gate.refuse(name, busy())
    kubernetes.add_node("cordoned", unschedulable=True)
    environment = {
        **os.environ,
        "PRONTO_KUBERNETES_URL": kubernetes.url,
        "PRONTO_KUBERNETES_TOKEN": "agent-token",
        "PRONTO_KUBERNETES_CA": str(kubernetes.folder / "cert" / "apiserver.crt"),
    }
    code = "from prontosched.cli import main; main()"
    command = [sys.executable, "-c", code, "gate", "release", "--gate=kubernetes", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stderr
    assert sorted(json.loads(done.stdout)["opened"]) == ["n1", "n2"]
    assert gate.owned() == []
    assert kubernetes.admin.node("cordoned")["spec"]["unschedulable"] is True


ADMISSION = "/apis/admissionregistration.k8s.io/v1"
PLACES = {
    "ValidatingAdmissionPolicy": f"{ADMISSION}/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": f"{ADMISSION}/validatingadmissionpolicybindings",
}


def within(given: Any, kept: Any) -> bool:
    """Tell whether all that was given is still there, beside what the server added."""
    if isinstance(given, dict):
        return isinstance(kept, dict) and all(within(value, kept.get(key)) for key, value in given.items())
    if isinstance(given, list):
        return (
            isinstance(kept, list)
            and len(kept) >= len(given)
            and all(within(a, b) for a, b in zip(given, kept, strict=False))
        )
    return bool(given == kept)


def test_scheduler_takes_the_configuration_of_the_manifest(kubernetes: Cluster, tmp_path: Path) -> None:
    config = only(render("gate=extender"), "ConfigMap", "pronto-scheduler")
    body = yaml.safe_load(config["data"]["scheduler.yaml"])
    body["clientConnection"] = {"kubeconfig": str(kubernetes.folder / "kubeconfig")}
    (tmp_path / "given.json").write_text(json.dumps(body))
    program = str(BINARIES / "kube-scheduler")
    arguments = ["--config", str(tmp_path / "given.json"), "--write-config-to", str(tmp_path / "taken.yaml")]
    arguments += ["--secure-port", "0"]
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    taken = yaml.safe_load((tmp_path / "taken.yaml").read_text())

    assert within(body["extenders"][0], taken["extenders"][0])
    assert taken["profiles"][0]["schedulerName"] == "pronto"
