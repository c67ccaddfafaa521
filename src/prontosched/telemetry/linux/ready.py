"""CPU Ready of a Linux machine: the waiting of all threads, sorted by whether it counts, and by whose it is."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable
from typing import NamedTuple

from prontosched.telemetry.linux.cgroup import Cgroup, Cgroups, plain_name
from prontosched.telemetry.linux.files import Files, read_small
from prontosched.telemetry.linux.threads import Active, Process, Thread, ThreadScanner, Waiting
from prontosched.telemetry.source import MIXED_NOTE

# Priority and cgroup are looked up again this often: soon for threads that matter, else rarely.
SOON_SECONDS, RARELY_SECONDS = 5.0, 60.0
MATTERS_SHARE = 0.05
LOOKUPS_PER_SCAN = 64
# /proc/PID/task/TID/stat, after the name in brackets.
NICE_FIELD, POLICY_FIELD = 16, 38
# Consumers are smoothed over about this time, and the least of them forgotten.
SMOOTHING_SECONDS = 5.0
CONSUMERS_LIMIT = 128
LEAST_CPUS = 0.005
OTHERS = "others"
# Threads see a little less than the pressure total by chance alone; a note is worth more than that.
NOTE_MARGIN_PERCENT = 1.0
# Threads come and go between two files; only more than these are missing.
HIDDEN_SHARE = 0.2
HIDDEN_SLACK = 16
PARTS_NOTE = "waiting at normal priority and steal; apart: held back by quotas, background"
NO_CGROUPS_NOTE = "waiting at normal priority and steal; no cgroups to tell quotas by"
PART_NAMES = ("normal", "unseen", "steal", "throttled", "background")


class WaitingParts(NamedTuple):
    """Waiting since the last scan, in seconds summed over threads.

    `unanswered` is what quotas held back and no thread seen waited: that of threads already gone.
    """

    normal: float = math.nan
    throttled: float = math.nan
    background: float = math.nan
    unanswered: float = 0.0


class Consumer(NamedTuple):
    """A unit, pod, job, container or process, with the CPUs that it used and waited for.

    `waiting` is at normal priority; `throttled` and `background` are what its quota held back, and what it
    waited for at low priority.
    """

    name: str
    used: float = 0.0
    waiting: float = 0.0
    throttled: float = 0.0
    background: float = 0.0


class WaitingSorter:
    """Sort the waiting of threads by whether it counts, and by whose it is.

    Notes
    -----
    Memory: at most 128 consumers and 1,024 cgroups. At most 64 threads and processes are looked up
    per scan; one that has not had its turn counts as normal.
    """

    def __init__(self, files: Files) -> None:
        self.cgroups = Cgroups(files)
        # Whether threads have the same numbers to us as in this /proc, so that the kernel can be asked by them.
        self._numbered_alike = _own_number(files) == os.getpid()
        self._now = 0.0
        self._consumers: dict[str, list[float]] = {}

    def sort(self, active: list[Active], *, seconds: float, cpus: int) -> WaitingParts:
        """Return the parts of the waiting that a scan saw."""
        self.cgroups.advance(seconds, cpus)
        if not seconds > 0.0:
            return WaitingParts()
        self._now += seconds
        self._look_up(active, seconds, cpus)
        held = self._held_back(active, cpus)
        normal = throttled = background = 0.0
        amounts: dict[str, list[float]] = {}
        for one in active:
            process, waited = one.thread.process, one.waited * 1e-9
            off = min(waited, held.get(id(one), 0.0))
            rest = one.weight * (waited - off)
            off *= one.weight
            throttled += off
            low = one.thread.background or (process.cgroup is not None and process.cgroup.idle)
            if low:
                background += rest
            else:
                normal += rest
            found = amounts.setdefault(process.name or OTHERS, [0.0, 0.0, 0.0, 0.0])
            found[0] += one.weight * one.used * 1e-9
            found[3 if low else 1] += rest
            found[2] += off
        self._smooth(amounts, seconds)
        unanswered = sum([cgroup.carried for cgroup in self.cgroups.limited()])
        return WaitingParts(normal, throttled, background, unanswered)

    @property
    def consumers(self) -> tuple[Consumer, ...]:
        """Who uses CPUs and who waits for them, over the last seconds, in no order."""
        return tuple([Consumer(name, *amounts) for name, amounts in list(self._consumers.items())])

    def _look_up(self, active: list[Active], seconds: float, cpus: int) -> None:
        """Find out the priority of threads and the cgroup of processes that are new or due."""
        matters = 1e9 * MATTERS_SHARE * seconds
        left = LOOKUPS_PER_SCAN
        for one in sorted(active, key=lambda one: one.waited + one.used, reverse=True):
            if left <= 0:
                return
            thread, process = one.thread, one.thread.process
            due = self._now - (SOON_SECONDS if one.waited + one.used > matters else RARELY_SECONDS)
            if process.checked < due:
                left -= 1
                process.checked = self._now
                self._identify(process, seconds, cpus)
            if one.waited > 0 and thread.checked < due:
                left -= 1
                thread.checked = self._now
                thread.background = self._of_low_priority(thread)

    def _identify(self, process: Process, seconds: float, cpus: int) -> None:
        process.cgroup = self.cgroups.of_process(process.folder, seconds, cpus)
        process.name = "" if process.cgroup is None else process.cgroup.name
        if not process.name:
            process.name = plain_name(os.fsdecode(read_small(f"{process.folder}/comm") or b"").strip())

    def _of_low_priority(self, thread: Thread) -> bool:
        try:
            if self._numbered_alike:
                nice = os.getpriority(os.PRIO_PROCESS, thread.number)
                return nice > 0 or os.sched_getscheduler(thread.number) == os.SCHED_IDLE
            words = (read_small(f"{thread.folder}/stat") or b"").rpartition(b")")[2].split()
            return int(words[NICE_FIELD]) > 0 or int(words[POLICY_FIELD]) == os.SCHED_IDLE
        except (OSError, IndexError, ValueError):
            return False

    def _held_back(self, active: list[Active], cpus: int) -> dict[int, float]:
        """Return by thread the seconds for which a quota held it back."""
        limited = self.cgroups.limited()
        waiting: dict[int, list[Active]] = {id(cgroup): [] for cgroup in limited}
        held: dict[int, float] = {}
        for one in active if limited else ():
            if one.waited > 0 and (found := waiting.get(id(one.thread.process.cgroup))) is not None:
                found.append(one)
        for cgroup in limited:
            held.update(_share_out(cgroup, waiting[id(cgroup)], cpus))
        return held

    def _smooth(self, amounts: dict[str, list[float]], seconds: float) -> None:
        gain = min(1.0, seconds / SMOOTHING_SECONDS)
        kept: dict[str, list[float]] = {}
        for name in {**self._consumers, **amounts}:
            before = self._consumers.get(name, (0.0,) * 4)
            now = amounts.get(name, (0.0,) * 4)
            smooth = [(1.0 - gain) * b + gain * n / seconds for b, n in zip(before, now, strict=True)]
            if max(smooth) >= LEAST_CPUS:
                kept[name] = smooth
        if len(kept) > CONSUMERS_LIMIT:
            kept = dict(sorted(kept.items(), key=lambda pair: -sum(pair[1]))[:CONSUMERS_LIMIT])
        self._consumers = kept


def _share_out(cgroup: Cgroup, threads: Iterable[Active], cpus: int) -> dict[int, float]:
    """Share the time that a quota held a cgroup back out to its threads, each at most what it waited.

    The kernel counts that time once per CPU, however many threads were waiting there. With no more
    threads than CPUs it is the sum of what they were held back; with more, each had the mean of a CPU.
    """
    available = cgroup.throttled + cgroup.carried
    most = {id(one): (one.weight, min(one.waited * 1e-9, available)) for one in threads}
    wanted = sum([weight * seconds for weight, seconds in most.values()])
    if wanted <= 0.0:
        cgroup.carried = cgroup.throttled
        return {}
    largest = max([seconds for _, seconds in most.values()])
    share = min(1.0, available / min(wanted, cpus * largest))
    # A wait may be counted one scan after the time that caused it, so what is left is kept for one scan.
    left = available - share * min(wanted, cpus * largest)
    cgroup.carried = min(max(0.0, left), cgroup.throttled)
    return {key: share * seconds for key, (_, seconds) in most.items()}


def _own_number(files: Files) -> int:
    try:
        return int(os.readlink(files.path("proc/self")))
    except (OSError, ValueError):
        return -1


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

    `waiting` is what the last scan of threads saw, `last` what the last reading gave.
    """

    def __init__(self, files: Files, *, interval_seconds: float, threads: bool = True) -> None:
        self._files = files
        self._threads = threads
        self.scanner = ThreadScanner(files.path("proc"), interval_seconds=interval_seconds)
        self.sorter = WaitingSorter(files)
        self.waiting = Waiting()
        self.last = CpuReady(math.nan, ())
        self._pressure_total = math.nan
        self._schedstat_total = math.nan
        self._schedstat = True
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
        if self._threads:
            self.waiting = self.scanner.scan(times.threads)
            if not self.scanner.trouble:
                return self._from_threads(times, pressure, stolen)
        why = f"threads {self.scanner.trouble}" if self._threads else "threads not wanted"
        if self._schedstat:
            waited = self._schedstat_seconds()
            if waited is not None:
                percent = 100.0 * waited / times.seconds / times.cpus
                notes = self._noted(f"ready from /proc/schedstat: {why}", MIXED_NOTE)
                return CpuReady(percent + stolen, notes, percent, 0.0, steal)
            self._schedstat = False
        state = self._files.trouble.get("proc/pressure/cpu")
        if state is None:
            notes = self._noted(f"ready from PSI, a lower bound: {why}, /proc/schedstat absent", MIXED_NOTE)
            return CpuReady(pressure + stolen, notes, math.nan, pressure, steal)
        notes = (f"ready unknown: {why}, /proc/schedstat absent, PSI {state}",)
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
        if beyond > NOTE_MARGIN_PERCENT:
            words = "ready from run_delay and PSI: threads too short-lived to be seen waited as well"
        elif times.threads - self.waiting.threads > HIDDEN_SLACK + HIDDEN_SHARE * times.threads:
            words = "ready from run_delay of the threads that we may see, and PSI: others are hidden"
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

    def _schedstat_seconds(self) -> float | None:
        data = self._files.read("proc/schedstat")
        if data is None:
            return None
        waited = 0.0
        for line in data.splitlines():
            words = line.split()
            if words and words[0].startswith(b"cpu") and len(words) > 8:
                waited += float(words[8])
        increase = (waited - self._schedstat_total) / 1e9
        self._schedstat_total = waited
        return increase if increase >= 0.0 else math.nan
