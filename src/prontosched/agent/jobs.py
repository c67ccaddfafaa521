"""Jobs just admitted count before telemetry shows them. Time arrives as a number on a clock that never jumps."""

from __future__ import annotations

import math
import os
import select
from collections.abc import Iterable
from dataclasses import dataclass

MAX_JOBS = 1000
# Of one ordinary user, and of all of them: a scheduler's announcements always find room.
USER_JOBS, USERS_JOBS = 32, 512
USER_TTL_SECONDS = 600.0
CAUGHT_UP_SHARE = 0.5
SETTLING_SAMPLES = 2
SATURATED_SHARE = 0.95
IDLE_SHARE = 0.1


@dataclass(slots=True)
class Job:
    """A job that a scheduler has sent here and telemetry may not show yet.

    Telemetry is taken to show it from `visible_at` busy CPUs on, NaN while unknown; `samples` counts the vectors since.
    `handle` is a file descriptor that becomes readable when the job's process ends. `uid` is the ordinary user that
    announced it, None for a scheduler's own, which every answer weighs.
    """

    id: str
    cpus: float
    until: float
    visible_at: float = math.nan
    samples: int = 0
    handle: int | None = None
    uid: int | None = None


class AnnouncedJobs:
    """The announced jobs of one node, and whether they leave room for another.

    A node is full for a job when busy, announced and asked CPUs exceed capacity times a
    factor. Without a job to weigh and with nothing announced the signal alone decides. Jobs of
    ordinary users keep only each other waiting: see `full`.

    Examples
    --------
    >>> announced = AnnouncedJobs(capacity=2, factor=1.25)
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
        return _cpus(self._jobs.values())

    @property
    def ids(self) -> list[str]:
        """Names of the jobs announced and not yet seen, oldest first."""
        return list(self._jobs)

    def full(self, cpus: float = 0.0, *, among_users: bool = False) -> str | None:
        """Say why there is no room for a job of `cpus`, or return None.

        A job wider than the node is weighed as one that fills it, or it could never run. Jobs of
        ordinary users count only `among_users`: whoever asks for a scheduler is not kept away by them.
        """
        jobs = [job for job in self._jobs.values() if among_users or job.uid is None]
        if not jobs and not cpus:
            return None
        asked = min(cpus, self.capacity)
        room = self.capacity * self.factor
        announced = _cpus(jobs)
        # An idle machine is never quite idle: a job that fills it needs no more than that.
        if self.busy + announced + asked <= max(room, asked + IDLE_SHARE * self.capacity):
            return None
        parts = [f"{self.busy:.1f} busy"]
        if jobs:
            parts.append(f"{announced:.3g} announced by {len(jobs)} job{'s' if len(jobs) > 1 else ''}")
        if asked:
            parts.append(f"{asked:.3g} asked for")
        return f"CPUs {' and '.join(parts)} exceed {room:.3g} ({self.capacity:g} CPUs x {self.factor:g})"

    def add(
        self,
        name: str,
        *,
        cpus: float,
        ttl: float,
        now: float,
        pid: int | None = None,
        uid: int | None = None,
    ) -> None:
        """Count a job of `cpus` from now on, for at most `ttl` seconds; `OverflowError` where there are too many.

        With `pid`, the announcement ends with that process, where this machine knows it. With
        `uid` it is an ordinary user's: together those take no more than the node's CPUs.
        """
        self.remove(name, uid)
        alike = [job for job in self._jobs.values() if (job.uid is None) == (uid is None)]
        most = MAX_JOBS if uid is None else USERS_JOBS
        if uid is not None:
            ttl = min(ttl, USER_TTL_SECONDS)
            own = [job for job in alike if job.uid == uid]
            if len(own) >= USER_JOBS:
                alike, most = own, USER_JOBS
            elif _cpus(own) + cpus > self.capacity:
                raise OverflowError(
                    f"the jobs that one user announces may have {self.capacity:g} CPUs, got {_cpus(own) + cpus:g}: wait"
                )
        if len(alike) >= most:
            raise OverflowError(
                f"at most {most} jobs may be announced at once, got one more: wait, or set a shorter ttl"
            )
        visible_at = min(
            self.busy + self.cpus + CAUGHT_UP_SHARE * min(cpus, self.capacity),
            SATURATED_SHARE * self.capacity,
        )
        self._jobs[_key(name, uid)] = Job(name, cpus, now + ttl, visible_at, handle=_process(pid), uid=uid)
        self.note(now)

    def remove(self, name: str, uid: int | None = None) -> bool:
        """Forget a job of the scheduler's or of one user; return whether it was there."""
        job = self._jobs.pop(_key(name, uid), None)
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
                self.remove(job.id, job.uid)

    def expire(self, now: float) -> None:
        """Forget the jobs whose time is over or whose process has ended."""
        for job in list(self._jobs.values()):
            if now >= job.until or (job.handle is not None and _ended(job.handle)):
                self.remove(job.id, job.uid)
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
        for job in list(self._jobs.values()):
            self.remove(job.id, job.uid)


def _key(name: str, uid: int | None) -> str:
    # No name of a job has a slash: one user's cannot be another's, nor a scheduler's.
    return name if uid is None else f"{uid}/{name}"


def _cpus(jobs: Iterable[Job]) -> float:
    return math.fsum(job.cpus for job in jobs)


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
