"""The metrics of a node, in its order: samples that differ from them, and other metrics for a node that has learned."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prontosched.codec import decode, encode
from prontosched.errors import StateError
from prontosched.pipeline.node import STATE_KIND, STATE_VERSION, Node
from prontosched.subspace import Array
from prontosched.telemetry.source import Sample

NICE = "cpu_nice_percent"
MAX_METRICS = 20_000
PATIENCE = 60
"""Samples after which another set of metrics is there for good."""
# Arrays of a node's state whose last axis has one place per metric.
BY_METRIC = frozenset(
    (
        *("adopted.rows", "embedding.basis", "embedding.slab", "projector.past", "projector.rows"),
        *("scaling.block", "scaling.mean", "scaling.seen", "scaling.unknown", "scaling.variance"),
        *("signal.sight.along", "signal.vectors", "view.rows"),
    )
)
COUNTS = ("embedding.features", "signal.features")


class Schema:
    """The metrics of one node, by name and in its order.

    Metrics that a sample lacks become NaN, which a node takes as unknown; metrics it
    has beyond the schema are left out. Samples differ from the schema for `patience` times
    in a row before it is `settled` what is there for good: metrics that came with each of
    them are, and metrics of the schema are unless none of them had it. So a network card that
    flaps does not cost the node its memory, and what containers bring for a moment never enters.

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
        self._seen: tuple[str, ...] = metrics
        # Where the shared metrics of a sample go to, and come from; None while they are all and in order.
        self._places: tuple[NDArray[np.intp], NDArray[np.intp]] | None = None
        self._streak = 0
        # Metrics that each sample of the streak had, and metrics of the schema that none had.
        self._new: frozenset[str] = frozenset()
        self._gone: frozenset[str] = frozenset()
        self._nice_at = _place(NICE, metrics)

    def background(self, sample: Sample) -> float:
        """Return the share of all CPUs in percent that low priority uses, 0 where that is not measured."""
        if sample.metrics is not self._seen:
            self._look(sample.metrics)
        return 0.0 if self._nice_at is None else max(0.0, float(sample.vector[self._nice_at]))

    def align(self, sample: Sample) -> Array:
        """Return the sample's metrics in this schema's order, NaN where it has none."""
        if sample.metrics is not self._seen:
            self._look(sample.metrics)
        if self._places is None:
            return sample.vector
        if self.missing or self.extra:  # another order of the same metrics needs no other node
            self._note_change()
        target, origin = self._places
        y = np.full(len(self.metrics), np.nan)
        y[target] = sample.vector[origin]
        return y

    def _note_change(self) -> None:
        """Count a sample with other metrics; once there were enough, settle what they had in common."""
        if not self._streak:
            self._new, self._gone = frozenset(self.extra), frozenset(self.missing)
        self._streak += 1
        if self._streak >= self.patience:
            self._streak = 0
            if self._new or self._gone:
                known = self._new.union(self.metrics)
                found = [name for name in self._seen if name in known]
                flapping = [name for name in self.missing if name not in self._gone]
                self.settled = (*found, *flapping)[:MAX_METRICS]

    def _look(self, metrics: tuple[str, ...]) -> None:
        if metrics == self._seen:
            self._seen = metrics
            return
        self._seen = metrics
        self.settled = None
        self._nice_at = _place(NICE, metrics)
        position, present = {name: i for i, name in enumerate(self.metrics)}, set(metrics)
        shared = [(position[name], i) for i, name in enumerate(metrics) if name in position]
        target, origin = np.array(shared, dtype=np.intp).reshape(-1, 2).T
        self._places = None if metrics == self.metrics else (target, origin)
        self.missing = tuple(name for name in self.metrics if name not in present)
        self.extra = tuple(name for name in metrics if name not in position)
        if not self.missing and not self.extra:
            self._streak = 0
        self._new, self._gone = self._new.intersection(self.extra), self._gone.intersection(self.missing)


def _place(name: str, metrics: tuple[str, ...]) -> int | None:
    return metrics.index(name) if name in metrics else None


def known_share(old: Sequence[str], new: Sequence[str]) -> float:
    """Return the share of `old` that is still in `new`; NaN where `old` is empty.

    Examples
    --------
    >>> known_share(("a", "b"), ("b", "c"))
    0.5
    """
    present = set(new)
    return sum(name in present for name in old) / len(old) if old else math.nan


def with_metrics(node: Node, metrics: Sequence[str]) -> Node:
    """Return a node like `node` for `metrics`, warm for those it had; `StateError` where it cannot be mapped."""
    if node.metrics is None:
        raise StateError("a node must know the names of its metrics to change them, got none: start cold")
    old = list(node.metrics)
    origin = {name: i for i, name in enumerate(old)}
    kept = [(to, origin[name]) for to, name in enumerate(metrics) if name in origin]
    fields = decode(node.to_bytes(), kind=STATE_KIND, version=STATE_VERSION)
    version = fields.pop("version")
    for key, value in fields.items():
        if key in BY_METRIC and value.shape[-1] == len(old):
            fields[key] = _mapped(value, len(metrics), kept)
    # In vectors that wait to enter the statistics, a metric that was not there is unknown.
    if fields.get("scaling.samples") and len(kept) < len(metrics):
        fields["scaling.block"][:, np.setdiff1d(np.arange(len(metrics)), [to for to, _ in kept])] = np.nan
        fields["scaling.gaps"] = True
    for key in COUNTS:
        if fields.get(key):
            fields[key] = len(metrics)
    fields["metrics"] = list(metrics)
    data = encode(STATE_KIND, version, fields)
    try:
        Node.from_bytes(data).step(np.zeros(len(metrics)))
    except (ValueError, IndexError, TypeError) as error:
        raise StateError(f"{node.signal.name} cannot change its metrics ({error}): start cold") from error
    return Node.from_bytes(data)


def _mapped(array: np.ndarray[Any, Any], after: int, kept: list[tuple[int, int]]) -> np.ndarray[Any, Any]:
    mapped = np.zeros((*array.shape[:-1], after), dtype=array.dtype)
    if kept:
        mapped[..., [to for to, _ in kept]] = array[..., [i for _, i in kept]]
    return mapped
