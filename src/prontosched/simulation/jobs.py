"""The jobs that arrive: the same for every placer and rule of a seed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prontosched.subspace import Array

SMALLEST_WORK, LARGEST_WORK, TAIL = 10.0, 3000.0, 1.3
WIDTHS: Array = np.array([1.0, 2.0, 4.0])
SHARES: Array = np.array([0.6, 0.3, 0.1])
# A job of fixed length loads its input for this share of it.
PRELUDE_SHARE = 0.1


class Jobs(NamedTuple):
    """Jobs in order of arrival, one array each.

    Attributes
    ----------
    arrival
        Second in which it comes.
    width
        CPUs it asks for.
    work
        CPU seconds.
    prelude
        Seconds of loading before the work, with little CPU.
    """

    arrival: NDArray[np.int64]
    width: Array
    work: Array
    prelude: Array

    @property
    def ideal(self) -> Array:
        """Seconds that each takes on an idle node."""
        return self.prelude + self.work / self.width


def draw_jobs(
    load: float,
    steps: int,
    rng: np.random.Generator,
    *,
    length: float | None = None,
    widths: Array = WIDTHS,
) -> Jobs:
    """Draw all jobs of a run.

    Parameters
    ----------
    load
        CPU seconds of work that arrive a second, in CPUs.
    steps
        Seconds of arrivals.
    length
        Mean seconds of a job, from half to one and a half times it; by default work is
        heavy-tailed (bounded Pareto, 10 to 3,000 CPU seconds, tail 1.3).
    """
    mean_width = float(widths @ SHARES)
    mean_work = (
        bounded_pareto_mean(SMALLEST_WORK, LARGEST_WORK, TAIL)
        if length is None
        else mean_width * length * (1.0 - PRELUDE_SHARE)
    )
    counts = rng.poisson(load / mean_work, steps)
    total = int(counts.sum())
    arrival = np.repeat(np.arange(steps), counts)
    width = rng.choice(widths, total, p=SHARES)
    uniform = rng.random(total)
    if length is None:
        low, high = SMALLEST_WORK**-TAIL, LARGEST_WORK**-TAIL
        work = (low - uniform * (low - high)) ** (-1.0 / TAIL)
        prelude = np.minimum(np.ceil(rng.exponential(3.0, total)), 15.0)
    else:
        seconds = length * (0.5 + uniform)
        prelude = PRELUDE_SHARE * seconds
        work = width * (seconds - prelude)
    return Jobs(arrival, width, work, prelude)


def bounded_pareto_mean(smallest: float, largest: float, tail: float) -> float:
    """Return the mean of a Pareto distribution cut off at both ends."""
    norm = 1.0 - (smallest / largest) ** tail
    inner = smallest ** (1.0 - tail) - largest ** (1.0 - tail)
    return float(smallest**tail / norm * tail / (tail - 1.0) * inner)
