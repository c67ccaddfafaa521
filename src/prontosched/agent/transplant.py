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
from prontosched.node import STATE_KIND, STATE_VERSION, Node

# Parts of a node's state whose arrays have one axis per metric.
PARTS_BY_METRIC = ("embedding", "scaling", "projector", "adopted", "view")


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
        if isinstance(value, np.ndarray) and key.partition(".")[0] in PARTS_BY_METRIC:
            fields[key] = _mapped(key, value, len(old), len(metrics), kept)
    if fields.get("embedding.features"):
        fields["embedding.features"] = len(metrics)
    fields["metrics"] = list(metrics)
    return Node.from_bytes(encode(STATE_KIND, version, fields))


def _mapped(
    key: str, array: np.ndarray[Any, Any], before: int, after: int, kept: list[tuple[int, int]]
) -> np.ndarray[Any, Any]:
    axes = [axis for axis, length in enumerate(array.shape) if length == before]
    if not axes:
        return array
    if len(axes) > 1:
        raise StateError(f"{key} must have one axis of {before} metrics, got shape {array.shape}: start cold")
    shape = list(array.shape)
    shape[axes[0]] = after
    mapped = np.zeros(shape, dtype=array.dtype)
    source, target = np.moveaxis(array, axes[0], 0), np.moveaxis(mapped, axes[0], 0)
    if kept:
        target[[to for to, _ in kept]] = source[[i for _, i in kept]]
    return mapped
