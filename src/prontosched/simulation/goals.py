"""What the simulation should show, and whether it does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from prontosched.simulation.study import (
    PLACERS_COMPARED,
    UTILISATIONS,
    Interval,
    Study,
    busy_name,
    over_seeds,
)

OURS = ("pronto", "pronto-prefer", "pronto-veto")
LEAST = "least-allocated"
# Share of the excess that preference alone removes, at least, by utilisation.
LEAST_REMOVED = {0.66: 0.40, 0.8: 0.30, 0.9: 0.18}


class Goal(NamedTuple):
    """A claim with the figure that decides it.

    Attributes
    ----------
    figure
        Mean and interval over seeds of what is compared with `bound`.
    at_most
        Whether the figure must not be above the bound; else not below it.
    """

    claim: str
    figure: Interval
    bound: float
    at_most: bool

    @property
    def met(self) -> bool:
        """Whether the mean over seeds is on the right side."""
        return self.figure.mean <= self.bound if self.at_most else self.figure.mean >= self.bound

    def __str__(self) -> str:
        sign = "<=" if self.at_most else ">="
        word = "met   " if self.met else "missed"
        return f"{word}  {self.figure}  {sign} {self.bound:g}  {self.claim}"

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        figure = self.figure
        return {
            "claim": self.claim,
            "mean": figure.mean,
            "low": figure.low,
            "high": figure.high,
            "bound": self.bound,
            "at_most": self.at_most,
            "met": self.met,
        }


def goals(study: Study) -> list[Goal]:
    """Return the goals that the study can decide."""
    return [
        *_by_placer(study),
        *_by_utilisation(study),
        *_by_length(study),
        *_by_tenants(study),
        *_nowhere_worse(study),
    ]


def _by_placer(study: Study) -> Iterator[Goal]:
    name = busy_name(UTILISATIONS[0])
    for placer in PLACERS_COMPARED:
        if study.has(name, placer, "nothing", "ready", "pronto", "pronto-prefer", "pronto-veto"):
            yield Goal(
                f"{placer}: excess of the default over that of the one-line rule",
                study.ratio(name, placer, "pronto", "ready"),
                1.0,
                True,
            )
            yield Goal(
                f"{placer}: excess of the default over that of the placer alone",
                study.ratio(name, placer, "pronto"),
                0.6,
                True,
            )
            yield Goal(
                f"{placer}: excess of preference alone over that of the veto alone",
                study.ratio(name, placer, "pronto-prefer", "pronto-veto"),
                1.0,
                True,
            )


def _by_utilisation(study: Study) -> Iterator[Goal]:
    for busy, least in LEAST_REMOVED.items():
        name = busy_name(busy)
        if not study.has(name, LEAST, "nothing", "pronto-prefer"):
            continue
        yield Goal(
            f"{name}: share of the excess removed by preference alone",
            study.removed(name, LEAST, "pronto-prefer"),
            least,
            False,
        )
        for other in ("ready-score", "r1m-score", "trimaran-score"):
            if study.has(name, LEAST, other):
                yield Goal(
                    f"{name}: the same, more than by {other}",
                    _apart(study, name, "pronto-prefer", other),
                    0.0,
                    False,
                )


def _by_length(study: Study) -> Iterator[Goal]:
    name = "jobs of 10 s"
    if study.has(name, LEAST, "nothing", "pronto-prefer"):
        yield Goal(
            f"{name}: share of the excess removed by preference alone",
            study.removed(name, LEAST, "pronto-prefer"),
            0.6,
            False,
        )


def _by_tenants(study: Study) -> Iterator[Goal]:
    for name in ("regular tenants", "announced tenants"):
        if study.has(name, LEAST, "ready", "pronto"):
            yield Goal(
                f"{name}: excess of the default over that of the one-line rule",
                study.ratio(name, LEAST, "pronto", "ready"),
                0.8,
                True,
            )


def _nowhere_worse(study: Study) -> Iterator[Goal]:
    """Yield the worst of all scenarios, with every placer."""
    worst: tuple[float, str, Interval] | None = None
    for cell in study.outcomes:
        if cell.rule in OURS and study.has(cell.name, cell.placer, "nothing"):
            ratio = study.ratio(cell.name, cell.placer, cell.rule)
            if worst is None or ratio.mean > worst[0]:
                worst = (ratio.mean, f"{cell.rule} with {cell.placer}, {cell.name}", ratio)
    if worst is not None:
        yield Goal(f"nowhere worse than the placer alone; nearest to it: {worst[1]}", worst[2], 1.0, True)


def _apart(study: Study, name: str, rule: str, other: str) -> Interval:
    """Return by how much more of the excess a rule removes than another, seed by seed."""
    alone = study.values(name, LEAST, "nothing", "excess")
    one, two = (study.values(name, LEAST, each, "excess") for each in (rule, other))
    return over_seeds([(b - a) / c for a, b, c in zip(one, two, alone, strict=True)])
