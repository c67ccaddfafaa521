"""Placers against rules over seeds, in parallel, with intervals."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from typing import Any

import numpy as np

from prontosched.simulation.run import Outcome, Scenario, simulate

MEASURES = (
    "slowdown_mean",
    "slowdown_p50",
    "slowdown_p99",
    "waiting_share",
    "queueing_mean",
    "throughput",
    "utilisation",
    "downtime",
    "refusals_per_job",
)
# Two-sided 95 % points of Student's t for 1 to 10 degrees of freedom; beyond, the normal's.
T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)


@dataclass(frozen=True)
class Interval:
    """A mean over seeds and its 95 % interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def over_seeds(values: Sequence[float]) -> Interval:
    """Return the mean of one value per seed, with Student's interval.

    Examples
    --------
    >>> over_seeds([1.0, 1.2, 1.1]).mean
    1.1
    """
    data = np.asarray(values, dtype=float)
    mean = float(data.mean())
    if data.size < 2:
        return Interval(mean, float("nan"), float("nan"))
    point = T95[data.size - 2] if data.size - 2 < len(T95) else 1.96
    reach = point * float(data.std(ddof=1)) / np.sqrt(data.size)
    return Interval(round(mean, 12), mean - reach, mean + reach)


@dataclass(frozen=True)
class Study:
    """All outcomes of a grid of placers, rules and seeds."""

    scenario: Scenario
    placers: tuple[str, ...]
    rules: tuple[str, ...]
    seeds: tuple[int, ...]
    outcomes: tuple[Outcome, ...]

    def values(self, placer: str, rule: str, measure: str) -> list[float]:
        """Return one measure of one cell, in the order of the seeds."""
        found = {o.seed: getattr(o, measure) for o in self.outcomes if (o.placer, o.rule) == (placer, rule)}
        return [float(found[seed]) for seed in self.seeds]

    def interval(self, placer: str, rule: str, measure: str) -> Interval:
        """Return one measure of one cell over the seeds."""
        return over_seeds(self.values(placer, rule, measure))

    def difference(self, placer: str, rule: str, other: str, measure: str = "slowdown_mean") -> Interval:
        """Return how much a rule differs from another, seed by seed."""
        pairs = zip(self.values(placer, rule, measure), self.values(placer, other, measure), strict=True)
        return over_seeds([one - two for one, two in pairs])

    def findings(self, signal: str = "learned") -> list[str]:
        """Say in words what the signal did with each placer, against the placer alone and the present-value rule."""
        lines = []
        for placer in self.placers if signal in self.rules else ():
            for other, words in (("nothing", "the placer alone"), ("ready", "the current-Ready rule")):
                if other not in self.rules:
                    continue
                apart = self.difference(placer, signal, other)
                verdict = (
                    "lower"
                    if apart.high < 0
                    else "higher"
                    if apart.low > 0
                    else "no different, within seeds,"
                )
                lines.append(
                    f"{placer}: slowdown with {signal} is {verdict} than with {words} "
                    f"(difference {apart.mean:+.3f} [{apart.low:+.3f}, {apart.high:+.3f}])"
                )
        return lines

    def as_json(self) -> dict[str, Any]:
        """Return plain values: scenario, every outcome, intervals and findings."""
        scenario = {k: v for k, v in asdict(self.scenario).items() if k != "background"}
        cells = [
            {
                "placer": placer,
                "rule": rule,
                **{m: asdict(self.interval(placer, rule, m)) for m in MEASURES},
            }
            for placer in self.placers
            for rule in self.rules
        ]
        return {
            "scenario": scenario,
            "seeds": list(self.seeds),
            "cells": cells,
            "findings": self.findings(),
            "outcomes": [outcome.as_json() for outcome in self.outcomes],
        }


def outcomes(
    scenario: Scenario,
    placers: Sequence[str],
    rules: Sequence[str],
    seeds: Sequence[int],
    workers: int | None = None,
) -> Iterator[Outcome]:
    """Yield every outcome of the grid as it comes, on all cores."""
    cells = [(placer, rule, seed) for seed in seeds for placer in placers for rule in rules]
    workers = min(workers or len(os.sched_getaffinity(0)), len(cells))
    if workers <= 1:
        for cell in cells:
            yield simulate(scenario, *cell)
        return
    # A fresh interpreter each: forking a process with BLAS threads can hang.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        waiting = [pool.submit(simulate, scenario, *cell) for cell in cells]
        try:
            for done in as_completed(waiting):
                yield done.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def collect(
    scenario: Scenario,
    placers: Sequence[str],
    rules: Sequence[str],
    seeds: Sequence[int],
    found: Sequence[Outcome],
) -> Study:
    """Return the study, its outcomes in the order of the grid whatever order they came in."""
    order = {cell: i for i, cell in enumerate((p, r, s) for p in placers for r in rules for s in seeds)}
    ordered = sorted(found, key=lambda o: order[o.placer, o.rule, o.seed])
    return Study(scenario, tuple(placers), tuple(rules), tuple(seeds), tuple(ordered))
