"""Studies: cells of scenario, placer and rule over seeds, in parallel, with intervals and goals."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import as_completed
from dataclasses import asdict, dataclass, fields, replace
from multiprocessing import active_children
from typing import Any, NamedTuple

import numpy as np

from prontosched.evaluation.evaluate import end_with, process_pool
from prontosched.evaluation.nulls import plain
from prontosched.simulation.run import RunOutcome, Scenario, simulate
from prontosched.student import t_quantile

# What is measured of a run: all fields of an outcome but its names and the number of jobs.
MEASURES = tuple(one.name for one in fields(RunOutcome))[4:]

PLACERS_COMPARED = ("random", "two-choices", "least-allocated")
OURS = ("pronto-veto", "pronto-prefer", "pronto")
EVERY_RULE = (
    *("nothing", "ready", "psi", "koordinator", "volcano", "r15s", "r1m", "n-sigma", "peak-percentile"),
    *("peak-max", "trimaran-score", "r1m-score", "ready-score", "paper", *OURS, "oracle"),
)
SCORES = ("nothing", "trimaran-score", "r1m-score", "ready-score", "ready", *OURS, "oracle")
FEW_RULES = ("nothing", "ready", "ready-score", "r1m-score", "pronto-prefer", "pronto", "oracle")
EQUAL_RULES = ("nothing", "coin", "trimaran", "koordinator", "r1m", "ready", "pronto", "oracle")
LEAST = "least-allocated"
UTILISATIONS = (0.66, 0.8, 0.9, 0.95)
LENGTHS = (3.0, 10.0, 30.0, 100.0, 600.0)
# A run must be long enough for long jobs to end in it.
LEAST_LENGTHS = 6.0
# Share of the excess that preference alone removes, at least, by utilisation.
LEAST_REMOVED = {0.66: 0.40, 0.8: 0.30, 0.9: 0.18}


@dataclass(frozen=True)
class SeedInterval:
    """A mean over seeds and its 95 % interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        interval = f" [{self.low:.3f}, {self.high:.3f}]" if self.low == self.low else ""
        return f"{self.mean:.3f}{interval}"

    def as_json(self) -> dict[str, float | None]:
        """Return plain values; of one seed there is no interval."""
        return {"mean": plain(self.mean), "low": plain(self.low), "high": plain(self.high)}


def over_seeds(values: Sequence[float]) -> SeedInterval:
    """Return the mean of one value per seed, with Student's interval."""
    data = np.asarray(values, dtype=float)
    mean = float(data.mean())
    if data.size < 2:
        return SeedInterval(mean, float("nan"), float("nan"))
    reach = t_quantile(data.size - 1) * float(data.std(ddof=1)) / np.sqrt(data.size)
    return SeedInterval(round(mean, 12), mean - reach, mean + reach)


class Cell(NamedTuple):
    """One placer with one rule in one scenario; `name` is that of the scenario, for people."""

    name: str
    scenario: Scenario
    placer: str
    rule: str


def cells_of(name: str, scenario: Scenario, placers: Sequence[str], rules: Sequence[str]) -> list[Cell]:
    """Return every placer with every rule in one scenario."""
    return [Cell(name, scenario, placer, rule) for placer in placers for rule in rules]


def whole_grid(scenario: Scenario) -> dict[str, list[Cell]]:
    """Return the default study in the sizes of a scenario, part by part; its background is a kind of tenants more."""
    plain = replace(scenario, background=None)
    placers = cells_of(busy_name(plain.busy), plain, PLACERS_COMPARED, EVERY_RULE)
    utilisation, length, tenants = [], [], []
    for busy in UTILISATIONS:
        utilisation += cells_of(busy_name(busy), replace(plain, busy=busy), [LEAST], SCORES)
    for seconds in LENGTHS:
        steps = max(plain.steps, int(LEAST_LENGTHS * seconds))
        one = replace(plain, length=seconds, steps=steps)
        length += cells_of(f"jobs of {seconds:g} s", one, [LEAST], FEW_RULES)
    for kind in ("unannounced", "announced", "regular", "chronic", "mixed"):
        tenants += cells_of(f"{kind} tenants", replace(plain, tenants=kind), [LEAST], FEW_RULES)
    tenants += cells_of("unequal nodes", replace(plain, unequal=True), [LEAST], FEW_RULES)
    if scenario.background is not None:
        tenants += cells_of("recorded tenants", replace(scenario, tenants="trace"), [LEAST], FEW_RULES)
    return {"placers": placers, "utilisation": utilisation, "length": length, "tenants": tenants}


