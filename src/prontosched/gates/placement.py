"""Jobs just placed count at once: against herds that would meet on the calmest node.

Covers: remembering where jobs were sent until telemetry can show them, and what they add
to a node's chance of contention. Time arrives as a number.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple

# After so many seconds half of a placed job is taken to be seen by telemetry.
HALF_SECONDS = 10.0
# A job counts for so long at most: then less than a twentieth of it is left.
LONGEST_SECONDS = 45.0
MOST_JOBS = 20_000


class _Placed(NamedTuple):
    nodes: Mapping[str, float]
    at: float


class Placements:
    """Where jobs were sent of late.

    Notes
    -----
    Memory: at most `MOST_JOBS` jobs, each for at most `LONGEST_SECONDS`.

    Examples
    --------
    >>> placements = Placements()
    >>> placements.add("job-1", {"n1": 2.0}, now=0.0)
    >>> placements.cpus("n1", now=0.0), placements.cpus("n1", now=10.0), placements.cpus("n2", now=0.0)
    (2.0, 1.0, 0.0)
    """

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, _Placed] = OrderedDict()
        self._on: dict[str, dict[str, None]] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: str, nodes: Mapping[str, float], now: float) -> None:
        """Count CPUs of `job` on `nodes` from now on; a job that is placed again replaces itself."""
        self._remove(job)
        while self._jobs and (
            len(self._jobs) >= MOST_JOBS or self._left(next(iter(self._jobs.values())), now) == 0.0
        ):
            self._remove(next(iter(self._jobs)))
        self._jobs[job] = _Placed(dict(nodes), now)
        for node in nodes:
            self._on.setdefault(node, {})[job] = None

    def cpus(self, node: str, now: float) -> float:
        """Return the CPUs sent to `node` that telemetry may not show yet."""
        jobs = (self._jobs[job] for job in self._on.get(node, ()))
        return math.fsum(placed.nodes[node] * self._left(placed, now) for placed in jobs)

    def _remove(self, job: str) -> None:
        placed = self._jobs.pop(job, None)
        for node in placed.nodes if placed is not None else ():
            self._on[node].pop(job)
            if not self._on[node]:
                del self._on[node]

    @staticmethod
    def _left(placed: _Placed, now: float) -> float:
        # A clock that was set back makes nothing younger than new.
        age = max(0.0, now - placed.at)
        return 0.0 if age > LONGEST_SECONDS else float(2.0 ** (-age / HALF_SECONDS))


def crowded_chance(chance: float, placed: float, cpus: float) -> float:
    """Return a node's chance of contention with CPUs on their way that it does not show yet.

    Examples
    --------
    >>> crowded_chance(0.5, placed=0.0, cpus=8), crowded_chance(0.5, placed=4.0, cpus=8)
    (0.5, 0.75)
    """
    return chance + (1.0 - chance) * min(1.0, placed / cpus)
