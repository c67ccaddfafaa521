"""Hidden tenants: the load on a node that no scheduler placed there, made up or read from traces.

All of it is drawn before the run, so that every placer and rule meets the same, and an oracle can be asked about
what comes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prontosched.errors import SettingsError
from prontosched.evaluation.datasets import resolve
from prontosched.subspace import Array
from prontosched.telemetry.trace import open_trace

# CPUs that a burst wants, as a share of the node's.
HEIGHTS = (0.6, 2.5)
# Steps that tenants go on beyond the end of a run, for those who look ahead.
BEYOND = 600
# The hour of regular tenants, in steps. Their clock goes this much faster than that of the jobs.
HOUR = 60
DAY = 24 * HOUR
CHRONIC_SHARE = 0.1
# The load of a recorded machine is scaled so that this percentile of it takes all CPUs.
FULL_AT = 95.0
LEAST_ROWS = 100


class Tenants(NamedTuple):
    """What the tenants of each node do, step by step."""

    wanted: Array  # CPUs wanted, in shares of the node's, `(T, M)`
    announced: Array  # how far a burst is announced by other metrics, 0 to 1, `(T, M)`
    clock: float = 1.0  # seconds of clock time that one step takes
    traces: tuple[Array, ...] = ()  # recorded metrics that nodes replay, `(rows, k)` each
    machine: NDArray[np.int64] = np.empty(0, np.int64)  # which of them each node replays, `(M,)`
    offset: NDArray[np.int64] = np.empty(0, np.int64)  # and from which row

    def own(self, step: int) -> Array | None:
        """Return the metrics that the tenants bring with them at a step, `(M, k)`; None for made-up ones."""
        if not self.traces:
            return None
        rows = zip((self.traces[which] for which in self.machine), self.offset, strict=True)
        return np.array([trace[(at + step) % len(trace)] for trace, at in rows])


class RecordedTenants(NamedTuple):
    """Recorded machines for tenants to replay."""

    metrics: tuple[str, ...]
    vectors: tuple[Array, ...]
    demand: tuple[Array, ...]  # CPUs wanted, in shares of the machine's, `(rows,)` a machine


def bursty(
    nodes: int, steps: int, rng: np.random.Generator, *, every: float = 200.0, announced: float = 0.5
) -> Tenants:
    """Return tenants with a slow base load and bursts, some of them announced by other metrics.

    They take a quarter of the CPUs when they do not burst. Bursts come `every` so many seconds on average, with a mean
    length and a heavy tail; a share of them shows in memory and fork rate some seconds before.
    """
    length, prelude = 25.0, 8
    wanted = _base_load(nodes, steps, rng)
    signs = np.zeros((steps, nodes))
    for node, each in enumerate(every * rng.uniform(0.5, 2.0, nodes)):
        at = float(np.ceil(rng.exponential(each)))
        while at < steps:
            lasts = min(np.ceil(0.4 * length * (1.0 + rng.pareto(1.7))), 40.0 * length)
            height = rng.uniform(*HEIGHTS)
            first = int(at)
            wanted[first : first + int(lasts), node] += height
            if rng.random() < announced:
                before = np.arange(max(0, first - prelude), first)
                signs[before, node] = 1.0 - (first - before) / (prelude + 1.0)
            at += lasts + np.ceil(rng.exponential(each)) + prelude
    return Tenants(wanted, signs)


def regular(nodes: int, steps: int, rng: np.random.Generator) -> Tenants:
    """Return tenants that come with the clock: hourly jobs, nightly ones, and a few bursts at random.

    A step is a minute on their clock. Every node has its own minute of the hour, kept to
    within a minute, and its own hour of the night.
    """
    few = bursty(nodes, steps, rng, every=1500.0, announced=0.0)
    wanted = few.wanted
    minute, night = rng.integers(0, HOUR, nodes), rng.integers(0, 4 * HOUR, nodes)
    for node in range(nodes):
        height, lasts = rng.uniform(*HEIGHTS), int(rng.integers(5, 11))
        for start in range(int(minute[node]), steps, HOUR):
            first = max(0, start + int(rng.integers(-1, 2)))
            wanted[first : first + lasts, node] += height
        backup = rng.uniform(0.6, 1.2)
        for start in range(int(night[node]), steps, DAY):
            wanted[start : start + HOUR // 2, node] += backup
    return Tenants(wanted, few.announced, clock=3600.0 / HOUR)


def chronic(nodes: int, steps: int, rng: np.random.Generator) -> Tenants:
    """Return bursty tenants, but for a tenth of the nodes, whose tenants always want about all CPUs or more."""
    others = bursty(nodes, steps, rng)
    hot = rng.permutation(nodes)[: max(1, round(CHRONIC_SHARE * nodes))]
    others.wanted[:, hot] += rng.uniform(0.75, 1.35, hot.size)
    return others


def mixed(nodes: int, steps: int, rng: np.random.Generator) -> Tenants:
    """Return a fleet in which each node's tenants are bursty, regular, chronic or calm."""
    kinds = [bursty(nodes, steps, rng), regular(nodes, steps, rng), chronic(nodes, steps, rng)]
    calm = _base_load(nodes, steps, rng)
    chosen = rng.choice(4, nodes, p=[0.4, 0.3, 0.1, 0.2])
    wanted = np.stack([*(kind.wanted for kind in kinds), calm])
    signs = np.stack([*(kind.announced for kind in kinds), np.zeros_like(calm)])
    at = np.arange(nodes)
    return Tenants(wanted[chosen, :, at].T.copy(), signs[chosen, :, at].T.copy(), clock=3600.0 / HOUR)


