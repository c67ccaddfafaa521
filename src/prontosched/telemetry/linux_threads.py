"""Time that the threads of a Linux machine waited for a CPU, as per-thread deltas of `run_delay`.

A sum over threads would fall when threads exit, so each thread is followed by itself. The files of threads
stay open where that pays: a held file also cannot be mistaken for that of a later thread of the same
number. What this means as CPU Ready is in `linux_ready`.
"""

from __future__ import annotations

import os
import time

from prontosched.telemetry.linux_files import explain

# Reading all threads may cost this share of a core; above it only some are read.
COST_LIMIT = 0.02
COST_AIM = 0.012
COST_LOW = 0.005
# Threads that waited last time are read in any case: waiting is seldom spread evenly.
HOT_LIMIT = 64
STRIDE_LEAST, STRIDE_LIMIT = 4, 64
OPEN_FILES_LIMIT = 1024


class Waiting:
    """What a scan of all threads saw.

    Attributes
    ----------
    seconds
        Time that threads waited since the last scan, summed; NaN at the first scan or if none can be read.
    processes, threads, born
        How many there are, and how many threads are new since the last scan.
    stride
        One in this many threads was read; 1 means all.
    """

    __slots__ = ("born", "processes", "seconds", "stride", "threads")

    def __init__(self) -> None:
        self.seconds = float("nan")
        self.processes = 0
        self.threads = 0
        self.born = 0
        self.stride = 1


class _Process:
    __slots__ = ("folder", "links", "threads")

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.links = -1
        self.threads: dict[str, _Thread] = {}


class _Thread:
    __slots__ = ("descriptor", "last", "number", "path", "scan")

    def __init__(self, path: str, number: int) -> None:
        self.path = path
        self.number = number
        self.descriptor = -1
        # What it had waited in all when last read, and in which scan that was.
        self.last = 0
        self.scan = -1


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
        CPU time of a scan, smoothed.

    Notes
    -----
    Memory: a few hundred bytes per living thread. At most 1,024 files are held open, or a quarter of
    what the process may open.
    """

    def __init__(self, proc: str, *, interval_seconds: float) -> None:
        self.trouble = ""
        self.cost_seconds = 0.0
        self.stride = 1
        self._proc = proc
        self._interval_seconds = interval_seconds
        self._processes: dict[str, _Process] = {}
        self._hot: dict[_Thread, int] = {}
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
        total, read, count = self._read_threads(born)
        seen.processes = len(self._processes)
        seen.threads = count
        seen.born = len(born) if self._scanned else 0
        if read:
            self.trouble = ""
            if self._scanned:
                seen.seconds = total / 1e9
            self._scanned = True
        elif not self.trouble:
            self.trouble = "absent"
        self._adapt(time.thread_time() - started)
        return seen

    def close(self) -> None:
        """Close all files."""
        for process in self._processes.values():
            for thread in process.threads.values():
                self._release(thread)
        self._processes.clear()
        self._hot.clear()

    def _follow_processes(self, names: list[str]) -> set[_Thread]:
        """Bring the list of processes and threads up to date; return threads not seen before."""
        processes = self._processes
        born: set[_Thread] = set()
        if len(names) < len(processes) or any(name not in processes for name in names):
            living = set(names)
            for name in [name for name in processes if name not in living]:
                for thread in processes.pop(name).threads.values():
                    self._release(thread)
        for name in names:
            process = processes.get(name)
            if process is None:
                process = processes[name] = _Process(f"{self._proc}/{name}/task")
            try:
                # A task folder has two links and one more per thread: cheaper than listing it.
                links = os.stat(process.folder).st_nlink
                if links == process.links and links > 2:
                    continue
                process.links = links
                self._follow_threads(process, born)
            except OSError as error:
                self._lose(process, error)
        return born

    def _follow_threads(self, process: _Process, born: set[_Thread]) -> None:
        found = os.listdir(process.folder)
        known = process.threads
        for number in found:
            if number not in known:
                thread = known[number] = _Thread(f"{process.folder}/{number}/schedstat", int(number))
                born.add(thread)
        if len(known) > len(found):
            living = set(found)
            for number in [number for number in known if number not in living]:
                self._release(known.pop(number))

    def _read_threads(self, born: set[_Thread]) -> tuple[float, int, int]:
        """Return the waiting time in nanoseconds, how many threads were read, and how many there are.

        Of the threads that are not read in any case, one group after the other is sampled. A group's
        waiting since the last scan is known because it was read then as well, as the next in turn.
        """
        stride, hot, scan = self.stride, self._hot, self._scan
        phase, upcoming = scan % stride, (scan + 1) % stride
        deltas: dict[_Thread, int] = {}
        certain = sampled = 0
        count = read = drawn = 0
        for process in self._processes.values():
            count += len(process.threads)
            gone: list[str] = []
            for name, thread in process.threads.items():
                sure = stride == 1 or thread in hot
                group = thread.number % stride
                if not sure and group not in (phase, upcoming):
                    continue
                now = self._run_delay(thread)
                if now is None:
                    gone.append(name)
                    continue
                read += 1
                # One born since the last scan waited all it has waited since then.
                fresh, delta = thread.scan == scan - 1, now - thread.last
                thread.last, thread.scan = now, scan
                if not (fresh or thread in born):
                    continue
                if delta > 0:
                    deltas[thread] = delta
                if sure:
                    certain += delta
                elif group == phase:
                    sampled += delta
                    drawn += 1
            if gone:
                # Its folder is listed again next time, for another may have taken the place.
                process.links = -1
                for name in gone:
                    self._release(process.threads.pop(name))
        self._hot = self._hottest(deltas)
        others = count - (count if stride == 1 else len(hot))
        return certain + (sampled * others / drawn if drawn else 0.0), read, count

    def _run_delay(self, thread: _Thread) -> int | None:
        try:
            if thread.descriptor >= 0:
                data = os.pread(thread.descriptor, 128, 0)
            else:
                descriptor = os.open(thread.path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    data = os.read(descriptor, 128)
                finally:
                    # Only a thread met for the second time is worth an open file: most new ones die soon.
                    if thread.scan >= 0 and self._open < self._open_limit:
                        thread.descriptor = descriptor
                        self._open += 1
                    else:
                        os.close(descriptor)
            return int(data.split(None, 2)[1])
        except (OSError, IndexError, ValueError) as error:
            if isinstance(error, OSError) and not isinstance(error, ProcessLookupError | FileNotFoundError):
                self.trouble = explain(error)
            return None

    def _release(self, thread: _Thread) -> None:
        if thread.descriptor >= 0:
            os.close(thread.descriptor)
            thread.descriptor = -1
            self._open -= 1

    def _lose(self, process: _Process, error: OSError) -> None:
        if isinstance(error, PermissionError):
            self.trouble = "forbidden"
        for thread in process.threads.values():
            self._release(thread)
        process.threads.clear()
        process.links = -1

    @staticmethod
    def _hottest(deltas: dict[_Thread, int]) -> dict[_Thread, int]:
        if len(deltas) <= HOT_LIMIT:
            return deltas
        return dict(sorted(deltas.items(), key=lambda pair: pair[1], reverse=True)[:HOT_LIMIT])

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


def _files_to_hold() -> int:
    import resource  # not on every system, and only Linux has what is read here

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(OPEN_FILES_LIMIT, soft // 4) if soft > 0 else OPEN_FILES_LIMIT
