"""Kubernetes in the contract suite: a real API server and three nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from prontosched.gates.kubernetes import KubernetesGate
from tests.contract.gate_harness import Harness
from tests.gates.kubernetes_cluster import Cluster, require_kubernetes
from tests.processes import wait_for


@contextmanager
def taint(folder: Path) -> Iterator[Harness]:
    require_kubernetes()
    cluster = Cluster(folder)
    try:
        cluster.start()
        for node in ("n1", "n2", "n3"):
            cluster.add_node(node)

        def shown(node: str) -> str:
            """Return what `kubectl describe node` shows of it."""
            found = cluster.admin.node(node)
            notes = (found["metadata"].get("annotations") or {}).items()
            return "\n".join([*(f"{k}: {v}" for k, v in sorted(notes)), str(found["spec"].get("taints"))])

        def taints(node: str) -> object:
            return cluster.admin.node(node)["spec"].get("taints")

        def starve() -> Callable[[], None]:
            """Let a pod wait for the one node that we hold closed."""
            cluster.admin.patch_node("n1", {"metadata": {"labels": {"kubernetes.io/hostname": "n1"}}})
            cluster.add_pod("starved", nodeSelector={"kubernetes.io/hostname": "n1"})
            wait_for(lambda: "taint" in cluster.unschedulable("starved"), what="a pod that waits for n1")

            def relieve() -> None:
                path = "/api/v1/namespaces/default/pods/starved"
                cluster.admin.call("DELETE", path, {"gracePeriodSeconds": 0})

            return relieve

        yield Harness(
            gate=KubernetesGate(cluster.admin),
            again=lambda: KubernetesGate(cluster.api("admin-token")),
            nodes=("n1", "n2", "n3"),
            unknown="n99",
            close=None,
            reopen=None,
            shown=shown,
            preference=taints,
            starve=starve,
        )
    finally:
        cluster.stop()
