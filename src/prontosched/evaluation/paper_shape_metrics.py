"""The metrics of a generated VM (52) and host (134): their vSphere names and what moves each.

Every metric is a mixture of five hidden courses of its node (CPU demand, memory, network, disk, waiting)
plus noise of its own. The mixture is fixed, so a metric means the same on every node. What moves the
hidden courses is in `paper_shape`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from prontosched.subspace import Array

COURSES = ("demand", "memory", "network", "disk", "waiting")

# name: (typical size, weights on demand, memory, network, disk, waiting; noise), all relative to the size.
Mix = tuple[float, float, float, float, float, float, float]

_CPU: dict[str, Mix] = {
    "cpu.usage.average": (1e4, 1.0, 0.0, 0.0, 0.0, 0.0, 0.02),
    "cpu.usagemhz.average": (5e3, 1.0, 0.0, 0.0, 0.0, 0.0, 0.02),
    "cpu.used.summation": (2e4, 1.0, 0.0, 0.0, 0.0, 0.0, 0.03),
    "cpu.run.summation": (2e4, 1.0, 0.0, 0.0, 0.0, 0.0, 0.03),
    "cpu.wait.summation": (2e4, -0.8, 0.0, 0.0, 0.2, 0.0, 0.05),
    "cpu.idle.summation": (2e4, -0.9, 0.0, 0.0, 0.0, 0.0, 0.05),
    "cpu.system.summation": (3e2, 0.3, 0.0, 0.4, 0.3, 0.0, 0.10),
    "cpu.costop.summation": (2e2, 0.1, 0.0, 0.0, 0.0, 0.5, 0.30),
    "cpu.latency.average": (5e2, 0.2, 0.0, 0.0, 0.0, 0.5, 0.20),
    "cpu.demand.average": (5e3, 1.0, 0.0, 0.0, 0.0, 0.1, 0.02),
    "cpu.entitlement.latest": (5e3, 0.5, 0.0, 0.0, 0.0, 0.0, 0.02),
    "cpu.overlap.summation": (5e1, 0.3, 0.0, 0.3, 0.2, 0.0, 0.20),
    "cpu.maxlimited.summation": (2e1, 0.4, 0.0, 0.0, 0.0, 0.2, 0.40),
    "cpu.swapwait.summation": (1e1, 0.0, 0.6, 0.0, 0.2, 0.0, 0.40),
}
_MEMORY: dict[str, Mix] = {
    "mem.usage.average": (5e3, 0.1, 1.0, 0.0, 0.0, 0.0, 0.02),
    "mem.active.average": (2e6, 0.4, 0.8, 0.0, 0.0, 0.0, 0.05),
    "mem.activewrite.average": (1e6, 0.4, 0.6, 0.0, 0.1, 0.0, 0.06),
    "mem.consumed.average": (4e6, 0.0, 0.4, 0.0, 0.0, 0.0, 0.01),
    "mem.granted.average": (4e6, 0.0, 0.3, 0.0, 0.0, 0.0, 0.01),
    "mem.shared.average": (5e5, 0.0, -0.3, 0.0, 0.0, 0.0, 0.02),
    "mem.zero.average": (2e5, 0.0, -0.5, 0.0, 0.0, 0.0, 0.03),
    "mem.swapped.average": (1e4, 0.0, 0.7, 0.0, 0.0, 0.0, 0.10),
    "mem.swapin.average": (1e3, 0.0, 0.6, 0.0, 0.2, 0.0, 0.20),
    "mem.swapout.average": (1e3, 0.0, 0.6, 0.0, 0.2, 0.0, 0.20),
    "mem.vmmemctl.average": (5e3, 0.0, 0.8, 0.0, 0.0, 0.0, 0.10),
    "mem.vmmemctltarget.average": (5e3, 0.0, 0.8, 0.0, 0.0, 0.0, 0.15),
    "mem.overhead.average": (8e4, 0.05, 0.1, 0.0, 0.0, 0.0, 0.01),
    "mem.latency.average": (1e2, 0.1, 0.6, 0.0, 0.3, 0.0, 0.30),
}
_NETWORK: dict[str, Mix] = {
    f"net.{name}": (size, 0.3, 0.0, weight, 0.0, 0.0, noise)
    for name, size, weight, noise in (
        ("usage.average", 2e3, 0.9, 0.08),
        ("received.average", 1e3, 0.9, 0.10),
        ("transmitted.average", 1e3, 0.8, 0.10),
        ("packetsRx.summation", 4e4, 0.9, 0.08),
        ("packetsTx.summation", 4e4, 0.8, 0.08),
        ("droppedRx.summation", 4e0, 0.5, 0.60),
        ("droppedTx.summation", 2e0, 0.5, 0.60),
        ("bytesRx.average", 1e3, 0.9, 0.10),
        ("bytesTx.average", 1e3, 0.8, 0.10),
        ("multicastRx.summation", 1e2, 0.1, 0.40),
    )
}
_DISK: dict[str, Mix] = {
    name: (size, 0.2, 0.05, 0.0, weight, 0.0, noise)
    for name, size, weight, noise in (
        ("disk.usage.average", 1e3, 0.9, 0.10),
        ("disk.read.average", 5e2, 0.8, 0.15),
        ("disk.write.average", 5e2, 0.8, 0.15),
        ("disk.maxTotalLatency.latest", 1e1, 0.6, 0.30),
        ("virtualDisk.readOIO.latest", 4e0, 0.7, 0.30),
        ("virtualDisk.writeOIO.latest", 4e0, 0.7, 0.30),
        ("virtualDisk.numberReadAveraged.average", 1e2, 0.8, 0.15),
        ("virtualDisk.numberWriteAveraged.average", 1e2, 0.8, 0.15),
        ("virtualDisk.totalReadLatency.average", 5e0, 0.6, 0.30),
        ("virtualDisk.totalWriteLatency.average", 5e0, 0.6, 0.30),
    )
}
_REST: dict[str, Mix] = {
    "sys.heartbeat.summation": (2e1, -0.1, 0.0, 0.0, 0.0, -0.1, 0.05),
    "power.power.average": (4e1, 0.6, 0.0, 0.05, 0.05, 0.0, 0.02),
    "rescpu.actav1.latest": (3e3, 1.0, 0.0, 0.0, 0.0, 0.0, 0.05),
    "rescpu.runav1.latest": (3e3, 0.9, 0.0, 0.0, 0.0, 0.1, 0.05),
}
_VM: dict[str, Mix] = _CPU | _MEMORY | _NETWORK | _DISK | _REST

_DEVICES: dict[str, Mix] = (
    {f"cpu.usage.average.{core}": (1e4, 0.9, 0.0, 0.0, 0.0, 0.0, 0.12) for core in range(16)}
    | {
        f"net.{name}.vmnic{card}": (size, 0.2, 0.0, 0.9, 0.0, 0.0, 0.15)
        for card in range(8)
        for name, size in (
            ("received.average", 1e3),
            ("transmitted.average", 1e3),
            ("packetsRx.summation", 4e4),
            ("packetsTx.summation", 4e4),
        )
    }
    | {
        f"storageAdapter.{name}.vmhba{card}": (size, 0.1, 0.0, 0.0, 0.9, 0.0, 0.20)
        for card in range(6)
        for name, size in (
            ("read.average", 5e2),
            ("write.average", 5e2),
            ("commandsAveraged.average", 2e2),
            ("totalReadLatency.average", 5e0),
            ("totalWriteLatency.average", 5e0),
        )
    }
    | {
        f"rescpu.{name}.latest": (3e3, 0.9, 0.0, 0.0, 0.0, 0.0, 0.03)
        for name in ("actav5", "actav15", "runav5", "runav15")
    }
)


@dataclass(frozen=True, slots=True, eq=False)
class MetricTable:
    """The metrics of one kind of node.

    Attributes
    ----------
    names
        vSphere counter names, `d` of them; CPU Ready is not among them.
    size
        Typical size, `(d,)`.
    weights
        What each hidden course adds, relative to the size, `(d, 5)`.
    noise
        Noise of its own, relative to the size, `(d,)`.
    """

    names: tuple[str, ...]
    size: Array
    weights: Array
    noise: Array

    def mix(self, courses: Array, noise: Array) -> Array:
        """Return the metrics `(n, d)` of hidden courses `(5, n)` and standard normal noise `(n, d)`."""
        values = 1.0 + courses.T @ self.weights.T + noise * self.noise
        clipped: Array = np.maximum(values, 0.0) * self.size
        return clipped


def _table(metrics: dict[str, Mix]) -> MetricTable:
    rows = np.array(list(metrics.values()))
    return MetricTable(tuple(metrics), rows[:, 0].copy(), rows[:, 1:6].copy(), rows[:, 6].copy())


TABLES = {"vm": _table(_VM), "host": _table(_VM | _DEVICES)}
