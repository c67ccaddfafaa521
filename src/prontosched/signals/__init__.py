"""The signals: what turns evidence into a decision.

`SIGNALS` names those that ship with Pronto; others register themselves through
the entry-point group `prontosched.signals` and are found by `find_signal`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from prontosched.decision import Decision, FleetDecision, FleetEvidence, FleetSignal, Signal
from prontosched.errors import SettingsError, suggestion
from prontosched.signals.learned import LearnedFleet, LearnedSignal
from prontosched.signals.reject_job import RejectJob, RejectJobFleet


class SeparateSignals:
    """The fleet form of a signal that has none of its own: one signal for each node, asked in turn."""

    def __init__(self, make: Callable[[], Signal], nodes: int) -> None:
        self.signals = [make() for _ in range(nodes)]
        self._last = [Decision(False, 0.0, np.inf, "no telemetry yet") for _ in range(nodes)]

    def decide(self, evidence: FleetEvidence) -> FleetDecision:
        """Answer for one timestep of every node; absent ones keep their last answer."""
        for node in np.flatnonzero(evidence.present).tolist():
            self._last[node] = self.signals[node].decide(evidence.of(node))
        fields = FleetDecision._fields
        return FleetDecision._make(np.array([getattr(one, field) for one in self._last]) for field in fields)

    def reason(self, node: int) -> str:
        """Say why `node` was decided as it was at the last timestep."""
        return self._last[node].reason


@dataclass(frozen=True)
class SignalKind:
    """A signal in both forms; both take the same options.

    Attributes
    ----------
    one
        `one(**options)` makes the signal of one node.
    many
        `many(nodes, **options)` makes that of many nodes at once; without it there is one for each.
    """

    one: Callable[..., Signal]
    many: Callable[..., FleetSignal] | None = None

    def fleet(self, nodes: int, **options: Any) -> FleetSignal:
        """Return the signal of `nodes` nodes."""
        if self.many is not None:
            return self.many(nodes, **options)
        return SeparateSignals(lambda: self.one(**options), nodes)


SIGNALS: dict[str, SignalKind] = {
    "learned": SignalKind(LearnedSignal, LearnedFleet),
    "paper": SignalKind(RejectJob, RejectJobFleet),
}


def all_signals() -> dict[str, SignalKind]:
    """Return every signal: Pronto's own and those of installed packages.

    An entry point names a signal's class, or a `SignalKind` where it has a form for fleets too.
    """
    from importlib.metadata import entry_points  # slow to import, and rarely needed

    found = dict(SIGNALS)
    for entry in entry_points(group="prontosched.signals"):
        kind = entry.load()
        found.setdefault(entry.name, kind if isinstance(kind, SignalKind) else SignalKind(kind))
    return found


def find_signal(name: str) -> SignalKind:
    """Return the signal called `name`."""
    if name in SIGNALS:
        return SIGNALS[name]
    found = all_signals()
    if name not in found:
        raise SettingsError(f"no signal is called {name!r}{suggestion(name, found)}")
    return found[name]


__all__ = [
    "SIGNALS",
    "LearnedFleet",
    "LearnedSignal",
    "RejectJob",
    "RejectJobFleet",
    "SignalKind",
    "all_signals",
    "find_signal",
]
