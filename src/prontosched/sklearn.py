"""Estimators for scikit-learn: the embeddings as transformers, the default signal as a classifier.

Rows are samples, as everywhere in scikit-learn, and their order is time. Needs scikit-learn
1.6 or newer (the extra `evaluation` has it).
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from prontosched.decision import NAN
from prontosched.pipeline import Embedding, FPCAEdge, FrequentDirections, PowerMethod, Spirit
from prontosched.pipeline.node import Node
from prontosched.pipeline.presets import make_node
from prontosched.subspace import Array

__all__ = [
    "ContentionClassifier",
    "FPCAEdgeTransformer",
    "FrequentDirectionsTransformer",
    "PowerMethodTransformer",
    "SpiritTransformer",
]


class StreamingTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """What the four transformers share: centring, and what is known after each batch.

    Rows are centred as `IncrementalPCA` does it: each batch by its own mean, with one more
    row for the distance between the batch's mean and that of the past. All rows of a batch
    are known when `partial_fit` returns.

    Attributes
    ----------
    components_
        Directions, one per row, strongest first. Fewer than `n_components` where the
        data span fewer.
    singular_values_, explained_variance_, explained_variance_ratio_
        Strength of each direction: of the centred rows, per row, and as a share of all variance.
    mean_
        Mean of the rows seen, faded like they are where the past is forgotten.
    n_samples_seen_
        Rows seen.
    """

    def __init__(self, n_components: int = 4) -> None:
        self.n_components = n_components

    def _make(self, features: int, rows: int) -> Embedding:
        raise NotImplementedError

    def _left(self, rows: int) -> float:
        """Return the share of the past's variance that is left after so many rows."""
        return 1.0

    def fit(self, X: Any, y: object = None) -> Self:
        """Forget what is known, then learn the rows of `X` in their order."""
        if hasattr(self, "embedding_"):
            del self.embedding_
        return self.partial_fit(X)

    def partial_fit(self, X: Any, y: object = None) -> Self:
        """Learn more rows in their order."""
        first = not hasattr(self, "embedding_")
        if first and not (isinstance(self.n_components, int | np.integer) and self.n_components >= 1):
            raise ValueError(f"n_components must be a whole number of at least 1, got {self.n_components!r}")
        X = validate_data(self, X, reset=first, dtype=np.float64, ensure_min_samples=2 if first else 1)
        if first:
            self.embedding_ = self._make(*reversed(X.shape))
            self.mean_ = np.zeros(X.shape[1])
            self.n_samples_seen_ = 0
            self._weight = self._scatter = 0.0
        self._learn(X)
        return self

    def _learn(self, X: Array) -> None:
        embedding, rows = self.embedding_, X.shape[0]
        mean = X.mean(axis=0)
        total = self._weight + rows
        centred = X - mean
        if self._weight:
            correction = np.sqrt(self._weight * rows / total) * (self.mean_ - mean)
            centred = np.vstack([centred, correction])
        embedding.learn_many(centred.T)
        if isinstance(embedding, FPCAEdge):
            embedding.flush()
        left = self._left(centred.shape[0])
        self._weight *= left
        self._scatter = self._scatter * left + float(np.sum(centred**2))
        self.mean_ = (self._weight * self.mean_ + rows * mean) / (self._weight + rows)
        self._weight += rows
        self.n_samples_seen_ += rows
        self._show(centred)

    def _show(self, centred: Array) -> None:
        subspace = self.embedding_.subspace
        features = self.mean_.size
        self.components_ = np.zeros((0, features)) if subspace is None else subspace.basis.T.copy()
        if subspace is None:
            self.singular_values_ = np.zeros(0)
        elif isinstance(self.embedding_, PowerMethod):
            # The method gives directions only: their strength is that of the latest rows along them.
            along = np.sqrt(np.mean((centred @ self.components_.T) ** 2, axis=0) * self._weight)
            order = np.argsort(-along, kind="stable")
            self.components_, self.singular_values_ = self.components_[order], along[order]
        else:
            self.singular_values_ = subspace.singular_values.copy()
        squares = self.singular_values_**2
        self.explained_variance_ = squares / max(self._weight - 1.0, 1.0)
        self.explained_variance_ratio_ = squares / self._scatter if self._scatter > 0 else 0.0 * squares
        self.n_components_ = self.components_.shape[0]

    def transform(self, X: Any) -> Array:
        """Return the rows along each direction, `(n, n_components_)`."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        found: Array = (X - self.mean_) @ self.components_.T
        return found

    def inverse_transform(self, X: Any) -> Array:
        """Return rows in the metrics' own units from rows along the directions."""
        check_is_fitted(self)
        found: Array = np.asarray(X, dtype=np.float64) @ self.components_ + self.mean_
        return found

    @property
    def _n_features_out(self) -> int:
        return int(self.n_components_)


