"""Forecasts of CPU Ready values: daily medians from two or three weeks, and windows from windows as long.

One call does one cluster; `study` spreads the calls over processes. Errors are of single nodes, in the unit of
the trace; averaging over nodes is left to `tables`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from prontosched.evaluation.forecast.methods import (
    AutoregressiveSVR,
    forecast_from_cluster,
    forecast_same_node,
    smooth,
)
from prontosched.evaluation.forecast.neighbours import GROUPINGS, group_nodes
from prontosched.evaluation.forecast.panel import filled_histories
from prontosched.evaluation.forecast.scaling import WindowScale
from prontosched.subspace import Array

PAST_DAYS = (14, 21)
# Forecasts a node needs before its error is worth averaging.
FEWEST_FORECASTS = 3


def usable(past: Array) -> tuple[NDArray[np.intp], Array]:
    """Return the rows whose past is known well enough, and their pasts with gaps filled."""
    pairs = list(filled_histories(past))
    if not pairs:
        return np.empty(0, dtype=np.intp), np.empty((0, past.shape[1]))
    return np.array([row for row, _ in pairs], dtype=np.intp), np.array([course for _, course in pairs])


def daily_day(daily: Array, day: int, past_days: int, targets: list[int], seed: int) -> dict[str, Any]:
    """Forecast one day's medians for the target nodes of one cluster.

    Parameters
    ----------
    daily
        Daily medians of the cluster, `(M, days)`.
    day
        The day to forecast.
    past_days
        Length of the past window.
    targets
        Nodes to score.
    seed
        For what is drawn at random.

    Returns
    -------
    `{"errors": {scope/method: {node: error}}}` for scopes "same node", "same cluster" and one per grouping.
    """
    rows, past = usable(daily[:, day - past_days : day])
    held = set(rows.tolist())
    wanted = [target for target in targets if target in held and np.isfinite(daily[target, day])]
    if not wanted:
        return {"errors": {}, "skipped": len(targets)}
    scale = WindowScale(past)
    scaled, last = scale.scaled, scale.scaled[:, -1]
    place = np.searchsorted(rows, wanted)
    alone = forecast_same_node(scaled[place], last[place], steps=1)
    found = {f"same node/{method}": values for method, values in alone.items()}
    together = forecast_from_cluster(scaled, last, place, steps=1, seed=seed)
    found |= {f"same cluster/{method}": values for method, values in together.items()}
    for grouping in GROUPINGS:
        groups = group_nodes(grouping, past, scaled, seed=seed)
        models = {
            group: AutoregressiveSVR(scaled[groups == group], seed=seed) for group in set(groups[place])
        }
        found[f"similar/{grouping}"] = np.array(
            [models[groups[p]].forecast(scaled[[p]])[0, 0] for p in place]
        )
    return {
        "errors": _errors(found, scale, place, wanted, daily[wanted, day]),
        "skipped": len(targets) - len(wanted),
    }


def window_pair(points: Array, medians: Array, targets: list[int], seed: int) -> dict[str, Any]:
    """Forecast the median of a window from the inside of the window before it, as long.

    Parameters
    ----------
    points
        The inside of the past window of every node of the cluster, `(M, n)`.
    medians
        Medians of the past window and of the window to forecast, `(M, 2)`.
    targets
        Nodes to score.

    Returns
    -------
    `{"errors": {method: {node: error}}}`. As in the paper's table, the naive method and exponential smoothing
    look at the same node, ARIMA and the SVM at the cluster.
    """
    rows, past = usable(points)
    known = {int(row) for row in rows if np.isfinite(medians[row]).all()}
    wanted = [target for target in targets if target in known]
    if not wanted:
        return {"errors": {}, "skipped": len(targets)}
    scale = WindowScale(past)
    last = scale.forward(np.where(np.isfinite(medians[rows, 0]), medians[rows, 0], past[:, -1]))
    place = np.searchsorted(rows, wanted)
    found = forecast_from_cluster(scale.scaled, last, place, steps=past.shape[1], seed=seed)
    found |= {"naive": last[place], "expsmo": smooth(scale.scaled[place])}
    return {
        "errors": _errors(found, scale, place, wanted, medians[wanted, 1]),
        "skipped": len(targets) - len(wanted),
    }


def _errors(
    found: dict[str, Array], scale: WindowScale, place: NDArray[np.intp], wanted: list[int], actual: Array
) -> dict[str, dict[str, float]]:
    """Scale forecasts back and return forecast minus actual, by method and node."""
    errors = {}
    for key, values in found.items():
        full = np.zeros(len(scale.scaled))
        full[place] = values
        difference = scale.back(full)[place] - actual
        errors[key] = {str(node): float(error) for node, error in zip(wanted, difference, strict=True)}
    return errors


def rmse_by_node(errors: list[float] | Array) -> float:
    """Return the root of the mean squared error of one node; NaN with too few forecasts."""
    if len(errors) < FEWEST_FORECASTS:
        return float("nan")
    return float(np.sqrt(np.mean(np.square(errors))))
