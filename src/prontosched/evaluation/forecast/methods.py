"""The paper's four forecasting methods, from the same node or from its whole cluster.

All take past windows scaled to [0, 1] (see `scaling`) and give one forecast per node in that scale: the value
one step ahead, or the median over several. ARIMA's order is chosen in `arima`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from prontosched.evaluation.forecast.arima import Arima
from prontosched.subspace import Array

SMOOTHING = 0.2  # the paper's best alpha
LAGS = 7  # a week of days
MOST_EXAMPLES = 1500

METHODS = {"naive": "naive", "expsmo": "ExpSmo", "arima": "ARIMA", "svm": "SVM"}


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
    scaled
        Courses to train on, `(M, n)`.
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

    Parameters
    ----------
    targets
        Rows to forecast, `(k,)`.
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
