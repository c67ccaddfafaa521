"""A probe: a fixed piece of CPU work, run now and then at normal priority, and how much longer it took.

Wall time over CPU time is what a job that starts now suffers, whatever the telemetry says. The work runs
outside of the interpreter's lock, in a thread of its own, so it delays nobody who waits for the lock.
"""

from __future__ import annotations

import hashlib
import math
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from prontosched.telemetry.linux.cgroup import Cgroup, Cgroups
from prontosched.telemetry.linux.files import Files

PROBE_SECONDS = 15.0
WORK_SECONDS = 0.025
# While nothing happens, every fourth calm probe doubles the time to the next, up to four times.
CALM_PROBES, CALM_FACTOR = 4, 4
CALM_SLOWDOWN = 1.1
STIR_READY_PERCENT = 1.0
CALIBRATION_ROUNDS = 2500
# Beyond this factor the work is measured anew, which also bounds what a probe costs.
DRIFT = 1.4


class ProbeResult(NamedTuple):
    """What one probe found, and what the node said (`state`) when it started.

    `slowdown` is wall time over CPU time, at least 1; NaN where the agent's own quota held it back.
    """

    slowdown: float
    state: str
    cpu_seconds: float


class Probe:
    """Run probes beside a loop.

    Parameters
    ----------
    prepare
        Called once in the probe's thread, before its first work: leaves the thread out of CPU Ready.
    every_seconds
        Time between two probes while something happens.

    Attributes
    ----------
    note
        Why what it finds may differ from what a job finds; empty where it does not.
    count, held_back
        Probes so far, and those that did not count because the agent's own quota held them back.

    Notes
    -----
    Costs 25 ms of CPU time in 15 s, a sixth of a percent of one core, and a quarter of that while the
    machine is idle. The thread sleeps in between.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] = "/",
        *,
        prepare: Callable[[], None] = lambda: None,
        every_seconds: float = PROBE_SECONDS,
    ) -> None:
        self.note = ""
        self.count = 0
        self.held_back = 0
        self.every_seconds = every_seconds
        self.last = ProbeResult(math.nan, "", 0.0)
        self._files = Files(root)
        self._prepare = prepare
        self._rounds = 0
        self._calm = 0
        self._started_at = -math.inf
        self._state = ""
        self._running = False
        self._wanted: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._found: queue.SimpleQueue[ProbeResult] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._cgroup: Cgroup | None = None

    @property
    def wait_seconds(self) -> float:
        """Time between two probes as things are."""
        return self.every_seconds * min(CALM_FACTOR, 1 << min(8, self._calm // CALM_PROBES))

    def poll(self, now: float, *, ready: float = math.nan, state: str = "") -> ProbeResult | None:
        """Start a probe if one is due, and return what the last one found, once; never waits.

        `now` is on a clock that never jumps; `ready` and `state` are what the node says at this moment.
        """
        found = self._take()
        if ready >= STIR_READY_PERCENT or state != self._state:
            self._calm = 0
        if not self._running and now - self._started_at >= self.wait_seconds:
            self._started_at, self._state, self._running = now, state, True
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="pronto-probe", daemon=True)
                self._thread.start()
            self._wanted.put(state)
        return found

    def close(self) -> None:
        """End the thread, once its work is done."""
        self._wanted.put(None)
        if self._thread is not None:
            self._thread.join(2.0)

    def _take(self) -> ProbeResult | None:
        try:
            found = self._found.get_nowait()
        except queue.Empty:
            return None
        self._running = False
        self.count += 1
        if math.isnan(found.slowdown):
            self.held_back += 1
            self.note = "some probes do not count: the agent's own quota held them back"
            return None
        self.last = found
        self._calm = self._calm + 1 if found.slowdown < CALM_SLOWDOWN else 0
        return found

    def _run(self) -> None:
        self._prepare()
        self.note = self._be_normal()
        while (state := self._wanted.get()) is not None:
            self._found.put(self._probe(state))

    def _be_normal(self) -> str:
        """Bring this thread to normal priority; return what still sets it apart from a job."""
        thread = threading.get_native_id()
        try:
            if os.getpriority(os.PRIO_PROCESS, thread) != 0:
                os.setpriority(os.PRIO_PROCESS, thread, 0)
        except OSError:
            nice = os.getpriority(os.PRIO_PROCESS, thread)
            return f"the probe runs at nice {nice}, below a job's priority: start the agent without nice"
        cgroups = Cgroups(self._files)
        self._cgroup = cgroups.of_process(self._files.path("proc/self"), 0.0, 1)
        weight = 1.0 if self._cgroup is None else cgroups.weight(self._cgroup)
        if weight != 1.0:
            return f"the probe's cgroup weighs {weight:.2g} times what is usual, and a job's may not"
        return ""

    def _probe(self, state: str) -> ProbeResult:
        if not self._rounds:
            self._rounds = self._calibrate()
        cgroup = self._cgroup
        if cgroup is not None:
            cgroup.advance(math.inf)
        cpu, wall = time.thread_time(), time.monotonic()
        _work(self._rounds)
        wall, cpu = time.monotonic() - wall, time.thread_time() - cpu
        slowdown = max(1.0, wall / cpu) if cpu > 0.0 else math.nan
        if cgroup is not None:
            cgroup.advance(math.inf)
            slowdown = math.nan if cgroup.throttled > 0.0 else slowdown
        if not WORK_SECONDS / DRIFT < cpu < WORK_SECONDS * DRIFT:
            self._rounds = 0  # the CPU's speed changed, or the first measurement of it was off
        return ProbeResult(slowdown, state, cpu)

    def _calibrate(self) -> int:
        """Return how many rounds take as long as wanted."""
        cpu = time.thread_time()
        _work(CALIBRATION_ROUNDS)
        took = max(1e-5, time.thread_time() - cpu)
        return max(1, round(CALIBRATION_ROUNDS * WORK_SECONDS / took))


def runs_on(root: str | os.PathLike[str]) -> bool:
    """Tell whether a folder shows the machine that this process runs on, and not a copy of some machine's files."""
    return os.path.lexists(os.path.join(root, "proc/thread-self"))


def _work(rounds: int) -> None:
    # One call that works outside of the interpreter's lock from beginning to end, without memory of its own.
    hashlib.pbkdf2_hmac("sha256", b"pronto", b"probe", rounds)
