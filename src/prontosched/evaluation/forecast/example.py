"""The one-hour example: three ways to foretell the next sample from the last hour.

Exponential smoothing sees CPU Ready alone. The two conditional ones forecast its next difference from memory and
network metrics: by what followed the most similar moments (KNN), and by support vector regression (SVR).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from prontosched.evaluation.forecast.methods import smooth
from prontosched.subspace import Array

TRAINING_SECONDS = 3600.0
NEIGHBOURS = 5
# Metrics about memory and network, by the names in use: vSphere, /proc, SMD, Bitbrains.
MEMORY_OR_NETWORK = re.compile(r"mem|swap|net|eth|tcp|udp|segs|packet|received|transmitted", re.IGNORECASE)


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """What the figure shows.

    Attributes
    ----------
    node
        Name of the node.
    interval_seconds
        How far ahead is forecast.
    actual
        CPU Ready, `(n,)`.
    forecasts
        Per method, `(n,)`.
    metrics
        How many metrics of memory and network were used.
    """

    node: str
    interval_seconds: float
    actual: Array
    forecasts: dict[str, Array]
    metrics: int

    def rmse(self) -> dict[str, float]:
        """Return the error of each method over the hour."""
        return {
            method: float(np.sqrt(np.mean((forecast - self.actual) ** 2)))
            for method, forecast in self.forecasts.items()
        }

    def as_dict(self) -> dict[str, Any]:
        """Return it in plain lists."""
        return {
            "node": self.node,
            "interval_seconds": self.interval_seconds,
            "metrics": self.metrics,
            "actual": self.actual.round(3).tolist(),
            "forecasts": {method: values.round(3).tolist() for method, values in self.forecasts.items()},
            "rmse": self.rmse(),
        }

    @classmethod
    def from_dict(cls, held: dict[str, Any]) -> Example:
        """Return what `as_dict` gave."""
        forecasts = {method: np.array(values) for method, values in held["forecasts"].items()}
        return cls(
            held["node"], held["interval_seconds"], np.array(held["actual"]), forecasts, held["metrics"]
        )


def memory_and_network(metrics: tuple[str, ...]) -> list[int]:
    """Return the places of the metrics about memory and network."""
    return [place for place, name in enumerate(metrics) if MEMORY_OR_NETWORK.search(name)]


def one_hour(node: str, ready: Array, values: Array, *, interval_seconds: float) -> Example:
    """Forecast the last hour sample by sample, each time from the hour before.

    Parameters
    ----------
    ready
        CPU Ready of two hours and one sample or more, `(n,)`.
    values
        Metrics of memory and network at the same times, `(n, d)`.
    """
    hour = max(8, round(TRAINING_SECONDS / interval_seconds))
    if len(ready) < 2 * hour:
        raise ValueError(f"the example needs {2 * hour} samples (two hours), got {len(ready)}")
    ready, values = ready[-2 * hour - 2 :], values[-2 * hour - 2 :]
    values = np.where(np.isfinite(values), values, 0.0)
    ready = _filled(ready)
    conditions = np.column_stack([values, np.diff(ready, prepend=ready[0])])
    shown = range(len(ready) - hour, len(ready))
    forecasts: dict[str, list[float]] = {
        "ExpSmo": [],
        "Cond. Diff KNN": [],
        "Cond. Diff SVR": [],
        "naive": [],
    }
    for at in shown:
        past = ready[at - hour : at]
        forecasts["ExpSmo"].append(float(smooth(past[None, :])[0]))
        forecasts["naive"].append(float(past[-1]))
        # What was known at each step of the past hour, and the difference that came next.
        steps = _next_difference(conditions[at - hour : at - 1], np.diff(past), conditions[at - 1])
        for name, step in steps.items():
            forecasts[name].append(max(0.0, float(past[-1]) + step))
    return Example(
        node,
        interval_seconds,
        ready[shown.start :],
        {name: np.array(course) for name, course in forecasts.items()},
        values.shape[1],
    )


def _next_difference(known: Array, change: Array, now: Array) -> dict[str, float]:
    """Forecast the next difference from what is known now, by two models trained on the hour."""
    from sklearn import config_context
    from sklearn.neighbors import KNeighborsRegressor
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVR

    with config_context(assume_finite=True, skip_parameter_validation=True):
        scaler = StandardScaler().fit(known)
        features, asked = scaler.transform(known), scaler.transform(now[None, :])
        neighbours = KNeighborsRegressor(min(NEIGHBOURS, len(change))).fit(features, change)
        # The margin of the regression is relative to the range of the differences.
        span = float(np.ptp(change)) or 1.0
        regression = SVR(C=1.0, epsilon=0.02).fit(features, change / span)
        return {
            "Cond. Diff KNN": float(neighbours.predict(asked)[0]),
            "Cond. Diff SVR": span * float(regression.predict(asked)[0]),
        }


def _filled(course: Array) -> Array:
    known = np.flatnonzero(np.isfinite(course))
    if not len(known):
        raise ValueError(f"the example needs a known CPU Ready, got {len(course)} unknown samples")
    before = np.searchsorted(known, np.arange(len(course)), side="right") - 1
    filled: Array = course[known[np.maximum(before, 0)]]
    return filled
