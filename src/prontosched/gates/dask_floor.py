"""Which Dask workers may pause at once: the capacity floor, told from the scheduler's own list.

Covers: reading that list, and the rule. Pure. Does not cover: asking for the list, and
pausing, `prontosched.gates.dask`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from prontosched.gates.preference import Word, closed_nodes, places

METRIC = "pronto"


class WorkerView(NamedTuple):
    """What the scheduler knows of one worker.

    Attributes
    ----------
    paused
        True when it takes no tasks, whoever paused it.
    wants
        True when its node wants to refuse, as it last reported.
    score
        Its chance of contention; NaN where it did not report.
    spare
        True when it has a thread without a task.
    """

    paused: bool
    wants: bool = False
    score: float = math.nan
    spare: bool = True


def read_workers(identity: Mapping[str, Any]) -> dict[str, WorkerView]:
    """Read the workers in service from the scheduler's description of itself."""
    views = {}
    for address, worker in identity["workers"].items():
        if worker["status"] not in ("running", "paused"):
            continue
        metrics = worker.get("metrics") or {}
        tasks = metrics.get("task_counts") or {}
        report = metrics.get(METRIC) or {}
        score = report.get("score")
        views[address] = WorkerView(
            paused=worker["status"] == "paused",
            wants=bool(report.get("refuse")),
            score=math.nan if score is None else float(score),
            spare=tasks.get("executing", 0) + tasks.get("ready", 0) < worker.get("nthreads", 1),
        )
    return views


def may_pause(me: str, score: float, workers: Mapping[str, WorkerView], share: float) -> bool:
    """Tell whether `me` may be paused, or stay so: by the rule of every gate, `preference.closable`.

    Workers paused by others are not in service. One that must give way is told False and
    resumes; whoever is worse off then finds the place free.

    Parameters
    ----------
    share
        Largest share of the workers that may be paused at once, in (0, 1].

    Examples
    --------
    >>> may_pause("a", 0.9, {"a": WorkerView(False), "b": WorkerView(False)}, 0.25)
    True
    >>> may_pause("a", 0.9, {"a": WorkerView(False), "b": WorkerView(True)}, 0.25)
    False
    """
    serving = {name: view for name, view in workers.items() if name == me or view.wants or not view.paused}
    words = {name: Word(view.wants, view.score, view.paused) for name, view in serving.items()}
    words[me] = Word(True, score, workers[me].paused)
    if me not in closed_nodes(words, nodes=len(words), share=share):
        return False
    others = sum(view.paused for name, view in serving.items() if name != me)
    return workers[me].paused or others < places(len(words), share)
