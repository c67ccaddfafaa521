"""Undo what is ours: everything at once, or only what has lapsed.

Covers: `pronto gate release` and the watchdog, for every gate that `Gate` describes.
Neither needs the agent that closed the nodes, nor trusts it to be alive.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from prontosched.errors import IntegrationError
from prontosched.integration.gate import Gate


@dataclass(slots=True)
class Swept:
    """What a sweep did.

    Attributes
    ----------
    opened
        Nodes of ours that now take jobs again.
    kept
        Nodes of ours whose verdict still counts.
    failed
        Nodes that could not be opened, with the scheduler's words.
    """

    opened: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def release(gate: Gate) -> Swept:
    """Open every node that bears our mark, whether or not its verdict still counts."""
    return _sweep(gate, gate.owned(), now=None)


def sweep(gate: Gate, *, now: float, node: str | None = None) -> Swept:
    """Open the nodes of ours whose verdict is over, or cannot be read; all, or only `node`."""
    return _sweep(gate, gate.owned() if node is None else [node], now=now)


def _sweep(gate: Gate, nodes: list[str], *, now: float | None) -> Swept:
    swept = Swept()
    for node in nodes:
        try:
            observed = gate.observe(node)
            if not observed.ours:
                continue
            if now is not None and not observed.lapsed(now):
                swept.kept.append(node)
                continue
            gate.accept(node)
            swept.opened.append(node)
        except IntegrationError as error:
            # One node that the scheduler refuses to open must not keep the others closed.
            swept.failed[node] = str(error)
    return swept
