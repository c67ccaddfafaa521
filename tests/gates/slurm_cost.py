"""What ranking costs a Slurm controller: `python -m tests.gates.slurm_cost [NODES]`.

Starts a private slurmctld with so many configured nodes (500 by default), none of them
running, and measures the controller's own CPU time for one change of every node's weight,
and for one look at every node.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from examples.slurm_cluster import SlurmCluster, wait_for
from prontosched.gates.gate import Rank, Verdict
from prontosched.gates.slurm import SlurmGate


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    nodes = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    with tempfile.TemporaryDirectory(prefix="pronto-slurm-") as folder:
        os.chmod(folder, 0o755)
        cluster = SlurmCluster(Path(folder), nodes=nodes)
        (cluster.folder / "munge").mkdir()
        (cluster.folder / "state").mkdir()
        try:
            cluster._write_conf()
            cluster._start_munge()
            cluster._run("slurmctld", "-D", "-c")
            controller: subprocess.Popen[bytes] = cluster._running[-1]
            shown = ("sinfo", "-h", "-N", "-o", "%N")
            wait_for(lambda: cluster.call(*shown, check=False).count("n") >= nodes, 60, "the controller")
            measure(cluster, controller.pid)
        finally:
            cluster.stop()


def measure(cluster: SlurmCluster, pid: int) -> None:
    gate = SlurmGate(conf=cluster.conf)
    busy = Verdict(True, 0.7, "a measurement", time.time() + 600)

    def prefer(node: str) -> None:
        gate.prefer(node, Rank(3, 0.7, True, time.time() + 300), busy)

    print(f"{len(cluster.nodes)} nodes, one call after another; every change reads the node first")
    print(f"{'':<34}{'calls a second':>16}{'controller CPU, ms a call':>28}")
    rows: list[tuple[str, Callable[[str], object]]] = [
        ("look at a node", gate.observe),
        ("change its weight and mark", prefer),
        ("put its weight back", gate.restore),
    ]
    costs = {}
    for name, act in rows:
        began, before = time.monotonic(), cpu_seconds(pid)
        for node in cluster.nodes:
            act(node)
        took, used = time.monotonic() - began, cpu_seconds(pid) - before
        costs[name] = used / len(cluster.nodes)
        print(f"{name:<34}{len(cluster.nodes) / took:>16.0f}{1000 * costs[name]:>28.2f}")
    # The worst that a controller allows: a change a minute with a look before and after, and one more look.
    worst = len(cluster.nodes) * (3 * costs[rows[0][0]] + costs[rows[1][0]]) / 60
    print(f"at one change and three looks a minute for every node: {100 * worst:.2f} % of one core")


if __name__ == "__main__":
    main()
