"""What directions are made of, and which metrics drove a decision. Pure.

Covers: shares and signs of metrics in a subspace, the pull of each metric on a
projection, what changed from one subspace to the next, and all of it in words.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from prontosched.subspace import Array, Subspace, distance

# `cpu` of `cpu0_user_percent`, `net` of `net.sent`.
_FIRST_WORD = re.compile(r"[^\W\d_]+")


class MetricShare(NamedTuple):
    """One metric's share of something, in [0, 1], and its sign: +1 when it moves along with the whole, else −1."""

    metric: str
    share: float
    sign: int


class Direction(NamedTuple):
    """One direction of a subspace in words.

    `strength` is its part of the sum of squared singular values. `parts` are the metrics with the largest shares,
    largest first; the first is said to go up, for a direction and its opposite are the same. `sign` is −1 where a
    projection goes down when that metric goes up. `families` are shares by what the metrics' names begin with.
    """

    number: int
    singular_value: float
    strength: float
    parts: list[MetricShare]
    sign: int
    families: list[MetricShare]


def directions(subspace: Subspace, metrics: Sequence[str], *, top: int = 5) -> list[Direction]:
    """Name the metrics each direction is made of.

    A metric's share is its squared weight: the shares of one direction sum to 1.

    Examples
    --------
    >>> found = directions(Subspace(np.array([[0.6], [-0.8]]), np.array([2.0])), ("load", "idle"))
    >>> [(part.metric, round(part.share, 2), part.sign) for part in found[0].parts]
    [('idle', 0.64, 1), ('load', 0.36, -1)]
    """
    power = float(np.square(subspace.singular_values).sum()) or 1.0
    found = []
    for index, (column, value) in enumerate(zip(subspace.basis.T, subspace.singular_values, strict=True)):
        shares = np.square(column)
        sign = -1 if column.size and column[int(np.argmax(shares))] < 0 else 1
        parts = _largest(shares, sign * column, metrics, column.size)
        strength = float(value) ** 2 / power
        found.append(Direction(index, float(value), strength, parts[:top], sign, families(parts)))
    return found


def drivers(
    vector: Array,
    subspace: Subspace,
    metrics: Sequence[str],
    *,
    spikes: Sequence[int] | None = None,
    top: int = 5,
) -> list[MetricShare]:
    """Name the metrics that stood out most at one timestep.

    A metric's share is its part in all movement: its scaled value squared, over the sum
    of all. A metric that no direction holds yet counts as much as any other: it may be
    the news. A signal that goes by spikes gives them, and then only the pull along the
    directions that spike counts: weight times scaled value, with the projection's sign,
    times the singular value.

    Examples
    --------
    >>> plane = Subspace(np.eye(3)[:, :2], np.array([2.0, 1.0]))
    >>> [part.metric for part in drivers(np.array([1.0, 9.0, 5.0]), plane, "abc", top=2)]
    ['b', 'c']
    >>> [part.metric for part in drivers(np.array([1.0, 9.0, 5.0]), plane, "abc", spikes=[1, 0])]
    ['a']
    """
    toward = np.square(vector)
    if spikes is not None and any(spikes):
        weights = subspace.singular_values * np.array([1.0 if spike else 0.0 for spike in spikes])
        projections = subspace.basis.T @ vector
        toward = np.maximum((subspace.basis * (weights * np.sign(projections))).sum(axis=1) * vector, 0.0)
    whole = float(toward.sum())
    if whole <= 0.0:
        return []
    return _largest(toward / whole, vector, metrics, top)


class SubspaceChange(NamedTuple):
    """How far a subspace moved, blind to signs and rotation, and whose part in it grew and shrank most."""

    distance: float
    rank_before: int
    rank: int
    gained: list[MetricShare]
    lost: list[MetricShare]


def changes(before: Subspace, after: Subspace, metrics: Sequence[str], *, top: int = 3) -> SubspaceChange:
    """Say what changed from one subspace to the next, over the same metrics."""
    difference = _importance(after) - _importance(before)
    return SubspaceChange(
        float(distance(before, after)),
        before.rank,
        after.rank,
        _largest(np.maximum(difference, 0.0), difference, metrics, top),
        _largest(np.maximum(-difference, 0.0), difference, metrics, top),
    )


def sentence(parts: Sequence[MetricShare]) -> str:
    """Read parts aloud: `cpu_user up (61 %), ctxt down (12 %)`.

    Examples
    --------
    >>> sentence([MetricShare("load", 0.61, 1), MetricShare("idle", 0.12, -1)])
    'load up (61 %), idle down (12 %)'
    """
    return ", ".join(
        f"{p.metric} {'up' if p.sign > 0 else 'down'} ({p.share:.0%})".replace("%", " %") for p in parts
    )


def families(parts: Sequence[MetricShare], *, top: int = 3) -> list[MetricShare]:
    """Add parts up by the first word of their metrics: hundreds of metrics are of few kinds.

    Examples
    --------
    >>> shares = [("cpu0_user", 0.3, 1), ("cpu.idle", 0.2, -1), ("net_in", 0.1, 1)]
    >>> found = families([MetricShare(*share) for share in shares])
    >>> [(part.metric, round(part.share, 2)) for part in found]
    [('cpu', 0.5), ('net', 0.1)]
    """
    shares: dict[str, float] = {}
    signed: dict[str, float] = {}
    for part in parts:
        name = _FIRST_WORD.match(part.metric)
        family = part.metric if name is None else name[0]
        shares[family] = shares.get(family, 0.0) + part.share
        signed[family] = signed.get(family, 0.0) + part.share * part.sign
    largest = sorted((f for f in shares if shares[f] >= 0.01), key=lambda family: -shares[family])[:top]
    return [MetricShare(family, shares[family], 1 if signed[family] >= 0 else -1) for family in largest]


def turning(distance: float) -> str:
    """Say what directions did that moved this far: `hardly changed`, … .

    Examples
    --------
    >>> turning(0.03), turning(0.9)
    ('hardly changed', 'changed almost entirely')
    """
    steps = ((0.05, "hardly changed"), (0.2, "changed a little"), (0.45, "clearly changed"))
    return next((words for limit, words in steps if distance < limit), "changed almost entirely")


def _importance(subspace: Subspace) -> Array:
    power = np.square(subspace.singular_values)
    found: Array = np.square(subspace.basis) @ power / (float(power.sum()) or 1.0)
    return found


def _largest(shares: Array, signed: Array, metrics: Sequence[str], top: int) -> list[MetricShare]:
    order = np.argsort(-shares, kind="stable")[:top]
    return [
        MetricShare(str(metrics[i]), float(shares[i]), 1 if signed[i] >= 0 else -1)
        for i in order
        if shares[i] > 1e-12
    ]
