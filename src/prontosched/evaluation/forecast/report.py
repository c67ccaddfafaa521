"""The report: one self-contained HTML page, its figures as SVG and PNG beside it, and all numbers as JSON.

Figures show our numbers only; the paper's stay in the tables.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from prontosched.evaluation.figures import Picture, canvas, drawing, panel
from prontosched.evaluation.forecast import paper_tables
from prontosched.evaluation.forecast.answers import QUESTIONS, SCOPES, Table, all_tables, answer
from prontosched.evaluation.forecast.models import METHODS, HourForecast
from prontosched.evaluation.forecast.panel import LENGTHS
from prontosched.evaluation.forecast.study import (
    ALARM_METHODS,
    THRESHOLDS,
    DataSetStudy,
    Errors,
    ForecastOutcome,
    StudyResult,
    describe_lack,
    mean_rmse,
    node_rmse,
)

COLOURS = {
    "naive": "#8a8f98",
    "expsmo": "#2a78d6",
    "arima": "#d9822b",
    "svm": "#2f9e6e",
    "svm cluster": "#2f9e6e",
    "svm full": "#7a4fbf",
}
CAPTIONS = {
    "example": "One hour of one node, forecast one sample ahead, each time from the hour before.",
    "daily": "Errors of days. Bars are averages, dots are single nodes.",
    "windows": "Error against the length of the window: the past window is as long as the one forecast.",
    "alarms": "The same alarms judged twice. In brackets: share of days that are spikes. "
    "0.5 is what a method without any skill gets; a per-node average gets more where nodes have no spikes at all.",
}


def draw_example(example: HourForecast, unit: str) -> Any:
    """Draw one hour of CPU Ready and three forecasts of it, each from the hour before."""
    figure, axes = panel(8.4, 3.7)
    minutes = np.arange(len(example.actual)) * example.interval_seconds / 60.0
    axes.plot(minutes, example.actual, color="#20242a", linewidth=1.6, label="actual")
    errors = example.rmse()
    lines = {"ExpSmo": "#2a78d6", "Cond. Diff KNN": "#d9822b", "Cond. Diff SVR": "#2f9e6e"}
    for name, colour in lines.items():
        label = f"{name} (RMSE {errors[name]:.4g})"
        axes.plot(minutes, example.forecasts[name], color=colour, linewidth=1.1, alpha=0.9, label=label)
    axes.set(xlabel="minutes", ylabel=f"CPU Ready [{unit}]", xlim=(0, minutes[-1]), ylim=(0, None))
    figure.legend(loc="outside upper left", ncols=4, fontsize=8.5)
    return figure


def draw_windows(result: StudyResult, unit: str) -> Any:
    """Draw the error of each method against the length of the forecasting window."""
    figure, axes = panel(8.4, 3.7)
    lengths = sorted(result.windows)
    for method, title in METHODS.items():
        errors = [mean_rmse(result.windows[length], method) for length in lengths]
        known = [place for place, error in enumerate(errors) if not math.isnan(error)]
        label = f"{title}{' cluster' if method == 'svm' else ''}"
        style = {"marker": "o", "markersize": 4.5, "color": COLOURS[method]}
        axes.plot(known, [errors[place] for place in known], label=label, **style)
    axes.set_xticks(range(len(lengths)), [LENGTHS[n] for n in lengths])
    axes.set(xlabel="length of the past and of the forecast window", ylabel=f"average RMSE [{unit}]")
    axes.set_ylim(0, None)
    axes.legend()
    return figure


def draw_daily(result: StudyResult, unit: str) -> Any:
    """Draw the errors of daily levels, by method, scope and past window; dots are nodes."""
    figure, axes = panel(8.4, 3.7)
    groups = [(scope, days) for days in sorted(result.daily) for scope in SCOPES]
    width = 0.8 / len(METHODS)
    for place, (method, title) in enumerate(METHODS.items()):
        for group, (scope, days) in enumerate(groups):
            errors, key = result.daily[days], f"{scope}/{method}"
            at = group + (place - 1.5) * width
            label = None if group else title
            axes.bar(at, mean_rmse(errors, key), width * 0.92, color=COLOURS[method], label=label)
            nodes = list(node_rmse(errors, key).values())
            axes.plot([at] * len(nodes), nodes, ".", color="#20242a", markersize=3, alpha=0.5)
    axes.set_xticks(range(len(groups)), [f"{scope}\n{days} days" for scope, days in groups])
    axes.set(ylabel=f"RMSE of days [{unit}]")
    figure.legend(loc="outside upper left", ncols=4)
    return figure


def draw_alarms(result: StudyResult) -> Any:
    """Draw how the paper's accuracy and the balanced one judge the same alarms."""
    figure, (both,) = canvas(8.4, 3.7, 1, 2)
    kinds = list(result.alarms)
    shares = [100.0 * result.alarms[kind]["share of spikes"]["accuracy"] for kind in kinds]
    for axes, measure, title in (
        (both[0], "accuracy", "per node (the paper's)"),
        (both[1], "balanced", "balanced, all nodes together"),
    ):
        for shift, (method, label) in enumerate(ALARM_METHODS.items()):
            scores = [result.alarms[kind][method][measure] for kind in kinds]
            heights = np.arange(len(kinds)) + 0.13 * (2 - shift)
            axes.plot(scores, heights, "o", color=COLOURS[method], markersize=4.5, label=label)
        axes.axvline(0.5, color="#c9ccd1", linewidth=1)
        axes.set(title=title, xlim=(0.0, 1.03), xlabel="accuracy")
        labels = [f"{THRESHOLDS[kind]} ({share:.1f} %)" for kind, share in zip(kinds, shares, strict=True)]
        axes.set_yticks(range(len(kinds)), labels)
        axes.invert_yaxis()
    both[1].set_yticklabels([])
    both[0].legend(loc="lower left", fontsize=8)
    return figure


