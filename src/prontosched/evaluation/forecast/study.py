"""The paper's study of predicting CPU Ready: on traces where they are long enough, on generated data where not.

Values (daily medians, and windows from windows as long) and spikes by the alarm method are laid out as tasks.
Tasks are spread over processes; each answer is written to the cache folder as soon as it is known, so that a run
that is stopped and started again with the same settings and data does only what is missing.

A spike is a daily median at or over a threshold. Thresholds of a node come from its past window alone and are
applied to the day that follows. The x-bar threshold is the upper limit of the moving range itself, D4 times its
mean: only so does it mark anything near the published quarter to half of all days. (`pronto evaluate` adds the
mean, as a control chart does; that reading is reported here as "mean + xbar".)
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prontosched.errors import TelemetryError
from prontosched.evaluation.datasets.paper_shape import PaperShape
from prontosched.evaluation.forecast.models import (
    GROUPINGS,
    Arima,
    AutoregressiveSVR,
    HourForecast,
    WindowScale,
    forecast_from_cluster,
    forecast_same_node,
    group_nodes,
    known_pasts,
    smooth,
)
from prontosched.evaluation.forecast.panel import (
    LENGTHS,
    Level,
    Panel,
    collect_generated,
    generated_example,
    generated_panel,
    read_traces,
    trace_example,
    trace_panel,
    whole_traces,
)
from prontosched.evaluation.inputs import D4
from prontosched.subspace import Array

# Part of every key: answers of another version of the methods are not taken up.
VERSION = 3
PAST_DAYS = (14, 21)
# Forecasts a node needs before its error is worth averaging.
FEWEST_FORECASTS = 3
FIXED_MS = ("500ms", "800ms", "1000ms")
PERCENTILES = ("p90", "p95", "p99")
THRESHOLDS: dict[str, str] = (
    {kind: kind.removesuffix("ms") for kind in FIXED_MS}
    | {kind: f"{kind[1:]}th" for kind in PERCENTILES}
    | {"3sigma": "μ+3σ", "xbar": "xbar", "median": "median", "mean+xbar": "mean + xbar"}
)
ALARM_METHODS = {"naive": "Naive", "expsmo": "ExpSmo", "arima": "ARIMA"}
ALARM_METHODS |= {"svm cluster": "SVM Cluster", "svm full": "SVM Full"}
# A forecast in [0, 1] from which the alarm is given.
ALARM = 0.5
UNKNOWN = "-"
ALARM_PAST_DAYS = 14
FEWEST_TARGETS = 6

# scope/method or method -> node -> step -> error
Errors = dict[str, dict[str, dict[int, float]]]
# Called with the name and size of a piece of work; gives what counts the done.
ProgressDisplay = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


@dataclass(frozen=True, slots=True)
class Task:
    """One piece of work: a function that can be sent to another process, and its arguments."""

    name: str
    work: Callable[..., Any]
    arguments: tuple[Any, ...]


class Cache:
    """A folder of answers that belong to one identity, which is all they depend on; None keeps nothing."""

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
    """Do all tasks, those with a kept answer excepted, and count them; return the answers by name."""
    answers = {task.name: kept for task in tasks if (kept := cache.get(task.name)) is not None}
    advance(len(answers))
    missing = [task for task in tasks if task.name not in answers]
    if not missing:
        return answers
    from joblib import Parallel, delayed, parallel_config

    inner = {} if jobs == 1 else {"inner_max_num_threads": 1}
    backend = "sequential" if jobs == 1 else "loky"
    with parallel_config(backend=backend, n_jobs=jobs, **inner):
        parallel = Parallel(return_as="generator_unordered", batch_size=1)
        for name, answer in parallel(delayed(_do)(task) for task in missing):
            answers[name] = answer
            cache.put(name, answer)
            advance(1)
    return answers


def _do(task: Task) -> tuple[str, Any]:
    return task.name, task.work(*task.arguments)


def daily_day(daily: Array, targets: list[int], seed: int) -> dict[str, Any]:
    """Forecast the level of the last day of `(M, days)` from the days before, for target nodes of a cluster.

    The errors are by scope ("same node", "same cluster", "similar"), method or grouping, and node.
    """
    rows, past = known_pasts(daily[:, :-1])
    wanted = [target for target in targets if target in rows and np.isfinite(daily[target, -1])]
    if not wanted:
        return {"errors": {}, "skipped": len(targets)}
    scale = WindowScale(past)
    scaled, place = scale.scaled, np.searchsorted(rows, wanted)
    alone = forecast_same_node(scaled[place])
    found = {f"same node/{method}": values for method, values in alone.items()}
    together = forecast_from_cluster(scaled, scaled[:, -1], place, steps=1, seed=seed)
    found |= {f"same cluster/{method}": values for method, values in together.items()}
    for grouping in GROUPINGS:
        groups = group_nodes(grouping, past, scaled, seed=seed)
        asked = set(groups[place])
        models = {group: AutoregressiveSVR(scaled[groups == group], seed=seed) for group in asked}
        ahead = [models[groups[p]].forecast(scaled[[p]])[0, 0] for p in place]
        found[f"similar/{grouping}"] = np.array(ahead)
    return _errors(found, scale, place, wanted, daily[wanted, -1], len(targets) - len(wanted))


def window_pair(points: Array, levels: Array, targets: list[int], seed: int) -> dict[str, Any]:
    """Forecast the second of two levels, `(M, 2)`, from the inside of the first window, `(M, n)`.

    As in the paper's table, the naive method and exponential smoothing look at the same node, ARIMA and the SVM at
    the cluster.
    """
    rows, past = known_pasts(points)
    wanted = [target for target in targets if target in rows and np.isfinite(levels[target]).all()]
    if not wanted:
        return {"errors": {}, "skipped": len(targets)}
    scale = WindowScale(past)
    last = scale.forward(np.where(np.isfinite(levels[rows, 0]), levels[rows, 0], past[:, -1]))
    place = np.searchsorted(rows, wanted)
    found = forecast_from_cluster(scale.scaled, last, place, steps=past.shape[1], seed=seed)
    found |= {"naive": last[place], "expsmo": smooth(scale.scaled[place])}
    return _errors(found, scale, place, wanted, levels[wanted, 1], len(targets) - len(wanted))


def _errors(
    found: dict[str, Array], scale: WindowScale, place: Any, wanted: list[int], actual: Array, skipped: int
) -> dict[str, Any]:
    """Scale forecasts back and return forecast minus actual, by method and node."""
    errors = {}
    for key, values in found.items():
        full = np.zeros(len(scale.scaled))
        full[place] = values
        difference = scale.back(full)[place] - actual
        errors[key] = {str(node): float(error) for node, error in zip(wanted, difference, strict=True)}
    return {"errors": errors, "skipped": skipped}


def thresholds(kind: str, past: Array) -> Array:
    """Return the threshold of each node, `(M,)`, from its past window `(M, n)`.

    Examples
    --------
    >>> past = np.array([[100.0, 200.0, 100.0, 200.0]])
    >>> thresholds("500ms", past), thresholds("median", past), thresholds("xbar", past)
    (array([500.]), array([150.]), array([326.7]))
    """
    if kind in FIXED_MS:
        return np.full(len(past), float(kind.removesuffix("ms")))
    found: Array
    if kind in PERCENTILES:
        found = np.percentile(past, float(kind[1:]), axis=1)
    elif kind == "3sigma":
        found = past.mean(axis=1) + 3.0 * past.std(axis=1)
    elif kind == "median":
        found = np.median(past, axis=1)
    elif kind in ("xbar", "mean+xbar"):
        moving_range = np.abs(np.diff(past, axis=1)).mean(axis=1)
        found = D4 * moving_range + (past.mean(axis=1) if kind == "mean+xbar" else 0.0)
    else:
        raise ValueError(f"threshold must be one of {', '.join(THRESHOLDS)}, got {kind!r}")
    return found


def alarm_day(daily: list[Array], day: int, past_days: int, kind: str, seed: int) -> dict[str, str]:
    """Forecast one day's spikes of all nodes from the daily levels of their clusters, `(M, days)` each.

    For "actual" and each method the answer is a string with one of `1`, `0` and `-` (unknown) per node.
    """
    marked = [_mark_spikes(levels, day, past_days, kind) for levels in daily]
    everyone = np.concatenate([past for _, past, _ in marked])
    full = AutoregressiveSVR(everyone, seed=seed) if len(everyone) else None
    answer = dict.fromkeys(("actual", *ALARM_METHODS), "")
    for levels, (rows, past, actual) in zip(daily, marked, strict=True):
        given = {"actual": actual}
        if full is not None and len(rows):
            given |= _forecast_alarms(past, full, seed)
        for key in answer:
            letters = np.full(len(levels), UNKNOWN)
            if len(rows):
                letters[rows] = np.where(given[key] >= ALARM, "1", "0")
            answer[key] += "".join(letters)
    return answer


def _mark_spikes(levels: Array, day: int, past_days: int, kind: str) -> tuple[NDArray[np.intp], Array, Array]:
    """Return which nodes of a cluster are known, `(k,)`, and their spikes in the past, `(k, n)`, and on the day."""
    if day >= levels.shape[1]:
        return np.empty(0, dtype=np.intp), np.empty((0, past_days)), np.empty(0)
    rows, past = known_pasts(levels[:, day - past_days : day])
    known = np.isfinite(levels[rows, day])
    rows, past = rows[known], past[known]
    limit = thresholds(kind, past)
    return rows, (past >= limit[:, None]).astype(float), (levels[rows, day] >= limit).astype(float)


def _forecast_alarms(past: Array, full: AutoregressiveSVR, seed: int) -> dict[str, Array]:
    # ARIMA is built on the average node and applied to each; nodes with the same past share the work.
    model = Arima(past.mean(axis=0))
    courses, owner = np.unique(past, axis=0, return_inverse=True)
    ahead = np.array([model.forecast(course, steps=1)[0] for course in courses])
    return {
        "naive": past[:, -1],
        "expsmo": smooth(past),
        "arima": ahead[owner.reshape(-1)],
        "svm cluster": AutoregressiveSVR(past, seed=seed).forecast(past)[:, 0],
        "svm full": full.forecast(past)[:, 0],
    }


def score_alarms(days: list[dict[str, str]]) -> dict[str, dict[str, float]]:
    """Score the forecasts of many days, per method; under "share of spikes" is the share in the forecast days.

    `accuracy` is the paper's measure read as the mean of TP/P and TN/N, per node and averaged (a node without
    spikes counts with TN/N alone); `balanced` is the same over all nodes and days together, `plain` the share of
    right answers, `literal` the formula as printed: numbers of forecast over numbers of actual ones.
    """
    letters = {key: np.array([list(day[key]) for day in days]).T for key in days[0]}
    actual = letters["actual"] == "1"
    known = letters["actual"] != UNKNOWN
    spikes, quiet = (actual & known).sum(axis=1), (~actual & known).sum(axis=1)
    seen, both = (spikes + quiet) > 0, (spikes > 0) & (quiet > 0)
    scores: dict[str, dict[str, float]] = {}
    for method in ALARM_METHODS:
        given = letters[method] == "1"
        hits, rests = (given & actual & known).sum(axis=1), (~given & ~actual & known).sum(axis=1)
        alarms, silences = (given & known).sum(axis=1), (~given & known).sum(axis=1)
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


@dataclass(frozen=True, slots=True)
class StudySettings:
    """How much of the study to do."""

    targets: int | None = None  # nodes per cluster to forecast; None takes two, at least six in all
    windows: int | None = 12  # per length and cluster; None takes all
    alarm_days: int | None = 7  # last days whose spikes are forecast; None takes all
    seed: int = 7
    level: Level = "median"  # what is forecast of a day or window: the paper says both median and mean


@dataclass(slots=True)
class StudyResult:
    """Errors per node, by part of the study."""

    daily: dict[int, Errors] = field(default_factory=dict)  # by past days, then `scope/method`
    windows: dict[int, Errors] = field(default_factory=dict)  # by length in seconds, then method
    alarms: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)  # threshold, method, measure
    skipped: int = 0  # forecasts that could not be made for want of known values


def node_rmse(errors: Errors, key: str, steps: set[int] | None = None) -> dict[str, float]:
    """Return the RMSE of each node for one method, over all steps or some; nodes with too few left out."""
    used = {
        node: [error for step, error in by_step.items() if steps is None or step in steps]
        for node, by_step in errors.get(key, {}).items()
    }
    rmse = {node: float(np.sqrt(np.mean(np.square(some)))) for node, some in used.items() if some}
    return {n: value for n, value in rmse.items() if np.isfinite(value) and len(used[n]) >= FEWEST_FORECASTS}


def mean_rmse(errors: Errors, key: str) -> float:
    """Return the average over nodes of their RMSE, NaN if there is none."""
    values = list(node_rmse(errors, key).values())
    return float(np.mean(values)) if values else float("nan")


def lay_out_tasks(panel: Panel, settings: StudySettings) -> list[Task]:
    """Return all that there is to do for a data set, the long pieces first."""
    tasks: list[Task] = []
    arguments: tuple[Any, ...]
    for place, cluster in enumerate(panel.clusters):
        targets = pick_targets(len(cluster.nodes), settings, cluster=place, clusters=len(panel.clusters))
        for past in PAST_DAYS:
            for day in range(past, cluster.daily.shape[1]):
                arguments = (cluster.daily[:, day - past : day + 1], targets, settings.seed)
                tasks.append(Task(f"daily-{place}-{past}-{day}", daily_day, arguments))
        for length, windows in cluster.windows.items():
            for index, here in enumerate(windows.chosen.tolist()):
                pair = windows.levels[:, here : here + 2]
                arguments = (windows.points[:, index], pair, targets, settings.seed)
                tasks.append(Task(f"window-{place}-{length}-{here}", window_pair, arguments))
    daily = [cluster.daily for cluster in panel.clusters]
    first = ALARM_PAST_DAYS
    if settings.alarm_days is not None:
        first = max(first, panel.days - settings.alarm_days)
    for kind in THRESHOLDS:
        if kind in FIXED_MS and panel.unit != "ms":
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


def gather(panel: Panel, tasks: Sequence[Task], answers: dict[str, Any]) -> StudyResult:
    """Sort the answers of tasks by part, method, node and step."""
    result = StudyResult()
    spikes: dict[str, list[dict[str, str]]] = {}
    for task in tasks:
        kind, *where = task.name.split("-")
        answer = answers[task.name]
        if kind == "alarm":
            spikes.setdefault(where[0], []).append(answer)
            continue
        cluster, group, step = (int(number) for number in where)
        held = (result.daily if kind == "daily" else result.windows).setdefault(group, {})
        result.skipped += int(answer["skipped"])
        for key, by_node in answer["errors"].items():
            for node, error in by_node.items():
                name = f"{cluster}/{panel.clusters[cluster].nodes[int(node)]}"
                held.setdefault(key, {}).setdefault(name, {})[step] = error
    result.alarms = {kind: score_alarms(days) for kind, days in spikes.items()}
    return result


def describe_lack(panel: Panel) -> list[str]:
    """Say which parts a data set is too short or too coarse for."""
    lines = [
        f"daily medians from {past} days need {past + 3} days or more, {panel.name} has {panel.days}"
        for past in PAST_DAYS
        if panel.days <= past + 2
    ]
    lines += [
        f"windows of {name} need two of them with 8 samples each, {panel.name} lacks that"
        for length, name in LENGTHS.items()
        if length not in panel.lengths()
    ]
    if panel.unit != "ms":
        lines.append(f"thresholds in ms do not apply to CPU Ready measured in {panel.unit}")
    return lines


@dataclass(frozen=True, slots=True)
class ForecastSettings:
    """What to forecast: traces, if there are any, and generated data where these are too short."""

    traces: tuple[Path, ...] = ()
    ready: str | None = None  # this and the next two as `read_traces` takes them
    unit: str | None = None
    interval_seconds: float | None = None
    shape: PaperShape = field(default_factory=lambda: PaperShape(clusters=3, hosts=2, vms=40))
    generated: bool = True
    study: StudySettings = field(default_factory=StudySettings)
    jobs: int = 1
    cache: Path | None = None


@dataclass(slots=True)
class DataSetStudy:
    """A data set, and what was found on it."""

    panel: Panel
    result: StudyResult

    @property
    def origin(self) -> str:
        """Name and unit, as tables head it."""
        return f"{self.panel.name}, in {self.panel.unit}"


@dataclass(slots=True)
class ForecastOutcome:
    """All that a run found: data sets, the user's first, and the one-hour example, if there is one."""

    studied: list[DataSetStudy] = field(default_factory=list)
    example: HourForecast | None = None
    example_unit: str = "ms"
    example_of: str = ""


