"""One scale for the fleet: from each node's own units to pooled ones and back.

Nodes divide their metrics by their own deviations, so a step of 1 means something else on
each. Before summaries are merged they are brought to the pooled deviation within nodes. How
far the levels of nodes lie apart is kept as `spread`: a node only ever looks at departures
from its own level.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from prontosched.federation.link import MESSAGE_LIMIT
from prontosched.federation.message import (
    MAX_MOMENT,
    MAX_STATISTIC_NUMBERS,
    MAX_STATISTICS,
    GlobalView,
    Statistics,
    Summary,
)
from prontosched.federation.schema import MAX_METRICS, Metrics, carry, name_bytes, rows, union
from prontosched.subspace import Array, Subspace, summarise

# A node that is quiet in a metric must not see the whole view through that one.
MAX_STRETCH = 8.0
# Bytes of a message for names and plain fields. The rest is for 4-byte numbers: statistics, and those of metrics.
HEADER_BYTES = 64 * 1024
METRIC_NUMBERS = (MESSAGE_LIMIT - HEADER_BYTES) // 4 - MAX_STATISTIC_NUMBERS


class PooledScale(NamedTuple):
    """Scale per metric, `(d,)` each; see `Estimate` for what they mean."""

    mean: Array
    deviation: Array
    spread: Array
    counts: Array


def pooled_scale(
    summaries: Sequence[Summary], metrics: Metrics, *, largest_weight: float = np.inf
) -> PooledScale:
    """Return the scale of all summaries together, each metric over those who have it.

    Deviations are pooled within nodes. What the nodes' levels lie apart adds to `spread`, never to
    `deviation`. At most `largest_weight` samples of a node count, so that none outweighs the fleet.
    """
    fields: list[Array] = []
    for field in PooledScale._fields:
        groups = [
            carry(np.stack([getattr(s, field) for s in group], axis=1), schema, metrics)
            for schema, group in _by_schema(summaries).items()
        ]
        fields.append(np.hstack(groups))
    mean, deviation, spread, counts = (field.T for field in fields)
    ordered = [summary.nodes for group in _by_schema(summaries).values() for summary in group]
    counts = np.minimum(counts, largest_weight * np.array(ordered, np.float64)[:, None])
    total = counts.sum(axis=0)
    share = np.divide(counts, total, out=np.zeros_like(counts), where=total > 0)
    level = (share * mean).sum(axis=0)
    return PooledScale(
        level,
        np.sqrt((share * deviation**2).sum(axis=0)),
        np.sqrt((share * (spread**2 + (mean - level) ** 2)).sum(axis=0)),
        total,
    )


def pooled_subspace(
    summaries: Sequence[Summary],
    metrics: Metrics,
    deviation: Array,
    *,
    rank: int,
    largest_weight: float = np.inf,
) -> Subspace | None:
    """Return the leading directions of all summaries on one scale.

    Equal to the truncated SVD of all weighted bases side by side, each row divided by
    `deviation` instead of the node's own. A metric that a node does not have counts as
    0 there. The directions are orthonormal again, which rescaling alone would not keep.
    Nobody's movement along a metric counts for more than so many samples of that metric can have.
    """
    parts = []
    for schema, group in _by_schema(s for s in summaries if s.subspace is not None).items():
        own = carry(np.stack([s.deviation for s in group], axis=1), schema, metrics)
        stretch = np.divide(own, deviation[:, None], out=np.zeros_like(own), where=deviation[:, None] > 0)
        for summary, stretched in zip(group, stretch.T, strict=True):
            subspace = summary.subspace
            assert subspace is not None
            most = largest_weight * summary.nodes
            strengths = min(1.0, np.sqrt(most / max(summary.samples, 1e-300))) * subspace.singular_values
            moment = subspace.basis**2 @ strengths**2
            possible = MAX_MOMENT / 2.0 * np.minimum(summary.counts, most)
            share = np.divide(possible, moment, out=np.ones_like(moment), where=moment > possible)
            basis, limit = carry(subspace.basis, schema, metrics), carry(np.sqrt(share), schema, metrics)
            parts.append(basis * (stretched * limit)[:, None] * strengths)
    return summarise(np.hstack(parts), rank=rank) if parts else None


def pooled_statistics(summaries: Iterable[Summary]) -> Statistics:
    """Return the sum over nodes of each named statistic.

    Where two releases share different shapes under one name, the shape that more nodes
    send is summed and the other left out. So are those that fewest send, beyond what a message holds.
    """
    sums: dict[tuple[str, tuple[int, ...]], tuple[int, Array]] = {}
    for summary in summaries:
        for name, value in summary.statistics.items():
            nodes, held = sums.get((name, value.shape)) or (0, np.zeros(value.shape))
            held += value
            sums[name, value.shape] = (nodes + summary.nodes, held)
    chosen: dict[str, Array] = {}
    room = MAX_STATISTIC_NUMBERS
    most_first = sorted(sums.items(), key=lambda item: (item[1][0], item[0]), reverse=True)
    for (name, _shape), (_nodes, value) in most_first:
        if name not in chosen and len(chosen) < MAX_STATISTICS and value.size <= room:
            chosen[name] = value
            room -= value.size
    return chosen


def shared_metrics(summaries: Sequence[Summary], *, rank: int) -> Metrics:
    """Return all metrics of all summaries; those that most nodes have, where a message cannot hold all.

    A message holds mean, deviation, spread, count and `rank` directions of each metric, and their
    names must fit into a schema. Between metrics of as many nodes the number of samples decides.
    """
    metrics = union({s.metrics for s in summaries})
    most = min(MAX_METRICS, METRIC_NUMBERS // (rank + 4))
    sizes = np.array([name_bytes(name) for name in metrics])
    if len(metrics) <= most and sizes.sum() <= MESSAGE_LIMIT - HEADER_BYTES:
        return metrics
    nodes, samples = np.zeros(len(metrics)), np.zeros(len(metrics))
    for summary in summaries:
        own = rows(summary.metrics, metrics)
        nodes[own] += summary.nodes * (summary.counts > 0)
        samples[own] += summary.counts
    order = np.lexsort((-samples, -nodes))[:most]
    chosen = order[np.cumsum(sizes[order]) <= MESSAGE_LIMIT - HEADER_BYTES]
    return tuple(metrics[row] for row in np.sort(chosen))


def view_in_units(
    view: GlobalView, metrics: Metrics, deviation: Array | None, *, rank: int, samples: float = 1.0
) -> Subspace | None:
    """Return the global view over a node's own metrics and in its own scaled units.

    None when the node and the view share no metric, or the view is empty. Without a `deviation` of
    its own, `(d,)`, a node takes the fleet's units for its own. The singular values are to stand
    for `samples` vectors of an average node.
    """
    if view.subspace is None or view.samples <= 0:
        return None
    weighted = view.subspace.basis * (view.subspace.singular_values * np.sqrt(samples / view.samples))
    mine = carry(weighted, view.metrics, metrics)
    if deviation is not None:
        fleet = carry(view.deviation, view.metrics, metrics)
        stretch = np.divide(fleet, deviation, out=np.zeros_like(fleet), where=deviation > 0)
        mine = mine * np.clip(stretch, 0.0, MAX_STRETCH)[:, None]
    return summarise(mine, rank=rank)


def trust(view: Subspace, own: Subspace | None) -> float:
    """Return how far a node should trust the global view, from 0 to 1, by what it saw itself.

    1 when the view holds all of the node's own directions, 0 when it holds no more of
    them than any view of that rank would. The fourth power: a machine half unlike the
    others is better served by its own few vectors than by half a view.
    """
    if own is None:
        return 1.0
    # Weighed by strength: the weak directions are noise and would make every node an outlier.
    weighted = own.basis * own.singular_values
    inside = min(1.0, float(np.sum((view.basis.T @ weighted) ** 2) / np.sum(weighted**2)))
    chance = min(view.rank / view.features, 0.99)
    return float(np.clip((inside - chance) / (1.0 - chance), 0.0, 1.0) ** 4)


def _by_schema(summaries: Iterable[Summary]) -> dict[Metrics, list[Summary]]:
    groups: dict[Metrics, list[Summary]] = {}
    for summary in summaries:
        groups.setdefault(summary.metrics, []).append(summary)
    return groups
