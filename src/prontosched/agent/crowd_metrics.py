"""The metrics of a crowd: one list for all its nodes, and which others have come to stay."""

from __future__ import annotations

from collections import Counter

from prontosched.agent.schema import MAX_METRICS, PATIENCE, Schema
from prontosched.subspace import Array
from prontosched.telemetry.source import Sample

COMMON_SHARE = 0.25
"""A metric is for a crowd when this share of its nodes has it."""
MOST_SCHEMAS = 256


class CrowdMetrics:
    """Put samples in the order of one list of metrics, and tell which belong there too.

    Parameters
    ----------
    names
        The metrics that the nodes are built for.
    patience
        Timesteps in a row that a metric has to be there, at a share of the nodes, to be there for good.

    Notes
    -----
    Memory: at most 256 orders of metrics.

    Examples
    --------
    >>> import numpy as np
    >>> metrics = CrowdMetrics(("load",), patience=2)
    >>> for _ in range(2):
    ...     vector = metrics.align(Sample("n1", ("heat", "load"), np.array([3.0, 1.0])))
    ...     print(vector, metrics.settled(nodes=1))
    [1.] ()
    [1.] ('heat',)
    """

    def __init__(self, names: tuple[str, ...] = (), *, patience: int = PATIENCE) -> None:
        self.names = names
        self._patience = patience
        self._schemas: dict[tuple[str, ...], Schema] = {}
        self._used: Counter[tuple[str, ...]] = Counter()
        self._streaks: dict[str, int] = {}

    def align(self, sample: Sample) -> Array:
        """Return the sample's metrics in this order, NaN where it has none."""
        metrics = sample.metrics
        if metrics == self.names:
            return sample.vector
        if metrics not in self._schemas:
            if len(self._schemas) >= MOST_SCHEMAS:
                self._schemas.clear()
                self._used.clear()
            self._schemas[metrics] = Schema(self.names)
        schema = self._schemas[metrics]
        vector = schema.align(sample)
        if schema.extra:
            self._used[metrics] += 1
        return vector

    def settled(self, nodes: int) -> tuple[str, ...]:
        """Return which other metrics have come to stay, after a timestep of so many nodes."""
        if not self._used and not self._streaks:
            return ()
        having: Counter[str] = Counter()
        for metrics, count in self._used.items():
            for name in self._schemas[metrics].extra:
                having[name] += count
        self._used.clear()
        common = (name for name, count in having.items() if count >= COMMON_SHARE * nodes)
        self._streaks = {name: self._streaks.get(name, 0) + 1 for name in common}
        found = (name for name, streak in self._streaks.items() if streak >= self._patience)
        return tuple(found)[: max(0, MAX_METRICS - len(self.names))]
