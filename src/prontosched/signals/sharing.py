"""What nodes tell each other about contention: statistics that add up.

Covers: the two heads over contention history. Their inputs mean the same on every
node. The head over projections stays at home: each node's directions are its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from prontosched.errors import StateError
from prontosched.signals.arithmetic import One
from prontosched.signals.heads import BATCH
from prontosched.signals.learner import ENOUGH_LABELS, INPUTS, LABELS_PER_SPIKE, Learner
from prontosched.subspace import Array

# A fleet's labels count as at most this many of one's own, so that a node still learns what is different on it.
TRUSTED_LABELS = 2000.0


def share(learner: Learner, at: Any = ...) -> dict[str, Array]:
    """Return what one node adds to a fleet's heads, or the sum over many.

    Summed entry by entry over nodes, the least-squares part is exactly what one head
    over all of their labels would hold, and the logistic part the sum of each node's
    quadratic approximation. All zero until a first batch of labels has been learned.

    Parameters
    ----------
    at
        One of many nodes; all together when not given.
    """
    heads = learner.heads
    counts = _counts(learner, at) - heads.credit[at]
    counts = np.where(counts[..., :1] < BATCH, 0, counts).astype(np.float64)
    shapes = _shapes(len(heads.prior))
    parts = heads.share(at) if counts.any() else [np.zeros(shape) for shape in shapes]
    information, weighted = (
        part.reshape(-1, *shape).sum(axis=0) for part, shape in zip(parts, shapes, strict=True)
    )
    return {"information": information, "weighted": weighted, "labels": counts.reshape(-1, 2).sum(axis=0)}


def start_from(learner: Learner, shared: Mapping[str, Array], at: Any = ...) -> None:
    """Let a learner go on from its own labels and the sum of what others shared.

    Parameters
    ----------
    at
        One of many nodes; all of them when not given.
    """
    heads = learner.heads
    information, weighted, labels = (
        np.asarray(shared[name]) for name in ("information", "weighted", "labels")
    )
    if (information.shape, weighted.shape) != _shapes(len(heads.prior)) or labels.shape != (2,):
        raise StateError(
            f"shared statistics must be over 2 heads and {len(INPUTS)} inputs, got {information.shape}: "
            "they come from another version"
        )
    if not all(np.isfinite(values).all() for values in (information, weighted, labels)):
        raise StateError("shared statistics must be finite, got NaN or infinity: ignore this sender")
    # The least-squares information in the constant input counts labels, faded as the heads fade them.
    remembered = max(float(information[1, 0, 0]), 1e-9)
    scale = min(1.0, TRUSTED_LABELS / remembered)
    try:
        np.linalg.cholesky(scale * information + heads.ridge * heads.identity)
    except np.linalg.LinAlgError:
        raise StateError(
            "shared information must be a sum of squares, got one with negative directions: ignore this sender"
        ) from None
    heads.start_from(information, weighted, scale, at)
    _credit(learner, labels, at)


def _shapes(heads: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return (heads, len(INPUTS), len(INPUTS)), (heads, len(INPUTS))


def _counts(learner: Learner, at: Any) -> Array:
    """Return how many labels there are, and how many positive ones, `(..., 2)`."""
    return np.stack([np.asarray(learner.heads.labels)[at], np.asarray(learner.positives)[at]], axis=-1)


def _credit(learner: Learner, labels: Array, at: Any) -> None:
    """Count the labels of others as own ones, as far as they say more."""
    heads = learner.heads
    own = _counts(learner, at) - heads.credit[at]
    wanted = np.minimum(labels, [ENOUGH_LABELS, ENOUGH_LABELS / LABELS_PER_SPIKE])
    credit = np.maximum(np.floor(wanted) - own, 0).astype(np.int64)
    # In whole batches, so that labels that wait to be learned keep their places.
    credit[..., 0] += -credit[..., 0] % BATCH
    heads.credit[at] = credit
    counted = own + credit
    if isinstance(learner.ops, One):
        heads.labels, learner.positives = counted.tolist()
    else:
        heads.labels[at], learner.positives[at] = counted[..., 0], counted[..., 1]