def busy_name(busy: float) -> str:
    """Return the name of a scenario by its utilisation."""
    return f"utilisation {busy:.2f}"


@dataclass(frozen=True)
class SimulationStudy:
    """All outcomes of a list of cells, by part."""

    parts: dict[str, list[Cell]]
    seeds: tuple[int, ...]
    outcomes: dict[Cell, list[RunOutcome]]

    def has(self, name: str, placer: str, *rules: str) -> bool:
        """Tell whether a scenario was run with a placer and all of the rules."""
        return all(self._find(name, placer, rule) is not None for rule in rules)

    def names(self, part: str) -> list[str]:
        """Return the names of a part's scenarios."""
        return list(dict.fromkeys(cell.name for cell in self.parts.get(part, ())))

    def blocks(self, part: str) -> dict[tuple[str, str], list[str]]:
        """Return the rules of every scenario and placer of a part, in order."""
        found: dict[tuple[str, str], list[str]] = {}
        for cell in self.parts[part]:
            found.setdefault((cell.name, cell.placer), []).append(cell.rule)
        return found

    def _find(self, name: str, placer: str, rule: str) -> Cell | None:
        wanted = (name, placer, rule)
        return next((cell for cell in self.outcomes if (cell.name, cell.placer, cell.rule) == wanted), None)

    def values(self, name: str, placer: str, rule: str, measure: str) -> list[float]:
        """Return one measure of one cell, in the order of the seeds."""
        cell = self._find(name, placer, rule)
        if cell is None:
            raise KeyError(f"{name}, {placer}, {rule} must be among the cells that were run, got none such")
        return [float(getattr(outcome, measure)) for outcome in self.outcomes[cell]]

    def interval(self, name: str, placer: str, rule: str, measure: str) -> SeedInterval:
        """Return one measure of one cell over the seeds."""
        return over_seeds(self.values(name, placer, rule, measure))

    def ratio(self, name: str, placer: str, rule: str, other: str = "nothing") -> SeedInterval:
        """Return the excess slowdown of a rule over that of another, seed by seed."""
        ours, others = (self.values(name, placer, each, "excess") for each in (rule, other))
        return over_seeds([one / two if two > 0 else 1.0 for one, two in zip(ours, others, strict=True)])

    def removed(self, name: str, placer: str, rule: str) -> SeedInterval:
        """Return the share of the placer's excess slowdown that a rule removes."""
        ratio = self.ratio(name, placer, rule)
        return SeedInterval(1.0 - ratio.mean, 1.0 - ratio.high, 1.0 - ratio.low)

    def as_json(self) -> dict[str, Any]:
        """Return plain values: every cell with its intervals and outcomes."""
        parts = {part: [self._cell_as_json(cell) for cell in cells] for part, cells in self.parts.items()}
        return {"seeds": list(self.seeds), "parts": parts}

    def _cell_as_json(self, cell: Cell) -> dict[str, Any]:
        found = {key: self.interval(cell.name, cell.placer, cell.rule, key).as_json() for key in MEASURES}
        outcomes = [asdict(outcome) for outcome in self.outcomes[cell]]
        return {**cell._asdict(), "scenario": cell.scenario.as_json(), **found, "outcomes": outcomes}


def run_cells(
    cells: Sequence[Cell], seeds: Sequence[int], workers: int | None = None
) -> Iterator[tuple[Cell, list[RunOutcome]]]:
    """Yield the outcomes of every cell as they come, on all cores; a cell that occurs twice runs once."""
    cells = list(dict.fromkeys(cells))
    # The long ones first, so that no core waits at the end for one of them.
    slow = {cell: "pronto" in cell.rule or cell.rule == "paper" for cell in cells}
    cells.sort(key=lambda cell: slow[cell] * cell.scenario.steps, reverse=True)
    workers = min(workers or len(os.sched_getaffinity(0)), len(cells))
    if workers <= 1:
        for cell in cells:
            yield cell, simulate(*cell[1:], seeds)
        return
    others = set(active_children())
    with process_pool(workers, end_with, os.getpid()) as pool:
        waiting = {pool.submit(simulate, *cell[1:], seeds): cell for cell in cells}
        try:
            for done in as_completed(waiting):
                yield waiting[done], done.result()
        except BaseException:
            for worker in set(active_children()) - others:  # in the middle of a cell, which takes seconds
                worker.kill()
            raise


