"""An aggregator: keep the newest summary of each child, merge, pass on if it changed.

Nothing is ever added to a running total. What an aggregator answers depends only on
the newest summaries it holds, so duplicates, replays, any order of arrival and a
restart lead to the same result, and no sample is counted twice.
Does not cover: how messages travel; see `prontosched.federation.service`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from prontosched.errors import FederationError
from prontosched.federation.clash import MAX_CLASHES, Clashes
from prontosched.federation.message import Summary
from prontosched.federation.pooling import (
    pooled_scale,
    pooled_statistics,
    pooled_subspace,
    shared_metrics,
)


class Child(NamedTuple):
    """The newest summary of a child and when it was heard."""

    summary: Summary
    heard: float


class Aggregator:
    """Merge the newest summaries of all children into one.

    Parameters
    ----------
    name
        Place in the tree; empty for the root.
    rank
        Directions of interest. Paper: r.
    spare
        Directions kept beyond `rank` inside the tree: truncation is what makes merging
        depend on the shape of the tree, and a few spare ones all but undo that.
    expiry_seconds
        Silence after which a child no longer counts.
    fan_out
        Children at most; one more is refused, so that a flood cannot fill the memory.
    largest_weight
        Samples per node that count at most.

    Notes
    -----
    Memory: one summary per child, `d * (rank + spare + 4)` floats each, and 2,400 for what
    a learned signal shares.
    """

    def __init__(
        self,
        name: str,
        *,
        rank: int = 4,
        spare: int = 4,
        expiry_seconds: float = 180.0,
        fan_out: int = 1024,
        largest_weight: float = 1e6,
    ) -> None:
        if rank < 1 or spare < 0:
            raise ValueError(f"rank must be at least 1 and spare at least 0, got {rank} and {spare}")
        if fan_out < 1:
            raise ValueError(f"fan_out must be at least 1, got {fan_out}")
        self.name = name
        self.rank = rank
        self.spare = spare
        self.expiry_seconds = expiry_seconds
        self.fan_out = fan_out
        self.largest_weight = largest_weight
        self.children: dict[str, Child] = {}
        self.clashes = Clashes(expiry_seconds)
        self._merged: Summary | None = None

    def receive(self, summary: Summary, *, now: float) -> bool:
        """Take a summary; False when it is not newer than the one held.

        A duplicate does not prolong a child's life either: only the child itself can,
        by sending something new.
        """
        held = self.children.get(summary.node)
        if held is not None and summary.version <= held.summary.version:
            if self._apart(summary, held) and self.clashes.heard(summary.node, summary.version, now):
                self._merged = None
            return False
        if held is None and len(self.children) >= self.fan_out:
            raise FederationError(
                f"aggregator {self.name or 'root'!r} must have at most {self.fan_out} children, got "
                f"{summary.node!r} as one more: raise fan_out, or use more shards"
            )
        if held is not None and self._apart(summary, held):
            self.clashes.replaced(summary.node, held.summary.version)
        self.children[summary.node] = Child(summary, now)
        self._merged = None
        return True

    @staticmethod
    def _apart(summary: Summary, held: Child) -> bool:
        """Tell whether a node's summary is of another start; aggregators take over from each other."""
        return summary.incarnation != held.summary.incarnation and not summary.merged

    def forget(self, node: str) -> bool:
        """Drop a child that took its leave; False when it was not held."""
        gone = self.children.pop(node, None) is not None
        if gone:
            self.clashes.forget(node)
            self._merged = None
        return gone

    def expire(self, now: float) -> list[str]:
        """Drop the children that were silent for too long and return their names."""
        silent = sorted(n for n, child in self.children.items() if now - child.heard > self.expiry_seconds)
        for node in silent:
            self.forget(node)
        if self.clashes.lapse(now):
            self._merged = None
        return silent

    def merged(self) -> Summary | None:
        """Return one summary for all children, or None without any.

        Incarnation and sequence are 0: whoever sends it numbers it.
        """
        if self._merged is None and self.children:
            # By name, so that not even rounding depends on the order of arrival.
            self._merged = self._merge([self.children[node].summary for node in sorted(self.children)])
        return self._merged

    def _merge(self, summaries: list[Summary]) -> Summary:
        metrics = shared_metrics(summaries)
        scale = pooled_scale(summaries, metrics)
        clashes = {name for s in summaries if s.merged for name in s.clashes}.union(self.clashes.names)
        weights = [min(s.samples, self.largest_weight * s.nodes) for s in summaries]
        return Summary(
            node=self.name,
            incarnation=0,
            sequence=0,
            metrics=metrics,
            subspace=pooled_subspace(
                summaries,
                metrics,
                scale.deviation,
                rank=self.rank + self.spare,
                largest_weight=self.largest_weight,
            ),
            samples=float(np.sum(weights)),
            nodes=sum(s.nodes for s in summaries),
            statistics=pooled_statistics(summaries),
            merged=True,
            clashes=tuple(sorted(clashes)[:MAX_CLASHES]),
            **scale._asdict(),
        )
