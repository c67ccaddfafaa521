"""Learned references from other libraries: what an afternoon with them would give.

Both keep one model per node and are slow next to everything else here.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from prontosched.errors import SettingsError
from prontosched.evaluation.methods import Rows, Said
from prontosched.extras import missing_extra
from prontosched.signals.arithmetic import One
from prontosched.signals.inputs import OFFSET, Clock, History, Profiles
from prontosched.subspace import Array

RETRAIN_EVERY = 4000
FIRST_TRAINING = 500


class HalfSpaceTrees:
    """river's HalfSpaceTrees over the scaled metrics, one forest per node.

    Notes
    -----
    Memory: a forest of 10 trees of height 8 per node.
    """

    def __init__(self, nodes: tuple[str, ...], seed: int) -> None:
        try:
            from river.anomaly import HalfSpaceTrees as Forest
        except ImportError as error:
            raise SettingsError(missing_extra("method half-space-trees", "evaluation")) from error
        self._forests = [
            Forest(n_trees=10, height=8, window_size=250, seed=(seed + zlib.crc32(node.encode())) % 2**31)
            for node in nodes
        ]

    def score(self, rows: Rows) -> Said:
        """Score each vector, then learn it."""
        score = np.full(rows.ready.shape, np.nan)
        # The scaled metrics lie within ±8; the forest wants them between 0 and 1.
        unit = np.clip(rows.scaled / 16.0 + 0.5, 0.0, 1.0)
        for node, forest in enumerate(self._forests):
            for step in np.flatnonzero(rows.present[:, node]).tolist():
                inputs = dict(enumerate(unit[step, node].tolist()))
                score[step, node] = forest.score_one(inputs)
                forest.learn_one(inputs)
        return Said(score, None)


class Boosting:
    """Histogram gradient boosting on the inputs of the learned signal's heads, trained again on all the past.

    It sees what the heads see and keeps everything, so that what it gains over them is what
    linear heads and forgetting cost. Only labels whose horizon has passed are used.

    Notes
    -----
    Memory: grows with the trace, by design: it stands for what could be had at any price.
    """

    def __init__(self, nodes: int, horizon: int, seed: int) -> None:
        try:
            import sklearn.ensemble  # noqa: F401
        except ImportError as error:
            raise SettingsError(missing_extra("method boosting", "evaluation")) from error
        self._nodes = [_Boosted(horizon, seed) for _ in range(nodes)]

    def score(self, rows: Rows) -> Said:
        """Score the next rows: each from the past and itself, by the model of now."""
        columns = zip(rows.ready.T, rows.utilisation.T, rows.threshold.T, rows.time.T, strict=True)
        found = [node.scores(*column) for node, column in zip(self._nodes, columns, strict=True)]
        score = np.where(rows.present, np.stack(found, axis=1), np.nan)
        return Said(score, score > 0.5, np.where(score >= 0.0, score, np.nan))


class _Boosted:
    """One node's model; until there is one it says the present value, squeezed below every probability."""

    def __init__(self, horizon: int, seed: int) -> None:
        self._horizon = horizon
        self._seed = seed
        ops = One()
        self._clock = Clock(ops)
        self._history = History(ops)
        self._profiles = Profiles(ops, horizon)
        self._rows: list[list[float]] = []
        self._spikes: list[bool] = []
        self._model: Any = None
        self._due = FIRST_TRAINING

    def scores(self, ready: Array, utilisation: Array, threshold: Array, time: Array) -> Array:
        if len(self._rows) >= self._due:
            self._due = min(2 * len(self._rows), len(self._rows) + RETRAIN_EVERY)
            self._train()
        with np.errstate(invalid="ignore", divide="ignore"):
            relative = np.nan_to_num(np.where(threshold > 0, ready / threshold, 0.0))
        values = np.log(OFFSET + np.clip(relative, 0.0, 1e6))
        spikes = (relative >= 1.0).tolist()
        columns = zip(values.tolist(), spikes, utilisation.tolist(), time.tolist(), strict=True)
        rows = [self._inputs(*column) for column in columns]
        self._rows += rows
        self._spikes += spikes
        return values - 20.0 if self._model is None else np.asarray(self._model(np.array(rows)), np.float64)

    def _inputs(self, value: float, spike: bool, busy: float, time: float) -> list[float]:
        self._clock.advance(time)
        self._history.learn(value, spike, busy)
        apart = value - self._history.levels[-1]
        return self._history.inputs() + self._profiles.learn(self._clock, apart, spike)

    def _train(self) -> None:
        spikes = np.array(self._spikes)
        labels = np.zeros(spikes.size - self._horizon, bool)
        for ahead in range(1, self._horizon + 1):
            labels |= spikes[ahead : ahead + labels.size]
        if labels.min(initial=True) == labels.max(initial=False):
            return
        self._model = _fit(np.array(self._rows[: labels.size]), labels, self._seed)


def _fit(inputs: Array, labels: Any, seed: int) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier

    # Small trees: neighbouring labels overlap, and larger ones learn them by heart.
    model = HistGradientBoostingClassifier(
        max_iter=100, learning_rate=0.05, max_leaf_nodes=4, min_samples_leaf=min(200, labels.size // 20),
        l2_regularization=10.0, early_stopping=False, random_state=seed,
    )  # fmt: skip
    model.fit(inputs, labels)
    return lambda rows: model.predict_proba(rows)[:, 1]