class Goal(NamedTuple):
    """A claim, with the mean and interval over seeds of the figure that decides it."""

    claim: str
    figure: SeedInterval
    bound: float
    at_most: bool

    @property
    def met(self) -> bool:
        """Whether the mean over seeds is on the right side: not above the bound, or not below it."""
        return self.figure.mean <= self.bound if self.at_most else self.figure.mean >= self.bound

    def __str__(self) -> str:
        sign = "<=" if self.at_most else ">="
        word = "met   " if self.met else "missed"
        return f"{word}  {self.figure}  {sign} {self.bound:g}  {self.claim}"

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        bound = {"bound": self.bound, "at_most": self.at_most, "met": self.met}
        return {"claim": self.claim, **self.figure.as_json(), **bound}


def goals(study: SimulationStudy) -> list[Goal]:
    """Return the goals that the study can decide."""
    parts = (_by_placer, _by_preference, _by_tenants, _nowhere_worse)
    return [goal for part in parts for goal in part(study)]


def _by_placer(study: SimulationStudy) -> Iterator[Goal]:
    name = busy_name(UTILISATIONS[0])
    for placer in PLACERS_COMPARED:
        if study.has(name, placer, "nothing", "ready", *OURS):
            default = f"{placer}: excess of preference and veto over that of"
            against = study.ratio(name, placer, "pronto", "ready")
            yield Goal(f"{default} the one-line rule", against, 1.0, True)
            yield Goal(f"{default} the placer alone", study.ratio(name, placer, "pronto"), 0.6, True)
            ratio = study.ratio(name, placer, "pronto-prefer", "pronto-veto")
            yield Goal(f"{placer}: excess of preference alone over that of the veto alone", ratio, 1.0, True)


def _by_preference(study: SimulationStudy) -> Iterator[Goal]:
    for busy, least in LEAST_REMOVED.items():
        name = busy_name(busy)
        yield from _removed_by_preference(study, name, least)
        for other in ("ready-score", "r1m-score", "trimaran-score"):
            if study.has(name, LEAST, "nothing", "pronto-prefer", other):
                # By how much more of the excess one removes than the other, seed by seed.
                rules = ("pronto-prefer", other, "nothing")
                excess = zip(*(study.values(name, LEAST, rule, "excess") for rule in rules), strict=True)
                apart = over_seeds([(b - a) / alone for a, b, alone in excess])
                yield Goal(f"{name}: the same, more than by {other}", apart, 0.0, False)
    yield from _removed_by_preference(study, "jobs of 10 s", 0.6)


def _removed_by_preference(study: SimulationStudy, name: str, least: float) -> Iterator[Goal]:
    if study.has(name, LEAST, "nothing", "pronto-prefer"):
        removed = study.removed(name, LEAST, "pronto-prefer")
        yield Goal(f"{name}: share of the excess removed by preference alone", removed, least, False)


def _by_tenants(study: SimulationStudy) -> Iterator[Goal]:
    for name in ("regular tenants", "announced tenants"):
        if study.has(name, LEAST, "ready", "pronto"):
            ratio = study.ratio(name, LEAST, "pronto", "ready")
            claim = f"{name}: excess of preference and veto over that of the one-line rule"
            yield Goal(claim, ratio, 0.8, True)


def _nowhere_worse(study: SimulationStudy) -> Iterator[Goal]:
    """Yield the worst of all scenarios, with every placer."""
    found = [
        (f"{cell.rule} with {cell.placer}, {cell.name}", study.ratio(cell.name, cell.placer, cell.rule))
        for cell in study.outcomes
        if cell.rule in OURS and study.has(cell.name, cell.placer, "nothing")
    ]
    if found:
        where, ratio = max(found, key=lambda pair: pair[1].mean)
        yield Goal(f"nowhere worse than the placer alone; nearest to it: {where}", ratio, 1.0, True)
