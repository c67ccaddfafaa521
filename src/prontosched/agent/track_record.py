"""The signal's own record: what its decisions were worth so far on this node.

Covers: streaming counts against CPU Ready as it turned out. Scores of whole traces
with intervals are in `prontosched.evaluation`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

NAN = float("nan")


class Figures(NamedTuple):
    """The record in numbers; NaN where nothing has happened yet that could tell.

    Attributes
    ----------
    timesteps
        Decisions counted.
    downtime
        Share of timesteps with the signal raised.
    contentions
        Times CPU Ready rose to the tolerance or above.
    preceded
        Share of those with a raise in the horizon before them.
    lead_timesteps
        Mean distance from the first such raise to the contention.
    precision
        Share of raised timesteps with contention then or within the horizon.
    coin_preceded, coin_precision
        What a coin with the same downtime would reach.
    """

    timesteps: int
    downtime: float
    contentions: int
    preceded: float
    lead_timesteps: float
    precision: float
    coin_preceded: float
    coin_precision: float


class TrackRecord:
    """Hold each decision until its horizon has passed, then count how it turned out.

    Parameters
    ----------
    tolerance
        CPU Ready from which there is contention, in percent per CPU.
    horizon
        Timesteps a raise may come before the contention it warns of.

    Notes
    -----
    Memory: `horizon` booleans and ten numbers.

    Examples
    --------
    >>> record = TrackRecord(tolerance=5.0, horizon=3)
    >>> for raised, ready in [(False, 1), (True, 1), (False, 9), (False, 1), (False, 1), (False, 1)]:
    ...     record.note(raised, ready)
    >>> record.figures().preceded, record.figures().lead_timesteps, record.figures().precision
    (1.0, 1.0, 1.0)
    """

    COUNTS = ("timesteps", "raises", "onsets", "preceded", "lead", "resolved", "positive", "hits", "claims")

    def __init__(self, *, tolerance: float, horizon: int) -> None:
        self.tolerance = tolerance
        self.horizon = max(1, horizon)
        self.timesteps = self.raises = self.onsets = self.preceded = self.lead = 0
        self.resolved = self.positive = self.hits = self.claims = 0
        self._raised: deque[bool] = deque(maxlen=self.horizon)
        self._last_contention = -math.inf
        self._contended = False

    def note(self, raised: bool, ready: float) -> None:
        """Count one timestep: the decision for it and CPU Ready then, NaN where unknown."""
        contended = ready >= self.tolerance
        if contended:
            self._last_contention = self.timesteps
            if not self._contended:
                self._onset()
        self._contended = contended or (math.isnan(ready) and self._contended)
        if len(self._raised) == self.horizon:
            self._resolve(self._raised[0], self.timesteps - self.horizon)
        self._raised.append(raised)
        self.raises += raised
        self.timesteps += 1

    def figures(self) -> Figures:
        """Return the record so far."""
        downtime = _share(self.raises, self.timesteps)
        return Figures(
            timesteps=self.timesteps,
            downtime=downtime,
            contentions=self.onsets,
            preceded=_share(self.preceded, self.onsets),
            lead_timesteps=_share(self.lead, self.preceded),
            precision=_share(self.hits, self.claims),
            coin_preceded=1.0 - (1.0 - downtime) ** self.horizon if self.timesteps else NAN,
            coin_precision=_share(self.positive, self.resolved),
        )

    def state(self) -> dict[str, Any]:
        """Return the counts, by name. What is still within the horizon is not kept."""
        return {name: getattr(self, name) for name in self.COUNTS}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on counting from what `state` returned; the last few undecided steps are left out."""
        for name in self.COUNTS:
            setattr(self, name, int(state.get(name, 0)))
        self._raised.clear()
        self._last_contention = -math.inf

    def _onset(self) -> None:
        self.onsets += 1
        first = next((i for i, raised in enumerate(self._raised) if raised), None)
        if first is not None:
            self.preceded += 1
            self.lead += len(self._raised) - first

    def _resolve(self, raised: bool, timestep: int) -> None:
        followed = self._last_contention >= timestep
        self.resolved += 1
        self.positive += followed
        self.claims += raised
        self.hits += raised and followed


def _share(part: int, whole: int) -> float:
    return part / whole if whole else NAN
