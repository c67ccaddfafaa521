"""What a Linux machine lets us measure, what not and why, and what reading it costs.

For people: each finding has a reason and, where there is one, a remedy. Printed by `pronto check`.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from prontosched.telemetry.linux import LinuxSource
from prontosched.telemetry.linux.threads import UNCOUNTED_STATE
from prontosched.telemetry.probe import PROBE_SECONDS, Probe

COST_READS = 20
PROBES, PROBES_SECONDS = 3, 3.0
PSI_REMEDY = "boot the kernel with psi=1"
CGROUP_REMEDY = "the root cgroup has none, and v1 controllers hide it"
# By the end of its path: what a file is good for, and what to do where it cannot be read.
MEANINGS = {
    "proc/stat": ("CPU times, interrupts, context switches", ""),
    "proc/loadavg": ("load and run queue", ""),
    "proc/meminfo": ("memory", ""),
    "proc/vmstat": ("paging and reclaim", ""),
    "pressure/cpu": ("CPU pressure; also the check on CPU Ready", PSI_REMEDY),
    "pressure/io": ("I/O pressure", PSI_REMEDY),
    "pressure/memory": ("memory pressure", PSI_REMEDY),
    "pressure/irq": ("interrupt pressure", "needs a kernel with CONFIG_IRQ_TIME_ACCOUNTING; not important"),
    "proc/schedstat": ("CPU Ready where threads cannot be read", "only needed where threads are hidden"),
    "sys/fs/file-nr": ("open files", ""),
    "sys/fs/inode-nr": ("inodes", ""),
    "sys/fs/dentry-state": ("directory entries", ""),
    "proc/interrupts": ("interrupts by kind", ""),
    "proc/diskstats": ("disks", ""),
    "net/dev": ("network interfaces", ""),
    "net/snmp": ("network protocols", ""),
    "net/netstat": ("network protocols, extended", ""),
    "net/sockstat": ("sockets", ""),
    "net/softnet_stat": ("packets put off or dropped", ""),
    "cpu.stat": ("CPU time and throttling of the cgroup", ""),
    "memory.events": ("memory limits of the cgroup", CGROUP_REMEDY),
    "memory.current": ("memory of the cgroup", CGROUP_REMEDY),
    "memory.swap.current": ("swap of the cgroup", CGROUP_REMEDY),
    "pids.current": ("threads of the cgroup", CGROUP_REMEDY),
    "cgroup.stat": ("cgroups below", ""),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that can be measured, or not: its state is `ok`, `absent`, `forbidden`, `hidden` or other words."""

    what: str
    path: str
    state: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU time of one reading, and what that is of a core at one reading a second."""

    milliseconds: float
    percent_of_core: float


@dataclass(frozen=True, slots=True)
class MachineReport:
    """What `pronto check` says."""

    kernel: str
    cpus: int
    root: str
    metrics: int
    threads: int
    ready_percent: float
    ready_parts: dict[str, float]
    ready_note: str
    utilisation_percent: float
    findings: tuple[Finding, ...]
    cost: Cost
    probe: Cost


def inspect_machine(root: str | os.PathLike[str] = "/", *, seconds: float = 1.0) -> MachineReport:
    """Read the machine under `root` for some seconds and say what it can measure."""
    source = LinuxSource(root)
    try:
        source.read()
        time.sleep(seconds)
        (sample,) = source.read()
        parts = source.ready.parts()
        costs = []
        for _ in range(COST_READS):
            source.read()
            costs.append(source.cost_seconds)
            time.sleep(0.01)
        findings = _findings(source)
        scanned = source.ready_reader.waiting.threads
    finally:
        source.close()
    middle = statistics.median(costs)
    return MachineReport(
        kernel=_kernel(root),
        cpus=source.cpus,
        root=os.fspath(root),
        metrics=len(sample.metrics),
        threads=scanned,
        ready_percent=sample.ready,
        ready_parts=parts,
        ready_note="; ".join(sample.notes),
        utilisation_percent=sample.utilisation,
        findings=findings,
        cost=Cost(1e3 * middle, 100.0 * middle),
        probe=_probe_cost(root),
    )


def _probe_cost(root: str | os.PathLike[str]) -> Cost:
    """Return what one probe costs, and what that is of a core at the agent's pace."""
    probe = Probe(root, every_seconds=0.0)
    costs: list[float] = []
    end = time.monotonic() + PROBES_SECONDS
    while len(costs) < PROBES and time.monotonic() < end:
        if (found := probe.poll(time.monotonic())) is not None:
            costs.append(found.cpu_seconds)
        time.sleep(0.01)
    probe.close()
    middle = statistics.median(costs) if costs else float("nan")
    return Cost(1e3 * middle, 100.0 * middle / PROBE_SECONDS)


def _kernel(root: str | os.PathLike[str]) -> str:
    try:
        return Path(root, "proc/sys/kernel/osrelease").read_text().strip()
    except OSError:
        return platform.release()


def _findings(source: LinuxSource) -> tuple[Finding, ...]:
    trouble, reader = source.trouble, source.ready_reader
    threads = reader.scanner.trouble or ("hidden" if reader.hidden else "ok")
    remedy = "mount /proc without hidepid, or run in the host's PID namespace"
    remedy = {
        "ok": "",
        "absent": "needs a kernel with CONFIG_SCHEDSTATS",
        UNCOUNTED_STATE: "boot the kernel with delayacct",
    }.get(threads, remedy)
    found = [Finding("CPU Ready, thread by thread", "proc/*/task/*/schedstat", threads, remedy)]
    told = reader.sorter.cgroups.told_apart
    remedy = "mount the host's /sys as well: what quotas held back counts as contention without it"
    state, remedy = ("ok", "") if told else ("absent", remedy)
    found.append(Finding("quotas, to be told from contention", "sys/fs/cgroup", state, remedy))
    for path in (*source.paths, "proc/schedstat"):
        what, remedy = next((m for end, m in MEANINGS.items() if path.endswith(end)), (path, ""))
        state = trouble.get(path, "ok")
        if path == "proc/schedstat" and not Path(source.root, path).exists():
            state = "absent"
        if state == "forbidden":
            remedy = "run as a user who may read it"
        found.append(Finding(what, path, state, "" if state == "ok" else remedy))
    return tuple(found)
