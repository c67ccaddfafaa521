"""CPU Ready of a Linux machine: how long threads waited for a CPU, in percent of the time and per CPU.

Three ways, the first that the machine offers: `run_delay` of every thread, the waiting time in
/proc/schedstat, and the pressure total (PSI). Which one it was is said in a note.

Threads that are born and die between two readings are invisible to the first way, so it is checked against
the pressure total, and the larger counts. The kernel's `cpu some` is the share of time in which a task
waited, averaged over CPUs by how long each was busy; times the busy share of all CPUs it never exceeds the
true waiting time per CPU, so the larger of the two is the better estimate.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from prontosched.telemetry.linux_files import Files
from prontosched.telemetry.linux_threads import ThreadScanner, Waiting

SOME_TOTAL = re.compile(rb"some .*?total=(\d+)")
# Threads see a little less than the pressure total by chance alone; a note is worth more than that.
NOTE_MARGIN_PERCENT = 1.0
THREADS_NOTE = ("ready from run_delay of all threads",)
HIDDEN_NOTE = ("ready from run_delay of the threads that we may see, and PSI: others are hidden",)
# Threads come and go between two files; only more than these are missing.
HIDDEN_SHARE = 0.2
HIDDEN_SLACK = 16
SHORT_NOTE = ("ready from PSI: threads too short-lived to be seen waited longer than those seen",)


class Ready(NamedTuple):
    """CPU Ready in percent per CPU, and a note on where it came from."""

    percent: float
    notes: tuple[str, ...]


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
    """

    def __init__(self, files: Files, *, interval_seconds: float, threads: bool = True) -> None:
        self._files = files
        self._threads = threads
        self.scanner = ThreadScanner(files.path("proc"), interval_seconds=interval_seconds)
        self.waiting = Waiting()
        self._pressure_total = math.nan
        self._schedstat_total = math.nan
        self._schedstat = True
        self._sample_notes: dict[int, tuple[str, ...]] = {}

    def read(self, *, seconds: float, cpus: int, busy: float, threads: float = math.nan) -> Ready:
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
        """
        pressure = self._pressure_percent(seconds, busy)
        if self._threads:
            self.waiting = self.scanner.scan()
            if not self.scanner.trouble:
                percent = 100.0 * self.waiting.seconds / seconds / cpus
                if pressure > percent + NOTE_MARGIN_PERCENT:
                    return Ready(pressure, SHORT_NOTE)
                percent = max(percent, pressure) if pressure == pressure else percent
                hidden = threads - self.waiting.threads > HIDDEN_SLACK + HIDDEN_SHARE * threads
                return Ready(percent, HIDDEN_NOTE if hidden else self._threads_note())
        why = f"threads {self.scanner.trouble}" if self._threads else "threads not wanted"
        if self._schedstat:
            waited = self._schedstat_seconds()
            if waited is not None:
                return Ready(100.0 * waited / seconds / cpus, (f"ready from /proc/schedstat: {why}",))
            self._schedstat = False
        state = self._files.trouble.get("proc/pressure/cpu")
        if state is None:
            note = f"ready from PSI, a lower bound: {why}, /proc/schedstat absent"
            return Ready(pressure, (note,))
        return Ready(math.nan, (f"ready unknown: {why}, /proc/schedstat absent, PSI {state}",))

    def close(self) -> None:
        """Let go of the threads' files."""
        self.scanner.close()

    def _threads_note(self) -> tuple[str, ...]:
        stride = self.waiting.stride
        if stride == 1:
            return THREADS_NOTE
        return self._sample_notes.setdefault(
            stride, (f"ready from one in {stride} threads: reading all costs more than 2 % of a core",)
        )

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
