"""Which nodes to prefer, and which of those that refuse may be closed: the same rules everywhere.

Covers: a few levels of preference between nodes, changed with hysteresis, and the bound
on vetoes. Pure, over one node or arrays of nodes, so that gates, the scheduler extender
and the simulator apply one and the same rule. Carrying it out is `keeper`; how often a
node may change its level is `policy`.

A veto is for a node that drowns while others do not. It is closed if its own word is
*refusing*, its chance of contention is at least twice the fleet's typical one, no node that
stays open is worse off, and no more than a share of the nodes is closed. Where jobs wait
and nothing else is open, none is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prontosched.subspace import Array

# Chances of contention at which a node moves to the next level of preference; level 0 is calm.
LEVEL_EDGES = (0.1, 0.3, 0.5, 0.8)
LEVELS = len(LEVEL_EDGES) + 1
# How far below an edge the chance must fall before the level goes down again.
LEVEL_MARGIN = 0.35
TYPICAL_TIMES = 2.0
# How much a node that is closed already counts for more, so that near equals do not take turns.
HELD_MARGIN = 0.1


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


def typical(chance: Array) -> float:
    """Return the fleet's typical chance of contention: the median, of two in the middle the lower.

    Examples
    --------
    >>> typical(np.array([0.1, 0.9])), typical(np.array([0.3, 0.1, 0.9]))
    (0.1, 0.3)
    """
    return float(np.quantile(chance, 0.5, method="lower"))


def closable(
    refusing: NDArray[np.bool_],
    probability: Array,
    *,
    share: float,
    starved: bool = False,
    held: NDArray[np.bool_] | None = None,
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
    held
        Which nodes are closed already, `(M,)`. Their chances count `HELD_MARGIN` more.

    Examples
    --------
    >>> refusing, chance = np.array([True, True, False, False]), np.array([0.9, 0.6, 0.1, 0.2])
    >>> closable(refusing, chance, share=0.25).tolist()
    [True, False, False, False]
    """
    chance = np.nan_to_num(probability, nan=0.0)
    closed = np.zeros(chance.shape, np.bool_)
    room = places(chance.size, share)
    if starved or room == 0:
        return closed
    weighed = chance if held is None else chance + HELD_MARGIN * held
    order = np.argsort(-weighed, kind="stable")[:room]
    drowning = refusing & (weighed >= TYPICAL_TIMES * typical(chance))
    # From the worst down to the first that stays open: nothing calmer than that one is closed.
    closed[order] = np.logical_and.accumulate(drowning[order])
    return closed


class Candidate(NamedTuple):
    """One node that a job could go to.

    Attributes
    ----------
    chance
        Chance of contention, jobs just placed there counted; NaN where nothing is known.
    state
        Its own word: `accepting`, `contended`, `refusing`, or `unknown`.
    why
        One sentence.
    placed_cpus
        CPUs of jobs just placed there.
    """

    node: str
    chance: float
    state: str
    why: str
    placed_cpus: float = 0.0

    def as_json(self) -> dict[str, str | float | None]:
        """Return it as plain values, null where nothing is known."""
        return {**self._asdict(), "chance": None if math.isnan(self.chance) else self.chance}


def best_first(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return nodes in the order to prefer: those that refuse last, else the lower chance first.

    A node of which nothing is known stands between calm and contended ones.

    Examples
    --------
    >>> nodes = [Candidate("n1", 0.2, "accepting", ""), Candidate("n2", math.nan, "unknown", "")]
    >>> [one.node for one in best_first([*nodes, Candidate("n3", 0.6, "contended", "")])]
    ['n1', 'n2', 'n3']
    """

    def key(one: Candidate) -> tuple[bool, float, str]:
        return one.state == "refusing", LEVEL_EDGES[2] if math.isnan(one.chance) else one.chance, one.node

    return sorted(candidates, key=key)


class Word(NamedTuple):
    """What one node says of itself, as far as others know it.

    Attributes
    ----------
    refuse
        Its own word is refusing.
    chance
        Its chance of contention.
    held
        It is closed by us already.
    """

    refuse: bool
    chance: float
    held: bool = False


def closed_nodes(
    words: Mapping[str, tuple[bool, float, bool]], *, nodes: int, share: float, starved: bool = False
) -> frozenset[str]:
    """Return the names that may be closed now, by `closable`.

    Parameters
    ----------
    words
        What is known of nodes in service, by name: a `Word` each.
    nodes
        How many nodes are in service. Those without a word are calm: nodes tell their
        word from level 1 on, so their chance counts as the first edge.

    Examples
    --------
    >>> words = {"n1": Word(True, 0.9), "n2": Word(True, 0.7), "n3": Word(False, 0.8)}
    >>> sorted(closed_nodes(words, nodes=8, share=0.25))
    ['n1']
    """
    names = sorted(words)
    untold = max(0, nodes - len(names))
    rows = [*(words[name] for name in names), *[Word(False, LEVEL_EDGES[0])] * untold]
    if not rows:
        return frozenset()
    refuse, chance, held = (np.array(column) for column in zip(*rows, strict=True))
    closed = closable(refuse, chance, share=share, starved=starved, held=held)
    return frozenset(name for name, shut in zip(names, closed, strict=False) if shut)
