"""What nodes tell each other about contention: statistics that add up.

Covers: the two heads over contention history. Their inputs mean the same on every
node. The head over projections stays at home: each node's directions are its own.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from prontosched.errors import StateError
from prontosched.signals.learner import ENOUGH_LABELS, INPUTS, LABELS_PER_SPIKE, Learner
from prontosched.subspace import Array

# A fleet's labels count as at most this many of one's own, so that a node still learns what is different on it.
TRUSTED_LABELS = 2000.0


def share(learner: Learner) -> dict[str, Array]:
    """Return what one node adds to a fleet's heads, or the sum over many.

    Summed entry by entry over nodes, the least-squares part is exactly what one head
    over all of their labels would hold, and the logistic part the sum of each node's
    quadratic approximation.
    """
    information, weighted = learner.heads.share()
    labels = np.asarray(learner.heads.labels, dtype=float)
    positives = np.asarray(learner.positives, dtype=float)
    if learner.ops.lead:
        information, weighted = information.sum(axis=0), weighted.sum(axis=0)
        labels, positives = labels.sum(), positives.sum()
    return {
        "information": information,
        "weighted": weighted,
        "labels": np.array([float(labels), float(positives)]),
    }


def start_from(learner: Learner, shared: Mapping[str, Array]) -> None:
    """Let a learner begin with the sum of what others shared."""
    size = len(INPUTS)
    information, weighted = np.asarray(shared["information"]), np.asarray(shared["weighted"])
    if information.shape != (2, size, size) or weighted.shape != (2, size):
        raise StateError(
            f"shared statistics must be over 2 heads and {size} inputs, got {information.shape}: "
            "they come from another version"
        )
    if not (np.isfinite(information).all() and np.isfinite(weighted).all()):
        raise StateError("shared statistics must be finite, got NaN or infinity: ignore this sender")
    labels, positives = (float(n) for n in shared["labels"])
    # The least-squares information in the constant input counts labels, faded as the heads fade them.
    remembered = max(float(information[1, 0, 0]), 1e-9)
    learner.heads.start_from(information, weighted, min(1.0, TRUSTED_LABELS / remembered))
    learner.heads.labels = learner.ops.full(int(min(labels, ENOUGH_LABELS)))
    learner.positives = learner.ops.full(int(min(positives, ENOUGH_LABELS / LABELS_PER_SPIKE)))
