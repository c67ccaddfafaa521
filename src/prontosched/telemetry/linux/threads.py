"""Time that the threads of a Linux machine waited for a CPU and used one: how long, whose, and whether it counts.

A sum over threads would fall when threads exit, so each thread is followed by itself. Files of threads stay
open: that is cheaper, and an open file cannot be mistaken for that of a later thread of the same number.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from prontosched.telemetry.linux.cgroup import Cgroup, Cgroups, plain_name
from prontosched.telemetry.linux.files import Files, explain, read_small

# Reading all threads may cost this share of a core; above it only some are read.
COST_LIMIT = 0.02
COST_AIM = 0.012
COST_LOW = 0.005
# Where threads are sampled, those that waited last time are read in any case: waiting is seldom spread evenly.
HOT_LIMIT = 64
# So are those that used most, for they are who the others wait for.
BUSY_LIMIT = 16
STRIDE_LEAST, STRIDE_LIMIT = 4, 64
# Scans with one stride before a smaller one is tried: the first scan with another sees little.
STEADY_SCANS = 10
# There, looking through all processes for new threads may cost this share of a core: with many it is done less often.
LIST_LIMIT = 0.005
OPEN_FILES_LIMIT = 1024
SCHEDSTAT_BYTES = 128
# What a kernel shows of every thread that has the file and counts nothing.
UNCOUNTED = b"0 0 0\n"
UNCOUNTED_STATE = "not counted by this kernel"
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


class Process:
    """One process: its folder in /proc, its threads, and what a `WaitingSorter` found out about it."""

    __slots__ = ("cgroup", "checked", "folder", "links", "name", "threads")

    def __init__(self, folder: str) -> None:
        self.folder = folder
        # Links of its task folder when that was listed last; -1 to list it again.
        self.links = -1
        self.threads: dict[str, Thread] = {}
        self.name = ""
        self.cgroup: Cgroup | None = None
        self.checked = -math.inf


class Thread:
    """One thread: what it had used and waited when last read, in nanoseconds, and in which scan that was.

    `data` is its schedstat as last read: equal bytes mean that it did not run since. `background` tells
    whether it runs below normal priority, as a `WaitingSorter` found out.
    """

    __slots__ = ("background", "checked", "data", "descriptor", "number", "process", "scan", "used", "waited")

    def __init__(self, process: Process, number: int, scan: int) -> None:
        self.process = process
        self.number = number
        self.scan = scan
        self.descriptor = -1
        self.data: bytes | None = None
        self.used = 0
        self.waited = 0
        self.background = False
        self.checked = -math.inf

    @property
    def folder(self) -> str:
        """Its folder in /proc."""
        return f"{self.process.folder}/task/{self.number}"


class Active(NamedTuple):
    """A thread that waited or ran since it was last read, in nanoseconds.

    `weight` is how many threads it stands for: more than 1 only where threads are sampled.
    """

    thread: Thread
    waited: int
    used: int
    weight: float = 1.0


@dataclass(slots=True)
class Waiting:
    """What a scan of all threads saw.

    Attributes
    ----------
    seconds
        Time that threads waited since the last scan, summed; NaN at the first scan or if none can be read.
    active
        The threads behind that sum, and those that ran.
    processes, threads, born
        How many there are, and how many threads are new since the last scan: the mean since one looked for them.
    stride
        One in this many threads was read; 1 means all.
    listed
        Whether it was looked for new processes and threads.
    """

    stride: int = 1
    listed: bool = True
    seconds: float = math.nan
    active: list[Active] = field(default_factory=list)
    processes: int = 0
    threads: int = 0
    born: float = 0.0


class ThreadScanner:
    """Follow the waiting time of every thread.

    The cost of a scan is compared to the time between two, `interval_seconds`.

    Attributes
    ----------
    trouble
        Why threads cannot be read, empty if they can.
    excluded
        Numbers of threads whose waiting does not count: those of a probe.
    cost_seconds, beside_seconds
        CPU time of a scan, smoothed, with what is made of it, and of the latter alone: set by whoever does that.

    Notes
    -----
    Memory: a few hundred bytes per living thread. At most 1,024 files are held open, or a quarter of
    what the process may open.
    """

    def __init__(self, proc: str, *, interval_seconds: float) -> None:
        self.trouble = ""
        self.cost_seconds = 0.0
        self.beside_seconds = 0.0
        self.excluded: frozenset[int] = frozenset()
        self.stride = 1
        self._proc = proc
        self._interval_seconds = interval_seconds
        self._processes: dict[str, Process] = {}
        # Processes whose threads have to be listed: new ones, and those of which a thread is gone.
        self._unlisted: set[Process] = set()
        self._threads: list[Thread] | None = None  # of all processes; None when that has changed
        self._last: list[Active] = []  # what ran in the last scan
        self._open = 0
        self._open_limit = 0
        self._scan = self._since = 0
        self._scanned = self._complete = False
        # The last scan that looked through all processes; scans until the next; what it took, and takes of each scan.
        self._listed = self._list_in = 0
        # Threads met since then, and how many there were for each scan at the last one.
        self._met, self._born = 0, 0.0
        self._list_took = self._list_mean = 0.0

    def scan(self, total: float = math.nan) -> Waiting:
        """Look at all threads once; for new ones while the kernel counts more (`total`) than are known."""
        begin = time.thread_time()
        seen = Waiting(self.stride)
        self._scan += 1
        self._open_limit = _files_to_hold()  # a server raises the limit after its source was opened
        try:
            if seen.stride == 1:
                born = self._read_all(seen, total)
            else:
                seen.listed = self._list_in <= 0
                born = self._look_through() if seen.listed else self._follow_threads()
                self._list_in -= 1
                self._sample(seen)
        except OSError as error:
            self.trouble = explain(error)
            return seen
        self._complete = seen.stride == 1
        self._met += len(born)
        if seen.listed:
            self._born = self._met / (self._scan - self._listed)
            self._listed, self._met = self._scan, 0
        seen.processes, seen.threads, seen.born = len(self._processes), len(self._all()), self._born
        listing = self._list_mean - (self._list_took if seen.listed else 0.0) if seen.stride > 1 else 0.0
        self._adapt(time.thread_time() - begin + self.beside_seconds + listing)
        self._last = seen.active
        seen.active = [one for one in seen.active if one.weight]
        if seen.threads and all(one.data == UNCOUNTED for one in self._all()):
            self.trouble = UNCOUNTED_STATE
        elif seen.threads:
            self.trouble = ""
            if self._scanned:
                seen.seconds = sum([one.weight * one.waited for one in seen.active]) / 1e9
            else:
                seen.active, seen.born = [], 0.0
            self._scanned = True
        elif not self.trouble:
            self.trouble = "absent"
        return seen

    def close(self) -> None:
        """Close all files."""
        for process in self._processes.values():
            self._release(process.threads.values())
        self._processes.clear()
        self._unlisted.clear()
        self._last = []

    def _all(self) -> list[Thread]:
        if self._threads is None:
            self._threads = [one for process in self._processes.values() for one in process.threads.values()]
        return self._threads

    def _counts(self, one: Active) -> bool:
        return bool(one.waited or one.used) and one.thread.number not in self.excluded

    def _read_all(self, seen: Waiting, total: float) -> list[Thread]:
        """Read all threads; return those not seen before."""
        ran = self._advance(self._all())
        # After a scan that read only some, what a thread waited spans more than the time since that.
        fresh = list(ran) if self._complete else [one for one in ran if one.thread.scan == self._scan - 1]
        born = self._follow_threads()
        if not len(self._all()) >= total:
            self._follow_processes()
            born += self._follow_threads()
        if not len(self._all()) >= total:
            # Only a thread that ran can have started another.
            born += self._follow_threads({one.thread.process for one in ran})
        fresh += [one for one in self._advance(born) if one.thread.scan == self._scan - 1]
        seen.active = [one for one in fresh if self._counts(one)]
        return born

    def _look_through(self) -> list[Thread]:
        """Look for threads that are new, in all processes; return them."""
        begin = time.thread_time()
        self._follow_processes()
        born = self._follow_threads(self._processes.values())
        self._list_took = time.thread_time() - begin
        self._list_in = math.ceil(self._list_took / (LIST_LIMIT * self._interval_seconds))
        self._list_mean = self._list_took / max(1, self._list_in)
        return born

    def _sample(self, seen: Waiting) -> None:
        """Read the threads that are read in any case, and of the others one group after the other.

        A group's waiting since the last scan is known because it was read then as well, as the next in turn.
        """
        threads, scan = self._all(), self._scan
        hot = _hottest(self._last).intersection(threads)
        groups: dict[int, list[Thread]] = {scan % seen.stride: [], (scan + 1) % seen.stride: []}
        for thread in threads:
            if thread not in hot and (group := groups.get(thread.number % seen.stride)) is not None:
                group.append(thread)
        turn, upcoming = groups.values()
        # Of those not read at the last scan it is not known what they waited since then.
        fresh = {one for one in (*turn, *upcoming) if self._complete or one.scan == scan - 1}
        drawn = len(fresh.intersection(turn))
        # After a change of the stride these are few, too few for one of them to stand for hundreds.
        weight = (len(threads) - len(hot)) / drawn if 2 * drawn > len(turn) else 1.0
        seen.active = self._advance(list(hot))
        seen.active += [one._replace(weight=weight) for one in self._advance(turn) if one.thread in fresh]
        # One whose turn comes next is not counted yet, and still worth following if it waits.
        later = [one for one in self._advance(upcoming) if one.thread in fresh and one.waited]
        seen.active += [one._replace(weight=0.0) for one in later]
        seen.active = [one for one in seen.active if self._counts(one)]
        for thread in (*hot, *turn, *upcoming):
            thread.scan = scan

    def _advance(self, threads: list[Thread]) -> list[Active]:
        """Read threads; return those that ran since they were last read, and forget those that are gone."""
        pread, ran, gone = os.pread, [], []
        for thread in threads:
            try:
                descriptor = thread.descriptor
                data = pread(descriptor, SCHEDSTAT_BYTES, 0) if descriptor >= 0 else self._first(thread)
                if data == thread.data:
                    continue
                words = data.split(None, 2)
                used, waited = int(words[0]), int(words[1])
            except (OSError, ValueError, IndexError) as error:
                if isinstance(error, OSError) and not isinstance(
                    error, ProcessLookupError | FileNotFoundError
                ):
                    self.trouble = explain(error)
                gone.append(thread)
                continue
            # One born since the last scan begins at 0: it waited all it has waited since then.
            ran.append(Active(thread, max(0, waited - thread.waited), max(0, used - thread.used)))
            thread.data, thread.used, thread.waited = data, used, waited
        for thread in gone:
            # The folder is listed again, for another thread may have taken the number.
            thread.process.threads.pop(str(thread.number), None)
            thread.process.links = -1
            self._unlisted.add(thread.process)
        self._release(gone)
        return ran

    def _first(self, thread: Thread) -> bytes:
        """Read the schedstat of a thread whose file is not open."""
        descriptor = os.open(f"{thread.folder}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(descriptor, SCHEDSTAT_BYTES)
        finally:
            # Only a thread met for the second time is worth an open file: most new ones die soon.
            if thread.data is not None and self._open < self._open_limit:
                thread.descriptor = descriptor
                self._open += 1
            else:
                os.close(descriptor)

    def _follow_processes(self) -> None:
        """Bring the list of processes up to date."""
        processes = self._processes
        names = [name for name in os.listdir(self._proc) if name[0] in "123456789"]
        for name in names:
            if name not in processes:
                processes[name] = Process(f"{self._proc}/{name}")
                self._unlisted.add(processes[name])
        if len(processes) > len(names):
            living = set(names)
            for name in [name for name in processes if name not in living]:
                self._forget(processes[name])

    def _forget(self, process: Process) -> None:
        """Forget a process that ended, if that is not done yet; another one may have taken its number."""
        self._release(process.threads.values())
        self._unlisted.discard(process)
        name = os.path.basename(process.folder)
        if self._processes.get(name) is process:
            del self._processes[name]

    def _follow_threads(self, others: Iterable[Process] = ()) -> list[Thread]:
        """List the threads of processes that are unlisted, and of others; return those not seen before."""
        unlisted, self._unlisted = self._unlisted, set()
        return [thread for process in unlisted.union(others) for thread in self._list_threads(process)]

    def _list_threads(self, process: Process) -> list[Thread]:
        known, folder = process.threads, f"{process.folder}/task"
        try:
            # A task folder has two links and one more per thread: cheaper than listing it.
            links = os.stat(folder).st_nlink
            if links == process.links and links > 2:
                return []
            process.links = links
            found = os.listdir(folder)
        except (FileNotFoundError, ProcessLookupError):
            self._forget(process)
            return []
        except OSError as error:
            self.trouble = explain(error)
            process.links = -1
            self._unlisted.add(process)
            return []
        # One that is new begins with nothing waited, as if it had been read at the last scan that would have met it.
        born = {name: Thread(process, int(name), self._listed) for name in found if name not in known}
        known.update(born)
        if len(known) > len(found):
            self._release([known.pop(name) for name in set(known).difference(found)])
        if born:
            self._threads = None
        return list(born.values())

    def _release(self, threads: Iterable[Thread]) -> None:
        for thread in threads:
            self._threads = None
            if thread.descriptor >= 0:
                os.close(thread.descriptor)
                thread.descriptor = -1
                self._open -= 1

    def _adapt(self, cost_seconds: float) -> None:
        self.cost_seconds += 0.2 * (cost_seconds - self.cost_seconds) if self.cost_seconds else cost_seconds
        share = self.cost_seconds / self._interval_seconds
        if share > COST_LIMIT:
            # Two groups are read at a time, so fewer than four would save nothing.
            wanted = max(self.stride + 1, round(self.stride * share / COST_AIM), STRIDE_LEAST)
            self.stride, self._since = min(STRIDE_LIMIT, wanted), self._scan
            self.cost_seconds = 0.0
        elif share < COST_LOW and self.stride > 1 and self._scan - self._since >= STEADY_SCANS:
            wanted = round(self.stride * share / COST_AIM)
            self.stride, self._since = wanted if wanted >= STRIDE_LEAST else 1, self._scan
            self.cost_seconds = 0.0


def _hottest(active: list[Active]) -> set[Thread]:
    """Return the threads to be read at the next scan in any case."""
    waiting = [one for one in active if one.waited > 0]
    if len(waiting) > HOT_LIMIT:
        waiting = sorted(waiting, key=lambda one: one.waited, reverse=True)[:HOT_LIMIT]
    busy = sorted(active, key=lambda one: one.used, reverse=True)[:BUSY_LIMIT]
    return {one.thread for one in (*waiting, *busy)}


def _files_to_hold() -> int:
    import resource  # not on every system, and only Linux has what is read here

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(OPEN_FILES_LIMIT, soft // 4) if soft > 0 else OPEN_FILES_LIMIT


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
        waiting: Counter[str] = Counter()
        for one in active:
            if one.waited and (cgroup := one.thread.process.cgroup) is not None:
                waiting[cgroup.path] += one.waited
        self.cgroups.advance(seconds, cpus, waiting)
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
        # What is not known yet comes first, then what was looked up longest ago: on many CPUs not all have their turn.
        for one in sorted(active, key=_turn):
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


def _turn(one: Active) -> tuple[float, int]:
    """Return by what threads are looked up in order: how long ago they were, and what they waited and used."""
    known = one.thread.process.checked
    return min(known, one.thread.checked) if one.waited else known, -one.waited - one.used


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
