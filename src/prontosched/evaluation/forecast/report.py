"""The report: one self-contained HTML page, its figures as SVG and PNG beside it, and all numbers as JSON.

Figures show our numbers only; the paper's stay in the tables.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from prontosched.evaluation.forecast import paper_tables
from prontosched.evaluation.forecast.answers import QUESTIONS, Table, all_tables, answer, as_text
from prontosched.evaluation.forecast.models import METHODS, HourForecast
from prontosched.evaluation.forecast.panel import LENGTHS
from prontosched.evaluation.forecast.run import DataSetStudy, ForecastOutcome
from prontosched.evaluation.forecast.study import ALARM_METHODS, THRESHOLDS, StudyResult, mean_rmse, node_rmse

COLOURS = {
    "naive": "#8a8f98",
    "expsmo": "#2a78d6",
    "arima": "#d9822b",
    "svm": "#2f9e6e",
    "svm cluster": "#2f9e6e",
    "svm full": "#7a4fbf",
}
# The same figure from the same numbers is the same file.
STYLE = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e8eb",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "svg.hashsalt": "pronto",
    "svg.fonttype": "none",
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
    figure, axes = _figure(3.6)
    minutes = np.arange(len(example.actual)) * example.interval_seconds / 60.0
    axes.plot(minutes, example.actual, color="#20242a", linewidth=1.6, label="actual")
    lines = {"ExpSmo": "#2a78d6", "Cond. Diff KNN": "#d9822b", "Cond. Diff SVR": "#2f9e6e"}
    errors = example.rmse()
    for name, colour in lines.items():
        label = f"{name} (RMSE {errors[name]:.4g})"
        axes.plot(minutes, example.forecasts[name], color=colour, linewidth=1.1, alpha=0.9, label=label)
    axes.set(xlabel="minutes", ylabel=f"CPU Ready [{unit}]", xlim=(0, minutes[-1]))
    axes.set_ylim(bottom=0)
    figure.legend(loc="outside upper left", ncols=4, fontsize=8.5)
    return figure


def draw_windows(result: StudyResult, unit: str) -> Any:
    """Draw the error of each method against the length of the forecasting window."""
    figure, axes = _figure(3.6)
    lengths = sorted(result.windows)
    for method, title in METHODS.items():
        known = [n for n in lengths if node_rmse(result.windows[n], method)]
        if not known:
            continue
        middle = np.array([mean_rmse(result.windows[n], method) for n in known])
        places = [lengths.index(n) for n in known]
        label = f"{title}{' cluster' if method == 'svm' else ''}"
        axes.plot(places, middle, marker="o", markersize=4.5, color=COLOURS[method], label=label)
    axes.set_xticks(range(len(lengths)), [LENGTHS[n] for n in lengths])
    axes.set(xlabel="length of the past and of the forecast window", ylabel=f"average RMSE [{unit}]")
    axes.set_ylim(bottom=0)
    axes.legend()
    return figure


def draw_daily(result: StudyResult, unit: str) -> Any:
    """Draw the errors of daily medians, by method, scope and past window; dots are nodes."""
    figure, axes = _figure(3.6)
    groups = [(scope, days) for days in sorted(result.daily) for scope in ("same node", "same cluster")]
    width = 0.8 / len(METHODS)
    for place, (method, title) in enumerate(METHODS.items()):
        for group, (scope, days) in enumerate(groups):
            errors = result.daily[days]
            at = group + (place - 1.5) * width
            nodes = list(node_rmse(errors, f"{scope}/{method}").values())
            axes.bar(
                at,
                mean_rmse(errors, f"{scope}/{method}"),
                width * 0.92,
                color=COLOURS[method],
                label=title if not group else None,
            )
            axes.plot([at] * len(nodes), nodes, ".", color="#20242a", markersize=3, alpha=0.5)
    axes.set_xticks(range(len(groups)), [f"{scope}\n{days} days" for scope, days in groups])
    axes.set(ylabel=f"RMSE of days [{unit}]")
    figure.legend(loc="outside upper left", ncols=4)
    return figure


def draw_alarms(result: StudyResult) -> Any:
    """Draw how the paper's accuracy and the balanced one judge the same alarms."""
    figure, both = _figure(3.8, columns=2)
    kinds = list(result.alarms)
    for axes, measure, title in (
        (both[0], "accuracy", "per node (the paper's)"),
        (both[1], "balanced", "balanced, all nodes together"),
    ):
        for place, kind in enumerate(kinds):
            for shift, method in enumerate(ALARM_METHODS):
                axes.plot(
                    result.alarms[kind][method][measure],
                    place + 0.13 * (2 - shift),
                    "o",
                    color=COLOURS[method],
                    markersize=4.5,
                    label=ALARM_METHODS[method] if not place else None,
                )
        axes.axvline(0.5, color="#c9ccd1", linewidth=1)
        axes.set(title=title, xlim=(0.0, 1.03), xlabel="accuracy")
        axes.set_yticks(range(len(kinds)), [_with_share(result, kind) for kind in kinds])
        axes.invert_yaxis()
    both[1].set_yticklabels([])
    both[0].legend(loc="lower left", fontsize=8)
    return figure


def _with_share(result: StudyResult, kind: str) -> str:
    share = 100.0 * result.alarms[kind]["share of spikes"]["accuracy"]
    return f"{THRESHOLDS[kind]} ({share:.1f} %)"


