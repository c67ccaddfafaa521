"""A data set of the shape of the paper's: clusters of hosts and VMs, 20 s, CPU Ready in ms, 28 days.

The bank's trace is not public. This one has its shape (100 clusters, 14 hosts and 250 to 350 VMs each, 52
metrics per VM, 134 per host) and, roughly, the published shares of daily medians over 500, 800 and 1000 ms;
in everything else it is invented, and no precursor of a spike is planted in it. It is streamed hour by hour,
never held whole.

Every metric is a mixture of five hidden courses of its node (CPU demand, memory, network, disk, waiting)
plus noise of its own. The mixture is fixed, so a metric means the same on every node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from prontosched.subspace import Array

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

_CARD = (("received.average", 1e3), ("transmitted.average", 1e3), ("packetsRx.summation", 4e4),
         ("packetsTx.summation", 4e4))  # fmt: skip
_ADAPTER = (("read.average", 5e2), ("write.average", 5e2), ("commandsAveraged.average", 2e2),
            ("totalReadLatency.average", 5e0), ("totalWriteLatency.average", 5e0))  # fmt: skip
_AVERAGES = ("actav5", "actav15", "runav5", "runav15")
_DEVICES: dict[str, Mix] = {
    **{f"cpu.usage.average.{core}": (1e4, 0.9, 0.0, 0.0, 0.0, 0.0, 0.12) for core in range(16)},
    **{f"net.{name}.vmnic{card}": (size, 0.2, 0.0, 0.9, 0.0, 0.0, 0.15) for card in range(8) for name, size in _CARD},
    **{f"storageAdapter.{name}.vmhba{card}": (size, 0.1, 0.0, 0.0, 0.9, 0.0, 0.20)
       for card in range(6) for name, size in _ADAPTER},
    **{f"rescpu.{name}.latest": (3e3, 0.9, 0.0, 0.0, 0.0, 0.0, 0.03) for name in _AVERAGES},
}  # fmt: skip
INTERVAL_SECONDS = 20.0
DAY_STEPS = 4320
CHUNK_STEPS = 180  # an hour
# Monday, 5 March 2012, 00:00 UTC: the year of the paper's trace.
START_SECONDS = 1_330_905_600.0
CORES_PER_HOST = 32
MOST_READY_MS = 20_000.0
# Lag-one weights of the slow courses: a quarter of an hour, and a burst's five minutes.
_SLOW = float(np.exp(-1.0 / 45.0))
_BURST = float(np.exp(-1.0 / 15.0))


@dataclass(frozen=True, slots=True, eq=False)
class MetricTable:
    """The metrics of one kind of node; CPU Ready is not among them."""

    names: tuple[str, ...]  # of vSphere counters, `d` of them
    size: Array
    weights: Array  # what each hidden course adds, relative to the size, `(d, 5)`
    noise: Array

    def mix(self, courses: Array, noise: Array) -> Array:
        """Return the metrics `(n, d)` of hidden courses `(5, n)` and standard normal noise `(n, d)`."""
        values = 1.0 + courses.T @ self.weights.T + noise * self.noise
        return np.asarray(np.maximum(values, 0.0) * self.size)


def _table(metrics: dict[str, Mix]) -> MetricTable:
    rows = np.array(list(metrics.values()))
    return MetricTable(tuple(metrics), rows[:, 0].copy(), rows[:, 1:6].copy(), rows[:, 6].copy())


TABLES = {"vm": _table(_VM), "host": _table(_VM | _DEVICES)}


@dataclass(frozen=True, slots=True)
class PaperShape:
    """What to generate; the defaults are the paper's data set.

    >>> shape = PaperShape(clusters=1, hosts=2, vms=6, days=1, seed=1)
    >>> next(shape.stream(0)).ready_ms.shape
    (6, 180)
    """

    clusters: int = 100
    hosts: int = 14
    vms: int | None = None  # per cluster; None draws 250 to 350
    days: int = 28
    seed: int = 7  # same seed, same data, however much of it is asked for

    def __post_init__(self) -> None:
        for name in ("clusters", "hosts", "days"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.vms is not None and self.vms < self.hosts:
            raise ValueError(
                f"vms must be at least hosts ({self.hosts}), got {self.vms}: no host stays empty"
            )

    @property
    def steps(self) -> int:
        """Timesteps in the whole data set."""
        return self.days * DAY_STEPS

    def stream(
        self, cluster: int, *, kind: str = "vm", metrics_of: Sequence[int] = (), steps: int | None = None
    ) -> Iterator[ClusterHour]:
        """Yield the VMs or hosts of one cluster hour by hour: CPU Ready of all, metrics of the nodes asked for."""
        if kind not in TABLES:
            raise ValueError(f"kind must be 'vm' or 'host', got {kind!r}")
        if not 0 <= cluster < self.clusters:
            raise ValueError(f"cluster must be from 0 to {self.clusters - 1}, got {cluster}")
        wanted = self.steps if steps is None else min(steps, self.steps)
        return _Cluster(self, cluster).run(kind, tuple(metrics_of), wanted)


@dataclass(frozen=True, slots=True, eq=False)
class ClusterHour:
    """Up to an hour of one cluster."""

    cluster: str
    nodes: tuple[str, ...]
    metrics: tuple[str, ...]
    cpus: Array  # virtual CPUs of a VM or cores of a host, `(M,)`
    timestamps: Array
    ready_ms: Array  # per 20 s, summed over the node's CPUs, `(M, n)`
    utilisation: Array
    values: Array | None  # metrics of the nodes asked for, `(k, n, d)`

    def ready_percent(self) -> Array:
        """CPU Ready in percent per CPU, `(M, n)`."""
        return np.asarray(self.ready_ms / (10.0 * INTERVAL_SECONDS * self.cpus[:, None]))


class _Cluster:
    """The courses of one cluster, generated in order: a few arrays of nodes x 180 steps at a time."""

    def __init__(self, shape: PaperShape, index: int) -> None:
        self.shape, self.index = shape, index
        rng = np.random.default_rng([shape.seed, index])
        count = shape.vms if shape.vms is not None else int(rng.integers(250, 351))
        self.vms = count
        self.home = rng.permutation(np.arange(count) % shape.hosts)
        self.cpus: Array = rng.choice(np.array([1.0, 2.0, 4.0, 8.0]), size=count, p=[0.35, 0.4, 0.2, 0.05])
        self.base = rng.beta(2.0, 5.0, count)
        self.amplitude = rng.uniform(0.1, 0.7, count)
        self.peak_hour = rng.normal(14.0, 3.0, count)
        self.weekend = rng.uniform(0.4, 1.0, count)
        self.burst_rate = rng.gamma(2.0, 0.5, count) / 360.0  # about one every two hours
        self.level = rng.lognormal(5.28, 0.58, count)
        self.day_level = self._day_levels(rng)
        need = np.bincount(self.home, self.base * self.cpus, minlength=shape.hosts)
        # Overcommitted as such clusters are: on average about two thirds of the host is in use.
        self.capacity = need / rng.uniform(0.55, 0.75, shape.hosts)
        self.slow = np.zeros(count)
        self.burst = np.zeros(count)

    def _day_levels(self, rng: np.random.Generator) -> Array:
        """Return a factor per node and day that drifts from day to day, partly with the whole cluster."""
        days, hosts = self.shape.days, self.shape.hosts
        log_level = np.zeros((self.vms, days))
        own, host, shared = (np.zeros(n) for n in (self.vms, hosts, 1))
        for day in range(days):
            own = 0.7 * own + rng.normal(0.0, 0.22, self.vms)
            host = 0.8 * host + rng.normal(0.0, 0.12, hosts)
            shared = 0.8 * shared + rng.normal(0.0, 0.10, 1)
            log_level[:, day] = own + host[self.home] + shared
        return np.asarray(np.exp(log_level))

    def run(self, kind: str, metrics_of: tuple[int, ...], steps: int) -> Iterator[ClusterHour]:
        table = TABLES[kind]
        cpus = self.cpus if kind == "vm" else np.full(self.shape.hosts, float(CORES_PER_HOST))
        nodes = tuple(f"{kind}-{self.index:03d}-{node:03d}" for node in range(cpus.size))
        hidden = {node: np.zeros(3) for node in metrics_of}
        for start in range(0, steps, CHUNK_STEPS):
            ready, use = self._hour(start // CHUNK_STEPS)
            if kind == "host":
                ready, use = self._hosts(ready, use)
            length = min(CHUNK_STEPS, steps - start)
            values = None
            if metrics_of:
                values = np.empty((len(metrics_of), length, len(table.names)))
                for place, node in enumerate(metrics_of):
                    seeds = (self.shape.seed, self.index, start // CHUNK_STEPS, node, int(kind == "host"), 1)
                    rng = np.random.default_rng(seeds)
                    courses = _hidden_courses(hidden[node], use[node], ready[node], rng)
                    noise = rng.standard_normal((CHUNK_STEPS, len(table.names)))
                    values[place] = table.mix(courses, noise)[:length]
            times = START_SECONDS + INTERVAL_SECONDS * np.arange(start, start + length, dtype=np.float64)
            yield ClusterHour(
                cluster=f"cluster-{self.index:03d}",
                nodes=nodes,
                metrics=table.names,
                cpus=cpus,
                timestamps=times,
                ready_ms=ready[:, :length],
                utilisation=100.0 * use[:, :length],
                values=values,
            )

    def _hour(self, chunk: int) -> tuple[Array, Array]:
        """Return CPU Ready in ms and the use of its CPUs, from 0 to 1, of every VM, `(vms, 180)`."""
        rng = np.random.default_rng([self.shape.seed, self.index, chunk, 0])
        hour = (chunk * CHUNK_STEPS + np.arange(CHUNK_STEPS)) / CHUNK_STEPS
        day = chunk * CHUNK_STEPS // DAY_STEPS
        swing = np.cos((hour[None, :] - self.peak_hour[:, None]) * (2.0 * np.pi / 24.0))
        course = 1.0 + self.amplitude[:, None] * swing
        if day % 7 >= 5:
            course *= self.weekend[:, None]
        shape = (self.vms, CHUNK_STEPS)
        shocks = rng.standard_normal(shape) * np.sqrt(1.0 - _SLOW**2)
        slow, self.slow = _follow(shocks, _SLOW, self.slow)
        starts = (rng.random(shape) < self.burst_rate[:, None]) * rng.uniform(0.2, 0.8, shape)
        burst, self.burst = _follow(starts, _BURST, self.burst)
        use = np.clip(self.base[:, None] * course * np.exp(0.3 * slow) + burst, 0.0, 1.0)
        load = np.zeros((self.shape.hosts, CHUNK_STEPS))
        np.add.at(load, self.home, use * self.cpus[:, None])
        load /= self.capacity[:, None]
        # Waiting grows steeply with the load of the host, and with what the VM itself wants.
        crowding = np.clip(load[self.home] / 0.7, 0.1, 2.5) ** 3
        jitter = np.exp(0.45 * rng.standard_normal(shape))
        own = 0.7 + 0.3 * use / np.maximum(self.base[:, None], 0.05)
        ready = (self.level * self.day_level[:, day])[:, None] * crowding * own * jitter
        return np.minimum(ready, MOST_READY_MS * self.cpus[:, None]), use

    def _hosts(self, ready: Array, use: Array) -> tuple[Array, Array]:
        shape = (self.shape.hosts, CHUNK_STEPS)
        waiting, load = np.zeros(shape), np.zeros(shape)
        np.add.at(waiting, self.home, ready)
        np.add.at(load, self.home, use * self.cpus[:, None])
        return waiting, np.minimum(load / self.capacity[:, None], 1.0)


def _follow(shocks: Array, weight: float, state: Array) -> tuple[Array, Array]:
    """Return the first-order course of `shocks` along time, going on from `state`, and its new state."""
    course = np.empty_like(shocks)
    for step in range(shocks.shape[-1]):
        state = course[..., step] = shocks[..., step] + weight * state
    return course, state.copy()


def _hidden_courses(state: Array, use: Array, ready: Array, rng: np.random.Generator) -> Array:
    """Return the five courses behind a node's metrics, `(5, n)`; `state` goes on in place."""
    shocks = rng.standard_normal((3, len(use))) * np.sqrt(1.0 - _SLOW**2)
    slow, state[:] = _follow(shocks, _SLOW, state)
    memory = 0.3 * slow[0]
    network = 0.5 * use + 0.3 * slow[1]
    disk = 0.4 * slow[2] + 0.5 * (rng.random(len(use)) < 0.02)
    waiting = np.log1p(ready / 1000.0)
    return np.stack([use, memory, network, disk, waiting])
