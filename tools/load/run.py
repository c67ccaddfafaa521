"""Carry out a planned load with real processes.

Covers starting them on time, stopping them for certain, and the CPU time they took. An event that would
break the bound on CPU time, because earlier ones took more than planned, is skipped and said so.
"""

from __future__ import annotations

import heapq
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.load.schedule import Action, Event, Schedule

WORKER = Path(__file__).with_name("worker.py")
# Time a worker gets to end by itself after its action.
GRACE_SECONDS = 5.0


@dataclass(slots=True)
class LoadReport:
    """What was done.

    Attributes
    ----------
    started
        Clock time at the start, in seconds since 1970.
    done
        Events carried out, each with its clock time.
    skipped
        Events left out to keep the bound.
    cpu_seconds
        CPU time that the processes took.
    """

    schedule: Schedule
    started: float
    seconds: float = 0.0
    done: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[dict[str, Any]] = field(default_factory=list)
    cpu_seconds: float = 0.0

    @property
    def share(self) -> float:
        """CPU time taken, as a share of all CPUs."""
        return self.cpu_seconds / (self.schedule.cpus * self.seconds) if self.seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return it as numbers, strings and lists."""
        return {
            "started": self.started,
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
            "share": self.share,
            "done": self.done,
            "skipped": self.skipped,
            "schedule": self.schedule.to_json(),
        }


def run_load(
    schedule: Schedule,
    *,
    stopped: Callable[[], bool] = lambda: False,
    progress: Callable[[str], None] = lambda line: None,
) -> LoadReport:
    """Carry out a schedule, until its end or until `stopped`.

    Parameters
    ----------
    stopped
        Asked ten times a second whether to end now.
    progress
        Told about each event in a line.
    """
    report = LoadReport(schedule, started=time.time())
    running = _Running()
    begun = time.monotonic()
    waiting = list(schedule.events)
    pending: list[tuple[float, int, Action]] = []
    order = 0
    try:
        while (now := time.monotonic() - begun) < schedule.seconds and not stopped():
            while waiting and waiting[0].start <= now:
                event = waiting.pop(0)
                if not _affordable(event, schedule, running.cpu_seconds()):
                    report.skipped.append(_summary(event, report.started))
                    progress(f"{now:.0f} s: {event.kind} skipped, the CPU share is used up")
                    continue
                report.done.append(_summary(event, report.started))
                progress(f"{now:.0f} s: {event.kind} for {event.seconds:.0f} s")
                for action in event.actions:
                    order += 1
                    heapq.heappush(pending, (action.start, order, action))
            while pending and pending[0][0] <= now:
                running.start(heapq.heappop(pending)[2])
            running.reap()
            time.sleep(0.1)
    finally:
        running.stop()
        report.seconds = time.monotonic() - begun
        report.cpu_seconds = running.cpu_seconds()
    return report


def _affordable(event: Event, schedule: Schedule, used: float) -> bool:
    if event.kind == "hum":
        return True
    return used + event.cpu_seconds <= schedule.share * schedule.cpus * (event.start + event.seconds) * 1.1


def _summary(event: Event, started: float) -> dict[str, Any]:
    return {
        "kind": event.kind,
        "timestamp": round(started + event.start, 1),
        "seconds": round(event.seconds, 1),
        "lead_seconds": round(event.lead_seconds, 1),
        "contention": event.contention,
        "processes": len(event.actions),
    }


class _Running:
    """The processes that run now."""

    def __init__(self) -> None:
        self._processes: list[tuple[float, subprocess.Popen[bytes]]] = []
        self._before = _children_seconds()

    def start(self, action: Action) -> None:
        command = [
            *(sys.executable, "-I", "-S", str(WORKER), action.kind),
            *(f"{action.seconds:.3f}", f"{action.level:.4f}", "1" if action.ramp else "0", str(os.getpid())),
        ]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=_quiet_environment())
        self._processes.append((time.monotonic() + action.seconds + GRACE_SECONDS, process))

    def reap(self) -> None:
        left = []
        for deadline, process in self._processes:
            if process.poll() is None:
                if time.monotonic() > deadline:
                    process.kill()
                left.append((deadline, process))
        self._processes = left

    def stop(self) -> None:
        for _, process in self._processes:
            process.terminate()
        for _, process in self._processes:
            try:
                process.wait(timeout=GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes = []

    def cpu_seconds(self) -> float:
        return _children_seconds() - self._before


def _children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _quiet_environment() -> dict[str, str]:
    return {name: os.environ[name] for name in ("PATH", "TMPDIR") if name in os.environ}
