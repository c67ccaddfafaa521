"""Schedulers shared by the tests of this folder."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.slurm_cluster import SlurmCluster, running_cluster
from tests.gates.kubernetes_cluster import Cluster, require_kubernetes
from tests.requirements import require_slurm


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[SlurmCluster]:
    """A real controller and four nodes on loopback."""
    require_slurm()
    # Not below pytest's own folder, which keeps other users away from munge's socket.
    with tempfile.TemporaryDirectory(prefix="pronto-slurm-") as folder:
        os.chmod(folder, 0o755)
        with running_cluster(Path(folder)) as cluster:
            yield cluster


@pytest.fixture
def slurm(slurm_cluster: SlurmCluster) -> Iterator[SlurmCluster]:
    """The same cluster, with every node open again after each test."""
    yield slurm_cluster
    for node in slurm_cluster.nodes:
        if "DRAIN" in slurm_cluster.state(node):
            slurm_cluster.call("scontrol", "update", f"nodename={node}", "state=resume")
        slurm_cluster.call("scontrol", "update", f"nodename={node}", "activefeatures=pronto_admit", "extra=")
        slurm_cluster.call("scontrol", "update", f"nodename={node}", "weight=1", "comment=")


@pytest.fixture(scope="session")
def kubernetes_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A real API server and scheduler; users `agent` and `extender` have the rights of the manifests."""
    require_kubernetes()
    cluster = Cluster(tmp_path_factory.mktemp("kubernetes"))
    try:
        cluster.start()
        cluster.grant("pronto-agent", user="agent")
        cluster.grant("pronto-extender", user="extender")
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def kubernetes(kubernetes_cluster: Cluster) -> Iterator[Cluster]:
    """The same cluster, without nodes and pods after each test."""
    yield kubernetes_cluster
    kubernetes_cluster.clear()
