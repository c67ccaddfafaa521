"""The taint gate and the extender against a real etcd, API server and scheduler.

Skipped with a message where they are not built: `sh tests/build_kubernetes.sh`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from prontosched.integration.extender_decisions import CalledDecisions
from prontosched.integration.extender_ledger import Ledger
from prontosched.integration.extender_server import Extender
from prontosched.integration.extender_wake import CONDITION, Waker
from prontosched.integration.gate import Verdict
from prontosched.integration.kubernetes import KEY, KubernetesGate
from prontosched.integration.kubernetes_client import ApiError, ApiServer
from prontosched.integration.policy import Rules
from prontosched.integration.sweep import release, sweep
from tests.integration.kubernetes_cluster import Cluster, missing, wait_for

DEPLOY = Path(__file__).parent.parent.parent / "deploy" / "kubernetes"
TOLERATION = {"key": KEY, "operator": "Exists", "effect": "NoSchedule"}
DEDICATED = {"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


def busy(seconds: float = 60.0, score: float = 0.8) -> Verdict:
    return Verdict(True, score, "CPU Ready expected at 12 %", valid_until=time.time() + seconds)


def quiet() -> Verdict:
    return Verdict(False, 0.1, "nothing spikes", valid_until=time.time() + 60.0)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("kubernetes"))
    try:
        cluster.start()
        grant(cluster, "pronto-agent", user="agent")
        grant(cluster, "pronto-extender", user="extender")
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def cluster(running: Cluster) -> Iterator[Cluster]:
    yield running
    running.clear()


@pytest.fixture
def gate(cluster: Cluster) -> KubernetesGate:
    """A gate with the rights of the manifest and no others."""
    return KubernetesGate(cluster.api("agent-token"))


def grant(cluster: Cluster, role: str, *, user: str) -> None:
    """Create the manifest's role and bind it to a user of the test."""
    documents = list(yaml.safe_load_all((DEPLOY / "rbac.yaml").read_text()))
    (body,) = (d for d in documents if d["kind"] == "ClusterRole" and d["metadata"]["name"] == role)
    group = "/apis/rbac.authorization.k8s.io/v1"
    cluster.admin.call("POST", f"{group}/clusterroles", body)
    binding = {
        "metadata": {"name": role},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    }
    cluster.admin.call("POST", f"{group}/clusterrolebindings", binding)
    wait_for(lambda: _allowed(cluster.api(f"{user}-token")), what=f"rights of {user}")


def _allowed(api: ApiServer) -> bool:
    try:
        return list(api.nodes()) is not None
    except ApiError as error:
        if error.status != 403:
            raise
        return False


def taints(cluster: Cluster, node: str) -> list[dict[str, Any]]:
    return list(cluster.admin.node(node)["spec"].get("taints") or [])


def test_refusal_keeps_a_pod_pending_with_the_reason_and_accepting_places_it(
    cluster: Cluster, gate: KubernetesGate
) -> None:
    cluster.add_node("n1")
    gate.refuse("n1", busy())
    cluster.add_pod("waits")

    message = wait_for(lambda: cluster.unschedulable("waits"), what="a word on the pod")
    assert "pronto.io/reject: cpu-ready-expected-at-12" in message
    gate.accept("n1")
    wait_for(lambda: cluster.placed("waits") == "n1", what="the pod on n1")


def test_pods_go_elsewhere_while_one_node_refuses_and_tolerant_ones_still_come(
    cluster: Cluster, gate: KubernetesGate
) -> None:
    cluster.add_node("n1")
    cluster.add_node("n2")
    gate.refuse("n1", busy())
    for i in range(6):
        cluster.add_pod(f"job{i}")
    cluster.add_pod("tolerant", tolerations=[TOLERATION], nodeSelector={"kubernetes.io/hostname": "n1"})
    cluster.admin.patch_node("n1", {"metadata": {"labels": {"kubernetes.io/hostname": "n1"}}})

    where = wait_for(
        lambda: (
            all(cluster.placed(f"job{i}") for i in range(6)) and [cluster.placed(f"job{i}") for i in range(6)]
        ),
        what="six pods placed",
    )
    assert where == ["n2"] * 6
    wait_for(lambda: cluster.placed("tolerant") == "n1", what="the tolerant pod on n1")


