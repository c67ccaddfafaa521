"""The results as plain numbers (`--json`), as text for a terminal, and as one self-contained HTML file.

The HTML report needs matplotlib and jinja2 (extra `evaluation`); every figure and number lies beside it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from prontosched.errors import SettingsError
from prontosched.evaluation import figures
from prontosched.evaluation.figures import Picture
from prontosched.evaluation.inputs import FirstRows, Part, Truth, first_rows
from prontosched.evaluation.methods import EMBEDDING_LABELS, Method
from prontosched.evaluation.nulls import plain
from prontosched.evaluation.record import LATCHED_AT, NULL_STATISTICS, OWN, STATISTICS
from prontosched.evaluation.speed import performance_table
from prontosched.evaluation.study import Study, median_lead
from prontosched.evaluation.verdict import answer, anticipation, comparison
from prontosched.extras import missing_extra
from prontosched.subspace import Array

FORMAT = 2
COMPARED = ("recall_low", "recall", "quiet_average_precision", "average_precision", "exposure_cut")
MOST_NODES = 32


def outcome(study: Study) -> dict[str, Any]:
    """Return everything worked out, by name; what depends on this run's speed is kept apart.

    The same traces, settings and seed give the same numbers, whatever the engine and number of workers.
    """
    return {
        "format": FORMAT,
        "answer": answer(study).as_dict(),
        "comparison": comparison(study),
        "anticipation": anticipation(study),
        "setting": setting_of(study),
        "data": data_card(study),
        "methods": [_method(study, method) for method in study.methods],
    }


def setting_of(study: Study) -> dict[str, Any]:
    """Return what was asked."""
    setting = study.setting
    return {
        "truth": setting.truth,
        "truth_in_words": Truth.parse(setting.truth).describe(),
        "tolerance": setting.tolerance or setting.truth,
        "horizon": setting.horizon,
        "window": setting.window,
        "budget": setting.budget,
        "budgets": list(setting.budgets),
        "downtimes_compared": list(setting.targets),
        "latched_downtime": LATCHED_AT,
        "seed": setting.seed,
        "with_ready": setting.with_ready,
        "sweeps": {name: list(values) for name, values in setting.sweeps},
    }


def data_card(study: Study) -> dict[str, Any]:
    """Describe the data: how much, of what, and all that could not be used."""
    passes, nodes = study.passes, study.nodes
    results = [result for result in study.results if result.nodes]
    first = results[0]
    steps, spikes = sum(node.steps for node in nodes), sum(node.spikes for node in nodes)
    scored = sum(node.scored for node in nodes)
    return {
        "nodes": len(nodes),
        "names": [node.node for node in nodes],
        "too_short": [node.node for node in study.too_short],
        "metrics": sorted({len(result.metrics) for result in results}),
        "steps": steps,
        "steps_per_node": [min(node.steps for node in nodes), max(node.steps for node in nodes)],
        "scored": scored,
        "interval_seconds": plain(first.interval_seconds),
        "ready_column": first.ready_column,
        "ready_unit": first.ready_unit,
        "qos_column": first.qos_column,
        "spikes": spikes,
        "spike_share": _ratio(spikes, steps),
        "positive_share": _ratio(sum(node.positive for node in nodes), scored),
        "onsets": study.onsets,
        "nodes_without_spikes": [node.node for node in nodes if node.spikes == 0],
        "rows": sum(counts.rows for counts in passes),
        "dropped": dict(sum((Counter(counts.dropped) for counts in passes), Counter())),
        "cells_unknown": dict(sum((Counter(counts.cells) for counts in passes), Counter())),
        "gaps": sum(counts.gaps for counts in passes),
        "columns_left_out": {name: why for counts in passes for name, why in counts.columns.items()},
        "on_tape": _ratio(sum(node.on_tape for node in nodes), steps),
    }


def _method(study: Study, method: Method) -> dict[str, Any]:
    name = method.name
    costs, gains = study.curve(name)
    bins = study.calibration(name)
    leads = study.lead_time(name)
    found: dict[str, Any] = {
        "name": name,
        "label": method.label,
        "family": method.family,
        "about": method.about,
        "own": {statistic[4:]: _both(study, name, statistic) for statistic in OWN},
        "honest": {
            statistic: _both(study, name, statistic)
            for statistic in STATISTICS
            if not statistic.startswith("own_")
        },
        "nodes": _nodes(study, name),
        "qos": None if (qos := study.qos(name)) is None else {key: v.as_dict() for key, v in qos.items()},
        "curve": [
            {"budget": budget, "downtime": plain(cost), "recall": plain(gain)}
            for budget, cost, gain in zip(study.setting.budgets, costs, gains, strict=True)
        ],
        "lead_steps": {"median": plain(median_lead(leads)), "onsets_by_lead": leads.tolist()},
        "calibration_error": plain(study.calibration_error(name)),
        "calibration_error_contended": plain(study.calibration_error(name, contended=True)),
        "reliability": None if bins is None else _reliability(bins),
        "cold_average_precision": plain(study.mean_of(name, "cold_average_precision")),
        "paper": {key: _paper(study.paper(name, key)) for key in study.nodes[0].paper},
        "null": {},
        "worst_hour": plain(study.mean_of(name, "worst_hour")),
        "better_than_null": {key: name in study.better_than_null[key] for key in NULL_STATISTICS},
        "better_than_ready": name in study.better_than_ready,
    }
    for key in NULL_STATISTICS:
        test = study.null_test(name, key)
        found["null"][key] = {"seen": plain(test.observed), "shifted": plain(test.null), "p": plain(test.p)}
    for other in ("ready", "ewma", "boosting"):
        if other in study and other != name:
            found[f"against_{other}"] = {key: study.ratio(name, other, key).as_dict() for key in COMPARED}
    return found


def _nodes(study: Study, name: str) -> list[dict[str, Any]]:
    """Return the figures of every node that are worth comparing node by node."""
    columns = {statistic.removeprefix("own_"): study.values(name, statistic) for statistic in OWN}
    columns |= {f"{key}_at_budget": study.values(name, key) for key in ("recall_low", "recall")}
    columns["average_precision"] = study.values(name, "average_precision")
    columns["calibration_error"] = study.calibration_errors(name)
    columns["calibration_error_contended"] = study.calibration_errors(name, contended=True)
    return [
        {"node": node.node, **{key: plain(float(values[place])) for key, values in columns.items()}}
        for place, node in enumerate(study.nodes)
    ]


def _both(study: Study, name: str, statistic: str) -> dict[str, Any]:
    over = study.interval(name, statistic)
    within = study.interval(name, statistic, over=False)
    return {**over.as_dict(), "within_low": plain(within.low), "within_high": plain(within.high)}


def _paper(values: Array) -> dict[str, Any]:
    known = values[np.isfinite(values)]
    return {"mean": float(known.mean()) if known.size else None, "nodes": [plain(value) for value in values]}


def _reliability(bins: Array) -> list[dict[str, float | None]]:
    return [
        {"moments": number, "said": _ratio(chance, number), "followed": _ratio(spikes, number)}
        for number, chance, spikes in bins.tolist()
    ]


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def print_outcome(found: dict[str, Any]) -> str:
    """Return what a person at a terminal wants to see."""
    setting, data = found["setting"], found["data"]
    low, chosen = setting["downtimes_compared"]
    lines = [
        "Is it worth obeying here? " + found["answer"]["sentence"],
        "",
        f"{data['nodes']} {'node' if data['nodes'] == 1 else 'nodes'}, {data['steps']:,} steps, "
        f"{data['spike_share'] or 0:.1%} of them spikes "
        f"({setting['truth_in_words']}); a spike within {setting['horizon']} steps follows "
        f"{data['positive_share'] or 0:.1%} of moments.",
        "",
    ]
    lines += _own(found)
    lines += _qos(found)
    lines += ["", f"At equal downtime. {found['comparison']} {found['anticipation']}".rstrip()]
    headings = ["method", f"recall {low:.0%}", f"recall {chosen:.0%}", "95 % interval", "null p",
                f"prec. {chosen:.0%}", "quiet ROC", "quiet AP", "exposure", "ECE"]  # fmt: skip
    rows = []
    for method in found["methods"]:
        honest = method["honest"]
        rows.append([
            method["label"], _short(honest["recall_low"]["value"]),
            _short(honest["recall"]["value"]), _span(honest["recall"]), _short(method["null"]["recall"]["p"], 4),
            _short(honest["precision"]["value"]), _short(honest["quiet_roc"]["value"]),
            _short(honest["quiet_average_precision"]["value"]), _short(honest["exposure_cut"]["value"]),
            _short(method["calibration_error"], 3),
        ])  # fmt: skip
    lines += table(headings, rows)
    if found["goals"]:
        results = " (development results)" if found["development"] else ""
        met = {None: "", True: "yes", False: "no"}
        goals = [[row["what"], _short(row["value"], 3), _span(row), row["goal_in_words"], met[row["met"]]]
                 for row in found["goals"]]  # fmt: skip
        lines += ["", f"Goals of the default signal and policy{results}:"]
        lines += [*table(["what", "value", "95 %", "goal", "met"], goals), *_each(found)]
    if data["dropped"]:
        lines += ["", "Rows dropped: " + ", ".join(f"{n} ({cause})" for cause, n in data["dropped"].items())]
    if "timing" in found["performance"]:
        lines += _timing(found["performance"]["timing"])
    return "\n".join(lines)


def _own(found: dict[str, Any]) -> list[str]:
    """Return what every method decides by its own default, whatever that costs."""
    headings = ["by default", "refused", "recall", "95 % interval", "precision", "contended accepted",
                "changes/h"]  # fmt: skip
    rows = []
    for method in found["methods"]:
        own = method["own"]
        if own["downtime"]["value"] is not None:
            rows.append([
                method["label"], _percent(own["downtime"]["value"]), _short(own["recall"]["value"]),
                _span(own["recall"]), _short(own["precision"]["value"]), _percent(own["contended_accepted"]["value"]),
                _short(own["changes_per_hour"]["value"], 1),
            ])  # fmt: skip
    return table(headings, rows)


def _qos(found: dict[str, Any]) -> list[str]:
    """Return what jobs suffered after accepted and refused moments, where the traces say."""
    column = found["data"]["qos_column"]
    rows = []
    for method in found["methods"]:
        qos = method["qos"]
        if qos is not None and qos["refused"]["value"] is not None:
            spans = {key: "" if (span := _span(found)) == "–" else f" ({span})" for key, found in qos.items()}
            shown = ("accepted", "refused", "all", "saved")
            rows.append([method["label"], *(_short(qos[key]["value"], 3) + spans[key] for key in shown)])
    if not rows:
        return []
    headings = [f"mean {column} after moments", "accepted", "refused", "all", "saved by refusing"]
    return ["", *table(headings, rows)]


def _each(found: dict[str, Any]) -> list[str]:
    """Return the values of the goals node by node, where there are a few nodes."""
    names = found["data"]["names"]
    rows = [row for row in found["goals"] if row["each"]]
    if not rows or not 1 < len(names) <= MOST_NODES:
        return []
    lines = [f"  {letter}  {row['what']}" for letter, row in zip("abcdefghijklmnop", rows, strict=False)]
    cells = [[name, *(_short(row["each"][k], 3) for row in rows)] for k, name in enumerate(names)]
    return ["", "Node by node:", *lines, *table(["node", *"abcdefghijklmnop"[: len(rows)]], cells)]


def _timing(found: dict[str, Any]) -> list[str]:
    """Return what a node-step took, and on what."""
    lines = [
        "",
        f"Timing: {found['microseconds_per_node_step']:.0f} µs of processor time a node-step, "
        f"{found['times_a_bare_step']:.1f} times a bare step of a default node "
        f"({found['microseconds_of_a_bare_step']:.0f} µs):",
    ]
    return [*lines, *(f"  {us:7.1f} µs  {name}" for name, us in found["microseconds_by_part"].items())]


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return lines of aligned columns under their headings."""
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    return align([headings, ["-" * width for width in widths], *rows])


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return lines of aligned columns: the first to the left, numbers to the right."""
    first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
    return ["  ".join([name.ljust(first), *map(str.rjust, cells, others)]).rstrip() for name, *cells in rows]


def _short(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _span(found: dict[str, Any]) -> str:
    if found.get("low") is None or found.get("high") is None:
        return "–"
    return f"{found['low']:.2f}–{found['high']:.2f}"


@dataclass(slots=True)
class Evaluation:
    """Everything an evaluation gave: `outcome` is what `--json` prints, examples are drawn from the `first` part."""

    study: Study
    outcome: dict[str, Any]
    first: Part
    warnings: list[str] = field(default_factory=list)


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
    first = first_rows(evaluation.first)
    found["performance"]["table"] = performance_table(first)
    pictures = draw(evaluation.study, first)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("prontosched.evaluation", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(short=_brief, percent=_percentage, count=_count, hours=_duration)
    page = environment.get_template("report.html").render(
        found=found,
        setting=found["setting"],
        data=found["data"],
        # The one that finds most first, those without a score last.
        methods=sorted(
            (method for method in found["methods"] if method["family"] != "sweep"),
            key=lambda method: -(method["honest"]["recall"]["value"] or -1.0),
        ),
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


def draw(study: Study, first: FirstRows) -> list[Picture]:
    """Draw every figure; the paper's examples are drawn from the first rows of a node."""
    with figures.drawing():
        found: list[Picture | None] = [
            figures.recall_against_downtime(study),
            figures.against_ready(study),
            figures.against_null(study),
            figures.lead_times(study),
            figures.reliability(study),
        ]
        if any(method.family == "published" for method in study.methods):
            found += figures.distributions(study)
        found += [figures.sweep(study, name, values) for name, values in study.setting.sweeps]
        example = figures.look(first, study.setting.truth)
        if example is not None:
            closer = figures.busiest(example)
            found += [
                figures.projections(closer),
                figures.rejection(closer),
                figures.window_steps(example, study.setting.window),
            ]
    return [picture for picture in found if picture is not None]


def _brief(value: float | None, digits: int = 2) -> str:
    if value is None:
        return "–"
    text = f"{value:.{digits}f}"
    return text[1:] if text.startswith("0.") else text.replace("-0.", "−.", 1)


def _percentage(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value * 100:.{digits}f} %"


def _count(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _duration(value: float) -> str:
    if value < 2:
        return f"{value * 60:.0f} minutes"
    return f"{value:.1f} hours" if value < 48 else f"{value / 24:.1f} days"
