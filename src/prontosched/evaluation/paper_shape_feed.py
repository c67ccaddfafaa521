"""Clusters of the generated data set as something to evaluate or to write down, streamed.

The same interface as a recorded trace: nodes side by side, some rows at a time. What is generated is in
`paper_shape`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from prontosched.evaluation.paper_shape import CHUNK_STEPS, INTERVAL_SECONDS, PaperShape
from prontosched.evaluation.paper_shape_metrics import TABLES
from prontosched.telemetry.trace import Chunk, TraceCounts


@dataclass(frozen=True, slots=True)
class PaperShapeFeed:
    """One cluster of VMs or hosts.

    Attributes
    ----------
    shape
        The data set.
    cluster
        Which of its clusters.
    kind
        "vm" (52 metrics) or "host" (134 metrics).
    steps
        Timesteps per node; None for all.

    Examples
    --------
    >>> feed = PaperShapeFeed(PaperShape(clusters=1, hosts=2, vms=4, days=1), 0)
    >>> [(chunk.node, chunk.vectors.shape) for chunk in next(feed.aligned(rows=90))][:2]
    [('vm-000-000', (90, 52)), ('vm-000-001', (90, 52))]
    """

    shape: PaperShape
    cluster: int
    kind: str = "vm"
    steps: int | None = None

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes."""
        return next(self.shape.stream(self.cluster, kind=self.kind, steps=1)).nodes

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics."""
        return TABLES[self.kind].names

    @property
    def interval_seconds(self) -> float:
        """Time between two rows."""
        return INTERVAL_SECONDS

    @property
    def ready_column(self) -> str:
        """Name of the contention value."""
        return "cpu_ready_ms"

    @property
    def counts(self) -> TraceCounts:
        """Nothing is ever dropped."""
        return TraceCounts(rows=self.total_rows())

    def open(self) -> tuple[PaperShapeFeed, str]:
        """Return itself, for there is nothing to open, and the unit of its CPU Ready."""
        return self, "ms"

    def total_rows(self) -> int:
        """Return how many rows it has, over all nodes."""
        steps = self.shape.steps if self.steps is None else min(self.steps, self.shape.steps)
        return len(self.nodes) * steps

    def close(self) -> None:
        """Let go of nothing."""

    def aligned(self, rows: int = 256, *, nodes: Collection[str] | None = None) -> Iterator[list[Chunk]]:
        """Yield the next rows of all nodes at once, at most an hour."""
        names = self.nodes
        wanted = [place for place, name in enumerate(names) if nodes is None or name in nodes]
        start = 0
        size = min(rows, CHUNK_STEPS)
        stream = self.shape.stream(self.cluster, kind=self.kind, metrics_of=wanted, steps=self.steps)
        for hour in stream:
            assert hour.values is not None or not wanted  # asked for
            for low in range(0, len(hour.timestamps), size):
                part = slice(low, low + size)
                yield [
                    Chunk(
                        node=names[node],
                        start=start + low,
                        timestamps=hour.timestamps[part],
                        ready=hour.ready_ms[node, part],
                        utilisation=hour.utilisation[node, part],
                        vectors=hour.values[place, part],
                    )
                    for place, node in enumerate(wanted)
                    if hour.values is not None
                ]
            start += len(hour.timestamps)
