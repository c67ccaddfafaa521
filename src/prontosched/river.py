"""Estimators for River: embeddings, an anomaly score and the default signal, on dicts of metrics.

Metrics may come and go: a missing one counts as 0, which after River's `StandardScaler` is
its mean, and a new one is taken up. Needs River (the extra `evaluation` has it).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from river import base

from prontosched.pipeline import EMBEDDINGS, Embedding
from prontosched.pipeline.node import Node
from prontosched.pipeline.presets import make_node
from prontosched.subspace import Array

__all__ = ["ContentionModel", "StreamingPCA", "SubspaceAnomaly"]


class Slots:
    """A place in a vector of fixed length for every metric, given out in the order they appear."""

    def __init__(self, length: int) -> None:
        if length < 1:
            raise ValueError(f"max_metrics must be at least 1, got {length}")
        self.length = length
        self.places: dict[Any, int] = {}

    def vector(self, x: Mapping[Any, float], missing: float, *, learn: bool) -> Array:
        """Return the values of a dict in their places; metrics without one are left out."""
        y = np.full(self.length, missing)
        if learn and not x.keys() <= self.places.keys():
            self._give(x)
        for name, value in x.items():
            place = self.places.get(name)
            if place is not None:
                y[place] = value
        return y

    def _give(self, x: Mapping[Any, float]) -> None:
        # Sorted, so that the order of a dict does not matter.
        new = sorted((name for name in x if name not in self.places), key=str)
        room = self.length - len(self.places)
        for name in new[:room]:
            self.places[name] = len(self.places)
        if len(new) > room > 0:
            warnings.warn(
                f"more than {self.length} metrics: {new[room]!r} and others are ignored; raise max_metrics",
                stacklevel=4,
            )


class _Subspace:
    """An embedding over dicts."""

    def __init__(
        self, n_components: int = 4, method: str = "fpca", forgetting: float = 1.0, max_metrics: int = 256
    ) -> None:
        self.n_components = n_components
        self.method = method
        self.forgetting = forgetting
        self.max_metrics = max_metrics
        self.embedding = self._made()
        self._slots = Slots(max_metrics)

    def _made(self) -> Embedding:
        if self.method not in EMBEDDINGS:
            raise ValueError(f"method must be one of {', '.join(EMBEDDINGS)}, got {self.method!r}")
        kind: Any = EMBEDDINGS[self.method]
        made: Embedding
        if self.method in ("fpca", "spirit"):
            made = kind(self.n_components, forgetting=self.forgetting)
            return made
        if self.forgetting != 1.0:
            raise ValueError(
                f"forgetting must be 1 for {self.method}, which cannot forget, got {self.forgetting}"
            )
        made = kind(self.n_components)
        return made

    def learn_one(self, x: Mapping[Any, float]) -> None:
        """Learn one row."""
        self.embedding.learn_one(self._slots.vector(x, 0.0, learn=True))


class StreamingPCA(_Subspace, base.Transformer):  # type: ignore[misc]
    """Project rows on the leading directions of the stream.

    Rows are not centred: put a `StandardScaler` before it.

    Parameters
    ----------
    n_components
        Directions to follow.
    method
        `fpca`, `spirit`, `frequent-directions` or `power-method`.
    forgetting
        Weight of the past, in (0, 1], at each block of 10 rows (`fpca`) or each row (`spirit`).
    max_metrics
        Metrics that can be told apart; memory grows with it.

    Examples
    --------
    >>> pca = StreamingPCA(n_components=1)
    >>> for load in range(1, 21):
    ...     pca.learn_one({"cpu": 3.0 * load, "net": 4.0 * load})
    >>> pca.transform_one({"net": 4.0, "cpu": 3.0})
    {0: 5.0}
    """

    def transform_one(self, x: Mapping[Any, float]) -> dict[int, float]:
        """Return the row along each direction, 0 for those not known yet."""
        found = dict.fromkeys(range(self.n_components), 0.0)
        subspace = self.embedding.subspace
        if subspace is not None:
            along = self._slots.vector(x, 0.0, learn=False) @ subspace.basis
            found.update(enumerate(np.round(along, 12).tolist()))
        return found


class SubspaceAnomaly(_Subspace, base.AnomalyDetector):  # type: ignore[misc]
    """Score rows by how far they lie outside the leading directions of the stream.

    The score is e / (e + m), for the squared prediction error e of a row and its mean m over the past:
    a half for a usual row, near 1 for one that moves where the stream never did.

    Parameters
    ----------
    n_components, method, forgetting, max_metrics
        As for `StreamingPCA`.
    """

    def __init__(
        self, n_components: int = 4, method: str = "fpca", forgetting: float = 1.0, max_metrics: int = 256
    ) -> None:
        super().__init__(n_components, method, forgetting, max_metrics)
        self._mean = 0.0
        self._rows = 0

    def learn_one(self, x: Mapping[Any, float]) -> None:
        """Learn one row."""
        if self.embedding.subspace is not None:
            self._rows += 1
            self._mean += (self._error(x) - self._mean) / self._rows
        super().learn_one(x)

    def score_one(self, x: Mapping[Any, float]) -> float:
        """Return how unusual a row is, from 0 to 1; 0 until there is a past to compare with."""
        if not self._rows:
            return 0.0
        error = self._error(x)
        return error / (error + self._mean) if error > 0.0 else 0.0

    def _error(self, x: Mapping[Any, float]) -> float:
        subspace = self.embedding.subspace
        y = self._slots.vector(x, 0.0, learn=False)
        inside = 0.0 if subspace is None else float(np.sum((y @ subspace.basis) ** 2))
        return max(0.0, float(y @ y) - inside)


class ContentionModel(base.Classifier):  # type: ignore[misc]
    """The default signal: the chance that contention comes within the horizon.

    The label of a row is whether there was contention when it was measured. `predict_proba_one`
    gives the chance for the rows that follow the last one learned, so that with a horizon
    of 1 River's progressive validation measures forecasts one row ahead. The metrics of a
    row are not used to predict that row: they are measured together with its label.

    Parameters
    ----------
    horizon
        Rows to look ahead.
    preset
        As in `prontosched.make_node`.
    max_metrics
        Metrics that can be told apart; memory grows with it.
    """

    def __init__(self, horizon: int = 1, preset: str = "default", max_metrics: int = 256) -> None:
        self.horizon = horizon
        self.preset = preset
        self.max_metrics = max_metrics
        self.node: Node = make_node(preset, signal="learned", horizon=horizon)
        self._slots = Slots(max_metrics)
        self._chance = 0.0

    @property
    def _multiclass(self) -> bool:
        return False

    def learn_one(self, x: Mapping[Any, float], y: bool) -> None:
        """Learn one row and whether there was contention."""
        row = self._slots.vector(x, math.nan, learn=True)
        decision = self.node.step(row, ready=100.0 if y else 0.0)
        self._chance = 0.0 if math.isnan(decision.probability) else decision.probability

    def predict_proba_one(self, x: Mapping[Any, float]) -> dict[bool, float]:
        """Return the chance of no contention and of contention in the rows to come."""
        return {False: 1.0 - self._chance, True: self._chance}
