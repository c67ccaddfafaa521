"""The paper's forecasting methods, groups of similar nodes, and the one-hour example.

The four methods take past windows scaled to [0, 1] and give one forecast per node in that scale: the value one
step ahead, or the median over several. ARIMA's order is chosen by the AIC.

Groups are ordered by level, or found by k-means with five distances. k-means needs points, not distances: for the
Euclidean, correlation, STS and ACF distances the points are exact; CORT has no such points, and the classical
scaling of its distances gives the nearest ones.

The example foretells the next sample from the last hour. Exponential smoothing sees CPU Ready alone. The two
conditional methods forecast its next difference from memory and network metrics: by what followed the most similar
moments (KNN), and by support vector regression (SVR).
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prontosched.subspace import Array

# Largest sum of p and q tried, with d up to 1. Windows of 14 to 45 points hold no more.
MOST_TERMS = 2
MOST_DIFFERENCES = 1
# Steps of the optimiser per order; what has not settled by then rarely wins.
MOST_ITERATIONS = 30
SMOOTHING = 0.2  # the paper's best alpha
LAGS = 7  # a week of days
MOST_EXAMPLES = 1500
METHODS = {"naive": "naive", "expsmo": "ExpSmo", "arima": "ARIMA", "svm": "SVM"}
GROUPINGS = {
    "ordered": "Ordered",
    "euclidean": "KM Euclidean",
    "correlation": "KM Corr",
    "sts": "KM Sts",
    "cort": "KM Cort",
    "acf": "KM Acf",
}
# Nodes per group the number of groups aims at.
GROUP_SIZE = 10
# How steeply CORT weighs the behaviour of two courses against their values.
CORT_STEEPNESS = 2.0
TRAINING_SECONDS = 3600.0
NEIGHBOURS = 5
MOST_GAPS = 0.2
# Metrics about memory and network, by the names in use: vSphere, /proc, SMD, Bitbrains.
MEMORY_OR_NETWORK = re.compile(r"mem|swap|net|eth|tcp|udp|segs|packet|received|transmitted", re.IGNORECASE)


def fill_gaps(courses: Array) -> Array:
    """Return courses `(M, n)` whose gaps hold the value before them, and the first known one at their start."""
    import pandas as pd

    return np.asarray(pd.DataFrame(courses).ffill(axis=1).bfill(axis=1))


def known_pasts(past: Array) -> tuple[NDArray[np.intp], Array]:
    """Return the rows of `(M, n)` that are at least 80 % known, and these rows with their gaps filled."""
    rows = np.flatnonzero(np.isnan(past).mean(axis=1) <= MOST_GAPS)
    return rows, fill_gaps(past[rows])


class WindowScale:
    """Past windows `(M, n)` scaled to [0, 1], each by its own range."""

    def __init__(self, past: Array) -> None:
        from sklearn.preprocessing import MinMaxScaler

        self._scaler = MinMaxScaler().fit(past.T)
        self.scaled: Array = self._scaler.transform(past.T).T

    def forward(self, values: Array) -> Array:
        """Return one value per node, `(M,)`, in the scale of its window."""
        return np.asarray(self._scaler.transform(values[None, :])[0])

    def back(self, forecasts: Array) -> Array:
        """Return one forecast per node, `(M,)`, in the unit of the past windows."""
        return np.asarray(self._scaler.inverse_transform(forecasts[None, :])[0])


class Arima:
    """The ARIMA model of one course, a node's own or that of the average node, whose order has the smallest AIC.

    The order is None for a constant course, which is forecast as it is.
    """

    def __init__(self, course: Array) -> None:
        self.order: tuple[int, int, int] | None = None
        self._fitted: Any = None
        if np.ptp(course) < 1e-9:
            return
        best, sizes = np.inf, range(MOST_TERMS + 1)
        for d in range(MOST_DIFFERENCES + 1):
            for p, q in ((p, q) for p in sizes for q in sizes if p + q <= MOST_TERMS):
                fitted = _fit(course, (p, d, q))
                if fitted is not None and fitted.aic < best:
                    best, self.order, self._fitted = fitted.aic, (p, d, q), fitted

    def forecast(self, course: Array, *, steps: int) -> Array:
        """Return the next `steps` values of a course that need not be the one the model is built on."""
        last = np.full(steps, course[-1])
        if self._fitted is None or np.ptp(course) < 1e-9:
            return last
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ahead = np.asarray(self._fitted.apply(course).forecast(steps), dtype=float)
        # A model of another course can run away on this one: then its last value is the best it says.
        return ahead if np.isfinite(ahead).all() and np.abs(ahead).max() < 10.0 else last


def _fit(course: Array, order: tuple[int, int, int]) -> Any:
    from statsmodels.tsa.arima.model import ARIMA

    with warnings.catch_warnings():
        # Short windows often do not converge: the AIC then speaks for another order.
        warnings.simplefilter("ignore")
        try:
            fitted = ARIMA(course, order=order).fit(
                cov_type="none", method_kwargs={"maxiter": MOST_ITERATIONS, "disp": 0}
            )
        except (np.linalg.LinAlgError, ValueError, IndexError):
            return None
    return fitted if np.isfinite(fitted.aic) else None


def smooth(scaled: Array) -> Array:
    """Return the exponentially smoothed level at the end of each course, `(M,)`."""
    import pandas as pd

    level = pd.DataFrame(scaled.T).ewm(alpha=SMOOTHING, adjust=False).mean().iloc[-1]
    return np.asarray(level, dtype=float)


def lagged(scaled: Array, lags: int) -> tuple[Array, Array]:
    """Return autoregressive features `(M * (n - lags), lags)` and what followed each."""
    if lags >= scaled.shape[1]:
        raise ValueError(f"lags must be below the length of the past window ({scaled.shape[1]}), got {lags}")
    windows = np.lib.stride_tricks.sliding_window_view(scaled, lags + 1, axis=1).reshape(-1, lags + 1)
    return windows[:, :-1], windows[:, -1]


class AutoregressiveSVR:
    """Support vector regression of the next value on the values before it: a week's, or half the window.

    The seed picks the examples where there are more than `most_examples`.
    """

    def __init__(self, scaled: Array, *, seed: int = 0, most_examples: int = MOST_EXAMPLES) -> None:
        from sklearn.svm import SVR

        self.lags = max(1, min(LAGS, scaled.shape[1] // 2))
        features, targets = lagged(scaled, self.lags)
        if len(targets) > most_examples:
            picked = np.random.default_rng(seed).choice(len(targets), most_examples, replace=False)
            features, targets = features[picked], targets[picked]
        self._model = SVR(C=1.0, epsilon=0.02, gamma="scale").fit(features, targets)

    def forecast(self, scaled: Array, *, steps: int = 1) -> Array:
        """Return the next `steps` values of each course, `(M, steps)`, each fed back for the next."""
        recent = scaled[:, -self.lags :].copy()
        ahead = np.empty((len(scaled), steps))
        for step in range(steps):
            ahead[:, step] = self._model.predict(recent)
            recent = np.column_stack([recent[:, 1:], ahead[:, step]])
        return ahead


def forecast_same_node(scaled: Array) -> dict[str, Array]:
    """Forecast the next value of each node from its own past in [0, 1], `(M, n)`, alone."""
    alone = scaled[:, None, :]
    return {
        "naive": scaled[:, -1],
        "expsmo": smooth(scaled),
        "arima": np.array([Arima(course).forecast(course, steps=1)[0] for course in scaled]),
        "svm": np.array([AutoregressiveSVR(course).forecast(course)[0, 0] for course in alone]),
    }


def forecast_from_cluster(
    scaled: Array, last: Array, targets: NDArray[np.intp], *, steps: int, seed: int
) -> dict[str, Array]:
    """Forecast some nodes of a cluster from the past of all its nodes.

    The naive and smoothed forecasts are those of the average node. ARIMA is built on the average node and
    applied to each node's own past; the SVM is trained on all nodes. Several steps ahead give their median.
    """
    own = scaled[targets]
    model = Arima(scaled.mean(axis=0))
    machine = AutoregressiveSVR(scaled, seed=seed)
    ahead = np.array([model.forecast(course, steps=steps) for course in own])
    return {
        "naive": np.full(len(targets), last.mean()),
        "expsmo": np.full(len(targets), smooth(scaled).mean()),
        "arima": np.median(ahead, axis=1),
        "svm": np.median(machine.forecast(own, steps=steps), axis=1),
    }


def group_nodes(grouping: str, past: Array, scaled: Array, *, seed: int, groups: int | None = None) -> Array:
    """Return the group of each node, `(M,)`; by default about one group for ten nodes, at least two.

    "ordered" goes by the medians of past windows in their unit, k-means by the distances of the scaled ones.
    """
    nodes = len(past)
    count = min(groups if groups is not None else max(2, round(nodes / GROUP_SIZE)), nodes)
    if grouping == "ordered":
        order = np.argsort(np.median(past, axis=1), kind="stable")
        labels = np.empty(nodes, dtype=int)
        for group, members in enumerate(np.array_split(order, count)):
            labels[members] = group
        return labels
    from sklearn.cluster import KMeans

    points = embed(grouping, scaled)
    distinct = len(np.unique(points.round(9), axis=0))
    return np.asarray(KMeans(min(count, distinct), n_init=4, random_state=seed).fit_predict(points))


def embed(grouping: str, scaled: Array) -> Array:
    """Return points whose Euclidean distances are those of the grouping (nearest to them for CORT)."""
    if grouping == "euclidean":
        return scaled
    if grouping == "correlation":
        centred = scaled - scaled.mean(axis=1, keepdims=True)
        length = np.linalg.norm(centred, axis=1, keepdims=True)
        return np.asarray(centred / np.where(length > 0.0, length, 1.0))
    if grouping == "sts":
        return np.asarray(np.diff(scaled, axis=1))
    if grouping == "acf":
        return _autocorrelations(scaled)
    if grouping == "cort":
        return _near_cort(scaled)
    raise ValueError(f"grouping must be one of {', '.join(GROUPINGS)}, got {grouping!r}")


def _near_cort(scaled: Array) -> Array:
    from sklearn.manifold import ClassicalMDS

    distances = cort_distances(scaled)
    if distances.max() == 0.0:
        return np.zeros((len(scaled), 1))
    size = min(scaled.shape[1], len(scaled) - 1)
    with np.errstate(invalid="ignore"):
        points: Array = ClassicalMDS(n_components=size, metric="precomputed").fit_transform(distances)
    # CORT is no metric: along some axes its squared distances are negative, and there is no such point.
    return points[:, np.isfinite(points).all(axis=0)]


def cort_distances(scaled: Array) -> Array:
    """Return the CORT distances, `(M, M)`: Euclidean, weighted by how alike the courses rise and fall.

    Chouakria and Nagabhushan, "Adaptive dissimilarity index for measuring time series proximity", 2007.
    """
    from sklearn.metrics import pairwise_distances

    likeness = 1.0 - pairwise_distances(np.diff(scaled, axis=1), metric="cosine")
    weight = 2.0 / (1.0 + np.exp(CORT_STEEPNESS * likeness))
    distances: Array = weight * pairwise_distances(scaled)
    np.fill_diagonal(distances, 0.0)
    return (distances + distances.T) / 2.0


def _autocorrelations(scaled: Array) -> Array:
    from statsmodels.tsa.stattools import acf

    lags = max(1, scaled.shape[1] // 2)
    rows = np.zeros((len(scaled), lags))
    for row, course in enumerate(scaled):
        if np.ptp(course) > 0.0:  # a constant course has no autocorrelation
            rows[row] = acf(course, nlags=lags, fft=False)[1:]
    return rows


@dataclass(frozen=True, slots=True, eq=False)
class HourForecast:
    """One hour of a node, and its forecasts one sample ahead."""

    node: str
    interval_seconds: float
    actual: Array
    forecasts: dict[str, Array]
    metrics: int  # of memory and network that were used

    def rmse(self) -> dict[str, float]:
        """Return the error of each method over the hour."""
        return {
            method: float(np.sqrt(np.mean((forecast - self.actual) ** 2)))
            for method, forecast in self.forecasts.items()
        }


def memory_and_network(metrics: tuple[str, ...]) -> list[int]:
    """Return the places of the metrics about memory and network."""
    return [place for place, name in enumerate(metrics) if MEMORY_OR_NETWORK.search(name)]


def one_hour(node: str, ready: Array, values: Array, *, interval_seconds: float) -> HourForecast:
    """Forecast the last hour sample by sample, each time from the hour before and its metrics, `(n, d)`."""
    hour = max(8, round(TRAINING_SECONDS / interval_seconds))
    if len(ready) < 2 * hour:
        raise ValueError(f"the example needs {2 * hour} samples (two hours), got {len(ready)}")
    ready, values = ready[-2 * hour - 2 :], values[-2 * hour - 2 :]
    values = np.where(np.isfinite(values), values, 0.0)
    if not np.isfinite(ready).any():
        raise ValueError(f"the example needs a known CPU Ready, got {len(ready)} unknown samples")
    ready = fill_gaps(ready[None, :])[0]
    conditions = np.column_stack([values, np.diff(ready, prepend=ready[0])])
    forecasts = []
    for at in range(len(ready) - hour, len(ready)):
        past = ready[at - hour : at]
        last = float(past[-1])
        # What was known at each step of the past hour, and the difference that came next.
        known = conditions[at - hour : at - 1]
        neighbours, regression = _next_difference(known, np.diff(past), conditions[at - 1])
        smoothed = float(smooth(past[None, :])[0])
        forecasts.append((smoothed, max(0.0, last + neighbours), max(0.0, last + regression), last))
    names = ("ExpSmo", "Cond. Diff KNN", "Cond. Diff SVR", "naive")
    courses = dict(zip(names, np.array(forecasts).T, strict=True))
    return HourForecast(node, interval_seconds, ready[-hour:], courses, values.shape[1])


def _next_difference(known: Array, change: Array, now: Array) -> tuple[float, float]:
    """Forecast the next difference from what is known now, by KNN and by SVR trained on the hour."""
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
        return float(neighbours.predict(asked)[0]), span * float(regression.predict(asked)[0])
