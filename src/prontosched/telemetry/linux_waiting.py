"""Whose waiting for a CPU counts: normal, held back by a quota, or background; and who waits and who runs.

A thread that its cgroup's quota held back would not run on any CPU. One of low priority (nice, SCHED_IDLE, a
cgroup with `cpu.idle`) takes what is left over and would give way to a new job. Neither is what another job
would meet, so both are counted apart. Names of cgroups and processes are kept for explanations.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import NamedTuple

from prontosched.telemetry.linux_cgroups import Cgroup, Cgroups, plain_name
from prontosched.telemetry.linux_files import Files
from prontosched.telemetry.linux_threads import Active, Process, Thread, Waiting

# Priority and cgroup are looked up again this often: soon for threads that matter, else rarely.
SOON_SECONDS, RARELY_SECONDS = 5.0, 60.0
MATTERS_SHARE = 0.05
LOOKUPS_PER_SCAN = 64
# /proc/PID/task/TID/stat, after the name in brackets.
NICE_FIELD, POLICY_FIELD = 16, 38
SCHED_IDLE = b"5"
# Consumers are smoothed over about this time, and the least of them forgotten.
SMOOTHING_SECONDS = 5.0
CONSUMERS_LIMIT = 128
LEAST_CPUS = 0.005
OTHERS = "others"


class Parts(NamedTuple):
    """Waiting since the last scan, in seconds summed over threads.

    Attributes
    ----------
    unanswered
        Of what quotas held back, the time that no thread seen waited: that of threads already gone.
    """

    normal: float = float("nan")
    throttled: float = float("nan")
    background: float = float("nan")
    unanswered: float = 0.0


class Consumer(NamedTuple):
    """A unit, pod, job, container or process that uses CPUs or waits for them, in CPUs.

    Attributes
    ----------
    used
        CPUs that it used.
    waiting
        CPUs that it waited for at normal priority.
    throttled, background
        CPUs that its quota held back, and that it waited for at low priority.
    """

    name: str
    used: float = 0.0
    waiting: float = 0.0
    throttled: float = 0.0
    background: float = 0.0


class WaitingSorter:
    """Sort the waiting of threads by whether it counts, and by whose it is.

    Parameters
    ----------
    files
        The machine.

    Notes
    -----
    Memory: at most 128 consumers and 1,024 cgroups. At most 64 threads and processes are looked up
    per scan; one that has not had its turn counts as normal.
    """

    def __init__(self, files: Files) -> None:
        self.cgroups = Cgroups(files)
        self.cost_seconds = 0.0
        self._now = 0.0
        self._consumers: dict[str, list[float]] = {}

    def sort(self, waiting: Waiting, *, seconds: float, cpus: int) -> Parts:
        """Return the parts of the waiting that a scan saw."""
        started = time.thread_time()
        self.cgroups.advance(seconds, cpus)
        parts = Parts()
        if seconds > 0.0:
            self._now += seconds
            self._look_up(waiting.active, seconds, cpus)
            parts = self._sort(waiting.active, seconds, cpus)
        self.cost_seconds = time.thread_time() - started
        return parts

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
            due = self._now - (SOON_SECONDS if one.waited + one.used > matters else RARELY_SECONDS)
            if one.process.checked < due:
                left -= 1
                one.process.checked = self._now
                self._identify(one.process, seconds, cpus)
            if one.waited > 0 and one.thread.checked < due:
                left -= 1
                one.thread.checked = self._now
                one.thread.background = _of_low_priority(one.thread)

    def _identify(self, process: Process, seconds: float, cpus: int) -> None:
        process.cgroup = self.cgroups.of_process(process.folder, seconds, cpus)
        process.name = "" if process.cgroup is None else process.cgroup.name
        if not process.name:
            try:
                with open(f"{process.folder}/comm", "rb") as stream:
                    process.name = plain_name(os.fsdecode(stream.read(64)).strip())
            except OSError:
                process.name = ""

    def _sort(self, active: list[Active], seconds: float, cpus: int) -> Parts:
        held = self._held_back(active, cpus)
        normal = throttled = background = 0.0
        amounts: dict[str, list[float]] = {}
        for one in active:
            waited = one.waited * 1e-9
            off = min(waited, held.get(id(one), 0.0))
            rest = one.weight * (waited - off)
            off *= one.weight
            throttled += off
            cgroup = one.process.cgroup
            low = one.thread.background or (cgroup is not None and cgroup.idle)
            if low:
                background += rest
            else:
                normal += rest
            name = one.process.name or OTHERS
            found = amounts.get(name)
            if found is None:
                found = amounts[name] = [0.0, 0.0, 0.0, 0.0]
            found[0] += one.weight * one.used * 1e-9
            found[3 if low else 1] += rest
            found[2] += off
        self._smooth(amounts, seconds)
        unanswered = sum([cgroup.carried for cgroup in self.cgroups.limited()])
        return Parts(normal, throttled, background, unanswered)

    def _held_back(self, active: list[Active], cpus: int) -> dict[int, float]:
        """Return by thread the seconds for which a quota held it back."""
        members: dict[int, tuple[Cgroup, list[Active]]] = {}
        limited = self.cgroups.limited()
        if not limited:
            return {}
        for cgroup in limited:
            members[id(cgroup)] = (cgroup, [])
        for one in active:
            if one.waited > 0 and (found := members.get(id(one.process.cgroup))) is not None:
                found[1].append(one)
        held: dict[int, float] = {}
        for cgroup, threads in members.values():
            held.update(_share_out(cgroup, threads, cpus))
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


def _of_low_priority(thread: Thread) -> bool:
    try:
        with open(f"{thread.folder}/stat", "rb", buffering=0) as stream:
            words = stream.read(1024).rpartition(b")")[2].split()
        return int(words[NICE_FIELD]) > 0 or words[POLICY_FIELD] == SCHED_IDLE
    except (OSError, IndexError, ValueError):
        return False
