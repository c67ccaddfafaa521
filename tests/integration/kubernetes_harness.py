"""Kubernetes in the contract suite: a real API server and three nodes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prontosched.integration.kubernetes import KubernetesGate
from tests.contract.gate_harness import Harness
from tests.integration.kubernetes_cluster import Cluster, require_kubernetes


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

        yield Harness(
            gate=KubernetesGate(cluster.admin),
            again=lambda: KubernetesGate(cluster.api("admin-token")),
            nodes=("n1", "n2", "n3"),
            unknown="n99",
            close=None,
            reopen=None,
            shown=shown,
        )
    finally:
        cluster.stop()
