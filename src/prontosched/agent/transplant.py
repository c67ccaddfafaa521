"""Give a node another set of metrics without losing what it knew of those that stay.

A subspace is a summary of the vectors seen. Leaving a metric out of all of them, or
adding one that was always 0, changes the summary's rows in the same way, so nothing
has to be learned again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from prontosched.codec import decode, encode
from prontosched.errors import StateError
from prontosched.pipeline.node import STATE_KIND, STATE_VERSION, Node

# Arrays of a node's state whose last axis has one place per metric.
BY_METRIC = frozenset(
    {
        "adopted.rows",
        "embedding.basis",
        "embedding.slab",
        "projector.past",
        "projector.rows",
        "scaling.block",
        "scaling.mean",
        "scaling.seen",
        "scaling.unknown",
        "scaling.variance",
        "signal.sight.along",
        "signal.vectors",
        "view.rows",
    }
)
COUNTS = ("embedding.features", "signal.features")


def with_metrics(node: Node, metrics: Sequence[str]) -> Node:
    """Return a node like `node` for `metrics`, warm for those it had.

    Raises
    ------
    StateError
        The node has no names for its metrics, or holds something that cannot be mapped.
    """
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
