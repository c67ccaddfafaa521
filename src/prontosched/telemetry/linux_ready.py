"""CPU Ready of a Linux machine: what a job would wait for CPUs that others use, in percent and per CPU.

It is the waiting of threads at normal priority, without what their cgroup's quota held back, plus steal: the
time for which the hypervisor ran somebody else. Waiting has three ways, the first that the machine offers:
`run_delay` of every thread, the waiting time in /proc/schedstat, and the pressure total (PSI). Which one it
was is said in a note. Only the first can tell quotas and low priority apart.

Threads that are born and die between two readings are invisible to the first way, so it is checked against
the pressure total. The kernel's `cpu some` is the share of time in which a task waited, averaged over CPUs by
how long each was busy; times the busy share of all CPUs it never exceeds the true waiting time per CPU. What
it has above all waiting that was seen, of whatever part, is waiting of such threads. Pressure counts quotas and
low priority as well: what quotas held back and no thread seen waited is taken off, and the rest counts as far
as CPUs worked at normal priority.
"""

from __future__ import annotations

import math
import os
import re
from typing import NamedTuple

from prontosched.telemetry.linux_files import Files
from prontosched.telemetry.linux_threads import ThreadScanner, Waiting
from prontosched.telemetry.linux_waiting import Consumer, WaitingSorter
from prontosched.telemetry.source import MIXED_NOTE

SOME_TOTAL = re.compile(rb"some .*?total=(\d+)")
# Threads see a little less than the pressure total by chance alone; a note is worth more than that.
NOTE_MARGIN_PERCENT = 1.0
# Threads come and go between two files; only more than these are missing.
HIDDEN_SHARE = 0.2
HIDDEN_SLACK = 16
PARTS_NOTE = "waiting at normal priority and steal; apart: held back by quotas, background"
NO_CGROUPS_NOTE = "waiting at normal priority and steal; no cgroups to tell quotas by"


class Ready(NamedTuple):
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


PART_NAMES = ("normal", "unseen", "steal", "throttled", "background")