class FPCAEdgeTransformer(StreamingTransformer):
    """FPCA-Edge, the paper's streaming PCA, as a transformer.

    Parameters
    ----------
    n_components
        Directions to follow; at most the number of metrics are.
    block_size
        Rows folded in together; None takes 10, or `n_components` if that is more. The rest
        of a batch counts as a block.
    forgetting
        Weight of the past at each block, in (0, 1].
    spare
        Directions followed beyond those shown.

    Examples
    --------
    >>> X = np.outer(np.arange(20.0), [3.0, 4.0])
    >>> FPCAEdgeTransformer(n_components=1).fit(X).components_.round(1)
    array([[0.6, 0.8]])
    """

    def __init__(
        self, n_components: int = 4, *, block_size: int | None = None, forgetting: float = 1.0, spare: int = 0
    ) -> None:
        super().__init__(n_components)
        self.block_size = block_size
        self.forgetting = forgetting
        self.spare = spare

    def _make(self, features: int, rows: int) -> Embedding:
        rank = min(self.n_components, features)
        block_size = max(10, rank) if self.block_size is None else self.block_size
        return FPCAEdge(rank, block_size, self.forgetting, spare=min(self.spare, features - rank))

    def _left(self, rows: int) -> float:
        blocks = -(-rows // self.embedding_.settings()["block_size"])
        return float(self.forgetting ** (2 * blocks))


class SpiritTransformer(StreamingTransformer):
    """SPIRIT as a transformer: every row turns the directions a little.

    Parameters
    ----------
    n_components
        Directions to follow; at most the number of metrics are.
    forgetting
        Weight of the past at each row, in (0, 1].
    """

    def __init__(self, n_components: int = 4, *, forgetting: float = 0.96) -> None:
        super().__init__(n_components)
        self.forgetting = forgetting

    def _make(self, features: int, rows: int) -> Embedding:
        return Spirit(min(self.n_components, features), self.forgetting)

    def _left(self, rows: int) -> float:
        return float(self.forgetting**rows)


class FrequentDirectionsTransformer(StreamingTransformer):
    """Frequent Directions as a transformer: a sketch with a bound on its error.

    Parameters
    ----------
    n_components
        Directions to follow; at most the number of metrics are.
    """

    def _make(self, features: int, rows: int) -> Embedding:
        return FrequentDirections(min(self.n_components, features))


class PowerMethodTransformer(StreamingTransformer):
    """The block stochastic power method as a transformer.

    Parameters
    ----------
    n_components
        Directions to follow; at most the number of metrics are.
    block_size
        Rows of one step of the power method; None takes 10, or the first batch if that is shorter.
    random_state
        Seed of the first directions.
    """

    def __init__(
        self, n_components: int = 4, *, block_size: int | None = None, random_state: int = 0
    ) -> None:
        super().__init__(n_components)
        self.block_size = block_size
        self.random_state = random_state

    def _make(self, features: int, rows: int) -> Embedding:
        block_size = min(10, rows) if self.block_size is None else self.block_size
        return PowerMethod(min(self.n_components, features), block_size, seed=int(self.random_state))


class ContentionClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """The default signal over rows of telemetry: the chance that contention comes within the horizon.

    Rows are the metrics of one machine in the order of time. The target of `fit` is what the
    machine measured at the same row, CPU Ready or whether there was contention; the
    classifier itself looks `horizon` rows ahead. Rows given to `predict_proba` follow those
    learned last: each is answered from the rows before it, and nothing of them is kept.

    Parameters
    ----------
    preset
        As in `prontosched.make_node`.
    tolerance
        CPU Ready from which there is contention, or a percentile of the past such as `"p95"`.
    horizon
        Rows to look ahead.

    Attributes
    ----------
    classes_
        `[False, True]`: no contention, and contention within the horizon.
    node_
        The node that learned.
    """

    classes_ = np.array([False, True])

    def __init__(self, *, preset: str = "default", tolerance: str | float = "5%", horizon: int = 5) -> None:
        self.preset = preset
        self.tolerance = tolerance
        self.horizon = horizon

    def fit(self, X: Any, y: Any) -> Self:
        """Forget what is known, then learn rows with their CPU Ready in the order of time."""
        if hasattr(self, "node_"):
            del self.node_
        return self.partial_fit(X, y)

    def partial_fit(self, X: Any, y: Any, classes: object = None) -> Self:
        """Learn more rows with their CPU Ready, or with True where there was contention."""
        first = not hasattr(self, "node_")
        X, y = validate_data(self, X, y, reset=first, dtype=np.float64, y_numeric=False)
        if first:
            self.node_ = make_node(
                self.preset, signal="learned", tolerance=self.tolerance, horizon=self.horizon
            )
        ready = _ready(y)
        if (ready < 0).any():
            raise ValueError(f"CPU Ready must be at least 0, got {ready.min():g}")
        for row, now in zip(X, ready, strict=True):
            self.node_.step(row, ready=float(now))
        return self

    def predict_proba(self, X: Any, ready: Any | None = None) -> Array:
        """Return the chance of no contention and of contention within the horizon, `(n, 2)`.

        `ready` is the CPU Ready of these rows, or True where there was contention, as it is known on a live machine.
        """
        check_is_fitted(self, "node_")
        X = validate_data(self, X, reset=False, dtype=np.float64)
        now = np.full(X.shape[0], NAN) if ready is None else _ready(ready)
        if now.shape != X.shape[:1]:
            raise ValueError(f"ready must have one value per row, {X.shape[0]}, got shape {now.shape}")
        node = Node.from_bytes(self.node_.to_bytes())
        chances = [node.step(row, ready=float(at)).probability for row, at in zip(X, now, strict=True)]
        chance = np.nan_to_num(np.array(chances), nan=0.0)
        return np.column_stack([1.0 - chance, chance])

    def predict(self, X: Any, ready: Any | None = None) -> NDArray[np.bool_]:
        """Return for each row whether contention is more likely than not."""
        found: NDArray[np.bool_] = self.predict_proba(X, ready)[:, 1] >= 0.5
        return found


def _ready(values: Any) -> Array:
    """Return CPU Ready: as it was given, or 100 % where there was contention and 0 elsewhere."""
    found = np.asarray(values)
    return np.where(found, 100.0, 0.0) if found.dtype == bool else found.astype(np.float64)
