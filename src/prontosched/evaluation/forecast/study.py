"""The paper's study of predicting CPU Ready, on one data set.

Lays out the work as tasks, has them done (`tasks`), and gathers the errors of each node. What the numbers say is
left to `tables` and `answers`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from prontosched.evaluation.forecast.alarms import FIXED_MS, THRESHOLDS, alarm_day, score_alarms
from prontosched.evaluation.forecast.panel import DAY, LENGTHS, Panel
from prontosched.evaluation.forecast.tasks import Cache, Task, run_tasks
from prontosched.evaluation.forecast.values import PAST_DAYS, daily_day, rmse_by_node, window_pair

ALARM_PAST_DAYS = 14
FEWEST_TARGETS = 6

# scope/method or method -> node -> step -> error
Errors = dict[str, dict[str, dict[int, float]]]


@dataclass(frozen=True, slots=True)
class StudySettings:
    """How much of the study to do.

    Attributes
    ----------
    targets
        Nodes per cluster whose values are forecast; None takes two, and at least six in all.
    windows
        Windows per length and cluster; None takes all.
    alarm_days
        Days whose spikes are forecast, the last ones; None takes all.
    seed
        For what is drawn at random.
    """

    targets: int | None = None
    windows: int | None = 12
    alarm_days: int | None = 7
    seed: int = 7


@dataclass(slots=True)
class StudyResult:
    """Errors per node, by part of the study.

    Attributes
    ----------
    daily
        Past days -> errors of daily medians by `scope/method` (scope "similar" holds the groupings).
    windows
        Window length in seconds -> errors by method.
    alarms
        Threshold -> method -> measure -> value.
    skipped
        Forecasts that could not be made for want of known values.
    """

    daily: dict[int, Errors] = field(default_factory=dict)
    windows: dict[int, Errors] = field(default_factory=dict)
    alarms: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    skipped: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return average and single RMSEs in plain numbers."""
        return {
            "daily": {str(days): _summary(errors) for days, errors in self.daily.items()},
            "windows": {LENGTHS[length]: _summary(errors) for length, errors in self.windows.items()},
            "alarms": self.alarms,
            "skipped": self.skipped,
        }


def node_rmse(errors: Errors, key: str, steps: set[int] | None = None) -> dict[str, float]:
    """Return the RMSE of each node for one method, over all steps or some; nodes with too few left out."""
    rmse = {
        node: rmse_by_node([e for step, e in by_step.items() if steps is None or step in steps])
        for node, by_step in errors.get(key, {}).items()
    }
    return {node: value for node, value in rmse.items() if np.isfinite(value)}


def mean_rmse(errors: Errors, key: str) -> float:
    """Return the average over nodes of their RMSE, NaN if there is none."""
    values = list(node_rmse(errors, key).values())
    return float(np.mean(values)) if values else float("nan")


def _summary(errors: Errors) -> dict[str, Any]:
    return {key: {"mean": mean_rmse(errors, key), "nodes": node_rmse(errors, key)} for key in errors}


def lay_out_tasks(panel: Panel, settings: StudySettings) -> list[Task]:
    """Return all that there is to do for a data set, the long pieces first."""
    tasks: list[Task] = []
    arguments: tuple[Any, ...]
    for place, cluster in enumerate(panel.clusters):
        targets = pick_targets(len(cluster.nodes), settings, cluster=place, clusters=len(panel.clusters))
        for past in PAST_DAYS:
            for day in range(past, cluster.daily.shape[1]):
                held = cluster.daily[:, day - past : day + 1]
                arguments = (held, past, past, targets, settings.seed)
                tasks.append(Task(f"daily-{place}-{past}-{day}", daily_day, arguments))
        for length, windows in cluster.windows.items():
            for index, here in enumerate(windows.chosen.tolist()):
                if here + 1 < windows.medians.shape[1]:
                    pair = windows.medians[:, here : here + 2]
                    arguments = (windows.points[:, index], pair, targets, settings.seed)
                    tasks.append(Task(f"window-{place}-{length}-{here}", window_pair, arguments))
    daily = [cluster.daily for cluster in panel.clusters]
    first = ALARM_PAST_DAYS
    if settings.alarm_days is not None:
        first = max(first, panel.days - settings.alarm_days)
    for kind in THRESHOLDS:
        if kind in {f"{value}ms" for value in FIXED_MS} and panel.unit != "ms":
            continue  # milliseconds mean nothing in another unit
        for day in range(first, panel.days):
            arguments = ([m[:, : day + 1] for m in daily], day, ALARM_PAST_DAYS, kind, settings.seed)
            tasks.append(Task(f"alarm-{kind}-{day}", alarm_day, arguments))
    return tasks


def pick_targets(nodes: int, settings: StudySettings, *, cluster: int, clusters: int) -> list[int]:
    """Return the nodes of a cluster whose values are forecast, drawn once."""
    wanted = settings.targets or max(2, -(-FEWEST_TARGETS // clusters))
    if wanted >= nodes:
        return list(range(nodes))
    rng = np.random.default_rng([settings.seed, cluster])
    return sorted(int(n) for n in rng.choice(nodes, wanted, replace=False))


def run_study(
    panel: Panel,
    settings: StudySettings,
    *,
    jobs: int,
    cache: Cache,
    advance: Callable[[int], None] = lambda done: None,
) -> StudyResult:
    """Do the study on one data set."""
    tasks = lay_out_tasks(panel, settings)
    answers = run_tasks(tasks, jobs=jobs, cache=cache, advance=advance)
    result = StudyResult()
    spikes: dict[str, list[dict[str, str]]] = {}
    for task in tasks:
        kind, *where = task.name.split("-")
        answer = answers[task.name]
        if kind == "alarm":
            spikes.setdefault(where[0], []).append(answer)
            continue
        group, step = int(where[1]), int(where[2])
        held = (result.daily if kind == "daily" else result.windows).setdefault(group, {})
        result.skipped += int(answer["skipped"])
        for key, by_node in answer["errors"].items():
            for node, error in by_node.items():
                name = panel.clusters[int(where[0])].nodes[int(node)]
                held.setdefault(key, {}).setdefault(f"{where[0]}/{name}", {})[step] = error
    result.alarms = {kind: score_alarms(days) for kind, days in spikes.items()}
    return result


def describe_lack(panel: Panel) -> list[str]:
    """Say which parts a data set is too short or too coarse for."""
    lines = []
    for past in PAST_DAYS:
        if panel.days <= past + 2:
            lines.append(
                f"daily medians from {past} days need {past + 3} days or more, {panel.name} has {panel.days}"
            )
    for length, name in LENGTHS.items():
        if length not in panel.lengths():
            lines.append(f"windows of {name} need two of them with 8 samples each, {panel.name} lacks that")
    if panel.unit != "ms":
        lines.append(f"thresholds in ms do not apply to CPU Ready measured in {panel.unit}")
    return lines


def covers_daily(panel: Panel) -> bool:
    """Tell whether a data set is long enough for the tables of daily medians."""
    return panel.days >= min(PAST_DAYS) + 3 and any(DAY in cluster.windows for cluster in panel.clusters)
