"""Directions of a node over time, as the decision log keeps them and pages draw them.

A projection takes two bytes, a stretch of time the range of each.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from prontosched.decision import Evidence
from prontosched.subspace import Array, Subspace

KEPT_DIRECTIONS = 8
SAME_COSINE = 0.5
# Two bytes from 1e-3 to 1e9 with three significant digits, and always larger for larger values.
_UNKNOWN, _LARGEST, _FINEST, _STEPS = -32768, 32767, 1e-3, 1150.0
_MASKS = 3
BAND_FIELDS = ("projections_low", "projections_high", "spikes_up", "spikes_down", "begun")


class Lineages:
    """Tell, timestep by timestep, which directions of which nodes are no longer what they were.

    A direction begins anew when the node does, when the number of directions changes, when
    its sign turns, or when it lies more than 60 degrees from where it began. Through such a
    moment no line may be drawn. A node that was warm when first met goes on from before.
    Memory: two subspaces for each of at most `MOST` nodes; of more the first met are met anew.
    """

    MOST = 256

    def __init__(self) -> None:
        self._met: dict[str, Subspace | None] = {}
        self._began: dict[str, tuple[tuple[str, ...], Array]] = {}

    def begun(self, name: str, evidence: Evidence) -> list[int]:
        """Return 1 for each direction that begins anew at this timestep, else 0."""
        subspace, names = evidence.subspace, evidence.metrics or ()
        first = name not in self._met
        if first and len(self._met) >= self.MOST:
            oldest = next(iter(self._met))
            del self._met[oldest]
            self._began.pop(oldest, None)
        before = self._met.get(name)
        self._met[name] = subspace
        if subspace is None:
            return []
        if subspace is before:
            return [0] * subspace.rank
        metrics, began = self._began.get(name, ((), np.zeros((0, 0))))
        if began.shape != subspace.basis.shape or metrics != names:
            self._began[name] = (names, subspace.basis.copy())
            return [0 if first else 1] * subspace.rank
        turned = (began * subspace.basis).sum(axis=0) < SAME_COSINE
        if turned.any():
            began[:, turned] = subspace.basis[:, turned]
        return [int(one) for one in turned]


def compress(value: float) -> int:
    """Return a projection as a whole number that fits two bytes.

    Examples
    --------
    >>> [round(expanded(compress(value)), 2) for value in (0.0, -4.2, 1234.5)]
    [0.0, -4.2, 1234.26]
    """
    if not math.isfinite(value):
        return _UNKNOWN
    return max(-_LARGEST, min(_LARGEST, round(_STEPS * math.asinh(max(-1e12, min(1e12, value)) / _FINEST))))


def expanded(number: float) -> float:
    """Return the projection that `compress` made a whole number of."""
    return _FINEST * math.sinh(number / _STEPS)


def pack(projections: Sequence[float], spikes: Sequence[int] | None, begun: Sequence[int]) -> bytes | None:
    """Return the first directions of one timestep as bytes; None where there are none."""
    rank = min(len(projections), KEPT_DIRECTIONS)
    if not rank:
        return None
    signs = [0] * rank if spikes is None else spikes
    up = sum(1 << i for i in range(rank) if signs[i] > 0)
    down = sum(1 << i for i in range(rank) if signs[i] < 0)
    new = sum(1 << i for i in range(min(rank, len(begun))) if begun[i])
    return struct.pack(f"<3B{rank}h", up, down, new, *[compress(p) for p in projections[:rank]])


class Bands:
    """Projections over a stretch of time: lowest, highest, spikes and beginnings of each direction."""

    __slots__ = ("begun", "down", "high", "low", "up")

    def __init__(self) -> None:
        self.low: list[int] = []
        self.high: list[int] = []
        self.up: list[int] = []
        self.down: list[int] = []
        self.begun: list[int] = []

    def add(self, packed: bytes) -> None:
        """Add one timestep, as `pack` made it."""
        rank = min((len(packed) - _MASKS) // 2, KEPT_DIRECTIONS)
        values = struct.unpack_from(f"<{rank}h", packed, _MASKS)
        low, high = self._room(rank)
        for i, value in enumerate(values):
            if value > high[i]:
                high[i] = value
            if value < low[i] and value != _UNKNOWN:
                low[i] = value
        for mask, held in zip(packed[:_MASKS], (self.up, self.down, self.begun), strict=True):
            if mask:
                for i in range(rank):
                    held[i] += mask >> i & 1

    def _room(self, rank: int) -> tuple[list[int], list[int]]:
        if (grow := rank - len(self.low)) > 0:
            self.low += [_LARGEST + 1] * grow
            self.high += [_UNKNOWN] * grow
            for held in (self.up, self.down, self.begun):
                held += [0] * grow
        return self.low, self.high

    def merge(self, other: Sequence[Sequence[int]]) -> None:
        """Add another stretch: lowest, highest, spikes up and down, and beginnings."""
        self._room(len(other[0]))
        for i, (low, high, up, down, begun) in enumerate(zip(*other, strict=True)):
            self.low[i] = min(self.low[i], low)
            self.high[i] = max(self.high[i], high)
            self.up[i] += up
            self.down[i] += down
            self.begun[i] += begun

    def text(self) -> str:
        """Return it as it is kept."""
        return json.dumps([self.low, self.high, self.up, self.down, self.begun], separators=(",", ":"))

    def fields(self) -> dict[str, Any]:
        """Return it as plain values, one per direction."""
        return {
            "projections_low": [_short(number) for number in self.low],
            "projections_high": [_short(number) for number in self.high],
            "spikes_up": self.up,
            "spikes_down": self.down,
            "begun": [int(number > 0) for number in self.begun],
        }


def _short(number: int) -> float | None:
    return None if abs(number) > _LARGEST else float(f"{expanded(number):.4g}")
