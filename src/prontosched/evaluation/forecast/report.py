"""The report: one self-contained HTML page, its figures as SVG and PNG beside it, and all numbers as JSON."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from prontosched.evaluation.forecast import published
from prontosched.evaluation.forecast.answers import QUESTIONS, answer
from prontosched.evaluation.forecast.figures import draw_all, save
from prontosched.evaluation.forecast.run import Outcome, Studied
from prontosched.evaluation.forecast.tables import Table, all_tables, as_text

CAPTIONS = {
    "example": "One hour of one node, forecast one sample ahead, each time from the hour before.",
    "daily": "Errors of daily medians. Bars are averages, dots are single nodes.",
    "windows": "Error against the length of the window: the past window is as long as the one forecast.",
    "alarms": "The same alarms judged twice. In brackets: share of days that are spikes. "
    "0.5 is what a method without any skill gets; a per-node average gets more where nodes have no spikes at all.",
}


def tables_of(outcome: Outcome) -> list[Table]:
    """Return all tables, each with a grid per data set that has numbers for it."""
    tables = all_tables({one.origin: one.result for one in outcome.studied})
    kept = []
    for table in tables:
        ours = tuple(g for g in table.ours if any(not math.isnan(v) for _, row in g.rows for v in row))
        kept.append(Table(table.key, table.title, ours, table.paper, table.note, table.questions))
    return kept


def as_plain_text(outcome: Outcome) -> str:
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


def _answers(one: Studied) -> list[str]:
    given = answer(one.result)
    lines = []
    for number, (key, question) in enumerate(QUESTIONS.items(), start=1):
        lines += [
            f"Q{number} {question}",
            f"   {given[key].verdict}",
            f"   The paper: {published.ANSWERS[key]}",
        ]
        lines += [f"     - {line}" for line in given[key].numbers]
    return lines


def write_report(outcome: Outcome, path: Path, *, command: str, seconds: float) -> list[Path]:
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
        published=published,
        command=command,
        minutes=seconds / 60.0,
        isnan=math.isnan,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    numbers = path.with_suffix(".json")
    numbers.write_text(json.dumps(as_json(outcome, command), indent=1, allow_nan=False), encoding="utf-8")
    return [path, numbers, folder]


def as_json(outcome: Outcome, command: str) -> dict[str, Any]:
    """Return everything in plain numbers; unknown ones are null, the paper's stand apart."""
    printed = {
        "source": published.SOURCE,
        "daily": {
            m: {f"{s}, {d} days": v for (s, d), v in row.items()} for m, row in published.DAILY.items()
        },
        "similar": {g: {f"{d} days": v for d, v in row.items()} for g, row in published.SIMILAR.items()},
        "windows": published.WINDOWS,
        "alarms": published.ALARMS,
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
