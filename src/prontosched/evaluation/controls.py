"""Fleets made to check the evaluator itself: one where contention is announced, one where it is not.

In the positive control every burst of CPU Ready is announced by a ramp in other metrics (memory, disk, fork
rate), while CPU Ready's own history says nothing. In the negative control there are just as many ramps, but
at times of their own. A sound evaluator finds the first and rejects the second.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from prontosched.evaluation.inputs import Part, Plan, chunk_size
from prontosched.evaluation.paper_shape import DAY_STEPS, PaperShape
from prontosched.evaluation.paper_shape_feed import PaperShapeFeed
from prontosched.evaluation.windows import Mask
from prontosched.subspace import Array
from prontosched.telemetry.trace import Chunk, TraceCounts

METRICS = 24
ANNOUNCING = 5
RAMP = 8
BURST_RATE = 0.02
READY_LIMIT = 5.0
INTERVAL_SECONDS = 20.0
START = 1_700_000_000.0


@dataclass(frozen=True, slots=True)
class Control:
    """A generated fleet, the same for the same seed, node by node, whoever generates it.

    Attributes
    ----------
    kind
        `positive` or `negative`.
    seed
        Of the fleet.
    first, count
        Which of its nodes.
    steps
        Timesteps per node.
    """

    kind: str
    seed: int
    first: int
    count: int
    steps: int

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes."""
        return tuple(f"{self.kind}-{n:04d}" for n in range(self.first, self.first + self.count))

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics."""
        return tuple(f"metric_{k:02d}" for k in range(METRICS))

    @property
    def interval_seconds(self) -> float:
        """Time between two rows."""
        return INTERVAL_SECONDS

    @property
    def ready_column(self) -> str:
        """Name of the contention value."""
        return "cpu_ready_percent"

    @property
    def counts(self) -> TraceCounts:
        """Nothing is ever dropped."""
        return TraceCounts(rows=self.count * self.steps)

    def open(self) -> tuple[Control, str]:
        """Return itself, for there is nothing to open, and the unit of its CPU Ready."""
        return self, "percent"

    def total_rows(self) -> int:
        """Return how many rows it has."""
        return self.count * self.steps

    def close(self) -> None:
        """Let go of nothing."""

    def aligned(self, rows: int = 256, *, nodes: Collection[str] | None = None) -> Iterator[list[Chunk]]:
        """Yield the next rows of all nodes at once."""
        going = [_generate(self, number, rows) for number in range(self.first, self.first + self.count)]
        for parts in zip(*going, strict=True):
            yield [part for part in parts if nodes is None or part.node in nodes]


def _generate(control: Control, number: int, rows: int) -> Iterator[Chunk]:
    """Generate one node, some rows at a time; up to rounding, what is generated does not depend on `rows`."""
    generator = np.random.default_rng([control.seed, number])
    mixing = generator.normal(size=(3, METRICS))
    announcing = generator.choice(METRICS, ANNOUNCING, replace=False)
    bursts = generator.random(control.steps + RAMP) < BURST_RATE
    ramps = bursts if control.kind == "positive" else generator.random(control.steps + RAMP) < BURST_RATE
    factors = np.zeros(3)
    for start in range(0, control.steps, rows):
        size = min(rows, control.steps - start)
        noise = generator.normal(size=(size, 3 + METRICS + 2))
        levels = _autoregressive(noise[:, :3], factors)
        factors = levels[-1]
        vectors = levels @ mixing + 0.5 * noise[:, 3 : 3 + METRICS]
        vectors[:, announcing] += 4.0 * _ramp(ramps, start, size)[:, None]
        burst = bursts[start : start + size]
        ready = np.where(burst, 8.0, 0.8) + 0.2 * noise[:, -1]
        yield Chunk(
            node=f"{control.kind}-{number:04d}",
            start=start,
            timestamps=np.asarray(START + INTERVAL_SECONDS * np.arange(start, start + size), np.float64),
            ready=np.maximum(ready, 0.0),
            utilisation=np.clip(50.0 + 8.0 * levels[:, 0] + noise[:, -2], 0.0, 100.0),
            vectors=vectors,
        )


def _autoregressive(noise: Array, before: Array) -> Array:
    """Return `x[t] = 0.9 x[t - 1] + 0.436 noise[t]`, going on from `before`: of variance 1."""
    ages = np.subtract.outer(np.arange(len(noise)), np.arange(len(noise)))
    weights = np.where(ages >= 0, 0.9 ** np.maximum(ages, 0), 0.0)
    fading = 0.9 ** np.arange(1, len(noise) + 1)
    found: Array = weights @ (0.436 * noise) + fading[:, None] * before
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
    parts: list[Part] = [
        Control(kind, seed, first, min(size, nodes - first), steps) for first in range(0, nodes, size)
    ]
    return Plan(parts)
