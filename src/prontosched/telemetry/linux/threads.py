"""Time that the threads of a Linux machine waited for a CPU and used one, as per-thread differences.

A sum over threads would fall when threads exit, so each thread is followed by itself. Files of threads stay
open: that is cheaper, and an open file cannot be mistaken for that of a later thread of the same number.
Whose waiting counts, and what it means as CPU Ready, is in `ready`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
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
    """One process: its folder in /proc, its threads, and what `ready` found out about it."""

    __slots__ = ("cgroup", "checked", "folder", "links", "name", "threads")

    def __init__(self, folder: str) -> None:
        self.folder = folder
        # Links of its task folder when that was listed last; -1 to list it again.
        self.links = -1
        self.threads: dict[str, Thread] = {}
        self.name = ""
        self.cgroup: Cgroup | None = None
        self.checked = float("-inf")


class Thread:
    """One thread: its folder in /proc, what it had used and waited when last read, and in which scan that was.

    Attributes
    ----------
    data
        Its schedstat as last read: equal bytes mean that it did not run since.
    background
        Whether it runs below normal priority, as `ready` found out.
    """

    __slots__ = (
        *("background", "checked", "data", "descriptor", "folder"),
        *("number", "scan", "used", "waited"),
    )

    def __init__(self, folder: str, number: int) -> None:
        self.folder = folder
        self.number = number
        self.descriptor = -1
        self.data: bytes | None = None
        self.used = 0
        self.waited = 0
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

    __slots__ = ("active", "born", "drawn", "processes", "read", "sampled", "seconds", "stride", "threads")

    def __init__(self, stride: int = 1) -> None:
        self.seconds = float("nan")
        self.active: list[Active] = []
        self.processes = 0
        self.threads = 0
        self.born = 0
        self.stride = stride
        # Threads read; where they are sampled, those whose turn it was, and of them the active ones.
        self.read = 0
        self.drawn = 0
        self.sampled: list[Active] = []


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
        seen = Waiting(self.stride)
        self._scan += 1
        try:
            names = [name for name in os.listdir(self._proc) if name[0] in "123456789"]
        except OSError as error:
            self.trouble = explain(error)
            return seen
        self._follow_processes(names)
        for process in self._processes.values():
            ran = self._read(process, process.threads, seen, born=False)
            # Only a thread that ran can have started another.
            if ran or process.links < 0 or seen.stride > 1:
                born = self._follow_threads(process)
                seen.born += len(born)
                if born:
                    self._read(process, born, seen, born=True)
            seen.threads += len(process.threads)
        seen.processes = len(self._processes)
        self._weigh(seen)
        if seen.read:
            self.trouble = ""
            if self._scanned:
                seen.seconds = sum([one.weight * one.waited for one in seen.active]) / 1e9
            else:
                seen.active, seen.born = [], 0
            self._scanned = True
        elif not self.trouble:
            self.trouble = "absent"
        self._adapt(time.thread_time() - started + self.beside_seconds)
        return seen

    def close(self) -> None:
        """Close all files."""
        for process in self._processes.values():
            self._release(process.threads.values())
        self._processes.clear()
        self._hot.clear()

    def _follow_processes(self, names: list[str]) -> None:
        """Bring the list of processes up to date."""
        processes = self._processes
        for name in names:
            if name not in processes:
                processes[name] = Process(f"{self._proc}/{name}")
        if len(processes) > len(names):
            living = set(names)
            for name in [name for name in processes if name not in living]:
                self._release(processes.pop(name).threads.values())

    def _follow_threads(self, process: Process) -> dict[str, Thread]:
        """Bring the list of a process's threads up to date; return those not seen before."""
        known = process.threads
        born: dict[str, Thread] = {}
        folder = f"{process.folder}/task"
        try:
            # A task folder has two links and one more per thread: cheaper than listing it.
            links = os.stat(folder).st_nlink
            if links == process.links and links > 2:
                return born
            process.links = links
            found = os.listdir(folder)
        except OSError as error:
            if isinstance(error, PermissionError):
                self.trouble = "forbidden"
            self._release(known.values())
            known.clear()
            process.links = -1
            return born
        for number in found:
            if number not in known:
                known[number] = born[number] = Thread(f"{folder}/{number}", int(number))
        if len(known) > len(found):
            living = set(found)
            self._release([known.pop(number) for number in list(known) if number not in living])
        return born

    def _read(self, process: Process, threads: dict[str, Thread], seen: Waiting, *, born: bool) -> bool:
        """Read threads of a process; return whether one of them ran or is gone.

        Of the threads that are not read in any case, one group after the other is sampled. A group's
        waiting since the last scan is known because it was read then as well, as the next in turn.
        """
        stride, scan, pread = seen.stride, self._scan, os.pread
        phase, upcoming = scan % stride, (scan + 1) % stride
        ran, idle = False, 0
        gone: list[str] = []
        for name, thread in threads.items():
            sure = stride == 1 or thread in self._hot
            due = sure or thread.number % stride == phase
            if not due and thread.number % stride != upcoming:
                continue
            try:
                data = pread(thread.descriptor, 128, 0) if thread.descriptor >= 0 else self._first(thread)
                if sure and data == thread.data:
                    thread.scan = scan
                    idle += 1
                    continue
                fresh = born or thread.scan == scan - 1
                if data != thread.data:
                    words = data.split(None, 2)
                    used, waited = int(words[0]), int(words[1])
            except (OSError, ValueError, IndexError) as error:
                if isinstance(error, OSError) and not isinstance(
                    error, ProcessLookupError | FileNotFoundError
                ):
                    self.trouble = explain(error)
                gone.append(name)
                continue
            seen.read += 1
            thread.scan = scan
            if fresh and not sure and due:
                seen.drawn += 1
            if data == thread.data:
                continue
            ran = True
            # One born since the last scan waited all it has waited since then.
            more_used, more_waited = max(0, used - thread.used), max(0, waited - thread.waited)
            thread.data, thread.used, thread.waited = data, used, waited
            if fresh and (more_used or more_waited) and thread.number not in self.excluded:
                # One whose turn comes next is not counted yet, and still worth following if it waits.
                one = Active(process, thread, more_waited, more_used, 1.0 if due else 0.0)
                if sure:
                    seen.active.append(one)
                elif due or more_waited:
                    seen.sampled.append(one)
        seen.read += idle
        if gone:
            # The folder is listed again, for another thread may have taken the number.
            process.links = -1
            self._release([process.threads.pop(name) for name in gone])
        return ran

    def _weigh(self, seen: Waiting) -> None:
        """Let the threads sampled stand for all that are not read in any case, and choose those anew."""
        others = 0 if seen.stride == 1 else seen.threads - len(self._hot)
        weight = others / seen.drawn if seen.drawn else 0.0
        self._hot = _hottest([*seen.active, *seen.sampled])
        seen.active += [one._replace(weight=weight) for one in seen.sampled if one.weight]

    def _first(self, thread: Thread) -> bytes:
        """Read the schedstat of a thread whose file is not open."""
        descriptor = os.open(f"{thread.folder}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(descriptor, 128)
        finally:
            # Only a thread met for the second time is worth an open file: most new ones die soon.
            if thread.scan >= 0 and self._open < self._open_limit:
                thread.descriptor = descriptor
                self._open += 1
            else:
                os.close(descriptor)

    def _release(self, threads: Iterable[Thread]) -> None:
        for thread in threads:
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
