"""The machine itself as a source: /proc and /sys, read from any root folder.

Covers the reading of all files in one go, counters to rates, utilisation, the list of metrics, and CPU Ready
(`ReadyReader`). What each file means is in `metrics`, the waiting of threads in `threads`.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from prontosched.errors import TelemetryError
from prontosched.subspace import Array
from prontosched.telemetry.linux.files import Files
from prontosched.telemetry.linux.metrics import (
    INTERRUPTS_CORES_LIMIT,
    Metric,
    NamedInterrupts,
    Section,
    Stat,
    sections,
)
from prontosched.telemetry.linux.threads import Consumer, ThreadScanner, Waiting, WaitingSorter
from prontosched.telemetry.source import MIXED_NOTE, Rates, Sample

# Places of modes among the ten numbers of the line `cpu` in /proc/stat, which come first.
USER, NICE, IDLE, IOWAIT, STEAL, FIRST_GUEST = 0, 1, 3, 4, 7, 8
# Place of the number of threads in /proc/loadavg. The kernel counts those of other namespaces as well.
THREADS = 4
THREAD_METRICS = [
    Metric("processes"),
    Metric("threads_seen"),
    Metric("threads_born_per_second"),
    # Waiting that is not in CPU Ready; what is would put the answer into the question.
    Metric("waiting_throttled_percent"),
    Metric("waiting_background_percent"),
]
# Threads see a little less than the pressure total by chance alone; a note is worth more than that.
NOTE_MARGIN_PERCENT = 1.0
# Threads come and go between two files; only more than these are missing.
HIDDEN_SHARE = 0.2
HIDDEN_SLACK = 16
PARTS_NOTE = "waiting at normal priority and steal; apart: held back by quotas, background"
NO_CGROUPS_NOTE = "waiting at normal priority and steal; no cgroups to tell quotas by"
PART_NAMES = ("normal", "unseen", "steal", "throttled", "background")


class LinuxSource:
    """Read one Linux machine, at every call as much as it lets us.

    The first reading has no rates yet: counters, `ready` and `utilisation` are NaN. A file that was
    readable once and is not any more leaves its metrics NaN; one that never was leaves them out.

    Parameters
    ----------
    root
        Folder that holds `proc` and `sys`: `/`, or where a container has the host's mounted.
    interval_seconds
        Time between two readings as planned. The true time is measured.
    node
        Name of the node; the host name if not given.
    threads
        Whether CPU Ready may be measured thread by thread.
    clock, monotonic
        Where the time comes from.

    Attributes
    ----------
    metrics
        Names of the metrics: the same tuple object while nothing changed.
    trouble
        By path why it cannot be read: `absent`, `forbidden`, `not understood`, or the system's words.
    paths
        Files that are read, below the root.
    ready_reader
        The part that measures CPU Ready.
    cost_seconds
        CPU time of the last reading.

    Notes
    -----
    Memory: a few numbers per metric and a few hundred bytes per thread of the machine.
    """

    name = "linux"

    def __init__(
        self,
        root: str | os.PathLike[str] = "/",
        interval_seconds: float = 1.0,
        node: str | None = None,
        *,
        threads: bool = True,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._files = Files(root)
        self.root = self._files.root
        if not self._files.exists("proc/stat"):
            raise TelemetryError(
                f"{self._files.path('proc')}: a Linux machine must have proc/stat under its root: "
                "name another root, or replay a trace"
            )
        self.interval_seconds = interval_seconds
        self.node = node or socket.gethostname()
        self.metrics: tuple[str, ...] = ()
        self.trouble = self._files.trouble
        self.cost_seconds = 0.0
        self.ready_reader = ReadyReader(self._files, interval_seconds=interval_seconds, threads=threads)
        self._clock = clock
        self._monotonic = monotonic
        self._stat = Stat(float(os.sysconf("SC_CLK_TCK")))
        self._sections: list[Section] = [self._stat, *self._find_sections()]
        self.paths = tuple(section.path for section in self._sections)
        # Metrics of each section as of the last schema; none until its file was read once.
        self._described: dict[str, list[Metric]] = {}
        self._rates = Rates(0)
        self._counters: dict[str, int] = {}
        self._counter_places = np.empty(0, dtype=np.intp)
        self._factors = np.empty(0)
        self._last_seconds = math.nan
        self._last_modes: list[float] = []
        self._closed = False

    @property
    def cpus(self) -> int:
        """CPUs online at the last reading."""
        return self._stat.cpus

    @property
    def ready(self) -> CpuReady:
        """CPU Ready as of the last reading, with its parts."""
        return self.ready_reader.last

    @property
    def consumers(self) -> tuple[Consumer, ...]:
        """Who used CPUs and who waited for them over the last seconds."""
        return self.ready_reader.sorter.consumers

    def exclude_thread(self) -> None:
        """Leave the calling thread out of CPU Ready from now on."""
        self.ready_reader.exclude_thread()

    def read(self) -> list[Sample]:
        """Read the machine once, now."""
        if self._closed:
            raise ValueError("read from a closed source")
        begin = time.thread_time()
        timestamp, now = self._clock(), self._monotonic()
        seconds = now - self._last_seconds
        self._last_seconds = now
        found = {section.path: self._parse(section) for section in self._sections}
        busy, steal, nice = self._shares(found["proc/stat"])
        load, pressure = found["proc/loadavg"], found["proc/pressure/cpu"]
        times = CpuTimes(
            seconds=seconds,
            cpus=max(1, self._stat.cpus),
            busy=busy,
            steal=steal,
            nice=nice,
            threads=load[THREADS] if load else math.nan,
            pressure=pressure[0] if pressure else math.nan,
        )
        ready = self.ready_reader.read(times)
        vector = self._vector(found, self._thread_numbers(seconds), seconds)
        self.cost_seconds = time.thread_time() - begin
        sample = Sample(self.node, self.metrics, vector, timestamp, ready.percent, 100.0 * busy, ready.notes)
        return [sample]

    def close(self) -> None:
        """Let go of all files."""
        self._closed = True
        self._files.close()
        self.ready_reader.close()

    def _find_sections(self) -> list[Section]:
        # The network of the machine is that of its first process; /proc/net is that of ours.
        network = "proc/1/net" if self._files.read("proc/1/net/dev") else "proc/net"
        self.trouble.clear()
        folders = ("sys/fs/cgroup", "sys/fs/cgroup/unified")
        cgroup = next((f for f in folders if self._files.exists(f"{f}/cgroup.controllers")), None)
        return sections(network=network, cgroup=cgroup)

    def _parse(self, section: Section) -> list[float] | None:
        if section.path == NamedInterrupts.path and self._stat.cpus > INTERRUPTS_CORES_LIMIT:
            self.trouble[section.path] = f"left out above {INTERRUPTS_CORES_LIMIT} CPUs"
            return section.parse(b"")
        data = self._files.read(section.path)
        if data is None:
            return None
        try:
            values = section.parse(data) if data else []
        except (ValueError, IndexError, KeyError):
            values = []
        if not data or len(values) != len(section.metrics):
            self.trouble[section.path] = "not understood" if data else "empty"
            return None
        return values

    def _shares(self, stat: list[float] | None) -> tuple[float, float, float]:
        """Return since the last reading the busy and stolen share of all CPUs, and that of programs at low priority."""
        modes = stat[:FIRST_GUEST] if stat else []
        last, self._last_modes = self._last_modes, modes
        if not modes or not last:
            return math.nan, math.nan, math.nan
        # Counters of idle and iowait are corrected downwards now and then.
        deltas = [max(0.0, new - old) for new, old in zip(modes, last, strict=True)]
        total = math.fsum(delta for delta in deltas if delta == delta)
        if not total > 0.0:
            return math.nan, math.nan, math.nan
        programs = deltas[USER] + deltas[NICE]
        nice = deltas[NICE] / programs if programs > 0.0 else 0.0
        return 1.0 - (deltas[IDLE] + deltas[IOWAIT]) / total, deltas[STEAL] / total, nice

    def _thread_numbers(self, seconds: float) -> list[float]:
        waiting, last = self.ready_reader.waiting, self.ready_reader.last
        if not waiting.threads:
            return [math.nan] * len(THREAD_METRICS)
        born = waiting.born / seconds if seconds > 0 else math.nan
        return [float(waiting.processes), float(waiting.threads), born, last.throttled, last.background]

    def _vector(self, found: dict[str, list[float] | None], threads: list[float], seconds: float) -> Array:
        changed = False
        flat: list[float] = []
        for section in self._sections:
            values, described = found[section.path], self._described.get(section.path)
            if values is not None:
                if section.metrics is not described:
                    self._described[section.path] = section.metrics
                    changed = True
                flat += values
            elif described is not None:
                flat += [math.nan] * len(described)
        if changed:
            self._describe()
        vector = np.array(flat + threads)
        rates = self._rates.step(vector[self._counter_places], seconds=seconds)
        vector[self._counter_places] = rates
        vector *= self._factors
        return vector

    def _describe(self) -> None:
        """Make a new list of metrics; counters that were there before keep their last reading."""
        described = [self._described.get(path, []) for path in self.paths]
        metrics = [metric for part in (*described, THREAD_METRICS) for metric in part]
        self.metrics = tuple(metric.name for metric in metrics)
        self._factors = np.array([metric.factor for metric in metrics])
        counters = [(place, metric.name) for place, metric in enumerate(metrics) if metric.counter]
        self._counter_places = np.array([place for place, _ in counters], dtype=np.intp)
        self._rates.relabel([self._counters.get(name, -1) for _, name in counters])
        self._counters = {name: place for place, (_, name) in enumerate(counters)}


class CpuTimes(NamedTuple):
    """What the CPUs did since the last reading; NaN where unknown, and `seconds` at the first.

    Attributes
    ----------
    busy, steal
        Share of all CPUs that was busy, and that the hypervisor gave to others, in [0, 1].
    nice
        Share of programs' time that was of low priority, in [0, 1].
    threads
        How many threads the kernel counts, hidden ones included.
    pressure
        Time for which some task waited for a CPU since boot (PSI), in microseconds.
    """

    seconds: float
    cpus: int
    busy: float
    steal: float
    nice: float
    threads: float
    pressure: float


class CpuReady(NamedTuple):
    """CPU Ready in percent per CPU, its parts, and notes on where it came from.

    Attributes
    ----------
    percent
        CPU Ready: `normal`, `unseen` and `steal`.
    normal
        Waiting of threads at normal priority, without what quotas held back.
    unseen
        Waiting of threads too short-lived or hidden, from the pressure total.
    steal
        Time for which the hypervisor ran somebody else.
    throttled, background
        Waiting that does not count: for quotas, and at low priority. NaN where it cannot be told.
    """

    percent: float
    notes: tuple[str, ...]
    normal: float = math.nan
    unseen: float = math.nan
    steal: float = math.nan
    throttled: float = math.nan
    background: float = math.nan

    def parts(self) -> dict[str, float]:
        """Return the parts by name, in percent per CPU."""
        return {name: getattr(self, name) for name in PART_NAMES}


class ReadyReader:
    """Measure CPU Ready between two readings, thread by thread if `threads` may be read.

    `waiting` is what the last scan of threads saw, `hidden` whether the kernel counts far more threads than that,
    `last` what the last reading gave.
    """

    def __init__(self, files: Files, *, interval_seconds: float, threads: bool = True) -> None:
        self._files = files
        self._threads = threads
        self.scanner = ThreadScanner(files.path("proc"), interval_seconds=interval_seconds)
        self.sorter = WaitingSorter(files)
        self.waiting = Waiting()
        self.hidden = False
        self.last = CpuReady(math.nan, ())
        self._pressure_total = math.nan
        # Waiting by CPU; None where the kernel has no such file.
        self._schedstat: dict[bytes, float] | None = {}
        self._notes: dict[str, tuple[str, ...]] = {}

    def read(self, times: CpuTimes) -> CpuReady:
        """Return CPU Ready since the last reading."""
        self.last = self._read(times)
        return self.last

    def exclude_thread(self) -> None:
        """Leave the calling thread out from now on: a probe's waiting is its own doing."""
        try:
            # As the machine's own /proc numbers it, which may be that of another PID namespace.
            number = os.path.basename(os.readlink(self._files.path("proc/thread-self")))
            self.scanner.excluded |= {int(number)}
        except (OSError, ValueError):
            return

    def close(self) -> None:
        """Let go of the threads' files."""
        self.scanner.close()

    def _read(self, times: CpuTimes) -> CpuReady:
        pressure = self._pressure_percent(times)
        steal = 100.0 * times.steal
        stolen = steal if steal == steal else 0.0
        pressure_trouble = self._files.trouble.get("proc/pressure/cpu", "")
        why = "threads not wanted"
        if self._threads:
            self.waiting = self.scanner.scan(times.threads)
            if self.waiting.listed:
                missing = times.threads - self.waiting.threads
                self.hidden = missing > HIDDEN_SLACK + HIDDEN_SHARE * times.threads
            # Without pressure nothing tells what hidden threads waited, but the whole machine's figure does.
            if not self.scanner.trouble and not (self.hidden and pressure_trouble):
                return self._from_threads(times, pressure, stolen)
            why = f"threads {self.scanner.trouble or 'hidden'}"
        if self._schedstat is not None:
            waited = self._schedstat_seconds(self._schedstat)
            if waited is not None:
                percent = 100.0 * waited / times.seconds / times.cpus
                notes = self._noted(f"ready from /proc/schedstat: {why}", MIXED_NOTE)
                return CpuReady(percent + stolen, notes, percent, 0.0, steal)
            self._schedstat = None
        if self._threads and not self.scanner.trouble:
            return self._from_threads(times, pressure, stolen)
        if not pressure_trouble:
            notes = self._noted(f"ready from PSI, a lower bound: {why}, /proc/schedstat absent", MIXED_NOTE)
            return CpuReady(pressure + stolen, notes, math.nan, pressure, steal)
        notes = (f"ready unknown: {why}, /proc/schedstat absent, PSI {pressure_trouble}",)
        return CpuReady(math.nan, notes, steal=steal)

    def _from_threads(self, times: CpuTimes, pressure: float, stolen: float) -> CpuReady:
        seconds, cpus, nice, stride = times.seconds, times.cpus, times.nice, self.waiting.stride
        begin = time.thread_time()
        parts = self.sorter.sort(self.waiting.active, seconds=seconds, cpus=cpus)
        self.scanner.beside_seconds = time.thread_time() - begin
        scale = 100.0 / seconds / cpus if seconds > 0.0 else math.nan
        normal, throttled, background = (scale * part for part in parts[:3])
        beyond = pressure - (normal + throttled + background) - scale * parts.unanswered
        beyond = max(0.0, beyond) if beyond == beyond else 0.0
        unseen = beyond * (1.0 - nice if nice == nice else 1.0)
        if self.hidden and (trouble := self._files.trouble.get("proc/pressure/cpu")):
            words = f"ready too low: others' threads are hidden, /proc/schedstat absent, PSI {trouble}"
        elif self.hidden:
            words = "ready from run_delay of the threads that we may see, and PSI: others are hidden"
        elif beyond > NOTE_MARGIN_PERCENT:
            words = "ready from run_delay and PSI: threads too short-lived to be seen waited as well"
        elif stride > 1:
            words = f"ready from one in {stride} threads: reading all costs more than 2 % of a core"
        else:
            words = "ready from run_delay of all threads"
        notes = self._noted(words, PARTS_NOTE if self.sorter.cgroups.told_apart else NO_CGROUPS_NOTE)
        percent = normal + unseen + stolen
        return CpuReady(percent, notes, normal, unseen, stolen, throttled, background + beyond - unseen)

    def _noted(self, *notes: str) -> tuple[str, ...]:
        """Return notes as the same tuple every time, so that a change can be told by `is`."""
        return self._notes.setdefault(notes[0], notes)

    def _pressure_percent(self, times: CpuTimes) -> float:
        waited = (times.pressure - self._pressure_total) / 1e6
        self._pressure_total = times.pressure
        if not waited >= 0.0 or not times.seconds > 0.0:
            return math.nan
        return 100.0 * min(1.0, waited / times.seconds) * (times.busy if times.busy == times.busy else 1.0)

    def _schedstat_seconds(self, before: dict[bytes, float]) -> float | None:
        lines = [line.split() for line in (self._files.read("proc/schedstat") or b"").splitlines()]
        now = {words[0]: float(words[8]) for words in lines if len(words) > 8 and words[0].startswith(b"cpu")}
        if not now:
            return None
        # CPU by CPU: one that comes back brings what it had counted before it went.
        known = [max(0.0, waited - before[cpu]) for cpu, waited in now.items() if cpu in before]
        self._schedstat = now
        return sum(known) / 1e9 if known else math.nan
