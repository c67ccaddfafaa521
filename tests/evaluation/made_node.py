"""One node as a part of an evaluation, made up in memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from prontosched.subspace import Array
from prontosched.telemetry.trace import Chunk, TraceCounts


class MadeNode:
    """A node of three metrics and a value every 20 s; a subclass has its `node`, length and series."""

    node: str
    unit = "percent"
    metrics = ("a", "b", "c")
    interval_seconds = 20.0
    ready_column = "cpu_ready_percent"

    @property
    def rows(self) -> int:
        return self.series()[0].size

    def series(self) -> tuple[Array, Array, Array]:
        """Return CPU Ready, utilisation and metrics."""
        raise NotImplementedError

    @property
    def nodes(self) -> tuple[str, ...]:
        return (self.node,)

    @property
    def counts(self) -> TraceCounts:
        return TraceCounts(rows=self.rows)

    def open(self) -> tuple[MadeNode, str]:
        return self, self.unit

    def close(self) -> None:
        pass

    def aligned(self, rows: int = 256, *, nodes: Collection[str] | None = None) -> Iterator[list[Chunk]]:
        ready, busy, vectors = self.series()
        clock = 20.0 * np.arange(ready.size)
        for start in range(0, ready.size, rows):
            part = slice(start, start + rows)
            yield [Chunk(self.node, start, clock[part], ready[part], busy[part], vectors[part])]
