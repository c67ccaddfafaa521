"""Stage 3: vector times subspace gives projections, each kept one continuous signal.

A singular vector's sign is arbitrary, and the directions turn at every update.
Left alone, a projection would jump at each block end and look like a spike. So
directions are aligned with the ones before, and the recent past is projected
again on the new ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from prontosched.subspace import Array, Subspace, align_signs


class Projector:
    """Project vectors on a subspace that changes now and then.

    Parameters
    ----------
    lag
        Vectors to remember, so that they can be projected again on a new basis.
    orient
        Give directions a sign of their own and keep it; off, signs are whatever the
        embedding says, which turns signals round at random.

    Attributes
    ----------
    source, subspace
        The subspace given last, and the same with its directions aligned; None before the first.
    window
        After `project` met a new subspace: the remembered vectors' projections on
        it, `(r, n)`, as a ring. None otherwise.
    slot
        Column of that ring which is the oldest, and the next to be replaced.

    Notes
    -----
    Memory: `d * (lag + r)` floats.

    Examples
    --------
    >>> projector = Projector(lag=2)
    >>> north = Subspace(np.array([[0.0], [-1.0]]), np.array([4.0]))
    >>> projector.project(north, np.array([1.0, 2.0]))
    [2.0]
    """

    def __init__(self, lag: int = 10, *, orient: bool = True) -> None:
        if lag < 1:
            raise ValueError(f"lag must be at least 1 vector, got {lag}")
        self.lag = lag
        self.orient = orient
        self.source: Subspace | None = None
        self.subspace: Subspace | None = None
        self.window: Array | None = None
        self.slot = 0
        # Whose signs are those in use here.
        self._lineage: object = None
        self._rows = np.zeros((0, 0))
        self._projections = np.zeros(0)
        self._past = np.zeros((0, 0))
        self._slots: list[Array] = []  # rows of the past
        self._next = 0
        self._held = 0

    def project(self, subspace: Subspace | None, y: Array) -> list[float]:
        """Return the projections of `y`, and remember it; empty while there is no subspace."""
        self.window = None
        if subspace is not self.source and subspace is not None:
            self._turn(subspace)
        at = self._next
        try:
            self._slots[at][...] = y
        except IndexError:
            self._remember(np.zeros((self.lag, y.shape[0])))
            self._slots[0][...] = y
        self._next = at + 1 if at + 1 < self.lag else 0
        if self._held < self.lag:
            self._held += 1
        if subspace is None:
            return []
        projections = self._projections
        self._rows.dot(self._slots[at], projections)
        return projections.tolist()

    def _remember(self, past: Array) -> None:
        self._past = past
        self._slots = list(past)

    def _turn(self, subspace: Subspace) -> None:
        """Take a new subspace into use: align its directions, project the past on them."""
        rows = subspace.basis.T
        self.source = self.subspace = subspace
        if self.orient and (subspace.lineage is None or subspace.lineage is not self._lineage):
            rows = self._oriented(rows)
        if rows.shape != self._rows.shape:
            self._projections = np.zeros(len(rows))
        self._rows = rows = np.ascontiguousarray(rows)
        self.slot = self._next
        past = self._past if self._held == self.lag else self._past[: self._held]
        self.window = rows.dot(past.T) if self._held else np.zeros((len(rows), 0))

    def _oriented(self, rows: Array) -> Array:
        """Return the new subspace's directions with the signs they should have here."""
        assert self.source is not None
        signs = align_signs(rows, self._rows)
        self._lineage = self.source.lineage
        if signs.min() < 0.0:
            rows = rows * signs[:, None]
            self.subspace = Subspace(rows.T, self.source.singular_values)
            self._lineage = None
        return rows

    def state(self) -> dict[str, Any]:
        """Return everything held, by name."""
        subspace = self.subspace
        return {
            "rows": self._rows,
            "strengths": np.zeros(0) if subspace is None else subspace.singular_values,
            "past": self._past,
            "next": self._next,
            "held": self._held,
        }

    def restore(self, state: Mapping[str, Any], source: Subspace | None) -> None:
        """Take over what `state` returned; `source` is the subspace that was in use."""
        self._remember(state["past"])
        self._next = int(state["next"])
        self._held = int(state["held"])
        self.source = source
        if state["rows"].size:
            self._rows = state["rows"]
            self._projections = np.zeros(len(self._rows))
            self.subspace = Subspace(self._rows.T, state["strengths"])
