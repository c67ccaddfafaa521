"""Undo what is ours: everything at once, or only what has lapsed.

Covers: `pronto gate release` and the watchdog, for every gate that `Gate` describes.
Neither needs the agent that closed the nodes, nor trusts it to be alive.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from prontosched.errors import IntegrationError
from prontosched.gates.gate import Gate, PreferringGate


@dataclass(slots=True)
class Swept:
    """What a sweep did.

    Attributes
    ----------
    opened
        Nodes of ours that now take jobs again.
    restored
        Nodes that have lost our rank and are again as their administrator set them.
    kept
        Nodes of ours whose verdict or rank still counts.
    failed
        Nodes that could not be undone, with the scheduler's words.
    """

    opened: list[str] = field(default_factory=list)
    restored: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def release(gate: Gate) -> Swept:
    """Open every node that we closed and take off every rank, whether or not it still counts."""
    return _sweep(gate, gate.owned(), now=None)


def sweep(gate: Gate, *, now: float, node: str | None = None) -> Swept:
    """Undo what of ours is over, or cannot be read: on all nodes, or only on `node`."""
    return _sweep(gate, gate.owned() if node is None else [node], now=now)


def _sweep(gate: Gate, nodes: list[str], *, now: float | None) -> Swept:
    swept = Swept()
    for node in nodes:
        try:
            observed = gate.observe(node)
            rank, over = observed.rank, now is None
            if rank is not None and isinstance(gate, PreferringGate) and (over or rank.expired(now or 0.0)):
                gate.restore(node)
                swept.restored.append(node)
            elif rank is not None and not observed.ours:
                swept.kept.append(node)
            if observed.ours and (over or observed.lapsed(now or 0.0)):
                gate.accept(node)
                swept.opened.append(node)
            elif observed.ours:
                swept.kept.append(node)
        except IntegrationError as error:
            # One node that the scheduler refuses to open must not keep the others from being undone.
            swept.failed[node] = str(error)
    return swept
