"""Generated fleets: two that check the evaluator itself, VMs of the paper's shape, and a writer for all of them.

In the positive control every burst of CPU Ready is announced by a ramp in other metrics (memory, disk, fork
rate), while CPU Ready's own history says nothing. In the negative control there are just as many ramps, but
at times of their own. A sound evaluator finds the first and rejects the second. `datasets.paper_shape` generates
the values of the paper's shape.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from prontosched.errors import TelemetryError
from prontosched.evaluation.datasets.paper_shape import CHUNK_STEPS, DAY_STEPS, TABLES, PaperShape
from prontosched.evaluation.inputs import GeneratedPart, Plan, chunk_size
from prontosched.evaluation.measures import Mask
from prontosched.extras import missing_extra
from prontosched.subspace import Array
from prontosched.telemetry.trace import Chunk

METRICS = 24
ANNOUNCING = 5
RAMP = 8
BURST_RATE = 0.02
INTERVAL_SECONDS = 20.0
START = 1_700_000_000.0
# How much of a value is left after t - s steps, `(t, s)`.
FADING = np.tril(0.9 ** np.abs(np.subtract.outer(np.arange(64.0), np.arange(64.0))))


class PaperShapeFeed(GeneratedPart):
    """One cluster of VMs (52 metrics) or hosts (134 metrics) of the paper's shape.

    Examples
    --------
    >>> feed = PaperShapeFeed(PaperShape(clusters=1, hosts=2, vms=4, days=1), 0)
    >>> [(chunk.node, chunk.vectors.shape) for chunk in next(feed.aligned(rows=90))][:2]
    [('vm-000-000', (90, 52)), ('vm-000-001', (90, 52))]
    """

    ready_column = "cpu_ready_ms"
    ready_unit = "ms"

    def __init__(self, shape: PaperShape, cluster: int, kind: str = "vm", steps: int | None = None) -> None:
        self.nodes = next(shape.stream(cluster, kind=kind, steps=1)).nodes
        self.metrics = TABLES[kind].names
        self._stream = (shape, cluster, kind)
        self._steps = shape.steps if steps is None else min(steps, shape.steps)
        self.rows = len(self.nodes) * self._steps

    def aligned(self, rows: int = 256, *, nodes: Collection[str] | None = None) -> Iterator[list[Chunk]]:
        """Yield the next rows of all nodes at once, at most an hour."""
        wanted = [place for place, name in enumerate(self.nodes) if nodes is None or name in nodes]
        start, size = 0, min(rows, CHUNK_STEPS)
        shape, cluster, kind = self._stream
        for hour in shape.stream(cluster, kind=kind, metrics_of=wanted, steps=self._steps):
            for low in range(0, len(hour.timestamps), size):
                part = slice(low, low + size)
                yield [
                    Chunk(
                        node=self.nodes[node],
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


class Control(GeneratedPart):
    """Some nodes of the `positive` or `negative` control, the same for the same seed, whoever generates them."""

    metrics = tuple(f"metric_{k:02d}" for k in range(METRICS))
    interval_seconds = INTERVAL_SECONDS
    ready_column = "cpu_ready_percent"
    ready_unit = "percent"

    def __init__(self, kind: str, seed: int, first: int, count: int, steps: int) -> None:
        self.kind = kind
        self.seed = seed
        self.steps = steps
        self.numbers = range(first, first + count)
        self.nodes = tuple(f"{kind}-{n:04d}" for n in self.numbers)
        self.rows = count * steps

    def aligned(self, rows: int = 256, *, nodes: Collection[str] | None = None) -> Iterator[list[Chunk]]:
        """Yield the next rows of all nodes at once."""
        for parts in zip(*(self._generate(number, rows) for number in self.numbers), strict=True):
            yield [part for part in parts if nodes is None or part.node in nodes]

    def _generate(self, number: int, rows: int) -> Iterator[Chunk]:
        """Generate one node, some rows at a time; up to rounding, what is generated does not depend on `rows`."""
        generator = np.random.default_rng([self.seed, number])
        mixing = generator.normal(size=(3, METRICS))
        announcing = generator.choice(METRICS, ANNOUNCING, replace=False)
        bursts = generator.random(self.steps + RAMP) < BURST_RATE
        ramps = bursts if self.kind == "positive" else generator.random(self.steps + RAMP) < BURST_RATE
        factors = np.zeros(3)
        for start in range(0, self.steps, rows):
            size = min(rows, self.steps - start)
            noise = generator.normal(size=(size, 3 + METRICS + 2))
            levels = _autoregressive(noise[:, :3], factors)
            factors = levels[-1]
            vectors = levels @ mixing + 0.5 * noise[:, 3 : 3 + METRICS]
            vectors[:, announcing] += 4.0 * _ramp(ramps, start, size)[:, None]
            ready = np.where(bursts[start : start + size], 8.0, 0.8) + 0.2 * noise[:, -1]
            yield Chunk(
                node=f"{self.kind}-{number:04d}",
                start=start,
                timestamps=np.asarray(START + INTERVAL_SECONDS * np.arange(start, start + size), np.float64),
                ready=np.maximum(ready, 0.0),
                utilisation=np.clip(50.0 + 8.0 * levels[:, 0] + noise[:, -2], 0.0, 100.0),
                vectors=vectors,
            )


def _autoregressive(noise: Array, before: Array) -> Array:
    """Return `x[t] = 0.9 x[t - 1] + 0.436 noise[t]`, going on from `before`: of variance 1."""
    found = np.empty(noise.shape)
    for start in range(0, len(noise), len(FADING)):
        part = noise[start : start + len(FADING)]
        weights = FADING[: len(part), : len(part)]
        found[start : start + len(part)] = weights @ (0.436 * part) + 0.9 * weights[:, :1] * before
        before = found[start + len(part) - 1]
    return found


def _ramp(events: Mask, start: int, size: int) -> Array:
    """Return how far the ramp before the next event has risen, 0 to 1."""
    height = np.zeros(size)
    for ahead in range(1, RAMP + 1):
        soon = events[start + ahead : start + ahead + size]
        height[: soon.size] = np.maximum(height[: soon.size], soon * (1.0 - (ahead - 1) / RAMP))
    return height


def plan_control(kind: str, *, nodes: int, steps: int, seed: int) -> Plan:
    """Cut a generated fleet into parts: a control, or VMs as in the paper's data set for `paper`."""
    size = chunk_size(nodes)
    if kind == "paper":
        clusters = -(-nodes // size)
        days = -(-steps // DAY_STEPS)
        vms = min(size, nodes)
        shape = PaperShape(clusters=clusters, hosts=max(1, min(14, vms // 2)), vms=vms, days=days, seed=seed)
        return Plan([PaperShapeFeed(shape, cluster, steps=steps) for cluster in range(clusters)])
    firsts = range(0, nodes, size)
    return Plan([Control(kind, seed, first, min(size, nodes - first), steps) for first in firsts])


class TraceWriter:
    """A trace of many nodes in one new file, as CSV or Parquet by its name."""

    def __init__(self, path: Path, metrics: tuple[str, ...], *, ready_column: str) -> None:
        if path.suffix not in (".csv", ".parquet"):
            raise TelemetryError(f"{path}: a trace must end in .csv or .parquet")
        if path.exists():
            raise TelemetryError(f"{path}: the file must not exist yet: name another, or remove it")
        self.names = ("timestamp", "node", ready_column, "utilisation", *metrics)
        self.rows = 0
        self._text: IO[str] | None = None
        self._parquet: Any = None
        if path.suffix == ".csv":
            self._text = path.open("x", encoding="utf-8")
            self._text.write(",".join(self.names) + "\n")
            return
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ImportError as error:
            raise TelemetryError(missing_extra("writing Parquet (not CSV)", "trace")) from error

        fields = [(name, pa.string() if name == "node" else pa.float64()) for name in self.names[:4]]
        self._schema = pa.schema([*fields, *((name, pa.float32()) for name in metrics)])
        self._pa = pa
        self._parquet = pq.ParquetWriter(path, self._schema, compression="zstd")

    def write(self, chunks: list[Chunk]) -> None:
        """Add rows of all nodes, in the order of time."""
        if not chunks:
            return
        times = np.concatenate([chunk.timestamps for chunk in chunks])
        order = np.argsort(times, kind="stable")
        owners = [chunk.node for chunk in chunks for _ in range(len(chunk))]
        nodes = [owners[place] for place in order]
        given = [(chunk.ready, chunk.utilisation) for chunk in chunks]
        head = np.column_stack([times, *map(np.concatenate, zip(*given, strict=True))])[order]
        metrics = np.concatenate([chunk.vectors for chunk in chunks])[order]
        self.rows += len(order)
        if self._text is not None:
            for (time, ready, use), node, row in zip(head, nodes, metrics, strict=True):
                cells = ",".join(f"{value:.6g}" for value in row)
                self._text.write(f"{time:.3f},{node},{ready:.6g},{use:.6g},{cells}\n")
            return
        columns = [head[:, 0], nodes, head[:, 1], head[:, 2], *metrics.astype(np.float32).T]
        arrays = [self._pa.array(c, type=f.type) for c, f in zip(columns, self._schema, strict=True)]
        self._parquet.write_table(self._pa.Table.from_arrays(arrays, schema=self._schema))

    def close(self) -> None:
        """Finish the file."""
        (self._text or self._parquet).close()