def draw_all(
    result: StudyResult, example: HourForecast | None, unit: str, example_unit: str
) -> dict[str, Any]:
    """Draw every figure there are numbers for, by name."""
    import matplotlib as mpl

    figures: dict[str, Any] = {}
    with mpl.rc_context(STYLE):
        if example is not None:
            figures["example"] = draw_example(example, example_unit)
        if result.daily:
            figures["daily"] = draw_daily(result, unit)
        if result.windows:
            figures["windows"] = draw_windows(result, unit)
        if result.alarms:
            figures["alarms"] = draw_alarms(result)
    return figures


def save(figures: dict[str, Any], folder: Path) -> dict[str, str]:
    """Write each figure as SVG and PNG; return the SVGs by name."""
    import matplotlib as mpl

    folder.mkdir(parents=True, exist_ok=True)
    drawn = {}
    with mpl.rc_context(STYLE):
        for name, figure in figures.items():
            figure.savefig(folder / f"{name}.png", dpi=150)
            path = folder / f"{name}.svg"
            figure.savefig(path, metadata={"Date": None})
            drawn[name] = path.read_text(encoding="utf-8")
    return drawn


def _figure(height: float, columns: int = 1) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(1, columns)


def tables_of(outcome: ForecastOutcome) -> list[Table]:
    """Return all tables, each with a grid per data set that has numbers for it."""
    tables = all_tables({one.origin: one.result for one in outcome.studied})
    kept = []
    for table in tables:
        ours = tuple(g for g in table.ours if any(not math.isnan(v) for _, row in g.rows for v in row))
        kept.append(Table(table.key, table.title, ours, table.paper, table.note, table.questions))
    return kept


def as_plain_text(outcome: ForecastOutcome) -> str:
    """Return tables and answers for a terminal."""
    blocks = []
    for table in tables_of(outcome):
        if not table.ours or table.key.endswith(("-plain", "-literal")):
            continue
        lines = [table.title, f"  {table.note}"]
        for grid in table.ours:
            lines += [f"[{grid.origin}]", as_text(grid)]
        if table.paper is not None:
            lines += [f"[{table.paper.origin}]", as_text(table.paper)]
        blocks.append("\n".join(lines))
    if outcome.example is not None:
        errors = ", ".join(f"{name} {value:.4g}" for name, value in outcome.example.rmse().items())
        blocks.append(f"One hour of {outcome.example.node} ({outcome.example_of}), RMSE: {errors}")
    for one in outcome.studied:
        blocks.append(f"[{one.origin}] answers:\n" + "\n".join(_answers(one)))
    return "\n\n".join(blocks)


def _answers(one: DataSetStudy) -> list[str]:
    given = answer(one.result)
    lines = []
    for number, (key, question) in enumerate(QUESTIONS.items(), start=1):
        lines += [
            f"Q{number} {question}",
            f"   {given[key].verdict}",
            f"   The paper: {paper_tables.ANSWERS[key]}",
        ]
        lines += [f"     - {line}" for line in given[key].numbers]
    return lines


def write_report(outcome: ForecastOutcome, path: Path, *, command: str, seconds: float) -> list[Path]:
    """Write page, figures and numbers; return what was written, the page first."""
    from jinja2 import Environment, PackageLoader

    folder = path.with_name(f"{path.stem}-figures")
    main = outcome.studied[0]
    drawn = save(
        draw_all(main.result, outcome.example, main.panel.unit, outcome.example_unit),
        folder,
    )
    for one in outcome.studied[1:]:
        more = draw_all(one.result, None, one.panel.unit, outcome.example_unit)
        drawn |= save({f"{name}-generated": figure for name, figure in more.items()}, folder)
    environment = Environment(
        loader=PackageLoader("prontosched.evaluation.forecast", "."), autoescape=True, trim_blocks=True
    )
    page = environment.get_template("report.html").render(
        outcome=outcome,
        tables=tables_of(outcome),
        figures={name: _inline(svg) for name, svg in drawn.items()},
        captions=CAPTIONS,
        questions=QUESTIONS,
        answers=[(one, answer(one.result)) for one in outcome.studied],
        paper_tables=paper_tables,
        command=command,
        minutes=seconds / 60.0,
        isnan=math.isnan,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    numbers = path.with_suffix(".json")
    numbers.write_text(json.dumps(as_json(outcome, command), indent=1, allow_nan=False), encoding="utf-8")
    return [path, numbers, folder]


def as_json(outcome: ForecastOutcome, command: str) -> dict[str, Any]:
    """Return everything in plain numbers; unknown ones are null, the paper's stand apart."""
    printed = {
        "source": paper_tables.SOURCE,
        "daily": {
            m: {f"{s}, {d} days": v for (s, d), v in row.items()} for m, row in paper_tables.DAILY.items()
        },
        "similar": {g: {f"{d} days": v for d, v in row.items()} for g, row in paper_tables.SIMILAR.items()},
        "windows": paper_tables.WINDOWS,
        "alarms": paper_tables.ALARMS,
    }
    plain: dict[str, Any] = _without_nan({"command": command, **outcome.as_dict(), "published": printed})
    return plain


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _without_nan(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(held) for held in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _inline(svg: str) -> Any:
    """Return a figure that can stand in a page: without the XML header, and marked as ready markup."""
    from markupsafe import Markup

    return Markup(svg[svg.index("<svg") :])