def test_administrators_taints_and_cordons_survive_all_that_we_do(
    cluster: Cluster, gate: KubernetesGate
) -> None:
    cluster.add_node("mine", taints=[DEDICATED])
    cluster.add_node("cordoned", unschedulable=True)
    for node in ("mine", "cordoned"):
        gate.refuse(node, busy())
    assert gate.owned() == ["mine"]
    assert gate.observe("cordoned").state == "closed-by-other"
    swept = release(gate)

    assert swept.opened == ["mine"]
    assert taints(cluster, "mine") == [DEDICATED]
    assert cluster.admin.node("cordoned")["spec"]["unschedulable"] is True
    assert not any(
        key.startswith("pronto.io/") for key in cluster.admin.node("mine")["metadata"].get("annotations", {})
    )


def test_write_against_an_old_version_is_refused_with_409(cluster: Cluster, gate: KubernetesGate) -> None:
    cluster.add_node("n1")
    stale = cluster.admin.node("n1")["metadata"]["resourceVersion"]
    gate.refuse("n1", busy())
    with pytest.raises(ApiError, match=r"409 .*object has been modified") as caught:
        gate.api.patch_node("n1", {"metadata": {"resourceVersion": stale}, "spec": {"taints": []}})

    assert caught.value.status == 409
    assert gate.observe("n1").ours


def test_rival_writers_lose_nothing_of_each_other(cluster: Cluster, gate: KubernetesGate) -> None:
    cluster.add_node("n1")
    admin = KubernetesGate(cluster.admin)

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

    assert {taint["key"] for taint in taints(cluster, "n1")} == {KEY, *(f"rival-{i}" for i in range(4))}


def test_manifests_rights_are_enough_for_the_gate_and_for_nothing_else(
    cluster: Cluster, gate: KubernetesGate
) -> None:
    cluster.add_node("n1")
    gate.refuse("n1", busy())
    gate.accept("n1")
    assert gate.census().in_service == 1
    for path in ("/api/v1/pods", "/api/v1/secrets"):
        with pytest.raises(ApiError, match=r"403 .*forbidden"):
            gate.api.call("GET", path)
    with pytest.raises(ApiError, match=r"403 .*forbidden"):
        gate.api.call("DELETE", "/api/v1/nodes/n1")


def test_taint_of_a_dead_agent_is_taken_off_once_its_verdict_has_lapsed(
    cluster: Cluster, gate: KubernetesGate
) -> None:
    cluster.add_node("dead")
    cluster.add_node("alive")
    gate.refuse("dead", busy(1.0))
    gate.refuse("alive", busy(60.0))
    swept = sweep(gate, now=time.time() + 2.0)

    assert (swept.opened, swept.kept) == (["dead"], ["alive"])
    assert taints(cluster, "dead") == []


