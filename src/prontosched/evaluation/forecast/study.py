"""The paper's study of predicting CPU Ready, on one data set.

Values (daily medians, and windows from windows as long) and spikes by the alarm method are laid out as tasks.
Tasks are spread over processes; each answer is written to the cache folder as soon as it is known, so that a run
that is stopped and started again with the same settings and data asks only for what is missing.

A spike is a daily median at or over a threshold. Thresholds of a node come from its past window alone and are
applied to the day that follows. The x-bar threshold is the upper limit of the moving range itself, D4 times its
mean: only so does it mark anything near the published quarter to half of all days. (`pronto evaluate` adds the
mean, as a control chart does; that reading is reported here as "mean + xbar".)
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prontosched.evaluation.forecast.models import (
    GROUPINGS,
    Arima,
    AutoregressiveSVR,
    WindowScale,
    forecast_from_cluster,
    forecast_same_node,
    group_nodes,
    smooth,
)
from prontosched.evaluation.forecast.panel import DAY, LENGTHS, Level, Panel, filled_histories
from prontosched.evaluation.truth import D4
from prontosched.subspace import Array

# Part of every key: answers of another version of the methods are not taken up.
VERSION = 2
PAST_DAYS = (14, 21)
# Forecasts a node needs before its error is worth averaging.
FEWEST_FORECASTS = 3
FIXED_MS = (500, 800, 1000)
PERCENTILES = (90, 95, 99)
THRESHOLDS: dict[str, str] = (
    {f"{value}ms": f"{value}" for value in FIXED_MS}
    | {f"p{share}": f"{share}th" for share in PERCENTILES}
    | {"3sigma": "μ+3σ", "xbar": "xbar", "median": "median", "mean+xbar": "mean + xbar"}
)
ALARM_METHODS = {
    "naive": "Naive",
    "expsmo": "ExpSmo",
    "arima": "ARIMA",
    "svm cluster": "SVM Cluster",
    "svm full": "SVM Full",
}
# A forecast in [0, 1] from which the alarm is given.
ALARM = 0.5
UNKNOWN = "-"
ALARM_PAST_DAYS = 14
FEWEST_TARGETS = 6


@dataclass(frozen=True, slots=True)
class Task:
    """One piece of work: a function that can be sent to another process, and its arguments."""

    name: str
    work: Callable[..., Any]
    arguments: tuple[Any, ...]


class Cache:
    """A folder of answers that belong to one set of settings and data.

    Parameters
    ----------
    folder
        Where runs are kept; None keeps nothing.
    identity
        All that an answer depends on.
    """

    def __init__(self, folder: Path | None, identity: str) -> None:
        key = hashlib.sha256(f"{VERSION}\n{identity}".encode()).hexdigest()[:16]
        self.folder = None if folder is None else folder / key
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)

    def get(self, name: str) -> Any:
        """Return the answer kept under a name, None if there is none or it is damaged."""
        if self.folder is None:
            return None
        try:
            return json.loads((self.folder / f"{name}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def put(self, name: str, answer: Any) -> None:
        """Keep an answer; a reader never sees half of it."""
        if self.folder is None:
            return
        path = self.folder / f"{name}.json"
        draft = path.with_suffix(f".{os.getpid()}.tmp")
        draft.write_text(json.dumps(answer), encoding="utf-8")
        draft.replace(path)


def run_tasks(
    tasks: Sequence[Task], *, jobs: int, cache: Cache, advance: Callable[[int], None] = lambda done: None
) -> dict[str, Any]:
    """Do all tasks, those with a kept answer excepted; return the answers by name.

    Parameters
    ----------
    advance
        Hears how many tasks were finished since it was last called.
    """
    answers = {task.name: kept for task in tasks if (kept := cache.get(task.name)) is not None}
    advance(len(answers))
    missing = [task for task in tasks if task.name not in answers]
    if not missing:
        return answers
    from joblib import Parallel, delayed, parallel_config

    inner = {} if jobs == 1 else {"inner_max_num_threads": 1}
    backend = "sequential" if jobs == 1 else "loky"
    with parallel_config(backend=backend, n_jobs=jobs, **inner):
        finished = Parallel(return_as="generator_unordered", batch_size=1)(
            delayed(_do)(task) for task in missing
        )
        for name, answer in finished:
            answers[name] = answer
            cache.put(name, answer)
            advance(1)
    return answers


def _do(task: Task) -> tuple[str, Any]:
    return task.name, task.work(*task.arguments)


def usable(past: Array) -> tuple[NDArray[np.intp], Array]:
    """Return the rows whose past is known well enough, and their pasts with gaps filled."""
    pairs = list(filled_histories(past))
    if not pairs:
        return np.empty(0, dtype=np.intp), np.empty((0, past.shape[1]))
    return np.array([row for row, _ in pairs], dtype=np.intp), np.array([course for _, course in pairs])


def daily_day(daily: Array, day: int, past_days: int, targets: list[int], seed: int) -> dict[str, Any]:
    """Forecast one day's medians for the target nodes of one cluster.

    Parameters
    ----------
    daily
        Daily medians of the cluster, `(M, days)`.

    Returns
    -------
    `{"errors": {scope/method: {node: error}}}` for scopes "same node", "same cluster" and one per grouping.
    """
    rows, past = usable(daily[:, day - past_days : day])
    held = set(rows.tolist())
    wanted = [target for target in targets if target in held and np.isfinite(daily[target, day])]
    if not wanted:
        return {"errors": {}, "skipped": len(targets)}
    scale = WindowScale(past)
    scaled, last = scale.scaled, scale.scaled[:, -1]
    place = np.searchsorted(rows, wanted)
    alone = forecast_same_node(scaled[place], last[place], steps=1)
    found = {f"same node/{method}": values for method, values in alone.items()}
    together = forecast_from_cluster(scaled, last, place, steps=1, seed=seed)
    found |= {f"same cluster/{method}": values for method, values in together.items()}
    for grouping in GROUPINGS:
        groups = group_nodes(grouping, past, scaled, seed=seed)
        models = {
            group: AutoregressiveSVR(scaled[groups == group], seed=seed) for group in set(groups[place])
        }
        found[f"similar/{grouping}"] = np.array(
            [models[groups[p]].forecast(scaled[[p]])[0, 0] for p in place]
        )
    return {
        "errors": _errors(found, scale, place, wanted, daily[wanted, day]),
        "skipped": len(targets) - len(wanted),
    }


def window_pair(points: Array, medians: Array, targets: list[int], seed: int) -> dict[str, Any]:
    """Forecast the median of a window from the inside of the window before it, as long.

    Parameters
    ----------
    points
        The inside of the past window of every node of the cluster, `(M, n)`.
    medians
        Medians of the past window and of the window to forecast, `(M, 2)`.

    Returns
    -------
    `{"errors": {method: {node: error}}}`. As in the paper's table, the naive method and exponential smoothing
    look at the same node, ARIMA and the SVM at the cluster.
    """
    rows, past = usable(points)
    known = {int(row) for row in rows if np.isfinite(medians[row]).all()}
    wanted = [target for target in targets if target in known]
    if not wanted:
        return {"errors": {}, "skipped": len(targets)}
    scale = WindowScale(past)
    last = scale.forward(np.where(np.isfinite(medians[rows, 0]), medians[rows, 0], past[:, -1]))
    place = np.searchsorted(rows, wanted)
    found = forecast_from_cluster(scale.scaled, last, place, steps=past.shape[1], seed=seed)
    found |= {"naive": last[place], "expsmo": smooth(scale.scaled[place])}
    return {
        "errors": _errors(found, scale, place, wanted, medians[wanted, 1]),
        "skipped": len(targets) - len(wanted),
    }


def _errors(
    found: dict[str, Array], scale: WindowScale, place: NDArray[np.intp], wanted: list[int], actual: Array
) -> dict[str, dict[str, float]]:
    """Scale forecasts back and return forecast minus actual, by method and node."""
    errors = {}
    for key, values in found.items():
        full = np.zeros(len(scale.scaled))
        full[place] = values
        difference = scale.back(full)[place] - actual
        errors[key] = {str(node): float(error) for node, error in zip(wanted, difference, strict=True)}
    return errors


def rmse_by_node(errors: list[float] | Array) -> float:
    """Return the root of the mean squared error of one node; NaN with too few forecasts."""
    if len(errors) < FEWEST_FORECASTS:
        return float("nan")
    return float(np.sqrt(np.mean(np.square(errors))))


def thresholds(kind: str, past: Array) -> Array:
    """Return the threshold of each node, `(M,)`, from its past window `(M, n)`.

    Examples
    --------
    >>> past = np.array([[100.0, 200.0, 100.0, 200.0]])
    >>> thresholds("500ms", past), thresholds("median", past), thresholds("xbar", past)
    (array([500.]), array([150.]), array([326.7]))
    """
    if kind.endswith("ms"):
        return np.full(len(past), float(kind.removesuffix("ms")))
    if kind.startswith("p"):
        level: Array = np.percentile(past, float(kind[1:]), axis=1)
        return level
    if kind == "3sigma":
        limit: Array = past.mean(axis=1) + 3.0 * past.std(axis=1)
        return limit
    if kind == "median":
        middle: Array = np.median(past, axis=1)
        return middle
    if kind in ("xbar", "mean+xbar"):
        moving_range = np.abs(np.diff(past, axis=1)).mean(axis=1)
        ucl: Array = D4 * moving_range + (past.mean(axis=1) if kind == "mean+xbar" else 0.0)
        return ucl
    raise ValueError(f"threshold must be one of {', '.join(THRESHOLDS)}, got {kind!r}")


def alarm_day(daily: list[Array], day: int, past_days: int, kind: str, seed: int) -> dict[str, Any]:
    """Forecast one day's spikes of all nodes of all clusters.

    Parameters
    ----------
    daily
        Daily medians per cluster, `(M, days)` each.

    Returns
    -------
    For "actual" and each method a string with one of `1`, `0` and `-` (unknown) per node.
    """
    parts = []
    for medians in daily:
        if day >= medians.shape[1]:
            parts.append(
                _Part(len(medians), np.empty(0, dtype=np.intp), np.empty((0, past_days)), np.empty(0))
            )
            continue
        rows, past = usable(medians[:, day - past_days : day])
        known = np.isfinite(medians[rows, day]) if len(rows) else np.empty(0, dtype=bool)
        rows, past = rows[known], past[known]
        limit = thresholds(kind, past) if len(rows) else np.empty(0)
        actual = (medians[rows, day] >= limit).astype(float) if len(rows) else np.empty(0)
        parts.append(_Part(len(medians), rows, (past >= limit[:, None]).astype(float), actual))
    everyone = np.concatenate([part.past for part in parts])
    full = AutoregressiveSVR(everyone, seed=seed) if len(everyone) else None
    answer = {key: "" for key in ("actual", *ALARM_METHODS)}
    for part in parts:
        given = _forecast(part.past, full, seed) if len(part.rows) else {}
        for key, values in ({"actual": part.actual} | given).items():
            answer[key] += part.spell(values)
        if not given:
            for key in ALARM_METHODS:
                answer[key] += UNKNOWN * part.nodes
    return answer


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """One cluster: which nodes are known, their alarms in the past window and on the day itself."""

    nodes: int
    rows: NDArray[np.intp]
    past: Array
    actual: Array

    def spell(self, values: Array) -> str:
        letters = np.full(self.nodes, UNKNOWN)
        letters[self.rows] = np.where(values >= ALARM, "1", "0")
        return "".join(letters)


def _forecast(past: Array, full: AutoregressiveSVR | None, seed: int) -> dict[str, Array]:
    cluster = AutoregressiveSVR(past, seed=seed)
    return {
        "naive": past[:, -1],
        "expsmo": smooth(past),
        "arima": _arima(past),
        "svm cluster": cluster.forecast(past)[:, 0],
        "svm full": (full or cluster).forecast(past)[:, 0],
    }


def _arima(past: Array) -> Array:
    """Build the model on the average node and apply it to each; nodes with the same past share the work."""
    model = Arima(past.mean(axis=0))
    courses, owner = np.unique(past, axis=0, return_inverse=True)
    ahead = np.array([model.forecast(course, steps=1)[0] for course in courses])
    forecasts: Array = ahead[owner.reshape(-1)]
    return forecasts


def score_alarms(days: list[dict[str, str]]) -> dict[str, dict[str, float]]:
    """Score the forecasts of many days, per method.

    Returns
    -------
    Per method: `accuracy`, the paper's measure read as the mean of TP/P and TN/N, per node and averaged (a
    node without spikes counts with TN/N alone); `balanced`, the same over all nodes and days together;
    `plain`, the share of right answers; `literal`, the formula as printed, numbers of forecast over numbers
    of actual ones, which can exceed 1. Under "share of spikes" the share in the forecast days.
    """
    letters = {key: np.array([list(day[key]) for day in days]).T for key in days[0]}
    actual = letters["actual"] == "1"
    known = letters["actual"] != UNKNOWN
    spikes, quiet = (actual & known).sum(axis=1), (~actual & known).sum(axis=1)
    seen = (spikes + quiet) > 0
    scores: dict[str, dict[str, float]] = {}
    for method in ALARM_METHODS:
        given = letters[method] == "1"
        hits, rests = (given & actual & known).sum(axis=1), (~given & ~actual & known).sum(axis=1)
        alarms, silences = (given & known).sum(axis=1), (~given & known).sum(axis=1)
        both = (spikes > 0) & (quiet > 0)
        sides = np.stack([_ratio(hits, spikes), _ratio(rests, quiet)])[:, seen]
        pooled = [_ratio(hits.sum(), spikes.sum()), _ratio(rests.sum(), quiet.sum())]
        literal = (_ratio(alarms, spikes) + _ratio(silences, quiet))[both] / 2.0
        scores[method] = {
            "accuracy": float(np.nanmean(sides, axis=0).mean()) if seen.any() else float("nan"),
            "balanced": float(np.mean(pooled)),
            "plain": float(_ratio((hits + rests).sum(), known.sum())),
            "literal": float(literal.mean()) if both.any() else float("nan"),
        }
    share = float(_ratio(spikes.sum(), known.sum()))
    scores["share of spikes"] = dict.fromkeys(("accuracy", "balanced", "plain", "literal"), share)
    return scores


def _ratio(part: Any, whole: Any) -> Any:
    part, whole = np.asarray(part, dtype=float), np.asarray(whole, dtype=float)
    return np.divide(part, whole, out=np.full(whole.shape, np.nan), where=whole > 0)


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
    level
        What is forecast of a day or window: its `median` or its `mean`. The paper says both.
    """

    targets: int | None = None
    windows: int | None = 12
    alarm_days: int | None = 7
    seed: int = 7
    level: Level = "median"


@dataclass(slots=True)
class StudyResult:
    """Errors per node, by part of the study.

    Attributes
    ----------
    daily
        Past days -> errors of daily levels by `scope/method` (scope "similar" holds the groupings).
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
                if here + 1 < windows.levels.shape[1]:
                    pair = windows.levels[:, here : here + 2]
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