def draw_all(outcome: ForecastOutcome) -> list[Picture]:
    """Draw every figure there are numbers for; names of those of a second data set end in `-generated`."""
    figures: dict[str, Any] = {}
    if outcome.example is not None:
        figures["example"] = draw_example(outcome.example, outcome.example_unit)
    for number, one in enumerate(outcome.studied):
        ending = "-generated" if number else ""
        result, unit = one.result, one.panel.unit
        if result.daily:
            figures[f"daily{ending}"] = draw_daily(result, unit)
        if result.windows:
            figures[f"windows{ending}"] = draw_windows(result, unit)
        if result.alarms:
            figures[f"alarms{ending}"] = draw_alarms(result)
    captions = {name: CAPTIONS[name.removesuffix("-generated")] for name in figures}
    return [Picture(name, captions[name], figure) for name, figure in figures.items()]


def tables_of(outcome: ForecastOutcome) -> list[Table]:
    """Return all tables, each with a grid per data set that has numbers for it."""
    return all_tables({one.origin: one.result for one in outcome.studied})


def as_plain_text(outcome: ForecastOutcome) -> str:
    """Return tables and answers for a terminal."""
    blocks = []
    for table in tables_of(outcome):
        if not table.ours or table.key.endswith(("-plain", "-literal")):
            continue
        lines = [table.title, f"  {table.note}"]
        for grid in (*table.ours, *([table.paper] if table.paper else [])):
            lines += [f"[{grid.origin}]", grid.as_text()]
        blocks.append("\n".join(lines))
    if outcome.example is not None:
        errors = ", ".join(f"{name} {value:.4g}" for name, value in outcome.example.rmse().items())
        blocks.append(f"One hour of {outcome.example.node} ({outcome.example_of}), RMSE: {errors}")
    for one in outcome.studied:
        lines = [f"[{one.origin}] answers:"]
        given = answer(one.result)
        for number, (key, question) in enumerate(QUESTIONS.items(), start=1):
            lines += [f"Q{number} {question}", f"   {given[key].verdict}"]
            lines += [f"   The paper: {paper_tables.ANSWERS[key]}"]
            lines += [f"     - {line}" for line in given[key].numbers]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def write_report(outcome: ForecastOutcome, path: Path, *, command: str, seconds: float) -> list[Path]:
    """Write page, figures and numbers; return what was written, the page first."""
    from jinja2 import Environment, PackageLoader
    from markupsafe import Markup

    folder = path.with_name(f"{path.stem}-figures")
    folder.mkdir(parents=True, exist_ok=True)
    inline = {}
    with drawing():
        for picture in draw_all(outcome):
            picture.write(folder)
            inline[picture.name] = Markup(picture.svg())
    environment = Environment(
        loader=PackageLoader("prontosched.evaluation.forecast", "."), autoescape=True, trim_blocks=True
    )
    page = environment.get_template("report.html").render(
        outcome=outcome,
        tables=tables_of(outcome),
        figures=inline,
        captions=CAPTIONS,
        questions=QUESTIONS,
        answers=[(one, answer(one.result)) for one in outcome.studied],
        lacks=describe_lack,
        paper_tables=paper_tables,
        command=command,
        minutes=seconds / 60.0,
    )
    path.write_text(page, encoding="utf-8")
    numbers = path.with_suffix(".json")
    numbers.write_text(json.dumps(as_json(outcome, command), indent=1, allow_nan=False), encoding="utf-8")
    return [path, numbers, folder]


