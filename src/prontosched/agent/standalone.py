"""Look at this machine for a few seconds, where no agent has been looking for longer.

Covers: a decision without an agent for `pronto run` and `pronto status`. A node that an
agent left behind is taken up warm and never written.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from prontosched.agent.answer import slowdown
from prontosched.agent.config import local_source, make_nodes, tolerance_percent
from prontosched.agent.jobs import Announced
from prontosched.agent.nodes import NodeTable, expects
from prontosched.agent.store import make_private
from prontosched.agent.store.state import read_state
from prontosched.errors import ProntoError, StateError
from prontosched.settings import AgentSettings

WATCH_SECONDS = 3.0
READ_EVERY_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Look:
    """What a few seconds showed.

    Attributes
    ----------
    accept, reason
        The answer.
    slowdown
        How many times as long as alone the job asked for would take now; NaN where unknown.
    warm
        True when a node with a memory decided, not only the present CPU Ready.
    """

    node: str
    accept: bool
    reason: str
    cpu_ready_percent: float
    utilisation_percent: float
    slowdown: float
    warm: bool
    seconds: float


def look(
    settings: AgentSettings,
    folder: Path,
    *,
    seconds: float = WATCH_SECONDS,
    every: float = READ_EVERY_SECONDS,
    cpus: float = 0.0,
) -> Look:
    """Watch this machine for `seconds` and decide; with `cpus`, for a job of so many.

    Refuses when CPU Ready over that time is above the tolerance, when a warm node expects
    contention at the end of it, or when the CPUs that are free are too few for the job.
    """
    settings, source, instead = local_source(settings)
    nodes = make_nodes(settings, source)
    warm = _take_up(nodes, folder / f"{source.name}.state")
    tolerance = tolerance_percent(settings)
    ready: list[float] = []
    used: list[float] = []
    low: list[float] = []
    begin = time.monotonic()
    try:
        while True:
            samples = source.read()
            now = time.monotonic()
            nodes.begin(samples, now)
            for sample in samples:
                nodes.step(sample, now)
            if samples and samples[0].ready == samples[0].ready:
                ready.append(samples[0].ready)
            if samples and samples[0].utilisation == samples[0].utilisation:
                used.append(samples[0].utilisation)
                low += [node.background for node in nodes]
            if time.monotonic() - begin >= seconds:
                break
            time.sleep(every)
    finally:
        source.close()
    took = time.monotonic() - begin
    mean_ready = sum(ready) / len(ready) if ready else float("nan")
    mean_used = sum(used) / len(used) if used else float("nan")
    decision = next((node.decision for node in nodes), None)
    capacity = settings.cpus or float(os.cpu_count() or 1)
    free = Announced(capacity=capacity, factor=settings.capacity_factor)
    free.saw(mean_used - (sum(low) / len(low) if low else 0.0))
    suffered = slowdown(
        busy=free.busy, waiting=mean_ready * capacity / 100.0, ahead=0.0, asked=cpus, capacity=capacity
    )
    seen = f"CPU Ready {mean_ready:.1f} % per CPU over {took:.0f} s"
    if instead:
        accept, reason = True, f"{instead}: accepting, as nothing is known"
    elif mean_ready >= tolerance:
        accept, reason = False, f"{seen}, tolerated are {tolerance:g} %"
    elif warm and decision is not None and (decision.raised or expects(decision)):
        accept, reason = False, decision.reason
    elif (full := free.full(cpus)) is not None:
        accept, reason = False, full
    else:
        accept, reason = (
            True,
            seen if ready else "CPU Ready cannot be measured here: accepting, as nothing is known",
        )
    name = nodes.names[0] if nodes.names else nodes.fallback_name
    return Look(name, accept, reason, mean_ready, mean_used, suffered, warm, took)


@contextlib.contextmanager
def one_at_a_time(folder: Path, deadline: float) -> Iterator[bool]:
    """Hold the machine's turn, so that whoever comes next sees the job that is about to start.

    Yields False when the turn did not come before `deadline` on the monotonic clock. The turn
    ends with the process's image: a program that takes its place gives it up.
    """
    try:
        make_private(folder)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        handle = os.open(folder / "run.lock", flags, 0o600)
    except OSError as error:
        raise ProntoError(
            f"the folder {folder} must be writable, got {error.strerror}: give --state another"
        ) from error
    try:
        yield _turn(handle, deadline)
    finally:
        os.close(handle)


def _turn(handle: int, deadline: float) -> bool:
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.1)


def _take_up(nodes: NodeTable, path: Path) -> bool:
    try:
        nodes.restore(nodes.fallback_name, read_state(path))
    except (OSError, StateError):
        return False
    return True