def run_forecast(settings: ForecastSettings, progress: ProgressDisplay) -> ForecastOutcome:
    """Do the study on all data sets that take part."""
    from threadpoolctl import threadpool_limits

    # All pieces are small: threads inside them only wait for each other. Processes share the work.
    # The limit holds for libraries that are loaded already.
    for library in ("scipy.linalg", "sklearn.cluster", "sklearn.svm", "statsmodels.tsa.arima.model"):
        importlib.import_module(library)
    found = ForecastOutcome()
    with threadpool_limits(1):
        if settings.traces:
            _study_traces(settings, progress, found)
        if settings.generated and not any(one.panel.days >= PAST_DAYS[0] + 3 for one in found.studied):
            _study_generated(settings, progress, found)
    return found


def _study_traces(settings: ForecastSettings, progress: ProgressDisplay, found: ForecastOutcome) -> None:
    files = whole_traces(settings.traces)
    asked = {name: getattr(settings, name) for name in ("ready", "unit", "interval_seconds")}
    with progress("reading traces", len(files)) as advance:
        traces = read_traces(files, **asked, advance=advance)
    panel = trace_panel(traces, windows=settings.study.windows, level=settings.study.level)
    if not panel.lengths() and not settings.generated:
        raise TelemetryError(
            "a trace must hold at least two windows of 15 minutes with 8 samples each, "
            f"got {panel.card['length']} at {panel.card['interval']}: record longer, or allow generated data"
        )
    identity = repr((settings.study, settings.ready, settings.unit, _fingerprint(panel)))
    found.studied.append(_study(panel, settings, identity, progress))
    found.example, found.example_unit, found.example_of = trace_example(traces), traces.unit, panel.name


