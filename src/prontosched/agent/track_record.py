"""The signal's own record: what its decisions were worth so far on this node.

Covers: streaming counts against CPU Ready as it turned out. Scores of whole traces
with intervals are in `prontosched.evaluation`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from prontosched.agent.slowdown import ContentionLengths

NAN = float("nan")
ENOUGH = 20
"""Contended and refused moments, a horizon apart, from which shares of them are told."""
SEPARATE = 5
"""Contentions from which the signal's own figures are told."""


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
    Memory: `horizon` booleans, the lengths of the last contentions and ten numbers.

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
        self.lengths = ContentionLengths(calm=self.horizon)
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
        self.lengths.note(self._contended)
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
        """Return the counts, by name, and whether contention goes on; the last undecided steps are left out."""
        return {
            **{name: getattr(self, name) for name in self.COUNTS},
            "contended": int(self._contended),
            "length": self.lengths.length,
            "lengths": list(self.lengths.past),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on counting from what `state` returned; the last few undecided steps are left out."""
        for name in self.COUNTS:
            setattr(self, name, int(state.get(name, 0)))
        # A contention that outlives a restart is not another one.
        self._contended = bool(state.get("contended", 0))
        self.lengths.restore(state.get("lengths", ()), state.get("length", 0))
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


def record_shown(
    horizon: int, standing: Mapping[str, Any] | None, record: TrackRecord | None = None
) -> dict[str, Any]:
    """Return a record as people and programs see it: figures that so few events cannot carry are NaN.

    Parameters
    ----------
    standing
        What the signal itself keeps (`prontosched.signals.record.Standing`), where it does.
    record
        What the agent counted, where it counts.

    Returns
    -------
        The figures, the signal's own under `signal`, and under `words` what they say or what is missing.
    """
    found: dict[str, Any] = {"horizon": horizon}
    words = ""
    if record is not None:
        found.update(record.figures()._asdict())
        contentions, refusals = ENOUGH - record.onsets, ENOUGH - record.claims // record.horizon
        if contentions > 0:
            found.update(preceded=NAN, lead_timesteps=NAN, coin_preceded=NAN)
        if refusals > 0:
            found.update(precision=NAN, coin_precision=NAN)
        words = _missing(contentions, refusals) or "What its refusals were worth so far on this node."
    if standing is not None:
        own = dict(standing)
        steps = own["steps"]
        shares = (own["base_rate"], own["downtime"])
        contentions, refusals = (ENOUGH - _whole(share * steps / horizon) for share in shares)
        # One long contention has many moments, and tells of one.
        apart = 0 if record is None else SEPARATE - record.onsets
        if max(contentions, refusals, apart) > 0:
            own.update(recall=NAN, precision=NAN, lead_steps=NAN)
        found["signal"] = own
        words = _missing(contentions, refusals, apart) or _worth(own["better_than_coin"])
    found["words"] = words
    return found


def _missing(contended: int, refused: int, contentions: int = 0) -> str:
    """Say how many more moments, a horizon apart, and contentions are needed; nothing where there are enough."""
    wanted = [
        (contentions, "contention"),
        (contended, "contended moment"),
        (refused, "refused moment"),
    ]
    missing = [f"{n} more {noun}{'s' if n > 1 else ''}" for n, noun in wanted if n > 0]
    if not missing:
        return ""
    return f"Too little has happened to tell what its refusals are worth: {' and '.join(missing)} needed."


def _worth(better: bool | None) -> str:
    if better is None:
        return "Its record is still short: whether it beats a coin that refuses as often is told later."
    if better:
        return "Better than a coin that refuses as often, on this node's own record."
    return "Not better than a coin on this node's record: the node acts on the present value alone."


def _whole(value: float) -> int:
    return 0 if math.isnan(value) else int(value)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else NAN
