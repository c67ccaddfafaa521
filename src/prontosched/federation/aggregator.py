"""An aggregator: keep the newest summary of each child, merge them all.

Nothing is ever added to a running total. What an aggregator returns depends only on the
newest summaries it holds. So duplicates, replays, any order of arrival and a restart lead to
the same result, and no sample is counted twice.
Does not cover: how messages travel; see `prontosched.federation.service`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from prontosched.errors import FederationError
from prontosched.federation.message import MAX_CLASHES, Summary
from prontosched.federation.pooling import pooled_scale, pooled_statistics, pooled_subspace, shared_metrics
from prontosched.federation.tree import MAX_NODES

# New summaries of an older incarnation that make a conflict: the first may have been on its way.
CONFLICT_SUMMARIES = 2
# Incarnations of one name that are told apart.
MAX_FORMER = 16

Version = tuple[int, int]


@dataclass(slots=True)
class _Former:
    """The last sequence of each older incarnation of a name, and how often these sent since."""

    sequences: dict[int, int] = field(default_factory=dict)
    times: int = 0
    when: float = 0.0

    def note(self, version: Version) -> bool:
        """Take note of a summary; True when it is a new one of an incarnation known before."""
        incarnation, sequence = version
        last = self.sequences.get(incarnation)
        if last is not None and sequence <= last:
            return False
        # In the order in which they sent, so that those who stopped are dropped first.
        self.sequences.pop(incarnation, None)
        self.sequences[incarnation] = sequence
        if len(self.sequences) > MAX_FORMER:
            del self.sequences[next(iter(self.sequences))]
        return last is not None


class NameConflicts:
    """Detect names under which more than one agent publishes.

    Each start of an agent takes a larger incarnation than any before, so after a restart the
    former one is silent for ever. One that goes on sending new summaries is another agent: a
    cloned machine, or a copied configuration. `seconds` after its last one the conflict is over.
    Memory: a few dozen numbers for each name that came in two incarnations.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._former: dict[str, _Former] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names, sorted."""
        found = (name for name, former in self._former.items() if former.times >= CONFLICT_SUMMARIES)
        return tuple(sorted(found))

    def replaced(self, name: str, version: Version) -> None:
        """Take note that a newer incarnation sends; `version` is the last of the one before."""
        self._former.setdefault(name, _Former()).note(version)

    def older(self, name: str, version: Version, now: float) -> bool:
        """Take note that an older incarnation sent; True when that makes a conflict."""
        former = self._former.setdefault(name, _Former())
        if not former.note(version):
            # A duplicate, a replay, or the first of its incarnation.
            return False
        former.when = now
        former.times += 1
        return former.times == CONFLICT_SUMMARIES

    def expire(self, now: float) -> bool:
        """End conflicts in which the older incarnation fell silent; True when there were any."""
        over = [f for f in self._former.values() if f.times and abs(now - f.when) > self.seconds]
        ended = any(former.times >= CONFLICT_SUMMARIES for former in over)
        for former in over:
            former.times = 0
        return ended

    def forget(self, name: str) -> None:
        """Forget a name that is gone."""
        self._former.pop(name, None)


class Child(NamedTuple):
    """The newest summary of a child and when it arrived."""

    summary: Summary
    arrived_at: float


class Aggregator:
    """Merge the newest summaries of all children into one.

    Truncation makes merging depend on the shape of the tree; `spare` directions kept beyond `rank`
    (the paper's r) all but undo that. A child that is silent for `expiry_seconds` no longer counts.
    More children than `fan_out` are refused, so that a flood cannot fill the memory, and no node
    counts for more than `largest_weight` samples.

    Memory: one summary per child, `d * (rank + spare + 4)` floats each, and 2,400 for what a learned
    signal shares.
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
        self.conflicts = NameConflicts(expiry_seconds)
        self._merged: Summary | None = None

    def receive(self, summary: Summary, *, now: float) -> bool:
        """Take a summary; False when it is not newer than the one held.

        A duplicate does not prolong a child's life: only something new does.
        """
        node, child = summary.node, self.children.get(summary.node)
        if child is None:
            if len(self.children) >= self.fan_out:
                raise FederationError(
                    f"aggregator {self.name or 'root'!r} must have at most {self.fan_out} children, got "
                    f"{node!r} as one more: raise fan_out, or use more shards"
                )
        else:
            newer = summary.version > child.summary.version
            # Aggregators take over from each other, so theirs are no conflict.
            if summary.incarnation != child.summary.incarnation and not summary.merged:
                if newer:
                    self.conflicts.replaced(node, child.summary.version)
                elif self.conflicts.older(node, summary.version, now):
                    self._merged = None
            if not newer:
                return False
        self.children[node] = Child(summary, now)
        self._merged = None
        return True

    def forget(self, node: str) -> bool:
        """Drop a child that withdrew its summary; False when it was not held."""
        gone = self.children.pop(node, None) is not None
        if gone:
            self.conflicts.forget(node)
            self._merged = None
        return gone

    def shift(self, seconds: float) -> None:
        """Follow a clock that was set: nobody was silent for that long."""
        for node, child in self.children.items():
            self.children[node] = child._replace(arrived_at=child.arrived_at + seconds)

    def expire(self, now: float) -> list[str]:
        """Drop the children that were silent for too long and return their names."""
        for node, child in self.children.items():
            if child.arrived_at > now:
                # The clock of the bus went back: their time begins again.
                self.children[node] = child._replace(arrived_at=now)
        limit = now - self.expiry_seconds
        silent = sorted(node for node, child in self.children.items() if child.arrived_at < limit)
        for node in silent:
            self.forget(node)
        if self.conflicts.expire(now):
            self._merged = None
        return silent

    def merged(self) -> Summary | None:
        """Return one summary for all children, not numbered yet, or None without any."""
        if self._merged is None and self.children:
            # By name, so that not even rounding depends on the order of arrival.
            self._merged = self._merge([self.children[node].summary for node in sorted(self.children)])
        return self._merged

    def _merge(self, summaries: list[Summary]) -> Summary:
        rank = self.rank + self.spare
        metrics = shared_metrics(summaries, rank=rank)
        scale = pooled_scale(summaries, metrics, largest_weight=self.largest_weight)
        below = {name for summary in summaries if summary.merged for name in summary.clashes}
        return Summary(
            node=self.name,
            metrics=metrics,
            subspace=pooled_subspace(
                summaries, metrics, scale.deviation, rank=rank, largest_weight=self.largest_weight
            ),
            samples=float(np.sum([min(s.samples, self.largest_weight * s.nodes) for s in summaries])),
            nodes=min(sum(s.nodes for s in summaries), MAX_NODES),
            statistics=pooled_statistics(summaries),
            merged=True,
            clashes=tuple(sorted(below.union(self.conflicts.names))[:MAX_CLASHES]),
            **scale._asdict(),
        )
