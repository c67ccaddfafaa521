"""One run of `pronto forecast`: on traces where they are long enough, on generated data where not."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from prontosched.errors import TelemetryError
from prontosched.evaluation.datasets.paper_shape import PaperShape
from prontosched.evaluation.forecast.answers import answer
from prontosched.evaluation.forecast.models import HourForecast
from prontosched.evaluation.forecast.panel import (
    Panel,
    collect_generated,
    generated_example,
    generated_panel,
    read_traces,
    trace_example,
    trace_panel,
    whole_traces,
)
from prontosched.evaluation.forecast.study import (
    Cache,
    StudyResult,
    StudySettings,
    Task,
    covers_daily,
    describe_lack,
    lay_out_tasks,
    run_study,
    run_tasks,
)


class ProgressDisplay(Protocol):
    """Shows how far a piece of work is: called with its name and size, gives what counts the done."""

    def __call__(self, label: str, size: int) -> AbstractContextManager[Callable[[int], None]]:
        """Begin."""
        ...


@dataclass(frozen=True, slots=True)
class ForecastSettings:
    """What to forecast.

    Attributes
    ----------
    traces
        Files and folders; none means the generated data set.
    ready, unit, interval_seconds
        As `read_traces` takes them.
    generated
        Whether to use it where traces are too short.
    cache
        Folder for answers, so that a run can go on; None keeps nothing.
    """

    traces: tuple[Path, ...] = ()
    ready: str | None = None
    unit: str | None = None
    interval_seconds: float | None = None
    shape: PaperShape = field(default_factory=lambda: PaperShape(clusters=3, hosts=2, vms=40))
    generated: bool = True
    study: StudySettings = field(default_factory=StudySettings)
    jobs: int = 1
    cache: Path | None = None


@dataclass(slots=True)
class DataSetStudy:
    """A data set, what was found on it, and what it was too short for."""

    panel: Panel
    result: StudyResult
    lacks: list[str]

    @property
    def origin(self) -> str:
        """Name and unit, as tables head it."""
        return f"{self.panel.name}, in {self.panel.unit}"


@dataclass(slots=True)
class ForecastOutcome:
    """All that a run found: data sets, the user's first, and the one-hour example, if there is one."""

    studied: list[DataSetStudy]
    example: HourForecast | None
    example_unit: str
    example_of: str

    def as_dict(self) -> dict[str, Any]:
        """Return it in plain numbers, texts and lists."""
        return {
            "data_sets": [
                {
                    "name": one.panel.name,
                    "generated": one.panel.generated,
                    "unit": one.panel.unit,
                    "card": dict(one.panel.card),
                    "warnings": list(one.panel.warnings),
                    "too_short_for": one.lacks,
                    "results": one.result.as_dict(),
                    "answers": {
                        key: {"answer": given.verdict, "numbers": list(given.numbers)}
                        for key, given in answer(one.result).items()
                    },
                }
                for one in self.studied
            ],
            "example": None
            if self.example is None
            else {"data_set": self.example_of, "unit": self.example_unit, **self.example.as_dict()},
        }


def run_forecast(settings: ForecastSettings, progress: ProgressDisplay) -> ForecastOutcome:
    """Do the study on all data sets that take part."""
    from threadpoolctl import threadpool_limits

    # All pieces are small: threads inside them only wait for each other. Processes share the work.
    # The limit holds for libraries that are loaded already.
    for library in ("scipy.linalg", "sklearn.cluster", "sklearn.svm", "statsmodels.tsa.arima.model"):
        importlib.import_module(library)
    with threadpool_limits(1):
        return _run(settings, progress)


def _run(settings: ForecastSettings, progress: ProgressDisplay) -> ForecastOutcome:
    studied: list[DataSetStudy] = []
    example: HourForecast | None = None
    example_unit, example_of = "ms", ""
    if settings.traces:
        files = whole_traces(settings.traces)
        with progress("reading traces", len(files)) as advance:
            traces = read_traces(
                files,
                ready=settings.ready,
                unit=settings.unit,
                interval_seconds=settings.interval_seconds,
                tell=lambda file: advance(1),
            )
        panel = trace_panel(traces, windows=settings.study.windows, level=settings.study.level)
        if not panel.lengths() and not settings.generated:
            raise TelemetryError(
                "a trace must hold at least two windows of 15 minutes with 8 samples each, "
                f"got {panel.card['length']} at {panel.card['interval']}: record longer, or allow generated data"
            )
        identity = repr((settings.study, settings.ready, settings.unit, _fingerprint(panel)))
        studied.append(_study(panel, settings, identity, progress))
        example = trace_example(traces)
        example_unit, example_of = traces.unit, panel.name
    if settings.generated and not any(covers_daily(one.panel) for one in studied):
        panel = collect(settings, progress)
        identity = repr((settings.study, settings.shape))
        studied.append(_study(panel, settings, identity, progress))
        if example is None:
            example, example_unit, example_of = _generated_example(settings), "ms", panel.name
    return ForecastOutcome(studied, example, example_unit, example_of)


def collect(settings: ForecastSettings, progress: ProgressDisplay) -> Panel:
    """Stream the generated data set, one cluster per task."""
    shape, windows = settings.shape, settings.study.windows
    tasks = [
        Task(f"cluster-{index}", collect_generated, (shape, index, windows, settings.study.level))
        for index in range(shape.clusters)
    ]
    # Kept in memory only: to generate it again costs little more than to read it.
    with progress("generating data", len(tasks)) as advance:
        answers = run_tasks(tasks, jobs=settings.jobs, cache=Cache(None, ""), advance=advance)
    return generated_panel(shape, [answers[task.name] for task in tasks], settings.study.level)


def _study(
    panel: Panel, settings: ForecastSettings, identity: str, progress: ProgressDisplay
) -> DataSetStudy:
    cache = Cache(settings.cache, identity)
    size = len(lay_out_tasks(panel, settings.study))
    with progress(f"forecasting {panel.name}", size) as advance:
        result = run_study(panel, settings.study, jobs=settings.jobs, cache=cache, advance=advance)
    return DataSetStudy(panel, result, describe_lack(panel))


def _generated_example(settings: ForecastSettings) -> HourForecast:
    cache = Cache(settings.cache, repr(("example", settings.shape)))
    held = cache.get("example")
    if held is None:
        held = generated_example(settings.shape).as_dict()
        cache.put("example", held)
    return HourForecast.from_dict(held)


def _fingerprint(panel: Panel) -> str:
    """Return a short text that differs as soon as any value does."""
    digest = hashlib.sha256(repr((panel.unit, panel.interval_seconds)).encode())
    for cluster in panel.clusters:
        digest.update(repr((cluster.name, cluster.nodes)).encode())
        for windows in cluster.windows.values():
            digest.update(np.ascontiguousarray(windows.levels).tobytes())
            digest.update(np.ascontiguousarray(windows.points).tobytes())
    return digest.hexdigest()
