"""Jobs too new to be measured: they count before telemetry shows them.

Covers: the time between letting a job in and seeing its load. Without it, a node
that looks idle is sent a whole herd within one interval. Pure: time is a number.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace

from prontosched.errors import SettingsError
from prontosched.integration.gate import Verdict


class Admissions:
    """Remember the jobs let in lately, and refuse where they fill what is left.

    A job counts in full when it is let in and fades linearly to nothing over
    `settle_seconds`, as measured utilisation takes its place.

    Parameters
    ----------
    cpus
        How many CPUs the node has for jobs.
    settle_seconds
        How long it takes until a job's load shows in the telemetry.
    most
        Largest number of jobs remembered; beyond it the oldest is forgotten.

    Notes
    -----
    Memory: at most `most` pairs of numbers.

    Examples
    --------
    >>> admissions = Admissions(cpus=4, settle_seconds=30)
    >>> admissions.admit(now=0.0, cpus=3)
    >>> open_ = Verdict(False, 0.1, "nothing spikes", valid_until=60.0)
    >>> admissions.weigh(open_, utilisation=0.5, now=1.0).refuse
    True
    """

    def __init__(self, *, cpus: float, settle_seconds: float = 30.0, most: int = 1024) -> None:
        if not (math.isfinite(cpus) and cpus > 0):
            raise SettingsError(f"cpus must be above 0, got {cpus}: it is what the node has for jobs")
        if not (math.isfinite(settle_seconds) and settle_seconds > 0):
            raise SettingsError(f"settle_seconds must be above 0, got {settle_seconds}")
        self.cpus = cpus
        self.settle_seconds = settle_seconds
        self._admitted: deque[tuple[float, float]] = deque(maxlen=most)

    def admit(self, *, now: float, cpus: float = 1.0) -> None:
        """Take note that a job of so many CPUs was let in."""
        self._admitted.append((now, cpus))

    def unseen_cpus(self, now: float) -> float:
        """Return how many CPUs of admitted jobs telemetry does not show yet."""
        while self._admitted and now - self._admitted[0][0] >= self.settle_seconds:
            self._admitted.popleft()
        return sum(cpus * min(1.0, 1.0 - (now - at) / self.settle_seconds) for at, cpus in self._admitted)

    def weigh(self, verdict: Verdict, *, utilisation: float, now: float, cpus: float = 1.0) -> Verdict:
        """Turn an accepting verdict into a refusal where a job of `cpus` no longer fits.

        `utilisation` is the measured share of the CPUs in use; unknown (NaN) counts as
        none, so that only the jobs let in lately are weighed.
        """
        if verdict.refuse or not self._admitted:
            return verdict
        measured = 0.0 if math.isnan(utilisation) else utilisation * self.cpus
        unseen = self.unseen_cpus(now)
        if unseen <= 0 or measured + unseen + cpus <= self.cpus:
            return verdict
        reason = f"jobs let in within {self.settle_seconds:g} s still need {unseen:.1f} of {self.cpus:g} CPUs"
        return replace(verdict, refuse=True, reason=reason)