class ReadyReader:
    """Measure CPU Ready between two readings.

    Parameters
    ----------
    files
        The machine.
    interval_seconds
        Time between two readings, to which the cost of reading threads is compared.
    threads
        Whether threads may be read one by one.

    Attributes
    ----------
    waiting
        What the last scan of threads saw.
    last
        What the last reading gave.
    """

    def __init__(self, files: Files, *, interval_seconds: float, threads: bool = True) -> None:
        self._files = files
        self._threads = threads
        self.scanner = ThreadScanner(files.path("proc"), interval_seconds=interval_seconds)
        self.sorter = WaitingSorter(files)
        self.waiting = Waiting()
        self.last = Ready(math.nan, ())
        self._pressure_total = math.nan
        self._schedstat_total = math.nan
        self._schedstat = True
        self._notes: dict[str, tuple[str, ...]] = {}

    def read(
        self,
        *,
        seconds: float,
        cpus: int,
        busy: float,
        threads: float = math.nan,
        steal: float = math.nan,
        nice: float = math.nan,
    ) -> Ready:
        """Return CPU Ready since the last reading.

        Parameters
        ----------
        seconds
            Time since the last reading; NaN at the first.
        cpus
            How many CPUs are online.
        busy
            Share of all CPUs that was busy, in [0, 1]; NaN if unknown.
        threads
            How many threads the kernel counts, hidden ones included; NaN if unknown.
        steal
            Share of all CPUs that the hypervisor gave to others, in [0, 1]; NaN if unknown.
        nice
            Share of programs' time that was of low priority, in [0, 1]; NaN if unknown.
        """
        self.last = self._read(seconds, cpus, busy, threads, 100.0 * steal, nice)
        return self.last

    def exclude_thread(self) -> None:
        """Leave the calling thread out from now on: a probe's waiting is its own doing."""
        try:
            # As the machine's own /proc numbers it, which may be that of another PID namespace.
            number = os.path.basename(os.readlink(self._files.path("proc/thread-self")))
            self.scanner.excluded |= {int(number)}
        except (OSError, ValueError):
            return

    @property
    def consumers(self) -> tuple[Consumer, ...]:
        """Who uses CPUs and who waits for them."""
        return self.sorter.consumers

    def _read(
        self, seconds: float, cpus: int, busy: float, threads: float, steal: float, nice: float
    ) -> Ready:
        pressure = self._pressure_percent(seconds, busy)
        stolen = steal if steal == steal else 0.0
        if self._threads:
            self.waiting = self.scanner.scan()
            if not self.scanner.trouble:
                return self._from_threads(seconds, cpus, pressure, stolen, threads, nice)
        why = f"threads {self.scanner.trouble}" if self._threads else "threads not wanted"
        if self._schedstat:
            waited = self._schedstat_seconds()
            if waited is not None:
                percent = 100.0 * waited / seconds / cpus
                notes = self._noted(f"ready from /proc/schedstat: {why}", MIXED_NOTE)
                return Ready(percent + stolen, notes, percent, 0.0, steal)
            self._schedstat = False
        state = self._files.trouble.get("proc/pressure/cpu")
        if state is None:
            notes = self._noted(f"ready from PSI, a lower bound: {why}, /proc/schedstat absent", MIXED_NOTE)
            return Ready(pressure + stolen, notes, math.nan, pressure, steal)
        return Ready(math.nan, (f"ready unknown: {why}, /proc/schedstat absent, PSI {state}",), steal=steal)

    def _from_threads(
        self, seconds: float, cpus: int, pressure: float, stolen: float, threads: float, nice: float
    ) -> Ready:
        parts = self.sorter.sort(self.waiting, seconds=seconds, cpus=cpus)
        self.scanner.beside_seconds = self.sorter.cost_seconds
        scale = 100.0 / seconds / cpus if seconds > 0.0 else math.nan
        normal, throttled, background = (scale * part for part in parts[:3])
        beyond = pressure - (normal + throttled + background) - scale * parts.unanswered
        beyond = max(0.0, beyond) if beyond == beyond else 0.0
        unseen = beyond * (1.0 - nice if nice == nice else 1.0)
        hidden = threads - self.waiting.threads > HIDDEN_SLACK + HIDDEN_SHARE * threads
        if beyond > NOTE_MARGIN_PERCENT:
            words = "ready from run_delay and PSI: threads too short-lived to be seen waited as well"
        elif hidden:
            words = "ready from run_delay of the threads that we may see, and PSI: others are hidden"
        elif self.waiting.stride > 1:
            words = (
                f"ready from one in {self.waiting.stride} threads: reading all costs more than 2 % of a core"
            )
        else:
            words = "ready from run_delay of all threads"
        notes = self._noted(words, PARTS_NOTE if self.sorter.cgroups.told_apart else NO_CGROUPS_NOTE)
        percent = normal + unseen + stolen
        return Ready(percent, notes, normal, unseen, stolen, throttled, background + beyond - unseen)

    def close(self) -> None:
        """Let go of the threads' files."""
        self.scanner.close()

    def _noted(self, *notes: str) -> tuple[str, ...]:
        """Return notes as the same tuple every time, so that a change can be told by `is`."""
        return self._notes.setdefault(notes[0], notes)

    def _pressure_percent(self, seconds: float, busy: float) -> float:
        data = self._files.read("proc/pressure/cpu")
        found = SOME_TOTAL.search(data) if data is not None else None
        total = float(found[1]) if found else math.nan
        waited = (total - self._pressure_total) / 1e6
        self._pressure_total = total
        if not waited >= 0.0 or not seconds > 0.0:
            return math.nan
        return 100.0 * min(1.0, waited / seconds) * (busy if busy == busy else 1.0)

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