def replayed(nodes: int, steps: int, rng: np.random.Generator, background: RecordedTenants) -> Tenants:
    """Return recorded machines, each node one of them from a moment of its own, with its own metrics."""
    machine = rng.integers(0, len(background.demand), nodes)
    rows = np.array([demand.size for demand in background.demand])
    offset = rng.integers(0, rows[machine])
    moments = (offset[None, :] + np.arange(steps)[:, None]) % rows[machine][None, :]
    wanted = np.stack([background.demand[which][moments[:, k]] for k, which in enumerate(machine)], axis=1)
    return Tenants(wanted, np.zeros((steps, nodes)), 1.0, background.vectors, machine, offset)


MakeTenants = Callable[[int, int, np.random.Generator], Tenants]
TENANTS: dict[str, tuple[MakeTenants, str]] = {
    "bursty": (bursty, "bursts at random, half of them announced by other metrics"),
    "announced": (
        lambda nodes, steps, rng: bursty(nodes, steps, rng, announced=1.0),
        "bursts at random, all of them announced",
    ),
    "unannounced": (
        lambda nodes, steps, rng: bursty(nodes, steps, rng, announced=0.0),
        "bursts at random, none of them announced",
    ),
    "regular": (regular, "hourly and nightly loads, a minute a step"),
    "chronic": (chronic, "bursty, and a tenth of the nodes always full"),
    "mixed": (mixed, "each node bursty, regular, chronic or calm"),
}


def join(parts: Sequence[Tenants]) -> Tenants:
    """Return the tenants of several clusters as those of one row of nodes."""
    columns = ("wanted", "announced", "machine", "offset")
    joined: dict[str, Any] = {name: np.hstack([getattr(part, name) for part in parts]) for name in columns}
    return parts[0]._replace(**joined)


def _base_load(nodes: int, steps: int, rng: np.random.Generator) -> Array:
    level = np.zeros(nodes)
    levels = np.empty((steps, nodes))
    for step, noise in enumerate(rng.standard_normal((steps, nodes))):
        level = 0.95 * level + 0.31 * noise
        levels[step] = level
    return np.clip(np.clip(rng.normal(0.25, 0.08, nodes), 0.05, 0.6) + 0.05 * levels, 0.0, 1.0)


def read_background(
    paths: Sequence[Path], *, load: str | None = None, exclude: Sequence[str] = ()
) -> RecordedTenants:
    """Read traces for tenants to replay, one row a step.

    The column `load` tells how many tasks run or wait; by default utilisation and CPU Ready do, together. Its unit
    does not matter: the 95th percentile takes all CPUs. Excluded columns are not shown to the signal.
    """
    source = open_trace([resolve(path) for path in paths], ready=load, exclude=list(exclude))
    vectors: dict[str, list[np.ndarray]] = {}
    demand: dict[str, list[np.ndarray]] = {}
    for chunk in source.chunks():
        wanted = chunk.ready if load else np.nan_to_num(chunk.utilisation) + np.nan_to_num(chunk.ready)
        vectors.setdefault(chunk.node, []).append(chunk.vectors)
        demand.setdefault(chunk.node, []).append(np.nan_to_num(wanted))
    machines = [np.concatenate(parts) for parts in demand.values()]
    for node, wanted in zip(demand, machines, strict=True):
        if wanted.size < LEAST_ROWS or not np.percentile(wanted, FULL_AT) > 0.0:
            raise SettingsError(
                f"{node}: a trace must have at least {LEAST_ROWS} rows with load, got {wanted.size} rows: "
                "name the column that tells the load with --load-column"
            )
    return RecordedTenants(
        source.metrics,
        tuple(np.nan_to_num(np.concatenate(parts)) for parts in vectors.values()),
        tuple(wanted / np.percentile(wanted, FULL_AT) for wanted in machines),
    )


def shipped_background() -> RecordedTenants | None:
    """Return the host trace that comes with Pronto; None where it cannot be read."""
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        return None
    return read_background([Path("host")])
