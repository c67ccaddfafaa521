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
# Metrics about memory and network, by the names in use: vSphere, /proc, SMD, Bitbrains.
MEMORY_OR_NETWORK = re.compile(r"mem|swap|net|eth|tcp|udp|segs|packet|received|transmitted", re.IGNORECASE)


class WindowScale:
    """The range of each node in one past window.

    Examples
    --------
    >>> import numpy as np
    >>> scale = WindowScale(np.array([[10.0, 30.0, 20.0]]))
    >>> scale.scaled
    array([[0. , 1. , 0.5]])
    >>> scale.back(np.array([0.5]))
    array([20.])
    """

    def __init__(self, past: Array) -> None:
        from sklearn.preprocessing import MinMaxScaler

        self._scaler = MinMaxScaler().fit(past.T)
        self.scaled: Array = self._scaler.transform(past.T).T

    def forward(self, values: Array) -> Array:
        """Return one value per node, `(M,)`, in the scale of its window."""
        scaled: Array = self._scaler.transform(values[None, :])[0]
        return scaled

    def back(self, forecasts: Array) -> Array:
        """Return one forecast per node, `(M,)`, in the unit of the past windows."""
        plain: Array = self._scaler.inverse_transform(forecasts[None, :])[0]
        return plain


class Arima:
    """The ARIMA model of one course whose order has the smallest AIC.

    Parameters
    ----------
    course
        The course it is built on, `(n,)`: a node's own, or that of the average node.
    most_terms
        Largest sum of p and q tried; 2 if not given.

    Attributes
    ----------
    order
        The (p, d, q) chosen; None for a constant course, which is forecast as it is.

    Examples
    --------
    >>> Arima(np.full(14, 0.25)).forecast(np.full(14, 0.5), steps=2)
    array([0.5, 0.5])
    """

    def __init__(self, course: Array, most_terms: int | None = None) -> None:
        self.order: tuple[int, int, int] | None = None
        self._fitted: Any = None
        if np.ptp(course) < 1e-9:
            return
        best = np.inf
        for order in _orders(MOST_TERMS if most_terms is None else most_terms):
            fitted = _fit(course, order)
            if fitted is not None and fitted.aic < best:
                best, self.order, self._fitted = fitted.aic, order, fitted

    def forecast(self, course: Array, *, steps: int) -> Array:
        """Return the next `steps` values of a course that need not be the one the model is built on."""
        if self._fitted is None or np.ptp(course) < 1e-9:
            return np.full(steps, course[-1])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ahead = np.asarray(self._fitted.apply(course).forecast(steps), dtype=float)
        # A model of another course can run away on this one: then its last value is the best it says.
        return (
            ahead if np.isfinite(ahead).all() and np.abs(ahead).max() < 10.0 else np.full(steps, course[-1])
        )


def _orders(most_terms: int) -> list[tuple[int, int, int]]:
    sizes = range(most_terms + 1)
    return [
        (p, d, q) for d in range(MOST_DIFFERENCES + 1) for p in sizes for q in sizes if p + q <= most_terms
    ]


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