def _study_generated(settings: ForecastSettings, progress: ProgressDisplay, found: ForecastOutcome) -> None:
    shape, study = settings.shape, settings.study
    tasks = [
        Task(f"cluster-{index}", collect_generated, (shape, index, study.windows, study.level))
        for index in range(shape.clusters)
    ]
    # Kept in memory only: to generate it again costs little more than to read it.
    with progress("generating data", len(tasks)) as advance:
        clusters = run_tasks(tasks, jobs=settings.jobs, cache=Cache(None, ""), advance=advance)
    panel = generated_panel(shape, [clusters[task.name] for task in tasks], study.level)
    found.studied.append(_study(panel, settings, repr((study, shape)), progress))
    if found.example is None:
        found.example, found.example_unit, found.example_of = generated_example(shape), "ms", panel.name


def _study(
    panel: Panel, settings: ForecastSettings, identity: str, progress: ProgressDisplay
) -> DataSetStudy:
    tasks = lay_out_tasks(panel, settings.study)
    with progress(f"forecasting {panel.name}", len(tasks)) as advance:
        cache = Cache(settings.cache, identity)
        answers = run_tasks(tasks, jobs=settings.jobs, cache=cache, advance=advance)
    return DataSetStudy(panel, gather(panel, tasks, answers))


def _fingerprint(panel: Panel) -> str:
    """Return a short text that differs as soon as any value does."""
    digest = hashlib.sha256(repr((panel.unit, panel.interval_seconds)).encode())
    for cluster in panel.clusters:
        digest.update(repr((cluster.name, cluster.nodes)).encode())
        for windows in cluster.windows.values():
            digest.update(np.ascontiguousarray(windows.levels).tobytes())
            digest.update(np.ascontiguousarray(windows.points).tobytes())
    return digest.hexdigest()
