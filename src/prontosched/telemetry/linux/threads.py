"""Time that the threads of a Linux machine waited for a CPU and used one, as per-thread differences.

A sum over threads would fall when threads exit, so each thread is followed by itself. The files of threads
stay open where that pays: a held file also cannot be mistaken for that of a later thread of the same
number. Whose waiting counts, and what it means as CPU Ready, is in `ready`.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from prontosched.telemetry.linux.cgroup import Cgroup
from prontosched.telemetry.linux.files import explain

# Reading all threads may cost this share of a core; above it only some are read.
COST_LIMIT = 0.02
COST_AIM = 0.012
COST_LOW = 0.005
# Threads that waited last time are read in any case: waiting is seldom spread evenly.
HOT_LIMIT = 64
# So are those that used most, for they are who the others wait for.
BUSY_LIMIT = 16
STRIDE_LEAST, STRIDE_LIMIT = 4, 64
OPEN_FILES_LIMIT = 1024


class Process:
    """One process: its threads, and what `ready` found out about it.

    Attributes
    ----------
    folder
        Its folder in /proc.
    """

    __slots__ = ("cgroup", "checked", "folder", "links", "name", "threads")

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.links = -1
        self.threads: dict[str, Thread] = {}
        self.name = ""
        self.cgroup: Cgroup | None = None
        self.checked = float("-inf")


class Thread:
    """One thread.

    Attributes
    ----------
    folder
        Its folder in /proc.
    background
        Whether it runs below normal priority, as `ready` found out.
    """

    __slots__ = ("background", "checked", "descriptor", "folder", "last", "number", "scan", "used")

    def __init__(self, folder: str, number: int) -> None:
        self.folder = folder
        self.number = number
        self.descriptor = -1
        # What it had waited and used in all when last read, and in which scan that was.
        self.last = 0
        self.used = 0
        self.scan = -1
        self.background = False
        self.checked = float("-inf")


class Active(NamedTuple):
    """A thread that waited or ran since the last scan.

    Attributes
    ----------
    waited, used
        Nanoseconds.
    weight
        How many threads it stands for; more than 1 only where threads are sampled.
    """

    process: Process
    thread: Thread
    waited: int
    used: int
    weight: float = 1.0


class Waiting:
    """What a scan of all threads saw.

    Attributes
    ----------
    seconds
        Time that threads waited since the last scan, summed; NaN at the first scan or if none can be read.
    active
        The threads behind that sum, and those that ran.
    processes, threads, born
        How many there are, and how many threads are new since the last scan.
    stride
        One in this many threads was read; 1 means all.
    """

    __slots__ = ("active", "born", "processes", "seconds", "stride", "threads")

    def __init__(self) -> None:
        self.seconds = float("nan")
        self.active: list[Active] = []
        self.processes = 0
        self.threads = 0
        self.born = 0
        self.stride = 1


class ThreadScanner:
    """Follow the waiting time of every thread.

    Parameters
    ----------
    proc
        Path of the proc folder.
    interval_seconds
        Time between two scans, to which the cost of a scan is compared.

    Attributes
    ----------
    trouble
        Why threads cannot be read, empty if they can.
    cost_seconds
        CPU time of a scan, smoothed, with what is made of it.
    excluded
        Numbers of threads whose waiting does not count: those of a probe.
    beside_seconds
        CPU time of what was made of the last scan, to be set by whoever does that.

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
        self._hot: set[Thread] = set()
        self._open = 0
        self._open_limit = _files_to_hold()
        self._scanned = False
        self._scan = 0

    def scan(self) -> Waiting:
        """Look at all threads once."""
        started = time.thread_time()
        seen = Waiting()
        seen.stride = self.stride
        self._scan += 1
        try:
            names = os.listdir(self._proc)
        except OSError as error:
            self.trouble = explain(error)
            return seen
        born = self._follow_processes([name for name in names if name[0] in "123456789"])
        seen.active, read, count = self._read_threads(born)
        seen.processes = len(self._processes)
        seen.threads = count
        seen.born = len(born) if self._scanned else 0
        if read:
            self.trouble = ""
            if self._scanned:
                seen.seconds = sum([one.weight * one.waited for one in seen.active]) / 1e9
            else:
                seen.active = []
            self._scanned = True
        elif not self.trouble:
            self.trouble = "absent"
        self._adapt(time.thread_time() - started + self.beside_seconds)
        return seen

    def close(self) -> None:
        """Close all files."""
        for process in self._processes.values():
            for thread in process.threads.values():
                self._release(thread)
        self._processes.clear()
        self._hot.clear()

    def _follow_processes(self, names: list[str]) -> set[Thread]:
        """Bring the list of processes and threads up to date; return threads not seen before."""
        processes = self._processes
        born: set[Thread] = set()
        if len(names) < len(processes) or any(name not in processes for name in names):
            living = set(names)
            for name in [name for name in processes if name not in living]:
                for thread in processes.pop(name).threads.values():
                    self._release(thread)
        for name in names:
            process = processes.get(name)
            if process is None:
                process = processes[name] = Process(f"{self._proc}/{name}")
            try:
                # A task folder has two links and one more per thread: cheaper than listing it.
                links = os.stat(f"{process.folder}/task").st_nlink
                if links == process.links and links > 2:
                    continue
                process.links = links
                self._follow_threads(process, born)
            except OSError as error:
                self._lose(process, error)
        return born

    def _follow_threads(self, process: Process, born: set[Thread]) -> None:
        found = os.listdir(f"{process.folder}/task")
        known = process.threads
        for number in found:
            if number not in known:
                thread = known[number] = Thread(f"{process.folder}/task/{number}", int(number))
                born.add(thread)
        if len(known) > len(found):
            living = set(found)
            for number in [number for number in known if number not in living]:
                self._release(known.pop(number))

    def _read_threads(self, born: set[Thread]) -> tuple[list[Active], int, int]:
        """Return the threads that waited or ran, how many threads were read, and how many there are.

        Of the threads that are not read in any case, one group after the other is sampled. A group's
        waiting since the last scan is known because it was read then as well, as the next in turn.
        """
        stride, hot, scan = self.stride, self._hot, self._scan
        phase, upcoming = scan % stride, (scan + 1) % stride
        active: list[Active] = []
        sampled: list[Active] = []
        count = read = drawn = 0
        for process in self._processes.values():
            count += len(process.threads)
            gone: list[str] = []
            for name, thread in process.threads.items():
                sure = stride == 1 or thread in hot
                group = thread.number % stride
                if not sure and group not in (phase, upcoming):
                    continue
                now = self._schedstat(thread)
                if now is None:
                    gone.append(name)
                    continue
                read += 1
                # One born since the last scan waited all it has waited since then.
                fresh = thread.scan == scan - 1
                used, waited = now[0] - thread.used, now[1] - thread.last
                (thread.used, thread.last), thread.scan = now, scan
                if not (fresh or thread in born):
                    continue
                if not sure and group == phase:
                    drawn += 1
                if (used > 0 or waited > 0) and thread.number not in self.excluded:
                    one = Active(process, thread, max(0, waited), max(0, used))
                    if sure:
                        active.append(one)
                    elif group == phase:
                        sampled.append(one)
                    elif waited > 0:
                        # Not to be counted, and still worth following from now on.
                        sampled.append(one._replace(weight=0.0))
            if gone:
                # Its folder is listed again next time, for another may have taken the place.
                process.links = -1
                for name in gone:
                    self._release(process.threads.pop(name))
        others = count - (count if stride == 1 else len(hot))
        weight = others / drawn if drawn else 0.0
        self._hot = _hottest([*active, *sampled])
        active += [one._replace(weight=weight) for one in sampled if one.weight]
        return active, read, count

    def _schedstat(self, thread: Thread) -> tuple[int, int] | None:
        """Return how long a thread ran and waited in all, in nanoseconds."""
        try:
            if thread.descriptor >= 0:
                data = os.pread(thread.descriptor, 128, 0)
            else:
                descriptor = os.open(f"{thread.folder}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
                try:
                    data = os.read(descriptor, 128)
                finally:
                    # Only a thread met for the second time is worth an open file: most new ones die soon.
                    if thread.scan >= 0 and self._open < self._open_limit:
                        thread.descriptor = descriptor
                        self._open += 1
                    else:
                        os.close(descriptor)
            used, waited, _ = data.split(None, 2)
            return int(used), int(waited)
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and not isinstance(error, ProcessLookupError | FileNotFoundError):
                self.trouble = explain(error)
            return None

    def _release(self, thread: Thread) -> None:
        if thread.descriptor >= 0:
            os.close(thread.descriptor)
            thread.descriptor = -1
            self._open -= 1

    def _lose(self, process: Process, error: OSError) -> None:
        if isinstance(error, PermissionError):
            self.trouble = "forbidden"
        for thread in process.threads.values():
            self._release(thread)
        process.threads.clear()
        process.links = -1

    def _adapt(self, cost_seconds: float) -> None:
        self.cost_seconds += 0.2 * (cost_seconds - self.cost_seconds) if self.cost_seconds else cost_seconds
        share = self.cost_seconds / self._interval_seconds
        if share > COST_LIMIT:
            # Two groups are read at a time, so fewer than four would save nothing.
            wanted = max(self.stride + 1, round(self.stride * share / COST_AIM), STRIDE_LEAST)
            self.stride = min(STRIDE_LIMIT, wanted)
            self.cost_seconds = 0.0
        elif share < COST_LOW and self.stride > 1:
            self.stride = self.stride - 1 if self.stride > STRIDE_LEAST else 1
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
