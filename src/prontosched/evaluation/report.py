"""One self-contained HTML file a person enjoys reading, and every figure and number beside it.

Needs matplotlib and jinja2 (extra `evaluation`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from prontosched.errors import SettingsError
from prontosched.evaluation import figures, figures_paper
from prontosched.evaluation.evaluate import Evaluation
from prontosched.evaluation.figures import Picture
from prontosched.evaluation.illustration import Example, busiest, look
from prontosched.evaluation.methods import EMBEDDING_LABELS
from prontosched.evaluation.speed import performance_table
from prontosched.evaluation.study import Study
from prontosched.extras import missing_extra


def write_report(evaluation: Evaluation, path: Path) -> list[Path]:
    """Write the report to `path`, its figures and numbers to a folder of the same name; return what was written."""
    try:
        import jinja2
    except ImportError as error:
        raise SettingsError(missing_extra("a report", "evaluation")) from error
    folder = path.with_name(f"{path.stem}_files")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"{folder}: cannot be made ({error.strerror}): choose another place") from error
    found = evaluation.outcome
    if evaluation.first is not None:
        found["performance"]["table"] = performance_table(evaluation.first)
    pictures = draw(evaluation)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("prontosched.evaluation", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(short=_short, percent=_percent, count=_count, hours=_hours)
    page = environment.get_template("report.html").render(
        found=found,
        setting=found["setting"],
        data=found["data"],
        methods=_sorted(found["methods"]),
        embeddings=EMBEDDING_LABELS,
        dark=figures.DARK,
        pictures={picture.name: picture for picture in pictures},
        sweeps=[f"sweep-{name.replace('_', '-')}" for name, _ in evaluation.study.setting.sweeps],
        development=found["development"],
        warnings=evaluation.warnings,
        folder=folder.name,
    )
    written = [path, folder / "results.json"]
    path.write_text(page, encoding="utf-8")
    written[1].write_text(json.dumps(found, indent=1, allow_nan=False), encoding="utf-8")
    for picture in pictures:
        picture.write(folder)
    return [path, folder]


def draw(evaluation: Evaluation) -> list[Picture]:
    """Draw every figure."""
    study = evaluation.study
    with figures.drawing():
        found: list[Picture | None] = [
            figures.recall_against_downtime(study),
            figures.against_ready(study),
            figures.against_null(study),
            figures.lead_times(study),
            figures.reliability(study),
            *_of_paper(study, evaluation),
        ]
    return [picture for picture in found if picture is not None]


def _of_paper(study: Study, evaluation: Evaluation) -> list[Picture | None]:
    found: list[Picture | None] = []
    if any(method.family == "published" for method in study.methods):
        found += figures_paper.distributions(study)
    found += [figures_paper.sweep(study, name, values) for name, values in study.setting.sweeps]
    example: Example | None = None
    if evaluation.first is not None:
        example = look(evaluation.first, study.setting.truth)
    if example is not None:
        closer = busiest(example)
        found += [
            figures_paper.projections(closer),
            figures_paper.rejection(closer),
            figures_paper.window_steps(example, study.setting.window),
        ]
    return found


def _sorted(methods: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the methods, the one that finds most first; variants and those without a score last."""
    plain = [method for method in methods if method["family"] != "sweep"]
    return sorted(plain, key=lambda method: -(method["honest"]["recall"]["value"] or -1.0))


def _short(value: float | None, digits: int = 2) -> str:
    if value is None:
        return "–"
    text = f"{value:.{digits}f}"
    return text[1:] if text.startswith("0.") else text.replace("-0.", "−.", 1)


def _percent(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value * 100:.{digits}f} %"


def _count(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _hours(value: float) -> str:
    if value < 2:
        return f"{value * 60:.0f} minutes"
    return f"{value:.1f} hours" if value < 48 else f"{value / 24:.1f} days"
