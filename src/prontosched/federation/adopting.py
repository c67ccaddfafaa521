"""When nodes adopt the global view, and how much they trust it.

Covers: the rules, for one node or for many at once, and the view as it comes down. What
adopting does to a node: `prontosched.pipeline.node` and `prontosched.pipeline.fleet`; what taking up
statistics does to its signal: `prontosched.signals.learner`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prontosched.errors import FederationError
from prontosched.federation.arrival import UnknownSchemaError
from prontosched.federation.clash import clashing
from prontosched.federation.contribution import Summarised, own_deviation
from prontosched.federation.link import VIEWS, Link
from prontosched.federation.message import GlobalView
from prontosched.federation.pooling import for_node, trust
from prontosched.federation.schema import Metrics
from prontosched.federation.schema_book import SchemaBook
from prontosched.pipeline.node import LEAST_WEIGHT, adopted_weight
from prontosched.subspace import Subspace

log = logging.getLogger(__name__)

VIEW_KEY = "global"
ADOPT_SECONDS = 300.0
# Directions of the global view that are adopted.
RANK = 4
# Until its own history has filled, a learned signal does better by the present value than
# by what a fleet has learned; much later it has learned itself.
START_TIMESTEP, LAST_START_TIMESTEP = 300, 1000
# Weight of a view that fits, relative to what a node gives any view it adopts.
FULL_TRUST = 10.0


class HeardView:
    """The newest global view on the bus.

    Parameters
    ----------
    mine
        Tells whether a node, by its place in the tree, is one of those who listen here.

    Attributes
    ----------
    view
        The view heard last, or None.
    errors, last_error
        Views that could not be read, and the last reason.
    clashes
        Names of those who listen here under which another agent speaks too.
    """

    def __init__(
        self, link: Link, book: SchemaBook, mine: Callable[[str], bool] = lambda name: False
    ) -> None:
        self.link = link
        self.book = book
        self.view: GlobalView | None = None
        self.errors = 0
        self.last_error = ""
        self.clashes: tuple[str, ...] = ()
        self._mine = mine
        self._warned: set[str] = set()
        self._feed = link.subscribe(VIEWS, VIEW_KEY)
        self._unread: bytes | None = None

    def look(self) -> GlobalView | None:
        """Read what arrived, without waiting for the bus; return the view heard last."""
        for entry in self._feed.drain():
            self._unread = entry.value
        if self._unread is not None:
            self._read(self._unread)
        return self.view

    def close(self) -> None:
        """Stop listening."""
        self.link.unsubscribe(self._feed)

    def _read(self, data: bytes) -> None:
        try:
            view = GlobalView.from_bytes(data, self.book)
        except UnknownSchemaError:
            # Its names are still on the way.
            return
        except FederationError as error:
            self._unread = None
            self.errors += 1
            self.last_error = str(error)
            return
        self._unread = None
        if self.view is None or view.revision != self.view.revision:
            self.view = view
            self._warn(view)

    def _warn(self, view: GlobalView) -> None:
        self.clashes = tuple(name for name in view.clashes if self._mine(name))
        new = [name for name in self.clashes if name not in self._warned]
        if new:
            log.warning("%s", clashing(new))
            self._warned.update(new)


class Adoptions:
    """Know when nodes should adopt a view: on joining, as their scale settles, and now and then.

    Parameters
    ----------
    nodes
        How many.
    seconds
        How often a newer view is adopted.

    Notes
    -----
    Memory: five numbers per node.
    """

    def __init__(self, nodes: int = 0, *, seconds: float = ADOPT_SECONDS) -> None:
        self.seconds = seconds
        self._revision = np.full(nodes, -1)
        self._when = np.full(nodes, -np.inf)
        self._step = np.zeros(nodes, np.int64)
        self._blind = np.zeros(nodes, np.bool_)
        self._started = np.zeros(nodes, np.int64)

    def move(self, origin: NDArray[np.intp]) -> None:
        """Follow nodes to new places, from places `origin`; newcomers, -1, have adopted nothing."""
        self._revision = moved(self._revision, origin, -1)
        self._when = moved(self._when, origin, -np.inf)
        self._step = moved(self._step, origin, 0)
        self._blind = moved(self._blind, origin, 0)
        self._started = moved(self._started, origin, 0)

    def forget_views(self) -> None:
        """Let every node adopt anew: none holds a view any more."""
        self._revision[:], self._when[:] = -1, -np.inf
        self._step[:], self._blind[:] = 0, False

    def due(
        self, view: GlobalView, now: float, timestep: NDArray[np.int64], learned: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Tell which nodes should adopt `view` now.

        Parameters
        ----------
        now
            By the clock of the bus.
        timestep, learned
            Of each node: vectors seen, and whether it has a subspace of its own.
        """
        if view.subspace is None:
            return np.zeros(len(self._when), np.bool_)
        anew = timestep < self._step
        if anew.any():
            # Built anew, cold: it knows nothing of a view.
            self._revision[anew], self._when[anew] = -1, -np.inf
            self._step[anew], self._blind[anew] = 0, False
        due = (self._revision != view.revision) & (now - self._when >= self.seconds)
        # A young node's units change as its scale settles, and so does how far the view fits it.
        due |= timestep >= 1.5 * self._step + 10
        # Trusted blindly until now: the first own block says whether that was right.
        due |= self._blind & learned
        # Who has seen this much would let it go at once.
        old = learned & (adopted_weight(timestep.astype(np.float64)) < LEAST_WEIGHT)
        return np.asarray(due & ~old)

    def note(self, node: int, view: GlobalView, now: float, timestep: int, *, learned: bool) -> None:
        """Take note that a node was offered `view`."""
        self._revision[node], self._when[node] = view.revision, now
        self._step[node], self._blind[node] = timestep, not learned

    def starting(self, view: GlobalView, timestep: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tell whose signals should take up the fleet's statistics now: once each, while young."""
        # Built anew, cold: it has taken up nothing.
        self._started[timestep < self._started] = 0
        young = (timestep >= START_TIMESTEP) & (timestep <= LAST_START_TIMESTEP)
        return np.asarray(young & (self._started == 0) & bool(view.statistics))

    def note_start(self, node: int, timestep: int) -> None:
        """Take note that a node's signal was offered the fleet's statistics."""
        self._started[node] = timestep


def moved(held: NDArray[Any], origin: NDArray[np.intp], fill: float) -> NDArray[Any]:
    """Return the numbers of places `origin`; `fill` where that is negative.

    Examples
    --------
    >>> moved(np.array([5, 6, 7]), np.array([2, -1, 0]), 0)
    array([7, 0, 5])
    """
    return np.append(held, np.array([fill], held.dtype))[origin]


def fitted(
    view: GlobalView, node: Summarised, metrics: Metrics, *, rank: int = RANK
) -> tuple[Subspace, float] | None:
    """Return the view in a node's metrics and units, and for how many samples its strengths stand.

    The samples say how much the node should trust it: as far as what the node learned
    itself lies within the view. None where they have nothing in common.
    """
    mine = for_node(view, metrics, own_deviation(node), rank=rank)
    if mine is None:
        return None
    weight = max(FULL_TRUST * trust(mine, node.embedding.subspace), 1e-9)
    return mine, 1.0 / weight
