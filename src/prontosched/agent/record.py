"""What decisions were worth so far: counts of an agent, the record of a signal, and of probes on its machine.

Scores of whole traces, with intervals, are in `prontosched.evaluation`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

import numpy as np

from prontosched.decision import State
from prontosched.student import t_quantile

NAN = float("nan")
KEPT_LENGTHS = 64
ENOUGH_LENGTHS = 5
ENOUGH = 20
"""Contended and refused moments, a horizon apart, from which shares of them are told."""
SEPARATE = 5
"""Contentions from which the signal's own figures are told."""
STATES: tuple[str, ...] = get_args(State)
BOUNDS = (1.05, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
# Probes of one stretch in one state are alike, so intervals come from stretches, of at most this many.
STRETCH = 20
FEWEST_PROBES, FEWEST_STRETCHES = 10, 3


def plain(value: Any) -> Any:
    """Return a value as JSON can carry it: numbers rounded to 9 digits, None where they are not finite.

    Examples
    --------
    >>> plain(float("nan")), plain({"third": 1 / 3, "word": "x"})
    (None, {'third': 0.333333333, 'word': 'x'})
    """
    if isinstance(value, float):
        return round(value, 9) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    return value


@dataclass(slots=True)
class DecisionCounts:
    """Counts over all nodes since the agent started; `contended` is timesteps at the tolerance or above."""

    decisions: int = 0
    raised: int = 0
    flips: int = 0
    ready_count: int = 0
    ready_sum: float = 0.0
    ready_max: float = float("nan")
    contended: int = 0

    @property
    def downtime(self) -> float:
        """Share of decisions with the signal raised; NaN before the first."""
        return self.raised / self.decisions if self.decisions else math.nan

    @property
    def ready_mean(self) -> float:
        """Mean CPU Ready; NaN where it was never known."""
        return self.ready_sum / self.ready_count if self.ready_count else math.nan

    def add(self, raised: bool, flipped: bool, ready: float, tolerance: float) -> None:
        """Count one decision."""
        self.decisions += 1
        self.raised += raised
        self.flips += flipped
        if ready == ready:  # not NaN
            self.ready_count += 1
            self.ready_sum += ready
            self.contended += ready >= tolerance
            if not ready <= self.ready_max:
                self.ready_max = ready


class ContentionLengths:
    """How long a node's contentions last, in timesteps; `calm` ones below the tolerance end one.

    Memory: the last 64 lengths.

    Examples
    --------
    >>> lengths = ContentionLengths(calm=1)
    >>> for contended in ([True] * 30 + [False] * 10) * 5 + [True] * 12:
    ...     lengths.note(contended)
    >>> lengths.left()
    18.0
    """

    def __init__(self, *, calm: int) -> None:
        self.calm = calm
        self.length = 0
        self.past: deque[int] = deque(maxlen=KEPT_LENGTHS)
        self._gap = 0

    def note(self, contended: bool) -> None:
        """Count one timestep."""
        if contended:
            self.length += self._gap + 1
            self._gap = 0
        elif self.length:
            self._gap += 1
            if self._gap >= self.calm:
                self.past.append(self.length)
                self.length = self._gap = 0

    def left(self) -> float:
        """Return how many timesteps the present contention will go on; NaN while too few are known.

        It is the median over those past ones that lasted longer than this one has so far.
        Where none did, it is taken to go on for as long as it has lasted.
        """
        if not self.length or len(self.past) < ENOUGH_LENGTHS:
            return math.nan
        longer = sorted(past - self.length for past in self.past if past > self.length)
        return float(longer[len(longer) // 2]) if longer else float(self.length)

    def restore(self, past: Iterable[int], length: int) -> None:
        """Go on from the lengths of an earlier run, and from a contention that it was in."""
        self.past = deque((int(one) for one in past), maxlen=KEPT_LENGTHS)
        self.length, self._gap = int(length), 0


class Figures(NamedTuple):
    """The record in numbers; NaN where nothing has happened yet that could tell.

    `preceded` is the share of contentions with a raise in the horizon before them, `lead_timesteps` the mean
    distance from the first such raise, `precision` the share of raised timesteps with contention then or within the
    horizon. Beside them stands what a coin with the same downtime would reach.
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

    `tolerance` is the CPU Ready from which there is contention, in percent per CPU; a raise may come `horizon`
    timesteps before the contention that it warns of. Memory: `horizon` booleans and the last contentions.

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
        downtime = _ratio(self.raises, self.timesteps)
        return Figures(
            timesteps=self.timesteps,
            downtime=downtime,
            contentions=self.onsets,
            preceded=_ratio(self.preceded, self.onsets),
            lead_timesteps=_ratio(self.lead, self.preceded),
            precision=_ratio(self.hits, self.claims),
            coin_preceded=1.0 - (1.0 - downtime) ** self.horizon if self.timesteps else NAN,
            coin_precision=_ratio(self.positive, self.resolved),
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


def record_shown(record: TrackRecord, standing: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a record as people and programs see it: figures that so few events cannot carry are NaN.

    What the agent counted is in `record`, what the signal itself keeps (`prontosched.signals.record.SignalFigures`)
    in `standing`, which is shown under `signal`. `words` says what they come to, or what is missing.
    """
    found: dict[str, Any] = {"horizon": record.horizon, **record.figures()._asdict()}
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
        contentions, refusals = (ENOUGH - _whole(share * steps / record.horizon) for share in shares)
        # One long contention has many moments, and tells of one.
        apart = SEPARATE - record.onsets
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
    few = " and ".join([", ".join(missing[:-1]), missing[-1]] if missing[1:] else missing)
    return f"Too little has happened to tell what its refusals are worth: {few} needed."


def _worth(better: bool | None) -> str:
    if better is None:
        return "Its record is still short: whether it beats a coin that refuses as often is told later."
    if better:
        return "Better than a coin that refuses as often, on this node's own record."
    return "Not better than a coin on this node's record: the node acts on the present value alone."


def _whole(value: float) -> int:
    return 0 if math.isnan(value) else int(value)


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else NAN


class StateProbes:
    """What probes found that started in one state.

    `counts` has them by slowdown, up to each of `BOUNDS` and above; `stretches` are runs of probes that followed one
    another in this state.
    """

    FIELDS = ("count", "total", "stretches", "squares", "crosses", "sizes", "open_count", "open_total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.count = self.total = self.stretches = 0.0
        # Sums over closed stretches of total², size x total and size², and the open one.
        self.squares = self.crosses = self.sizes = 0.0
        self.open_count = self.open_total = 0.0

    def add(self, slowdown: float) -> None:
        """Count a probe."""
        if self.open_count >= STRETCH:
            self.close()
        self.counts[bisect_left(BOUNDS, slowdown)] += 1
        self.stretches += self.open_count == 0
        self.count += 1
        self.total += slowdown
        self.open_count += 1
        self.open_total += slowdown

    def close(self) -> None:
        """End the open stretch: another state has come."""
        size, total = self.open_count, self.open_total
        self.squares += total * total
        self.crosses += size * total
        self.sizes += size * size
        self.open_count = self.open_total = 0.0

    @property
    def mean(self) -> float:
        """Mean slowdown; NaN before the first probe."""
        return self.total / self.count if self.count else math.nan

    @property
    def error(self) -> float:
        """Half the 95 % interval of the mean, from how much stretches differ; NaN where there are too few."""
        if self.stretches < 2:
            return math.nan
        size, total, mean = self.open_count, self.open_total, self.mean
        squares, crosses = self.squares + total * total, self.crosses + size * total
        spread = squares - 2.0 * mean * crosses + mean * mean * (self.sizes + size * size)
        degrees = int(self.stretches) - 1
        variance = max(0.0, spread) / self.count**2 * self.stretches / degrees
        return t_quantile(degrees) * math.sqrt(variance)

    def figures(self) -> dict[str, Any]:
        """Return the numbers as plain values."""
        mean, error = self.mean, self.error
        return {
            "probes": int(self.count),
            "stretches": int(self.stretches),
            "slowdown": plain(mean),
            "low": plain(max(1.0, mean - error)),
            "high": plain(mean + error),
        }


class ProbeRecord:
    """Slowdown of probes by the state that they started in.

    Examples
    --------
    >>> record = ProbeRecord()
    >>> for state, slowdown in [("accepting", 1.0), ("refusing", 2.5), ("accepting", 1.1)]:
    ...     record.note(state, slowdown)
    >>> record.by_state["refusing"].mean
    2.5
    """

    def __init__(self) -> None:
        self.by_state = {state: StateProbes() for state in STATES}
        self._last = ""

    def note(self, state: str, slowdown: float) -> None:
        """Count a probe that started in a state."""
        if state not in self.by_state or not math.isfinite(slowdown):
            return
        if self._last and state != self._last:
            self.by_state[self._last].close()
        self._last = state
        self.by_state[state].add(slowdown)

    @property
    def told(self) -> bool:
        """Whether accepted moments can be told from refused ones."""
        return self.needed() == 0

    def needed(self) -> int | None:
        """Return about how many more probes in refused moments are needed to tell; None where nothing differs."""
        calm, worse = self.by_state["accepting"], self.by_state[self.compared]
        least = max(0, *(FEWEST_PROBES - int(one.count) for one in (calm, worse)))
        short = max(0, *(FEWEST_STRETCHES - int(one.stretches) for one in (calm, worse)))
        if least or short:
            return max(least, short)
        apart, error = worse.mean - calm.mean, math.hypot(calm.error, worse.error)
        if apart > error:
            return 0
        if apart <= 0.0:
            return None
        return max(1, math.ceil(worse.count * ((error / apart) ** 2 - 1.0)))

    @property
    def compared(self) -> str:
        """The state that accepting is compared to."""
        held_open = not self.by_state["refusing"].count and self.by_state["contended"].count
        return "contended" if held_open else "refusing"

    def words(self) -> str:
        """Return the record as a sentence."""
        calm, worse = self.by_state["accepting"], self.by_state[self.compared]
        if not calm.count and not worse.count:
            return "no probe has run yet"
        if not worse.count:
            return f"probes while accepting took {_times(calm)}; none met a refusal, so there is nothing to tell yet"
        if not calm.count:
            return f"probes while {self.compared} took {_times(worse)}; none was accepted, so there is nothing to tell"
        found = f"probes while accepting took {_times(calm)}, while {self.compared} {_times(worse)}"
        needed = self.needed()
        if needed is None:
            return f"{found}: no difference so far"
        return found if needed == 0 else f"{found}; about {needed} more probes are needed to tell"

    def figures(self) -> dict[str, Any]:
        """Return the record as plain values."""
        return {
            "states": {state: one.figures() for state, one in self.by_state.items()},
            "compared": self.compared,
            "told": self.told,
            "needed": self.needed(),
            "words": self.words(),
        }

    def state(self) -> dict[str, Any]:
        """Return what a restart needs."""
        return {
            state: np.array([*(getattr(one, name) for name in one.FIELDS), *one.counts], np.float64)
            for state, one in self.by_state.items()
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned; what does not fit is left out."""
        for name, one in self.by_state.items():
            kept = state.get(name)
            size = len(one.FIELDS) + len(one.counts)
            if isinstance(kept, np.ndarray) and kept.shape == (size,) and np.isfinite(kept).all():
                for field, value in zip(one.FIELDS, kept.tolist(), strict=False):
                    setattr(one, field, value)
                one.counts = [int(value) for value in kept[len(one.FIELDS) :]]
                one.close()


def _times(one: StateProbes) -> str:
    error = one.error
    interval = "" if math.isnan(error) else f" ({max(1.0, one.mean - error):.2f} to {one.mean + error:.2f})"
    return f"{one.mean:.2f} x as long{interval}" if one.count else "–"
