"""Put samples in the order of metrics a node was built for, and tell when that order is out of date."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from prontosched.subspace import Array
from prontosched.telemetry.source import Sample

MAX_METRICS = 20_000
PATIENCE = 60
"""Samples, or timesteps of a crowd, after which another set of metrics is there for good."""
FAMILIAR_SHARE = 0.5
"""Saved nodes are used when at least this share of their metrics is still there."""


class Schema:
    """The metrics of one node, by name.

    Metrics that a sample lacks become NaN, which a node takes as unknown; metrics it
    has beyond the schema are left out. Only when another set of metrics has come
    `patience` times in a row is it taken to be there for good: a network card that
    flaps must not cost the node its memory.

    Parameters
    ----------
    metrics
        The names the node was built for, in its order.
    patience
        Samples in a row with one other set of metrics before it is `settled`.

    Examples
    --------
    >>> schema = Schema(("load", "heat"), patience=2)
    >>> more = Sample("n1", ("wind", "load"), np.array([3.0, 1.0]))
    >>> schema.align(more), schema.settled is None
    (array([ 1., nan]), True)
    >>> schema.align(more), schema.settled
    (array([ 1., nan]), ('wind', 'load'))
    """

    def __init__(self, metrics: tuple[str, ...], *, patience: int = PATIENCE) -> None:
        self.metrics = metrics
        self.patience = patience
        self.missing: tuple[str, ...] = ()
        self.extra: tuple[str, ...] = ()
        self.settled: tuple[str, ...] | None = None
        self._position = {name: i for i, name in enumerate(metrics)}
        self._seen: tuple[str, ...] = metrics
        self._same = True
        self._target: NDArray[np.intp] = np.arange(len(metrics))
        self._origin: NDArray[np.intp] = np.arange(len(metrics))
        self._streak = 0

    def align(self, sample: Sample) -> Array:
        """Return the sample's metrics in this schema's order, NaN where it has none."""
        if sample.metrics is not self._seen:
            self._look(sample.metrics)
        if self._same:
            return sample.vector
        if self.missing or self.extra:  # another order of the same metrics needs no other node
            self._streak += 1
            if self._streak >= self.patience:
                self.settled = self._seen[:MAX_METRICS]
        y = np.full(len(self.metrics), np.nan)
        y[self._target] = sample.vector[self._origin]
        return y

    def _look(self, metrics: tuple[str, ...]) -> None:
        if metrics == self._seen:
            self._seen = metrics
            return
        self._seen = metrics
        self._streak = 0
        self.settled = None
        self._same = metrics == self.metrics
        shared = [(self._position[name], i) for i, name in enumerate(metrics) if name in self._position]
        self._target = np.array([to for to, _ in shared], dtype=np.intp)
        self._origin = np.array([i for _, i in shared], dtype=np.intp)
        present = set(metrics)
        self.missing = tuple(name for name in self.metrics if name not in present)
        self.extra = tuple(name for name in metrics if name not in self._position)


def known_share(old: Sequence[str], new: Sequence[str]) -> float:
    """Return the share of `old` that is still in `new`; NaN where `old` is empty.

    Examples
    --------
    >>> known_share(("a", "b"), ("b", "c"))
    0.5
    """
    present = set(new)
    return sum(name in present for name in old) / len(old) if old else math.nan
