"""What probes suffered while the node accepted and while it refused: a record that an operator can check.

Probes run in every state, so the comparison is fair as long as nothing obeys the refusals; where a gate
enforces them, a refused machine is calmer than it would have been.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from typing import Any, get_args

import numpy as np

from prontosched.agent.answer import plain
from prontosched.decision import State

STATES: tuple[str, ...] = get_args(State)
BOUNDS = (1.05, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
# Probes of one stretch in one state are alike, so intervals come from stretches, of at most this many.
STRETCH = 20
FEWEST_PROBES, FEWEST_STRETCHES = 10, 3
# The 97.5 % point of Student's distribution by degrees of freedom, from 1.
STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)


class StateProbes:
    """What probes found that started in one state.

    Attributes
    ----------
    counts
        Probes by slowdown, up to each of `BOUNDS` and above.
    stretches
        Runs of probes that followed one another in this state.

    Notes
    -----
    Memory: 17 numbers.
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
        freedom = self.stretches - 1.0
        variance = max(0.0, spread) / self.count**2 * self.stretches / freedom
        student = STUDENT[int(freedom) - 1] if freedom <= len(STUDENT) else 1.96 + 2.6 / freedom
        return student * math.sqrt(variance)

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

    Notes
    -----
    Memory: 17 numbers for each of three states.

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
        return found if needed == 0 else f"{found}; it takes about {needed} more to tell"

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