def as_json(outcome: ForecastOutcome, command: str) -> dict[str, Any]:
    """Return everything in plain numbers; unknown ones are null, the paper's stand apart."""
    printed = {
        "source": paper_tables.SOURCE,
        "daily": {
            method: dict(zip(paper_tables.DAILY_COLUMNS, row, strict=True))
            for method, row in paper_tables.DAILY.items()
        },
        "similar": {
            grouping: {"14 days": short, "21 days": long}
            for grouping, (short, long) in paper_tables.SIMILAR.items()
        },
        "windows": paper_tables.WINDOWS,
        "alarms": paper_tables.ALARMS,
    }
    plain: dict[str, Any] = _without_nan(
        {
            "command": command,
            "data_sets": [_data_set(one) for one in outcome.studied],
            "example": _example(outcome),
            "published": printed,
        }
    )
    return plain


def _data_set(one: DataSetStudy) -> dict[str, Any]:
    panel, result = one.panel, one.result
    return {
        "name": panel.name,
        "generated": panel.generated,
        "unit": panel.unit,
        "card": dict(panel.card),
        "warnings": list(panel.warnings),
        "too_short_for": describe_lack(panel),
        "results": {
            "daily": {days: _summary(errors) for days, errors in result.daily.items()},
            "windows": {LENGTHS[length]: _summary(errors) for length, errors in result.windows.items()},
            "alarms": result.alarms,
            "skipped": result.skipped,
        },
        "answers": {
            key: {"answer": given.verdict, "numbers": list(given.numbers)}
            for key, given in answer(result).items()
        },
    }


def _summary(errors: Errors) -> dict[str, Any]:
    return {key: {"mean": mean_rmse(errors, key), "nodes": node_rmse(errors, key)} for key in errors}


def _example(outcome: ForecastOutcome) -> dict[str, Any] | None:
    if outcome.example is None:
        return None
    return {
        "data_set": outcome.example_of,
        "unit": outcome.example_unit,
        "node": outcome.example.node,
        "interval_seconds": outcome.example.interval_seconds,
        "metrics": outcome.example.metrics,
        "actual": outcome.example.actual.round(3).tolist(),
        "forecasts": {name: course.round(3).tolist() for name, course in outcome.example.forecasts.items()},
        "rmse": outcome.example.rmse(),
    }


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _without_nan(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(held) for held in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
