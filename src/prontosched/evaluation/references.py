"""Learned references from other libraries: what an afternoon with them would give.

Both keep one model per node and are slow next to everything else here.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from prontosched.decision import FleetEvidence
from prontosched.errors import SettingsError
from prontosched.evaluation.scorers import PastPercentile, Said, said
from prontosched.signals.history import weight
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
            raise SettingsError("method half-space-trees needs river: pip install '.[evaluation]'") from error
        self._forests = [
            Forest(n_trees=10, height=8, window_size=250, seed=(seed + zlib.crc32(node.encode())) % 2**31)
            for node in nodes
        ]
        self._limit = PastPercentile(len(nodes))

    def say(self, evidence: FleetEvidence, threshold: Array) -> Said:
        """Score each vector, then learn it."""
        score = np.full(len(self._forests), np.nan)
        # The scaled metrics lie within ±8; the forest wants them between 0 and 1.
        unit = np.clip(evidence.vectors / 16.0 + 0.5, 0.0, 1.0)
        for node in np.flatnonzero(evidence.present):
            inputs = dict(enumerate(unit[node].tolist()))
            score[node] = self._forests[node].score_one(inputs)
            self._forests[node].learn_one(inputs)
        return said(score, self._limit.raises(score))


class Boosting:
    """Histogram gradient boosting on the contention value's history, trained again on all the past.

    Inputs are the value, its last four, means over 2 to 1,440 steps, extremes, utilisation against its means, and
    the time of the hour and of the day.
    Only labels whose horizon has passed are used.

    Notes
    -----
    Memory: grows with the trace, by design: it stands for what could be had at any price.
    """

    def __init__(self, nodes: int, horizon: int, seed: int) -> None:
        try:
            import sklearn.ensemble  # noqa: F401
        except ImportError as error:
            raise SettingsError("method boosting needs scikit-learn: pip install '.[evaluation]'") from error
        self._nodes = [_Boosted(horizon, seed) for _ in range(nodes)]
        self._said = np.zeros((nodes, 0))
        self._at = 0

    def prepare(self, ready: Array, utilisation: Array, threshold: Array, time: Array) -> None:
        """Score the next steps, `(steps, nodes)`: each from the past and itself, by the model of now."""
        columns = zip(ready.T, utilisation.T, threshold.T, time.T, strict=True)
        self._said = np.stack(
            [node.scores(*column) for node, column in zip(self._nodes, columns, strict=True)]
        )
        self._at = 0

    def say(self, evidence: FleetEvidence, threshold: Array) -> Said:
        """Return what was prepared for this step."""
        score = np.where(evidence.present, self._said[:, self._at], np.nan)
        self._at += 1
        with np.errstate(invalid="ignore"):
            return Said(score, score > 0.5, np.where(score >= 0.0, score, np.nan))


class _Boosted:
    """One node's model; until there is one it says the present value, squeezed below every probability."""

    HALF_LIVES = (2.0, 5.0, 15.0, 60.0, 240.0, 1440.0)
    PERIODS = (3600.0, 86400.0)

    def __init__(self, horizon: int, seed: int) -> None:
        self._horizon = horizon
        self._seed = seed
        self._weights = np.array([weight(k) for k in self.HALF_LIVES])
        self._means: Array | None = None
        self._rows: list[Array] = []
        self._spikes: list[bool] = []
        self._recent: list[float] = []
        self._model: Any = None
        self._trained = 0

    def scores(self, ready: Array, utilisation: Array, threshold: Array, time: Array) -> Array:
        due = FIRST_TRAINING if self._model is None else self._trained + RETRAIN_EVERY
        if len(self._rows) >= due:
            self._train()
        with np.errstate(invalid="ignore", divide="ignore"):
            relative = np.where(threshold > 0, ready / threshold, 0.0)
        values = np.log(0.05 + np.clip(np.nan_to_num(relative), 0.0, 1e6))
        busy = np.nan_to_num(utilisation)
        clock = np.stack([np.nan_to_num(time) % period / period for period in self.PERIODS], axis=1)
        rows = [
            np.concatenate([self._inputs(float(v), float(b)), c])
            for v, b, c in zip(values, busy, clock, strict=True)
        ]
        self._rows += rows
        self._spikes += [bool(u >= 1.0) for u in relative]
        return values - 20.0 if self._model is None else np.asarray(self._model(np.stack(rows)), np.float64)

    def _inputs(self, value: float, busy: float) -> Array:
        present = np.array([value, busy])
        if self._means is None:
            self._means = np.repeat(present[:, None], len(self.HALF_LIVES), axis=1)
        self._means += self._weights * (present[:, None] - self._means)
        self._recent = [*self._recent[-14:], value]
        # All relative to the present: trees cannot follow a level they have not seen.
        past = [self._recent[-1 - k] - value if len(self._recent) > k else 0.0 for k in range(1, 5)]
        last = self._recent[-5:]
        extremes = [max(last) - value, min(last) - value, max(self._recent) - value]
        return np.array([value, *past, *extremes, *(self._means - present[:, None]).ravel()])

    def _train(self) -> None:
        self._trained = len(self._rows)
        spikes = np.array(self._spikes)
        labels = np.zeros(spikes.size - self._horizon, bool)
        for ahead in range(1, self._horizon + 1):
            labels |= spikes[ahead : ahead + labels.size]
        if labels.min(initial=True) == labels.max(initial=False):
            return
        self._model = _fit(np.stack(self._rows[: labels.size]), labels, self._seed)


def _fit(inputs: Array, labels: Any, seed: int) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier

    model = HistGradientBoostingClassifier(
        max_iter=150, learning_rate=0.06, max_leaf_nodes=8, min_samples_leaf=60, l2_regularization=1.0,
        early_stopping=False, random_state=seed,
    )  # fmt: skip
    model.fit(inputs, labels)
    return lambda rows: model.predict_proba(rows)[:, 1]
