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
        known, change = conditions[at - hour : at - 1], np.diff(past)
        for name, model in _models().items():
            model.fit(known, change)
            step = float(model.predict(conditions[[at - 1]])[0])
            forecasts[name].append(max(0.0, float(past[-1]) + step))
    return Example(
        node,
        interval_seconds,
        ready[shown.start :],
        {name: np.array(course) for name, course in forecasts.items()},
        values.shape[1],
    )


def _models() -> dict[str, Any]:
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.neighbors import KNeighborsRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MinMaxScaler, StandardScaler
    from sklearn.svm import SVR

    return {
        "Cond. Diff KNN": make_pipeline(StandardScaler(), KNeighborsRegressor(NEIGHBOURS)),
        "Cond. Diff SVR": TransformedTargetRegressor(
            make_pipeline(StandardScaler(), SVR(C=1.0, epsilon=0.02)), transformer=MinMaxScaler()
        ),
    }


def _filled(course: Array) -> Array:
    known = np.flatnonzero(np.isfinite(course))
    if not len(known):
        raise ValueError(f"the example needs a known CPU Ready, got {len(course)} unknown samples")
    before = np.searchsorted(known, np.arange(len(course)), side="right") - 1
    filled: Array = course[known[np.maximum(before, 0)]]
    return filled
