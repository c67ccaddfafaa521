"""Undoing our marks at a scheduler: those that are over (`sweep`), or all (`release`).

Nothing here needs the agent that made them: a watchdog and an operator's command undo what one left behind.
"""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace

from prontosched.errors import IntegrationError
from prontosched.gates.gate import Gate, ListingGate, Observed, PreferringGate, SweepingGate


@dataclass(slots=True)
class SweepResult:
    """Nodes that were opened, lost our rank, keep a mark that counts, and could not be undone, with why."""

    opened: list[str] = field(default_factory=list)
    restored: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def marked(gate: Gate) -> dict[str, Observed]:
    """Return what the scheduler says about every node that bears a mark of ours, in one call where it can."""
    if isinstance(gate, ListingGate):
        return {name: seen for name, seen in gate.observe_all().items() if seen.marked}
    return {name: gate.observe(name) for name in gate.owned()}


def release(gate: Gate) -> SweepResult:
    """Open every node that we closed and take off every rank, whether or not it still counts."""
    return sweep(gate, now=float("inf"))


def sweep(gate: Gate, *, now: float, node: str | None = None, seconds: float = math.inf) -> SweepResult:
    """Undo what of ours is over at `now`, or cannot be read: on all nodes, or only on `node`.

    Where one call tells of all nodes, only those that are over are looked at again, closed ones
    first, and opened together where the gate can: a call for each of a thousand would keep nodes closed
    past their time. For the same reason ranks are taken off for `seconds` at most; the rest is left to
    the next sweep.
    """
    swept, begun = SweepResult(), time.monotonic()
    listed: dict[str, Observed] = {}
    if node is None and isinstance(gate, ListingGate):
        listed = marked(gate)
        names = sorted(listed, key=lambda name: (not listed[name].lapsed(now), name))
        lapsed = [name for name in names if listed[name].lapsed(now)]
        if lapsed and isinstance(gate, SweepingGate):
            with suppress(IntegrationError):  # each is then tried alone, and says what it is
                swept.opened += gate.accept_lapsed(lapsed, now)
            listed |= {name: replace(listed[name], state="open") for name in swept.opened}
    else:
        names = gate.owned() if node is None else [node]
    opened = frozenset(swept.opened)
    for name in names:
        try:
            seen = listed[name] if name in listed else gate.observe(name)
            over = seen.rank is not None and seen.rank.expired(now)
            if over and not seen.lapsed(now) and time.monotonic() - begun > seconds:
                swept.kept.append(name)
                continue
            if name in listed and (over or seen.lapsed(now)):
                seen = gate.observe(name)
            if seen.lapsed(now):
                gate.accept(name)
                swept.opened.append(name)
            elif seen.ours:
                swept.kept.append(name)
            if seen.rank is not None and seen.rank.expired(now) and isinstance(gate, PreferringGate):
                gate.restore(name)
                swept.restored.append(name)
            elif seen.rank is not None and not seen.ours and name not in opened:
                swept.kept.append(name)
        except IntegrationError as error:
            # One node that the scheduler refuses to open must not keep the others from being undone.
            swept.failed[name] = str(error)
    return swept