def lags_for(length: int) -> int:
    """Return how many lags a past window of so many points allows: a week's, or half the window."""
    return max(1, min(LAGS, length // 2))


class AutoregressiveSVR:
    """Support vector regression of the next value on the values before it.

    Parameters
    ----------
    seed
        Picks the examples where there are more than `most_examples`.
    """

    def __init__(self, scaled: Array, *, seed: int = 0, most_examples: int = MOST_EXAMPLES) -> None:
        from sklearn.svm import SVR

        self.lags = lags_for(scaled.shape[1])
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


def forecast_same_node(scaled: Array, last: Array, *, steps: int) -> dict[str, Array]:
    """Forecast each node from its own past alone.

    Parameters
    ----------
    scaled
        Past windows in [0, 1], `(M, n)`.
    last
        The value seen last, in the same scale, `(M,)`.
    steps
        Points to look ahead; the forecast is their median.
    """
    every = range(len(scaled))
    return {
        "naive": last,
        "expsmo": smooth(scaled),
        "arima": np.array([np.median(Arima(scaled[i]).forecast(scaled[i], steps=steps)) for i in every]),
        "svm": np.array(
            [np.median(AutoregressiveSVR(scaled[[i]]).forecast(scaled[[i]], steps=steps)) for i in every]
        ),
    }


def forecast_from_cluster(
    scaled: Array, last: Array, targets: NDArray[np.intp], *, steps: int, seed: int
) -> dict[str, Array]:
    """Forecast some nodes of a cluster from the past of all its nodes.

    The naive and smoothed forecasts are those of the average node. ARIMA is built on the average node and
    applied to each node's own past; the SVM is trained on all nodes.
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
    """Return the group of each node, `(M,)`.

    Parameters
    ----------
    past
        Past windows in their unit, `(M, n)`: their medians give the order of "ordered".
    scaled
        The same in [0, 1]: what the k-means distances compare.
    groups
        How many; by default about one for ten nodes, at least two.
    """
    nodes = len(past)
    count = groups if groups is not None else max(2, round(nodes / GROUP_SIZE))
    count = min(count, nodes)
    if grouping == "ordered":
        order = np.argsort(np.median(past, axis=1), kind="stable")
        labels = np.empty(nodes, dtype=int)
        for group, members in enumerate(np.array_split(order, count)):
            labels[members] = group
        return labels
    from sklearn.cluster import KMeans

    points = embed(grouping, scaled)
    distinct = len(np.unique(points.round(9), axis=0))
    found: Array = KMeans(min(count, distinct), n_init=4, random_state=seed).fit_predict(points)
    return found


def embed(grouping: str, scaled: Array) -> Array:
    """Return points whose Euclidean distances are those of the grouping (nearest to them for CORT)."""
    if grouping == "euclidean":
        return scaled
    if grouping == "correlation":
        centred = scaled - scaled.mean(axis=1, keepdims=True)
        length = np.linalg.norm(centred, axis=1, keepdims=True)
        unit: Array = centred / np.where(length > 0.0, length, 1.0)
        return unit
    if grouping == "sts":
        slopes: Array = np.diff(scaled, axis=1)
        return slopes
    if grouping == "acf":
        return _autocorrelations(scaled)
    if grouping == "cort":
        from sklearn.manifold import ClassicalMDS

        distances = cort_distances(scaled)
        if distances.max() == 0.0:
            return np.zeros((len(scaled), 1))
        size = min(scaled.shape[1], len(scaled) - 1)
        with np.errstate(invalid="ignore"):
            points: Array = ClassicalMDS(n_components=size, metric="precomputed").fit_transform(distances)
        # CORT is no metric: along some axes its squared distances are negative, and there is no such point.
        return points[:, np.isfinite(points).all(axis=0)]
    raise ValueError(f"grouping must be one of {', '.join(GROUPINGS)}, got {grouping!r}")


def cort_distances(scaled: Array) -> Array:
    """Return the CORT distances, `(M, M)`: Euclidean, weighted by how alike the courses rise and fall.

    References
    ----------
    Chouakria and Nagabhushan, "Adaptive dissimilarity index for measuring time series proximity", 2007.
    """
    from sklearn.metrics import pairwise_distances

    slopes = np.diff(scaled, axis=1)
    likeness = 1.0 - pairwise_distances(slopes, metric="cosine")
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
    """What the figure shows.

    Attributes
    ----------
    interval_seconds
        How far ahead is forecast.
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
    def from_dict(cls, held: dict[str, Any]) -> HourForecast:
        """Return what `as_dict` gave."""
        forecasts = {method: np.array(values) for method, values in held["forecasts"].items()}
        return cls(
            held["node"], held["interval_seconds"], np.array(held["actual"]), forecasts, held["metrics"]
        )


def memory_and_network(metrics: tuple[str, ...]) -> list[int]:
    """Return the places of the metrics about memory and network."""
    return [place for place, name in enumerate(metrics) if MEMORY_OR_NETWORK.search(name)]


def one_hour(node: str, ready: Array, values: Array, *, interval_seconds: float) -> HourForecast:
    """Forecast the last hour sample by sample, each time from the hour before.

    Parameters
    ----------
    values
        Metrics of memory and network at the same times, `(n, d)`.
    """
    hour = max(8, round(TRAINING_SECONDS / interval_seconds))
    if len(ready) < 2 * hour:
        raise ValueError(f"the example needs {2 * hour} samples (two hours), got {len(ready)}")
    ready, values = ready[-2 * hour - 2 :], values[-2 * hour - 2 :]
    values = np.where(np.isfinite(values), values, 0.0)
    if not np.isfinite(ready).any():
        raise ValueError(f"the example needs a known CPU Ready, got {len(ready)} unknown samples")
    ready = fill_forward(ready)
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
    return HourForecast(
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


def fill_forward(course: Array) -> Array:
    """Return a course whose gaps hold the value before them, and the first known one at its start."""
    known = np.flatnonzero(np.isfinite(course))
    before = np.searchsorted(known, np.arange(len(course)), side="right") - 1
    filled: Array = course[known[np.maximum(before, 0)]]
    return filled
