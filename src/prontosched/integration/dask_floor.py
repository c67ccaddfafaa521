"""Which Dask workers may pause at once: the capacity floor, told from the scheduler's own list.

Covers: reading that list, and the rule. Pure. Does not cover: asking for the list, and
pausing, `prontosched.integration.dask`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from prontosched.integration.preference import places

METRIC = "pronto"


class WorkerView(NamedTuple):
    """What the scheduler knows of one worker.

    Attributes
    ----------
    paused
        True when it takes no tasks, whoever paused it: what matters is who is left.
    wants
        True when its node wants to refuse, as it last reported.
    score
        How certain it is of that; minus infinity where it did not report.
    """

    paused: bool
    wants: bool = False
    score: float = -math.inf


def read_workers(identity: Mapping[str, Any]) -> dict[str, WorkerView]:
    """Read the workers in service from the scheduler's description of itself."""
    views = {}
    for address, worker in identity["workers"].items():
        if worker["status"] not in ("running", "paused"):
            continue
        report = (worker.get("metrics") or {}).get(METRIC) or {}
        score = report.get("score")
        views[address] = WorkerView(
            paused=worker["status"] == "paused",
            wants=bool(report.get("refuse")),
            score=-math.inf if score is None else float(score),
        )
    return views


def may_pause(
    me: str, score: float, workers: Mapping[str, WorkerView], share: float, *, rested: bool = True
) -> bool:
    """Tell whether `me` may be paused, or stay so; never the last worker that is left.

    Where all places are taken, one that waits and is more certain gets the place of the
    least certain, which is told False and resumes; it then finds the place free.

    Parameters
    ----------
    share
        Largest share of the workers that may be paused at once, in (0, 1].
    rested
        True when `me` has been paused for the minimum time. Before, it makes room only
        when too many are paused: scores that are nearly equal must not take turns.

    Examples
    --------
    >>> may_pause("a", 0.9, {"a": WorkerView(False), "b": WorkerView(False)}, 0.25)
    True
    >>> may_pause("a", 0.9, {"a": WorkerView(False), "b": WorkerView(True)}, 0.25)
    False
    """
    room = min(places(len(workers), share), len(workers) - 1)
    mine = (-math.inf if math.isnan(score) else score, me)
    paused = {address for address, view in workers.items() if view.paused}
    if me not in paused:
        return len(paused) < room
    weaker = sum((workers[address].score, address) < mine for address in paused - {me})
    if len(paused) > room:
        return len(paused) - 1 - weaker < room
    if not rested:
        return True
    waiting = any(view.wants and not view.paused and view.score > mine[0] for view in workers.values())
    return not (waiting and len(paused) == room and weaker == 0)
