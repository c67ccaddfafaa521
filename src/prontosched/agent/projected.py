"""Projections as the decision log keeps them: a few bytes per timestep.

Covers: which directions go on and which begin anew, and packing projections, spikes
and beginnings into bytes and back. Where they are kept is `prontosched.agent.decision_log`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prontosched.decision import Evidence
from prontosched.subspace import Array, Subspace

KEPT_DIRECTIONS = 8
SAME_COSINE = 0.5
UNKNOWN = -32768
# Two bytes from 1e-3 to 1e9 with three significant digits, and always larger for larger values,
# so that lowest and highest may be found before unpacking.
_FINEST = 1e-3
_STEPS = 1150.0
_LARGEST = 32767
_MASKS = 3
_PACKED_BYTES = _MASKS + 2 * KEPT_DIRECTIONS

Whole = NDArray[np.int64]


class Lineages:
    """Tell, timestep by timestep, which directions of which nodes are no longer what they were.

    A direction begins anew when the node does, when the number of directions changes, when
    its sign turns, or when it lies more than 60 degrees from where it began. Through such a
    moment no line may be drawn. A node that was warm when first met goes on from before.

    Notes
    -----
    Memory: two subspaces for each of at most `MOST` nodes; of more the first met are met anew.
    """

    MOST = 256

    def __init__(self) -> None:
        self._met: dict[str, Subspace | None] = {}
        self._began: dict[str, tuple[tuple[str, ...], Array]] = {}

    def begun(self, name: str, evidence: Evidence) -> list[int]:
        """Return 1 for each direction that begins anew at this timestep, else 0."""
        subspace = evidence.subspace
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
        if began.shape != subspace.basis.shape or metrics != (evidence.metrics or ()):
            self._began[name] = (evidence.metrics or (), subspace.basis.copy())
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
        return UNKNOWN
    return max(-_LARGEST, min(_LARGEST, round(_STEPS * math.asinh(max(-1e12, min(1e12, value)) / _FINEST))))


def expanded(number: float) -> float:
    """Return the projection that `compress` made a whole number of."""
    return _FINEST * math.sinh(number / _STEPS)


def pack(projections: Sequence[float], spikes: Sequence[int] | None, begun: Sequence[int]) -> bytes | None:
    """Return the first directions of one timestep as bytes; None where there are none."""
    rank = min(len(projections), KEPT_DIRECTIONS)
    if not rank:
        return None
    up = down = new = 0
    for i in range(rank):
        if spikes is not None and spikes[i]:
            if spikes[i] > 0:
                up |= 1 << i
            else:
                down |= 1 << i
        if i < len(begun) and begun[i]:
            new |= 1 << i
    return struct.pack(f"<3B{rank}h", up, down, new, *[compress(p) for p in projections[:rank]])


class Packed:
    """Many packed timesteps, as arrays with a row for each.

    Attributes
    ----------
    values
        Compressed projections, `(n, 8)`, `UNKNOWN` where there are none.
    up, down, begun
        Whether each direction spiked and which way, and whether it began anew, `(n, 8)`.
    """

    def __init__(self, packed: Sequence[bytes]) -> None:
        filler = struct.pack("<h", UNKNOWN) * KEPT_DIRECTIONS
        whole = b"".join((one + filler[len(one) - _MASKS :])[:_PACKED_BYTES] for one in packed)
        rows = np.frombuffer(whole, np.uint8).reshape(-1, _PACKED_BYTES)
        self.values = rows[:, _MASKS:].copy().view("<i2").astype(np.int64)
        bits = np.unpackbits(rows[:, :_MASKS, None], axis=2, bitorder="little").astype(np.int64)
        self.up, self.down, self.begun = bits[:, 0], bits[:, 1], bits[:, 2]


class Bands:
    """Projections over stretches of time: lowest, highest, spikes, beginnings, a row for each stretch.

    Parameters
    ----------
    groups
        Number of the stretch each row belongs to, `(n,)`, ascending from 0.
    low, high
        Compressed, `(n, 8)`, `UNKNOWN` where there are none.
    up, down, begun
        Counts of each, `(n, 8)`.
    """

    def __init__(self, groups: Whole, low: Whole, high: Whole, up: Whole, down: Whole, begun: Whole) -> None:
        starts = np.flatnonzero(np.diff(groups, prepend=-1))
        self.groups = groups[starts]
        self.low = np.minimum.reduceat(np.where(low == UNKNOWN, _LARGEST + 1, low), starts, axis=0)
        self.high = np.maximum.reduceat(high, starts, axis=0)
        self.up, self.down, self.begun = (np.add.reduceat(one, starts, axis=0) for one in (up, down, begun))

    def fields(self, row: int) -> dict[str, Any]:
        """Return one stretch as plain values, one per direction."""
        known = np.flatnonzero(self.high[row] != UNKNOWN)
        if not known.size:
            return dict.fromkeys(BAND_FIELDS)
        rank = int(known[-1]) + 1
        return {
            "projections_low": [_short(n) for n in self.low[row, :rank].tolist()],
            "projections_high": [_short(n) for n in self.high[row, :rank].tolist()],
            "spikes_up": self.up[row, :rank].tolist(),
            "spikes_down": self.down[row, :rank].tolist(),
            "begun": [int(n > 0) for n in self.begun[row, :rank].tolist()],
        }


BAND_FIELDS = ("projections_low", "projections_high", "spikes_up", "spikes_down", "begun")


def _short(number: int) -> float | None:
    return None if abs(number) > _LARGEST else float(f"{expanded(number):.4g}")
