"""What a gate makes of the nodes' own words: levels of preference, and a bounded veto.

The rules are those of `prontosched.gates.preference`, applied every second to all
nodes of a cluster, with the defaults of `prontosched.gates.policy`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from prontosched.gates.floor import closable, places
from prontosched.gates.policy import Rules
from prontosched.gates.preference import level_of
from prontosched.subspace import Array

Mask = NDArray[np.bool_]
Levels = NDArray[np.intp]


class ClusterGate:
    """Preference and veto over the nodes of one cluster, with hysteresis, holds and a floor.

    Parameters
    ----------
    rules
        Share of the nodes that may be closed, and how long they stay closed and open at least.
    """

    def __init__(self, nodes: int, rules: Rules | None = None) -> None:
        self.rules = rules or Rules()
        self.levels: Levels | None = None
        self.closed: Mask = np.zeros(nodes, np.bool_)
        self._since = np.full(nodes, np.inf)

    def prefer(self, probability: Array) -> Levels:
        """Return the level of each node."""
        chances = probability.tolist()
        before = [None] * len(chances) if self.levels is None else self.levels.tolist()
        self.levels = np.array([level_of(p, old) for p, old in zip(chances, before, strict=True)], np.intp)
        return self.levels

    def close(self, refusing: Mask, probability: Array, *, starved: bool) -> Mask:
        """Return which nodes are closed until the next second.

        Parameters
        ----------
        refusing, probability
            The nodes' own words.
        starved
            Whether jobs wait that no open node can take: then all open, whatever the holds.
        """
        share = self.rules.max_refusing
        closed = closable(refusing, probability, share=share, starved=starved, held=self.closed)
        if not starved:
            least = np.where(self.closed, self.rules.min_hold_seconds, self.rules.min_accept_seconds)
            closed = np.where(self._since < least, self.closed, closed)
            closed = _within(closed, probability, places(closed.size, share))
        self._since = np.where(closed == self.closed, self._since + 1.0, 1.0)
        self.closed = closed
        return closed


def _within(closed: Mask, probability: Array, most: int) -> Mask:
    """Open the calmest where more are closed than may be."""
    at = np.flatnonzero(closed)
    if at.size <= most:
        return closed
    opened = closed.copy()
    opened[at[np.argsort(probability[at], kind="stable")[: at.size - most]]] = False
    return opened
