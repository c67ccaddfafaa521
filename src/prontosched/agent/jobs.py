"""Jobs just admitted count before telemetry shows them.

Covers: the list of announced jobs of one node and the rule by which it is full.
Time arrives as a number on a clock that never jumps.
"""

from __future__ import annotations

import math
import os
import select
from dataclasses import dataclass

MAX_JOBS = 1000
CAUGHT_UP_SHARE = 0.5
SETTLING_SAMPLES = 2
SATURATED_SHARE = 0.95
IDLE_SHARE = 0.1


@dataclass(slots=True)
class Job:
    """A job that a scheduler has sent here and telemetry may not show yet.

    Attributes
    ----------
    id
        The scheduler's own name for it. Announcing it again replaces it.
    cpus
        CPUs it will keep busy.
    until
        When the announcement ends by itself, on the agent's clock.
    visible_at
        The busy CPUs from which telemetry is taken to show it; NaN while unknown.
    samples
        Telemetry vectors seen since it was announced.
    handle
        A file descriptor that becomes readable when the job's process ends, or None.
    """

    id: str
    cpus: float
    until: float
    visible_at: float = math.nan
    samples: int = 0
    handle: int | None = None


class Announced:
    """The announced jobs of one node, and whether they leave room for another.

    A node is full for a job when busy, announced and asked CPUs exceed capacity times a
    factor. Without a job to weigh and with nothing announced the signal alone decides.

    Parameters
    ----------
    capacity
        CPUs of the node.
    factor
        How far beyond its capacity a node may be filled.

    Notes
    -----
    Memory: at most `MAX_JOBS` jobs.

    Examples
    --------
    >>> announced = Announced(capacity=2, factor=1.25)
    >>> announced.add("a", cpus=1, ttl=30, now=0.0)
    >>> announced.full(cpus=1), announced.full(cpus=2) is None
    (None, False)
    >>> announced.expire(now=31.0)
    >>> len(announced)
    0
    """

    def __init__(self, *, capacity: float, factor: float = 1.25) -> None:
        self.capacity = capacity
        self.factor = factor
        self.busy = 0.0
        self.full_since = -math.inf
        self.freed_at = -math.inf
        self._full = False
        self._jobs: dict[str, Job] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def cpus(self) -> float:
        """CPUs announced and not yet seen."""
        return math.fsum(job.cpus for job in self._jobs.values())

    @property
    def ids(self) -> list[str]:
        """Names of the jobs announced and not yet seen, oldest first."""
        return list(self._jobs)

    def full(self, cpus: float = 0.0) -> str | None:
        """Say why there is no room for a job of `cpus`, or return None.

        A job wider than the node is weighed as one that fills it, or it could never run.
        """
        if not self._jobs and not cpus:
            return None
        asked = min(cpus, self.capacity)
        room = self.capacity * self.factor
        # An idle machine is never quite idle: a job that fills it needs no more than that.
        if self.busy + self.cpus + asked <= max(room, asked + IDLE_SHARE * self.capacity):
            return None
        parts = [f"{self.busy:.1f} busy"]
        if self._jobs:
            parts.append(f"{self.cpus:.3g} announced by {_count(len(self._jobs), 'job')}")
        if asked:
            parts.append(f"{asked:.3g} asked for")
        return f"CPUs {' and '.join(parts)} exceed {room:.3g} ({self.capacity:g} CPUs x {self.factor:g})"

    def add(self, name: str, *, cpus: float, ttl: float, now: float, pid: int | None = None) -> None:
        """Count a job of `cpus` from now on, for at most `ttl` seconds.

        With `pid`, the announcement ends with that process, where this machine knows it.
        """
        self.remove(name)
        if len(self._jobs) >= MAX_JOBS:
            raise OverflowError(
                f"at most {MAX_JOBS} jobs may be announced at once, got one more: wait, or set a shorter ttl"
            )
        visible_at = min(
            self.busy + self.cpus + CAUGHT_UP_SHARE * min(cpus, self.capacity),
            SATURATED_SHARE * self.capacity,
        )
        self._jobs[name] = Job(name, cpus, now + ttl, visible_at, handle=_process(pid))
        self.note(now)

    def remove(self, name: str) -> bool:
        """Forget a job; return whether it was there."""
        job = self._jobs.pop(name, None)
        if job is not None and job.handle is not None:
            os.close(job.handle)
        return job is not None

    def saw(self, utilisation: float) -> None:
        """Take in one telemetry value, in percent of all CPUs, and drop the jobs it shows."""
        if math.isnan(utilisation):
            return
        self.busy = max(0.0, utilisation) / 100.0 * self.capacity
        for job in list(self._jobs.values()):
            job.samples += 1
            # The vector that was being read while the job started shows half of it at best.
            if job.samples >= SETTLING_SAMPLES and self.busy >= job.visible_at:
                self.remove(job.id)

    def expire(self, now: float) -> None:
        """Forget the jobs whose time is over or whose process has ended."""
        for job in list(self._jobs.values()):
            if now >= job.until or (job.handle is not None and _ended(job.handle)):
                self.remove(job.id)
        self.note(now)

    def note(self, now: float) -> None:
        """Keep the time at which the node became full, or free again."""
        full = self.full() is not None
        if full and not self._full:
            self.full_since = now
        elif self._full and not full:
            self.freed_at = now
        self._full = full

    def clear(self) -> None:
        """Forget all jobs."""
        for name in list(self._jobs):
            self.remove(name)


def _process(pid: int | None) -> int | None:
    if pid is None or not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None  # another machine's or container's process: its ttl ends it


def _ended(handle: int) -> bool:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(0))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
