"""Dask's scheduler prefers workers that expect no contention: no worker is paused, no task waits longer.

Covers: a scheduler plugin that puts the chance of contention, as workers report it, into
the three places where Dask chooses a worker: tasks from the queue, tasks with
dependencies, and few tasks without. Does not cover: where the chance comes from,
`prontosched.gates.dask`.

It relies on more than Dask's public interface: the scheduler's methods `worker_objective`,
`decide_worker_rootish_queuing_enabled` and `decide_worker_non_rootish`, and
`tests/gates/test_dask_preference.py` tries each. Whatever fails in here, Dask's own
choice counts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from distributed.diagnostics.plugin import SchedulerPlugin

from prontosched.gates.dask_floor import METRIC
from prontosched.gates.policy import CONTENDED
from prontosched.gates.preference import LEVELS, level_of

LOG = logging.getLogger("distributed.scheduler.pronto")
NAME = "pronto-preference"
# Dask's fast path looks at every worker only in clusters smaller than this.
MOST_WORKERS = 20


class ProntoScheduler(SchedulerPlugin):  # type: ignore[misc]
    """Choose workers by the soonest expected end of a task, contention included.

    A task on a worker that is sure to meet contention is taken to run twice as long. A
    worker that expects contention is given no task beyond its threads; the last tasks of a
    queue are left to calm workers where those will be free soon.

    Notes
    -----
    Memory: none of its own; reports lie with Dask's workers.
    """

    name = NAME

    def __init__(self) -> None:
        self._scheduler: Any = None

    async def start(self, scheduler: Any) -> None:
        """Take the three choices over; called by Dask."""
        self._scheduler = scheduler
        for method, ours in (
            ("worker_objective", self.objective),
            ("decide_worker_rootish_queuing_enabled", self.from_queue),
            ("decide_worker_non_rootish", self.without_dependencies),
        ):
            setattr(scheduler, method, self._or_dasks_own(method, ours))

    def objective(self, ts: Any, ws: Any) -> Any:
        """Return when a task is expected to end on a worker; the soonest wins."""
        own = type(self._scheduler).worker_objective(self._scheduler, ts, ws)
        if ts.actor:
            return own
        duration = self._scheduler._get_prefix_duration(ts.prefix)
        return ((own[0] + duration) * (1.0 + chance_of(ws)), *own[1:])

    def from_queue(self) -> Any:
        """Return the worker for the next task of the queue; None leaves it there."""
        scheduler = self._scheduler
        if not scheduler.idle_task_count:
            return None
        best = min(scheduler.idle_task_count, key=lambda ws: (not _free(ws), level(ws), _load(ws)))
        if chance_of(best) < CONTENDED:
            return best
        # It has a task that will end, and this is asked again then: nothing waits for ever.
        waits = self._calm_soon() and level(best) == LEVELS - 1
        return best if _free(best) and not waits else None

    def without_dependencies(self, ts: Any) -> Any:
        """Return the worker for a task that is not of a large bag."""
        scheduler = self._scheduler
        own = type(scheduler).decide_worker_non_rootish
        pool = list((scheduler.idle or scheduler.workers).values())
        free_choice = not ts.dependencies and scheduler.valid_workers(ts) is None
        if not free_choice or len(pool) >= MOST_WORKERS or len(scheduler.running) < len(scheduler.workers):
            return own(scheduler, ts)
        if len({level(ws) for ws in pool}) <= 1:
            return own(scheduler, ts)
        return min(pool, key=lambda ws: (self.objective(ts, ws), _load(ws)))

    def _calm_soon(self) -> bool:
        """Tell whether calm workers can take all that is queued as soon as they are free."""
        scheduler = self._scheduler
        calm = sum(ws.nthreads for ws in scheduler.running if chance_of(ws) < CONTENDED)
        return bool(0 < len(scheduler.queued) <= calm)

    def _or_dasks_own(self, method: str, ours: Callable[..., Any]) -> Callable[..., Any]:
        scheduler = self._scheduler

        def choose(*arguments: Any) -> Any:
            if scheduler.plugins.get(self.name) is self:
                try:
                    return ours(*arguments)
                except Exception:
                    LOG.exception("preference between workers broke: Dask's own choice counts")
            return getattr(type(scheduler), method)(scheduler, *arguments)

        return choose


def chance_of(ws: Any) -> float:
    """Return the chance of contention that a worker last reported; 0 where it reports none."""
    report = ws.metrics.get(METRIC) or {}
    score = report.get("score") if report.get("mode") == "enforce" else None
    return 0.0 if score is None else min(1.0, max(0.0, float(score)))


def level(ws: Any) -> int:
    """Return the level of preference of a worker."""
    return level_of(chance_of(ws))


def _free(ws: Any) -> bool:
    return bool(len(ws.processing) - len(ws.long_running) < ws.nthreads)


def _load(ws: Any) -> float:
    return float(len(ws.processing) / ws.nthreads)
