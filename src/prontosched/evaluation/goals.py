"""The goals of the learned signal, measured: printed whenever it is among the methods.

A row says what is measured, the goal, and whether this run meets it. Rows that these traces cannot answer
are left out.
"""

from __future__ import annotations

import math
from typing import Any

from prontosched.evaluation.intervals import Interval
from prontosched.evaluation.study import Study

LEARNED = "learned"
POLICY = "learned-policy"
BLIND = "learned-blind"


def goals(study: Study, data: str = "traces") -> list[dict[str, Any]]:
    """Return one row per goal that can be measured here.

    Parameters
    ----------
    data
        What was evaluated: `traces`, `shipped` for Pronto's own, or the name of a generated fleet. Each has
        goals of its own; the other rows are measured all the same.
    """
    if LEARNED not in study or not study.nodes:
        return []
    rows: list[dict[str, Any]] = []
    low, chosen = study.setting.targets
    real = data == "traces"
    for other, label, least in (("ready", "current CPU Ready", 1.10), ("ewma", "its EWMA", 1.05)):
        if other in study:
            for statistic, downtime in (("recall", chosen), ("recall_low", low)):
                found = study.ratio(LEARNED, other, statistic)
                goal = (
                    least
                    if real
                    else 1.0
                    if (data, other, statistic) == ("shipped", "ready", "recall")
                    else None
                )
                rows.append(
                    _ratio(f"recall at {downtime:.0%} downtime against {label}", found, goal, sure=real)
                )
    if "ready" in study:
        found = study.ratio(LEARNED, "ready", "quiet_average_precision")
        rows.append(
            _ratio("quiet-state average precision against current CPU Ready", found, 1.25 if real else None)
        )
        cold = (
            study.cold_start(LEARNED) / study.cold_start("ready")
            if study.cold_start("ready") > 0
            else math.nan
        )
        rows.append(
            _row("average precision over steps 20 to 500 against current CPU Ready", cold, 0.95, "at least")
        )
    if "boosting" in study:
        found = study.ratio(LEARNED, "boosting", "average_precision")
        rows.append(
            _ratio("average precision against gradient boosting trained on all the past", found, 0.98)
        )
    rows.append(_row("expected calibration error", study.calibration_error(LEARNED), 0.02, "at most"))
    quiet = study.interval(LEARNED, "quiet_roc")
    least_quiet = 0.75 if data == "positive" else None
    rows.append({**_row("quiet-state ROC area", quiet.value, least_quiet, "at least"), **_limits(quiet)})
    return [*rows, *_of_variants(study)]


def _of_variants(study: Study) -> list[dict[str, Any]]:
    """Return what the signal without its embedding's inputs, and under its own policy, is measured for."""
    rows: list[dict[str, Any]] = []
    if BLIND in study:
        found = study.ratio(LEARNED, BLIND, "recall")
        rows.append(_ratio("recall with the embedding's inputs against without", found, 0.99))
    if POLICY in study:
        downtime = study.own(POLICY)[0] / study.setting.budget
        rows.append(_row("long-run downtime of its own policy, in budgets", downtime, 1.15, "at most"))
        above = float(study.limit(POLICY, "above").sum())
        rows.append(_row("hours above the hourly limit under its own policy", above, 0.0, "at most"))
        quiet_nodes = [k for k, node in enumerate(study.nodes) if node.spikes == 0]
        if quiet_nodes:
            raised = float(study.paper(POLICY, "downtime")[quiet_nodes].sum())
            rows.append(_row("downtime on nodes without contention", raised, 0.0, "at most"))
    return rows


def _ratio(what: str, found: Interval, least: float | None, *, sure: bool = False) -> dict[str, Any]:
    row = {**_row(what, found.value, least, "at least"), **_limits(found)}
    if sure:
        row["goal_in_words"] = f"at least {least:g}, interval above 1"
        row["met"] = bool(row["met"] and found.low > 1.0)
    return row


def _row(what: str, value: float, goal: float | None, sense: str) -> dict[str, Any]:
    known = math.isfinite(value)
    met: bool | None = None
    if goal is not None and known:
        met = value >= goal if sense == "at least" else value <= goal + 1e-12
    return {
        "what": what,
        "value": float(value) if known else None,
        "goal": goal,
        "goal_in_words": f"{sense} {goal:g}" if goal is not None else "no goal on these traces",
        "met": met,
    }


def _limits(found: Interval) -> dict[str, float | None]:
    return {
        "low": found.low if math.isfinite(found.low) else None,
        "high": found.high if math.isfinite(found.high) else None,
    }
