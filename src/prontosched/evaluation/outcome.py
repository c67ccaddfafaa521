"""The results as plain numbers: what `--json` prints and the report is made from."""

from __future__ import annotations

import math
import platform
from typing import Any

import numpy as np

from prontosched.evaluation.intervals import Interval
from prontosched.evaluation.methods import Method
from prontosched.evaluation.study import NULL_STATISTICS, Study, median_lead
from prontosched.evaluation.summary import LATCHED_AT, OWN, STATISTICS
from prontosched.evaluation.truth import Truth
from prontosched.evaluation.verdict import answer, anticipation, comparison
from prontosched.subspace import Array

FORMAT = 2
COMPARED = ("recall_low", "recall", "quiet_average_precision", "average_precision", "exposure_cut")


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
        "methods": [_method(study, method) for method in study.methods] if study.nodes else [],
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
        "hourly_limit": setting.hourly_limit,
        "seed": setting.seed,
        "with_ready": setting.with_ready,
        "sweeps": {name: list(values) for name, values in setting.sweeps},
    }


def data_card(study: Study) -> dict[str, Any]:
    """Describe the data: how much, of what, and all that could not be used."""
    results = [result for result in study.results if result.nodes]
    dropped: dict[str, int] = {}
    cells: dict[str, int] = {}
    columns: dict[str, str] = {}
    for counts in study.passes:
        for cause, number in counts.dropped.items():
            dropped[cause] = dropped.get(cause, 0) + number
        for cause, number in counts.cells.items():
            cells[cause] = cells.get(cause, 0) + number
        columns.update(counts.columns)
    features = sorted({len(result.metrics) for result in results})
    nodes = study.nodes
    steps = sum(node.steps for node in nodes)
    return {
        "nodes": len(nodes),
        "names": [node.node for node in nodes],
        "too_short": [node.node for node in study.too_short],
        "metrics": features,
        "steps": steps,
        "steps_per_node": [
            min((n.steps for n in nodes), default=0),
            max((n.steps for n in nodes), default=0),
        ],
        "scored": sum(node.scored for node in nodes),
        "interval_seconds": _plain(results[0].interval_seconds) if results else None,
        "ready_column": results[0].ready_column if results else "",
        "ready_unit": results[0].ready_unit if results else "",
        "qos_column": results[0].qos_column if results else None,
        "spikes": sum(node.spikes for node in nodes),
        "spike_share": _ratio(sum(node.spikes for node in nodes), steps),
        "positive_share": _ratio(sum(n.positive for n in nodes), sum(n.scored for n in nodes)),
        "onsets": sum(node.onsets for node in nodes),
        "nodes_without_spikes": [node.node for node in nodes if node.spikes == 0],
        "rows": sum(counts.rows for counts in study.passes),
        "dropped": dropped,
        "cells_unknown": cells,
        "gaps": sum(counts.gaps for counts in study.passes),
        "columns_left_out": columns,
        "refused": {path: reason for result in study.results for path, reason in result.refused.items()},
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
            {"budget": budget, "downtime": _plain(cost), "recall": _plain(gain)}
            for budget, cost, gain in zip(study.setting.budgets, costs, gains, strict=True)
        ],
        "lead_steps": {"median": _plain(median_lead(leads)), "onsets_by_lead": leads.tolist()},
        "calibration_error": _plain(study.calibration_error(name)),
        "calibration_error_contended": _plain(study.calibration_error(name, contended=True)),
        "reliability": None if bins is None else _reliability(bins),
        "cold_average_precision": _plain(study.cold_start(name)),
        "paper": {key: _paper(study.paper(name, key)) for key in study.nodes[0].paper},
        "null": {},
        "limit": _limit(study, name),
        "better_than_null": {key: name in study.better_than_null[key] for key in NULL_STATISTICS},
        "better_than_ready": name in study.better_than_ready,
    }
    for key in NULL_STATISTICS:
        test = study.null_test(name, key)
        found["null"][key] = {
            "seen": _plain(test.observed),
            "shifted": _plain(test.null),
            "p": _plain(test.p),
        }
    for other in ("ready", "ewma", "boosting"):
        if other in study and other != name:
            found[f"against_{other}"] = {
                statistic: study.ratio(name, other, statistic).as_dict() for statistic in COMPARED
            }
    return found


def _nodes(study: Study, name: str) -> list[dict[str, Any]]:
    """Return the figures of every node that are worth comparing node by node."""
    columns = {
        statistic.removeprefix("own_") if statistic in OWN else f"{statistic}_at_budget": study.values(
            name, statistic
        )
        for statistic in (*OWN, "recall_low", "recall")
    }
    columns["average_precision"] = study.values(name, "average_precision")
    columns["calibration_error"] = study.calibration_errors(name)
    columns["calibration_error_contended"] = study.calibration_errors(name, contended=True)
    return [
        {"node": node.node, **{key: _plain(float(values[place])) for key, values in columns.items()}}
        for place, node in enumerate(study.nodes)
    ]


def _both(study: Study, name: str, statistic: str) -> dict[str, Any]:
    over: Interval = study.interval(name, statistic)
    within = study.interval(name, statistic, over=False)
    return {**over.as_dict(), "within_low": _plain(within.low), "within_high": _plain(within.high)}


def _paper(values: Array) -> dict[str, Any]:
    known = values[np.isfinite(values)]
    return {
        "mean": _plain(float(known.mean())) if known.size else None,
        "nodes": [_plain(float(value)) for value in values],
    }


def _reliability(bins: Array) -> list[dict[str, float | None]]:
    return [
        {"moments": number, "said": _ratio(chance, number), "followed": _ratio(spikes, number)}
        for number, chance, spikes in bins.tolist()
    ]


def _limit(study: Study, name: str) -> dict[str, float | None]:
    means = {}
    for key in ("free", "limited", "worst", "above"):
        values = study.limit(name, key)
        known = values[np.isfinite(values)]
        means[key] = _plain(float(known.sum() if key == "above" else known.mean())) if known.size else None
    free, limited = means["free"], means["limited"]
    return {
        "recall_free": free,
        "recall_limited": limited,
        "recall_lost": None if free is None or limited is None else free - limited,
        "worst_hour": means["worst"],
        "hours_above": means["above"],
    }


def machine() -> dict[str, Any]:
    """Describe what this ran on."""
    return {"python": platform.python_version(), "numpy": np.__version__, "machine": platform.machine()}


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _plain(number: float) -> float | None:
    return float(number) if math.isfinite(number) else None
