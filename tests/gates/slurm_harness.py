"""Slurm in the contract suite: a real controller and three nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from examples.slurm_cluster import SlurmCluster, running_cluster, wait_for
from prontosched.gates.slurm import SlurmFeatureGate, SlurmGate
from tests.contract.gate_harness import Harness
from tests.requirements import require_slurm


@contextmanager
def drain(folder: Path) -> Iterator[Harness]:
    with _cluster(folder) as cluster:

        def close(node: str) -> None:
            cluster.call("scontrol", "update", f"nodename={node}", "state=drain", "reason=disk is failing")

        def reopen(node: str) -> None:
            if cluster.field(node, "Reason").startswith("disk is failing"):
                cluster.call("scontrol", "update", f"nodename={node}", "state=resume")

        yield Harness(
            gate=SlurmGate(conf=cluster.conf),
            again=lambda: SlurmGate(conf=cluster.conf),
            nodes=tuple(cluster.nodes),
            unknown="n99",
            close=close,
            reopen=reopen,
            # A star says that the daemon has not answered for a while: nothing a gate has a hand in.
            shown=lambda node: cluster.call("sinfo", "-h", "-R", "-n", node, "-o", "%E %u %t").replace(
                "*", ""
            ),
            preference=_weight(cluster),
            starve=_starve(cluster),
        )


@contextmanager
def feature(folder: Path) -> Iterator[Harness]:
    with _cluster(folder) as cluster:

        def set_active(node: str, features: str) -> None:
            cluster.call("scontrol", "update", f"nodename={node}", f"activefeatures={features}", "extra=")

        def reopen(node: str) -> None:
            if "pronto" not in cluster.field(node, "Extra"):
                set_active(node, "pronto_admit")

        yield Harness(
            gate=SlurmFeatureGate(conf=cluster.conf),
            again=lambda: SlurmFeatureGate(conf=cluster.conf),
            nodes=tuple(cluster.nodes),
            unknown="n99",
            close=lambda node: set_active(node, ""),
            reopen=reopen,
            shown=lambda node: "\n".join(
                line.strip()
                for line in cluster.call("scontrol", "show", "node", node).splitlines()
                if line.strip().startswith(("ActiveFeatures=", "Extra="))
            ),
            preference=_weight(cluster),
            starve=_starve(cluster),
        )


def _weight(cluster: SlurmCluster) -> Callable[[str], object]:
    return lambda node: (cluster.field(node, "Weight"), cluster.field(node, "Comment"))


def _starve(cluster: SlurmCluster) -> Callable[[], Callable[[], None]]:
    def starve() -> Callable[[], None]:
        """Submit more jobs than the open nodes can hold."""
        numbers = [cluster.submit("sleep 60", "-n1") for _ in range(2 * len(cluster.nodes) + 1)]
        reasons = ("squeue", "-h", "-t", "PD", "-o", "%r")
        wait_for(lambda: "Resources" in cluster.call(*reasons), 30, "a job that waits", cluster.logs)

        def relieve() -> None:
            cluster.call("scancel", *numbers)
            wait_for(lambda: not cluster.call("squeue", "-h"), 60, "an empty queue", cluster.logs)

        return relieve

    return starve


@contextmanager
def _cluster(folder: Path) -> Iterator[SlurmCluster]:
    require_slurm()
    with running_cluster(folder, nodes=3) as cluster:
        yield cluster
