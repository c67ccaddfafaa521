"""The alarm method: daily medians become spikes and non-spikes, and those are forecast.

A spike is a daily median at or over a threshold. Thresholds of a node come from its past window alone and are
applied to the day that follows. The x-bar threshold is the upper limit of the moving range itself, D4 times its
mean: only so does it mark anything near the published quarter to half of all days. (`pronto evaluate` adds the
mean, as a control chart does; that reading is reported here as "mean + xbar".)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prontosched.evaluation.forecast.arima import Arima
from prontosched.evaluation.forecast.methods import AutoregressiveSVR, smooth
from prontosched.evaluation.forecast.values import usable
from prontosched.subspace import Array

# Upper control limit of a moving range of two.
D4 = 3.267
FIXED_MS = (500, 800, 1000)
PERCENTILES = (90, 95, 99)
THRESHOLDS: dict[str, str] = (
    {f"{value}ms": f"{value}" for value in FIXED_MS}
    | {f"p{share}": f"{share}th" for share in PERCENTILES}
    | {"3sigma": "μ+3σ", "xbar": "xbar", "median": "median", "mean+xbar": "mean + xbar"}
)
ALARM_METHODS = {
    "naive": "Naive",
    "expsmo": "ExpSmo",
    "arima": "ARIMA",
    "svm cluster": "SVM Cluster",
    "svm full": "SVM Full",
}
# A forecast in [0, 1] from which the alarm is given.
ALARM = 0.5
UNKNOWN = "-"


def thresholds(kind: str, past: Array) -> Array:
    """Return the threshold of each node, `(M,)`, from its past window `(M, n)`.

    Examples
    --------
    >>> past = np.array([[100.0, 200.0, 100.0, 200.0]])
    >>> thresholds("500ms", past), thresholds("median", past), thresholds("xbar", past)
    (array([500.]), array([150.]), array([326.7]))
    """
    if kind.endswith("ms"):
        return np.full(len(past), float(kind.removesuffix("ms")))
    if kind.startswith("p"):
        level: Array = np.percentile(past, float(kind[1:]), axis=1)
        return level
    if kind == "3sigma":
        limit: Array = past.mean(axis=1) + 3.0 * past.std(axis=1)
        return limit
    if kind == "median":
        middle: Array = np.median(past, axis=1)
        return middle
    if kind in ("xbar", "mean+xbar"):
        moving_range = np.abs(np.diff(past, axis=1)).mean(axis=1)
        ucl: Array = D4 * moving_range + (past.mean(axis=1) if kind == "mean+xbar" else 0.0)
        return ucl
    raise ValueError(f"threshold must be one of {', '.join(THRESHOLDS)}, got {kind!r}")


def alarm_day(daily: list[Array], day: int, past_days: int, kind: str, seed: int) -> dict[str, Any]:
    """Forecast one day's spikes of all nodes of all clusters.

    Parameters
    ----------
    daily
        Daily medians per cluster, `(M, days)` each.

    Returns
    -------
    For "actual" and each method a string with one of `1`, `0` and `-` (unknown) per node.
    """
    parts = []
    for medians in daily:
        if day >= medians.shape[1]:
            parts.append(
                _Part(len(medians), np.empty(0, dtype=np.intp), np.empty((0, past_days)), np.empty(0))
            )
            continue
        rows, past = usable(medians[:, day - past_days : day])
        known = np.isfinite(medians[rows, day]) if len(rows) else np.empty(0, dtype=bool)
        rows, past = rows[known], past[known]
        limit = thresholds(kind, past) if len(rows) else np.empty(0)
        actual = (medians[rows, day] >= limit).astype(float) if len(rows) else np.empty(0)
        parts.append(_Part(len(medians), rows, (past >= limit[:, None]).astype(float), actual))
    everyone = np.concatenate([part.past for part in parts])
    full = AutoregressiveSVR(everyone, seed=seed) if len(everyone) else None
    answer = {key: "" for key in ("actual", *ALARM_METHODS)}
    for part in parts:
        given = _forecast(part.past, full, seed) if len(part.rows) else {}
        for key, values in ({"actual": part.actual} | given).items():
            answer[key] += part.spell(values)
        if not given:
            for key in ALARM_METHODS:
                answer[key] += UNKNOWN * part.nodes
    return answer


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """One cluster: which nodes are known, their alarms in the past window and on the day itself."""

    nodes: int
    rows: NDArray[np.intp]
    past: Array
    actual: Array

    def spell(self, values: Array) -> str:
        letters = np.full(self.nodes, UNKNOWN)
        letters[self.rows] = np.where(values >= ALARM, "1", "0")
        return "".join(letters)


def _forecast(past: Array, full: AutoregressiveSVR | None, seed: int) -> dict[str, Array]:
    cluster = AutoregressiveSVR(past, seed=seed)
    return {
        "naive": past[:, -1],
        "expsmo": smooth(past),
        "arima": _arima(past),
        "svm cluster": cluster.forecast(past)[:, 0],
        "svm full": (full or cluster).forecast(past)[:, 0],
    }


def _arima(past: Array) -> Array:
    """Build the model on the average node and apply it to each; nodes with the same past share the work."""
    model = Arima(past.mean(axis=0))
    courses, owner = np.unique(past, axis=0, return_inverse=True)
    ahead = np.array([model.forecast(course, steps=1)[0] for course in courses])
    forecasts: Array = ahead[owner.reshape(-1)]
    return forecasts


def score_alarms(days: list[dict[str, str]]) -> dict[str, dict[str, float]]:
    """Score the forecasts of many days, per method.

    Returns
    -------
    Per method: `accuracy`, the paper's measure read as the mean of TP/P and TN/N, per node and averaged (a
    node without spikes counts with TN/N alone); `balanced`, the same over all nodes and days together;
    `plain`, the share of right answers; `literal`, the formula as printed, numbers of forecast over numbers
    of actual ones, which can exceed 1. Under "share of spikes" the share in the forecast days.
    """
    letters = {key: np.array([list(day[key]) for day in days]).T for key in days[0]}
    actual = letters["actual"] == "1"
    known = letters["actual"] != UNKNOWN
    spikes, quiet = (actual & known).sum(axis=1), (~actual & known).sum(axis=1)
    seen = (spikes + quiet) > 0
    scores: dict[str, dict[str, float]] = {}
    for method in ALARM_METHODS:
        given = letters[method] == "1"
        hits, rests = (given & actual & known).sum(axis=1), (~given & ~actual & known).sum(axis=1)
        alarms, silences = (given & known).sum(axis=1), (~given & known).sum(axis=1)
        both = (spikes > 0) & (quiet > 0)
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
