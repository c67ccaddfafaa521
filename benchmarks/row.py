"""One line of a benchmark, and how it is timed.

Ratios in one run, never seconds: the machines this runs on are shared. Candidates
take turns in short stretches and the best stretch of each counts, in CPU time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Row:
    """One measured figure beside its goal.

    Attributes
    ----------
    value, goal
        The figure, and what it should be; None for a figure without a goal.
    better
        Whether the goal is a floor (`more`) or a ceiling (`less`).
    """

    name: str
    value: float
    unit: str
    goal: float | None = None
    better: Literal["more", "less"] = "less"

    @property
    def met(self) -> bool | None:
        """True when the figure is on the right side of its goal; None without a goal."""
        if self.goal is None:
            return None
        return self.value >= self.goal if self.better == "more" else self.value <= self.goal

    def as_json(self) -> dict[str, Any]:
        """Return the row as plain values; what is not a number is null."""
        value = self.value if math.isfinite(self.value) else None
        return {**asdict(self), "value": value, "met": self.met}


def best_of(
    candidates: Mapping[str, Callable[[], object]],
    *,
    repeats: int = 40,
    seconds: float = 20.0,
    warm: bool = True,
) -> dict[str, float]:
    """Return the least CPU seconds of each candidate.

    They take turns so that a busy moment hits all. With `warm` each runs once untimed at its turn:
    what the one before it left in the caches is no matter of its own.
    """
    best = dict.fromkeys(candidates, float("inf"))
    end = time.monotonic() + seconds
    for turn in range(repeats):
        for name, run in candidates.items():
            if warm:
                run()
            start = time.process_time()
            run()
            best[name] = min(best[name], time.process_time() - start)
        if turn >= 4 and time.monotonic() > end:
            break
    return best
