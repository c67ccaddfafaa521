"""The goals of the default signal and policy, measured: printed whenever they are among the methods.

A row says what is measured, the goal, whether this run meets it, and the value of every node. Rows that these
traces cannot answer are left out.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from prontosched.evaluation.intervals import Interval
from prontosched.evaluation.study import Study
from prontosched.subspace import Array

DEFAULT = "learned"
BLIND = "learned-blind"
READY = "ready"


def goals(study: Study, data: str = "traces") -> list[dict[str, Any]]:
    """Return one row per goal that can be measured here.

    Parameters
    ----------
    data
        What was evaluated: `traces`, `shipped` for Pronto's own, or the name of a generated fleet. Each has
        goals of its own; the other rows are measured all the same.
    """
    if DEFAULT not in study or not study.nodes:
        return []
    real = data == "traces"
    rows = _of_policy(study, real=real)
    if READY in study:
        rows += _against_ready(study, data)
    rows += _of_calibration(study)
    if "ewma" in study:
        for statistic, downtime in zip(("recall_low", "recall"), study.setting.targets, strict=True):
            rows.append(
                _ratio(study, "ewma", statistic, f"recall at {downtime:.0%} downtime against its EWMA", None)
            )
    if "boosting" in study:
        what = "average precision against gradient boosting trained on all the past"
        rows.append(_ratio(study, "boosting", "average_precision", what, 0.98))
    quiet = study.interval(DEFAULT, "quiet_roc")
    least = 0.75 if data == "positive" else None
    rows.append(_row("quiet_roc", "quiet-state ROC area", quiet, least, "at least"))
    if BLIND in study:
        what = "recall with the embedding's inputs against without"
        rows.append(_ratio(study, BLIND, "recall", what, 0.99))
    return rows


def _of_policy(study: Study, *, real: bool) -> list[dict[str, Any]]:
    """Return what the default policy refuses and accepts, whatever that costs."""
    usual = real and study.setting.truth == "p95" and study.setting.horizon == 5
    rows = []
    for key, what, goal, sense in (
        ("own_recall", "recall of the default policy", 0.45, "at least"),
        ("own_precision", "precision of the default policy", 0.70, "at least"),
        ("own_contended_accepted", "share of contended time that is accepted", 0.30, "at most"),
        ("own_downtime", "share of time refused", None, ""),
        ("own_changes_per_hour", "changes an hour", None, ""),
    ):
        found = study.interval(DEFAULT, key)
        rows.append(_row(key, what, found, goal if usual else None, sense, study.values(DEFAULT, key)))
    quiet_nodes = [k for k, node in enumerate(study.nodes) if node.spikes == 0]
    if quiet_nodes:
        raised = float(study.paper(DEFAULT, "downtime")[quiet_nodes].sum())
        rows.append(
            _row("downtime_when_calm", "downtime on nodes without contention", _alone(raised), 0.0, "at most")
        )
    return rows


def _against_ready(study: Study, data: str) -> list[dict[str, Any]]:
    """Return what is gained over current CPU Ready at equal downtime."""
    rows = []
    real = data == "traces"
    for statistic, downtime in zip(("recall_low", "recall"), study.setting.targets, strict=True):
        least = 1.10 if real else 1.0 if (data, statistic) == ("shipped", "recall") else None
        what = f"recall at {downtime:.0%} downtime against current CPU Ready"
        rows.append(_ratio(study, READY, statistic, what, least))
    what = "quiet-state average precision against current CPU Ready"
    rows.append(_ratio(study, READY, "quiet_average_precision", what, 1.25 if real else None))
    with np.errstate(invalid="ignore", divide="ignore"):
        each = study.values(DEFAULT, "average_precision") / study.values(READY, "average_precision")
    known = each[np.isfinite(each)]
    worst = float(known.min()) if known.size else math.nan
    what = "average precision against current CPU Ready, of the worst node"
    rows.append(_row("worst_average_precision", what, _alone(worst), 1.0 if real else None, "at least", each))
    before = study.cold_start(READY)
    cold = study.cold_start(DEFAULT) / before if before > 0 else math.nan
    what = "average precision over steps 20 to 500 against current CPU Ready"
    rows.append(_row("cold_average_precision", what, _alone(cold), 0.95, "at least"))
    return rows


def _of_calibration(study: Study) -> list[dict[str, Any]]:
    rows = []
    for key, what, contended in (
        ("calibration_error", "expected calibration error", False),
        ("calibration_error_contended", "expected calibration error while contended", True),
    ):
        found = study.calibration_error(DEFAULT, contended=contended)
        each = study.calibration_errors(DEFAULT, contended=contended)
        rows.append(_row(key, what, _alone(found), 0.02, "at most", each))
    return rows


def _ratio(study: Study, other: str, statistic: str, what: str, least: float | None) -> dict[str, Any]:
    with np.errstate(invalid="ignore", divide="ignore"):
        each = study.values(DEFAULT, statistic) / study.values(other, statistic)
    found = study.ratio(DEFAULT, other, statistic)
    return _row(f"{statistic}_against_{other}", what, found, least, "at least", each)


def _row(
    key: str, what: str, found: Interval, goal: float | None, sense: str, each: Array | None = None
) -> dict[str, Any]:
    known = math.isfinite(found.value)
    met: bool | None = None
    if goal is not None and known:
        met = found.value >= goal if sense == "at least" else found.value <= goal + 1e-12
    return {
        "key": key,
        "what": what,
        **found.as_dict(),
        "goal": goal,
        "goal_in_words": f"{sense} {goal:g}" if goal is not None else "no goal on these traces",
        "met": met,
        "each": [] if each is None else [float(v) if math.isfinite(v) else None for v in each],
    }


def _alone(value: float) -> Interval:
    """Return a value without an interval."""
    return Interval(value, math.nan, math.nan)
