"""Which nodes to prefer, and which of those that refuse may be closed: the same rules everywhere.

Covers: a few levels of preference between nodes, changed with hysteresis, and the bound
on vetoes. Pure, over one node or arrays of nodes, so that gates, the scheduler extender
and the simulator apply one and the same rule. Carrying it out is `keeper`.

A veto is for a node that drowns while others do not. It is closed if its own word is
*refusing*, its chance of contention is at least twice the fleet's median, no node that
stays open is worse off, and no more than a share of the nodes is closed. Where jobs wait
and nothing else is open, none is.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from prontosched.subspace import Array

# Chances of contention at which a node moves to the next level of preference; level 0 is calm.
LEVEL_EDGES = (0.1, 0.3, 0.5, 0.8)
LEVELS = len(LEVEL_EDGES) + 1
# How far below an edge the chance must fall before the level goes down again.
LEVEL_MARGIN = 0.35
TYPICAL_TIMES = 2.0


def level_of(probability: float, previous: int | None = None) -> int:
    """Return the level of preference of a node, 0 (calm, fill first) to `LEVELS - 1`.

    It rises at an edge at once, and falls only once the chance is well below that edge,
    so that a chance that hovers about an edge changes nothing.

    Parameters
    ----------
    previous
        The level so far; None for a node that has none yet.

    Examples
    --------
    >>> level_of(0.02), level_of(0.6), level_of(0.45, previous=3), level_of(0.15, previous=3)
    (0, 3, 3, 1)
    """
    if math.isnan(probability):
        return previous or 0
    level = sum(probability >= edge for edge in LEVEL_EDGES)
    if previous is None or level >= previous:
        return level
    low = sum(probability >= edge * (1.0 - LEVEL_MARGIN) for edge in LEVEL_EDGES)
    return min(previous, low)


def places(nodes: int, share: float) -> int:
    """Return how many of `nodes` may be closed at once: the share, rounded down.

    In a small cluster that would be none, so one may wherever another stays open. A lone
    node is never closed: whoever asks it decides how long to wait.

    Examples
    --------
    >>> [places(nodes, 0.25) for nodes in (1, 2, 8, 11, 12)]
    [0, 1, 2, 2, 3]
    """
    return max(1 if nodes >= 2 else 0, math.floor(share * nodes + 1e-9))


def closable(
    refusing: NDArray[np.bool_], probability: Array, *, share: float, starved: bool = False
) -> NDArray[np.bool_]:
    """Return which nodes may be closed now.

    Parameters
    ----------
    refusing
        Each node's own word, `(M,)`, for the nodes in service.
    probability
        Their chances of contention, `(M,)`; NaN counts as 0.
    share
        Largest share of the nodes that may be closed, in (0, 1].
    starved
        Whether jobs wait that no open node can take.

    Examples
    --------
    >>> closable(np.array([True, True, False, False]), np.array([0.9, 0.6, 0.1, 0.2]), share=0.5)
    array([ True, False, False, False])
    """
    chance = np.nan_to_num(probability, nan=0.0)
    closed = np.zeros(chance.shape, np.bool_)
    room = places(chance.size, share)
    if starved or room == 0:
        return closed
    order = np.argsort(-chance, kind="stable")[:room]
    drowning = refusing & (chance >= TYPICAL_TIMES * np.median(chance))
    # From the worst down to the first that stays open: nothing calmer than that one is closed.
    closed[order] = np.logical_and.accumulate(drowning[order])
    return closed
