"""Who waits for CPUs and who uses them, for a refusal's reason and for explanations.

Names are data that users made: printable, bounded, and hashed or left out where they are private. They are in
the node's own answers and never in what the federation and gates pass on.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any, Literal

from prontosched.agent.record import plain
from prontosched.telemetry.linux.threads import Consumer
from prontosched.telemetry.source import Source

Naming = Literal["names", "hashed", "off"]
SHOWN = 10
# What a reason names: at most so many, each of at least so many CPUs and of this share of all.
WAITING_NAMED, USING_NAMED = 2, 1
LEAST_CPUS, LEAST_SHARE = 0.1, 0.1


class Offenders:
    """The consumers of CPUs on the machine that a source reads, where it reads it thread by thread.

    `naming` is `names`, `hashed` (eight digits, the same until the agent restarts) or `off`.
    """

    def __init__(self, source: Source, naming: Naming = "names") -> None:
        self.words = ""
        self.naming = naming
        self._source = source
        self._key = os.urandom(16)
        self._known = hasattr(source, "consumers") and naming != "off"

    def update(self) -> None:
        """Take what the last reading saw."""
        if self._known:
            self.words = _words(self._consumers())

    def view(self) -> dict[str, Any]:
        """Return consumers ranked by what they wait for, then by what they use, as plain values."""
        if not self._known:
            off = self.naming == "off"
            why = "turned off" if off else f"source {self._source.name} does not see who waits and who runs"
            return {"naming": self.naming, "note": why, "consumers": []}
        found = self._consumers()
        ranked = sorted(found, key=lambda one: (one.waiting, one.used), reverse=True)
        users = sorted(found, key=lambda one: one.used, reverse=True)[: SHOWN // 2]
        shown = [one for one in ranked if one in users or one in ranked[: SHOWN // 2]][:SHOWN]
        return {
            "naming": self.naming,
            "note": "",
            "waiting_cpus": plain(float(sum(one.waiting for one in found))),
            "used_cpus": plain(float(sum(one.used for one in found))),
            "consumers": [
                {
                    "name": one.name,
                    "used_cpus": round(one.used, 3),
                    "waiting_cpus": round(one.waiting, 3),
                    "throttled_cpus": round(one.throttled, 3),
                    "background_cpus": round(one.background, 3),
                }
                for one in shown
            ],
        }

    def _consumers(self) -> list[Consumer]:
        found: tuple[Consumer, ...] = self._source.consumers  # type: ignore[attr-defined]
        if self.naming == "hashed":
            return [one._replace(name=self._hashed(one.name)) for one in found]
        return list(found)

    def _hashed(self, name: str) -> str:
        # Names of units are easily guessed, so the key is secret and of this process alone.
        return hashlib.blake2s(os.fsencode(name), key=self._key, digest_size=4).hexdigest()


def _words(found: list[Consumer]) -> str:
    """Return who waits most and who uses most, in half a sentence.

    Examples
    --------
    >>> _words([Consumer("postgres.service", 0.3, 1.9), Consumer("build-7", 0.1, 1.2), Consumer("backup", 1.8)])
    '3.1 CPUs waiting: postgres.service 1.9, build-7 1.2; CPUs used by backup 1.8'
    """
    total = sum(one.waiting for one in found)
    least = max(LEAST_CPUS, LEAST_SHARE * total)
    waiting = sorted(found, key=lambda one: one.waiting, reverse=True)[:WAITING_NAMED]
    named = [f"{one.name} {one.waiting:.1f}" for one in waiting if one.waiting >= least]
    if not named:
        return ""
    using = sorted(found, key=lambda one: one.used, reverse=True)[:USING_NAMED]
    users = [f"{one.name} {one.used:.1f}" for one in using if one.used >= LEAST_CPUS]
    by = f"; CPUs used by {', '.join(users)}" if users else ""
    return f"{total:.1f} CPUs waiting: {', '.join(named)}{by}"
