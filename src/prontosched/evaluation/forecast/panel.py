"""CPU Ready of many nodes, cut into windows: all that the forecasts need, gathered in one pass.

Per window length only the median of each window is kept, and, for the windows chosen for scoring, a few dozen
points inside them. A month of samples becomes a few megabytes, whatever its length. Where the values come from
is in `load`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from prontosched.subspace import Array

HOUR = 3600
DAY = 24 * HOUR
# The paper's forecasting windows, longest first.
LENGTHS: dict[int, str] = {
    DAY: "1 day",
    12 * HOUR: "12 hours",
    6 * HOUR: "6 hours",
    3 * HOUR: "3 hours",
    HOUR: "1 hour",
    HOUR // 2: "30 min",
    HOUR // 4: "15 min",
}
# Points inside a window: a quarter of an hour at 20 s has 45 samples, and longer windows get no more.
MOST_POINTS = 45
FEWEST_POINTS = 8
# A window with fewer of its samples than this share is unknown.
FEWEST_KNOWN = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """One window length of one cluster.

    Attributes
    ----------
    medians
        Median of every window, `(M, windows)`; NaN where too little is known.
    chosen
        Windows whose successor is forecast, `(k,)`.
    points
        The inside of the chosen windows, `(M, k, points)`.
    """

    medians: Array
    chosen: NDArray[np.intp]
    points: Array


@dataclass(frozen=True, slots=True, eq=False)
class Cluster:
    """The nodes that are forecast from one another.

    Attributes
    ----------
    name, nodes
        Names.
    windows
        By length in seconds; a length is missing where the trace is too short or too coarse for it.
    """

    name: str
    nodes: tuple[str, ...]
    windows: Mapping[int, Windows]

    @property
    def daily(self) -> Array:
        """Daily medians, `(M, days)`; no columns where the trace is shorter than a day."""
        held = self.windows.get(DAY)
        return np.empty((len(self.nodes), 0)) if held is None else held.medians


@dataclass(frozen=True, slots=True, eq=False)
class Panel:
    """One data set, ready to be forecast.

    Attributes
    ----------
    name
        What it is, for people.
    generated
        Whether Pronto made it up.
    unit
        "ms" (per 20 s), or what else CPU Ready is measured in.
    interval_seconds
        Time between two samples.
    clusters
        Its clusters.
    card
        Facts for the report.
    warnings
        What could not be used, one line each.
    """

    name: str
    generated: bool
    unit: str
    interval_seconds: float
    clusters: tuple[Cluster, ...]
    card: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def days(self) -> int:
        """Whole days in the longest cluster."""
        return max((cluster.daily.shape[1] for cluster in self.clusters), default=0)

    def lengths(self) -> list[int]:
        """Window lengths that some cluster has two windows of, longest first."""
        return [
            length
            for length in LENGTHS
            if any(length in c.windows and len(c.windows[length].chosen) for c in self.clusters)
        ]


def points_per_window(samples: int) -> int:
    """Return into how many equal parts a window of so many samples is cut: at most 45."""
    return max(n for n in range(1, min(samples, MOST_POINTS) + 1) if samples % n == 0)


class PanelBuilder:
    """Gather the windows of one cluster from CPU Ready as it streams by.

    Parameters
    ----------
    name, nodes
        Of the cluster.
    interval_seconds
        Time between two samples.
    steps
        Samples to come per node.
    windows
        How many windows of each length to choose for scoring, spread over the trace; None takes all.

    Notes
    -----
    Memory: one day of samples, the medians, and the chosen windows; not the trace.
    """

    def __init__(
        self, name: str, nodes: tuple[str, ...], *, interval_seconds: float, steps: int, windows: int | None
    ) -> None:
        self.name, self.nodes = name, nodes
        self._block = max(1, round(DAY / interval_seconds))
        self._held: list[Array] = []
        self._waiting = 0
        self._plans: dict[int, _Plan] = {}
        for length in LENGTHS:
            samples = round(length / interval_seconds)
            count = steps // samples if samples else 0
            if samples and count >= 2 and points_per_window(samples) >= FEWEST_POINTS:
                self._plans[length] = _Plan(samples, _spread(count - 1, windows))
            elif length == DAY and count >= 1 and samples > 1:
                self._plans[length] = _Plan(samples, np.empty(0, dtype=np.intp))

    def feed(self, ready: Array) -> None:
        """Take in the next samples of all nodes, `(M, n)`; NaN is unknown."""
        while ready.shape[1]:
            room = self._block - self._waiting
            self._held.append(np.asarray(ready[:, :room], dtype=float))
            self._waiting += self._held[-1].shape[1]
            ready = ready[:, room:]
            if self._waiting == self._block:
                self._flush()

    def finish(self) -> Cluster:
        """Return what was gathered; a window cut off by the end of the trace is left out."""
        self._flush()
        return Cluster(
            self.name,
            self.nodes,
            {length: plan.windows(len(self.nodes)) for length, plan in self._plans.items()},
        )

    def _flush(self) -> None:
        if not self._waiting:
            return
        day = np.concatenate(self._held, axis=1)
        self._held, self._waiting = [], 0
        for plan in self._plans.values():
            plan.take(day)


class _Plan:
    """What is kept of one window length."""

    def __init__(self, samples: int, chosen: NDArray[np.intp]) -> None:
        self.samples, self.chosen = samples, chosen
        self.points_each = points_per_window(samples)
        self._medians: list[Array] = []
        self._points: list[Array] = []
        self._wanted = set(chosen.tolist())
        self._seen = 0

    def take(self, day: Array) -> None:
        for start in range(0, day.shape[1] - self.samples + 1, self.samples):
            window = day[:, start : start + self.samples]
            self._medians.append(median(window))
            if self._seen in self._wanted:
                parts = window.reshape(len(window), self.points_each, -1)
                self._points.append(median(parts))
            self._seen += 1

    def windows(self, nodes: int) -> Windows:
        medians = np.stack(self._medians, axis=1) if self._medians else np.empty((nodes, 0))
        points = np.stack(self._points, axis=1) if self._points else np.empty((nodes, 0, self.points_each))
        return Windows(medians, self.chosen[: points.shape[1]], points)


def median(values: Array) -> Array:
    """Return the median along the last axis of what is known; NaN where less than half is."""
    unknown = np.isnan(values)
    if not unknown.any():
        plain: Array = np.median(values, axis=-1)
        return plain
    known = 1.0 - unknown.mean(axis=-1)
    filled = np.where(unknown.all(axis=-1, keepdims=True), 0.0, values)
    result: Array = np.where(known < FEWEST_KNOWN, np.nan, np.nanmedian(filled, axis=-1))
    return result


def _spread(count: int, wanted: int | None) -> NDArray[np.intp]:
    if wanted is None or wanted >= count:
        return np.arange(count)
    # One at random out of each of so many equal stretches: an even step would always meet the same hours.
    edges = np.linspace(0, count, wanted + 1)
    places = np.random.default_rng([count, wanted]).uniform(edges[:-1], edges[1:])
    return np.unique(places.astype(np.intp))


def filled_histories(points: Array) -> Iterator[tuple[int, Array]]:
    """Yield the rows of `(M, n)` that are at least 80 % known, gaps filled with the value before them."""
    for row, course in enumerate(points):
        unknown = np.isnan(course)
        if unknown.mean() > 0.2:
            continue
        if unknown.any():
            known = np.flatnonzero(~unknown)
            before = np.searchsorted(known, np.arange(len(course)), side="right") - 1
            course = course[known[np.maximum(before, 0)]]
        yield row, course