@contextmanager
def extending(
    cluster: Cluster, verdicts: dict[str, Verdict], *, wake: bool, enforce: bool = True
) -> Iterator[Extender]:
    """Run an extender where the scheduler asks, with the rights of its manifest."""
    rules = Rules(enforce=enforce, min_hold_seconds=0.0, min_accept_seconds=0.0, max_refusing=1.0)
    ledger = Ledger(CalledDecisions(verdicts.get), rules)
    ledger.see([node["metadata"]["name"] for node in cluster.admin.nodes()], time.time())
    ledger.settle(time.time())
    waker = Waker(cluster.api("extender-token"))
    extender = Extender(ledger, announce=waker.announce if wake else None)
    loop = asyncio.new_event_loop()
    runner = web.AppRunner(extender.application())

    async def start() -> None:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", cluster.extender_port).start()

    loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield extender
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_extender_sends_pods_elsewhere_and_prefers_quiet_nodes(cluster: Cluster) -> None:
    for name in ("n1", "n2", "n3"):
        cluster.add_node(name)
    worried = Verdict(False, 0.9, "nearly", valid_until=time.time() + 60.0)
    with extending(cluster, {"n1": busy(), "n2": worried, "n3": quiet()}, wake=False) as extender:
        for i in range(5):
            cluster.add_pod(f"job{i}")
        wait_for(lambda: all(cluster.placed(f"job{i}") for i in range(5)), what="five pods placed")

    assert {cluster.placed(f"job{i}") for i in range(5)} == {"n3"}
    assert extender.counts["filter"] >= 5
    assert extender.counts["malformed"] == 0


def test_pod_that_the_extender_refused_says_why_and_wakes_when_the_node_opens(cluster: Cluster) -> None:
    cluster.add_node("n1")
    cluster.add_node("n2")
    verdicts = {"n1": busy(), "n2": busy()}
    with extending(cluster, verdicts, wake=True):
        cluster.add_pod("waits")
        message = wait_for(lambda: cluster.unschedulable("waits"), what="a word on the pod")
        assert "pronto: CPU Ready expected at 12 %" in message
        verdicts["n1"] = quiet()
        wait_for(lambda: cluster.placed("waits") == "n1", seconds=10, what="the pod on n1")

        conditions = {c["type"]: c for c in cluster.admin.node("n1")["status"]["conditions"]}
        assert conditions[CONDITION]["status"] == "True"
        assert conditions["Ready"]["status"] == "True"


def test_without_a_node_event_the_pod_would_stay_pending(cluster: Cluster) -> None:
    """Why the waker exists; the scheduler itself looks again only after a minute."""
    cluster.add_node("n1")
    cluster.add_node("n2")
    verdicts = {"n1": busy(), "n2": busy()}
    with extending(cluster, verdicts, wake=False) as extender:
        cluster.add_pod("waits")
        wait_for(lambda: cluster.unschedulable("waits"), what="a word on the pod")
        verdicts |= {"n1": quiet(), "n2": quiet()}
        wait_for(lambda: not extender.ledger.refusal("n1", time.time()), what="an open ledger")
        time.sleep(2.5)

        assert cluster.placed("waits") == ""


def test_scheduler_places_pods_while_the_extender_is_away_or_in_shadow_mode(cluster: Cluster) -> None:
    cluster.add_node("n1")
    cluster.add_pod("away")
    wait_for(lambda: cluster.placed("away") == "n1", what="a pod placed without an extender")
    with extending(cluster, {"n1": busy()}, wake=True, enforce=False):
        cluster.add_pod("shadow")
        wait_for(lambda: cluster.placed("shadow") == "n1", what="a pod placed in shadow mode")

    assert all(c["type"] != CONDITION for c in cluster.admin.node("n1")["status"]["conditions"])


def test_waker_undoes_what_dead_agents_and_extenders_left(cluster: Cluster, gate: KubernetesGate) -> None:
    for name in ("n1", "n2"):
        cluster.add_node(name)
    waker = Waker(cluster.api("extender-token"))
    waker._write("n1", refuse=True, message="left behind")
    waker._write("n2", refuse=True, message="still so")
    gate.refuse("n1", busy(-5.0))
    in_service = Waker(cluster.api("extender-token")).refresh(lambda node: node == "n2")
    status = {
        name: {c["type"]: c["status"] for c in cluster.admin.node(name)["status"]["conditions"]}[CONDITION]
        for name in ("n1", "n2")
    }

    assert set(in_service) == {"n1", "n2"}
    assert status == {"n1": "True", "n2": "False"}
    assert taints(cluster, "n1") == []
