"""Tables in the paper's layout: ours, and what the paper printed, side by side and never in one grid."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from prontosched.evaluation.forecast import published
from prontosched.evaluation.forecast.alarms import ALARM_METHODS, THRESHOLDS
from prontosched.evaluation.forecast.methods import METHODS
from prontosched.evaluation.forecast.neighbours import GROUPINGS
from prontosched.evaluation.forecast.panel import LENGTHS
from prontosched.evaluation.forecast.study import StudyResult, mean_rmse
from prontosched.evaluation.forecast.values import PAST_DAYS

PAPER_MS = f"{published.SOURCE}, in ms"
SCOPES = ("same node", "same cluster")
SPIKE_TABLES = {
    "fixed": ("a fixed threshold, in ms", ("500ms", "800ms", "1000ms")),
    "percentiles": ("percentiles of the node's past", ("p90", "p95", "p99")),
    "statistical": ("statistical thresholds and the median", ("3sigma", "xbar", "median", "mean+xbar")),
}
MEASURES = {
    "accuracy": "accuracy per node (mean of TP/P and TN/N)",
    "balanced": "balanced accuracy over all nodes and days",
    "plain": "plain accuracy (share of right answers)",
    "literal": "the formula as printed (numbers forecast over numbers actual; can exceed 1)",
}


@dataclass(frozen=True, slots=True)
class Grid:
    """One table of numbers.

    Attributes
    ----------
    origin
        Whose numbers, and their unit: a data set of ours, or the paper.
    columns
        Headings.
    rows
        Label and numbers; NaN where there is none.
    footer
        A row apart, such as the share of spikes.
    groups
        Headings over the headings, each with the number of columns it spans.
    best
        Whether the smallest ("low") or largest ("high") number of a column is the best.
    digits
        Decimals shown.
    """

    origin: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[float, ...]], ...]
    best: str
    digits: int
    footer: tuple[str, tuple[float, ...]] | None = None
    groups: tuple[tuple[str, int], ...] = ()

    def is_best(self, row: int, column: int) -> bool:
        """Tell whether a cell is the best of its column."""
        value = self.rows[row][1][column]
        known = [cells[column] for _, cells in self.rows if not math.isnan(cells[column])]
        if math.isnan(value) or len(known) < 2:
            return False
        return round(value, self.digits) == round(
            min(known) if self.best == "low" else max(known), self.digits
        )

    def show(self, value: float) -> str:
        """Return a number as it is printed."""
        return "–" if math.isnan(value) else f"{value:.{self.digits}f}"


@dataclass(frozen=True, slots=True)
class Table:
    """A table of ours beside the paper's.

    Attributes
    ----------
    key
        Short name, for files and JSON.
    title
        What is in it.
    ours
        One grid per data set.
    paper
        What the paper printed; None where it has no such table.
    note
        What to know when reading it.
    """

    key: str
    title: str
    ours: tuple[Grid, ...]
    paper: Grid | None
    note: str = ""
    questions: tuple[str, ...] = field(default=())


def digits_for(values: list[float]) -> int:
    """Return how many decimals show four places or so."""
    known = [abs(v) for v in values if not math.isnan(v) and v]
    return 2 if not known else min(6, max(1, 3 - math.floor(math.log10(max(known)))))


def rmse_grid(
    origin: str,
    columns: tuple[str, ...],
    rows: dict[str, list[float]],
    *,
    digits: int | None = None,
    groups: tuple[tuple[str, int], ...] = (),
) -> Grid:
    """Return a grid of errors, the smallest best."""
    shown = digits_for([v for row in rows.values() for v in row]) if digits is None else digits
    return Grid(origin, columns, tuple((k, tuple(v)) for k, v in rows.items()), "low", shown, groups=groups)


def daily_table(results: dict[str, StudyResult]) -> Table:
    """Table of daily medians from the same node and from the same cluster."""
    columns = tuple(f"{days} days" for _ in SCOPES for days in PAST_DAYS)
    groups = tuple((scope, len(PAST_DAYS)) for scope in SCOPES)
    ours = []
    for origin, result in results.items():
        rows = {
            title: [
                mean_rmse(result.daily.get(days, {}), f"{scope}/{method}")
                for scope in SCOPES
                for days in PAST_DAYS
            ]
            for method, title in METHODS.items()
        }
        ours.append(rmse_grid(origin, columns, rows, groups=groups))
    printed = {METHODS[m]: list(row.values()) for m, row in published.DAILY.items()}
    paper = rmse_grid(PAPER_MS, columns, printed, digits=2, groups=groups)
    return Table(
        "daily",
        "Average RMSE of daily medians, from the same node and from all nodes of its cluster",
        tuple(ours),
        paper,
        "For the cluster, the naive method and exponential smoothing forecast the average node.",
        ("Q1", "Q2", "Q4"),
    )


def similar_table(results: dict[str, StudyResult]) -> Table:
    """Table of daily medians from groups of similar nodes."""
    columns = tuple(f"{days} days" for days in PAST_DAYS)
    ours = tuple(
        rmse_grid(
            origin,
            columns,
            {
                title: [mean_rmse(result.daily.get(days, {}), f"similar/{key}") for days in PAST_DAYS]
                for key, title in GROUPINGS.items()
            },
        )
        for origin, result in results.items()
    )
    printed = {GROUPINGS[k]: list(v.values()) for k, v in published.SIMILAR.items()}
    paper = rmse_grid(PAPER_MS, columns, printed, digits=2)
    note = "SVM regression on the nodes of the same group; groups of about ten nodes."
    return Table(
        "similar", "Average RMSE of daily medians, from similar nodes", ours, paper, note, ("Q1", "Q2")
    )


def windows_table(results: dict[str, StudyResult]) -> Table:
    """Table of forecasting windows, each from a past window as long."""
    columns = tuple(LENGTHS.values())
    titles = {"naive": "naive", "expsmo": "ExpSmo", "arima": "ARIMA", "svm": "SVM cluster"}
    ours = tuple(
        rmse_grid(
            origin,
            columns,
            {
                title: [mean_rmse(result.windows.get(length, {}), method) for length in LENGTHS]
                for method, title in titles.items()
            },
        )
        for origin, result in results.items()
    )
    printed = {titles[m]: list(row) for m, row in published.WINDOWS.items()}
    paper = rmse_grid(PAPER_MS, columns, printed, digits=2)
    note = "The median of the next window is forecast from the inside of the window before it, as long."
    return Table("windows", "Average RMSE for different forecasting windows", ours, paper, note, ("Q3", "Q4"))


def alarm_tables(results: dict[str, StudyResult], measure: str = "accuracy") -> list[Table]:
    """Tables of spikes forecast by the alarm method, for one measure."""
    tables = []
    for key, (title, kinds) in SPIKE_TABLES.items():
        ours = tuple(_alarm_grid(origin, result, kinds, measure) for origin, result in results.items())
        paper = None
        if measure == "accuracy":
            printed = tuple(k for k in kinds if k in published.ALARMS["naive"])
            rows = tuple(
                (name, tuple(published.ALARMS[m][k] for k in printed)) for m, name in ALARM_METHODS.items()
            )
            share = tuple(100.0 * published.ALARMS["share of spikes"][k] for k in printed)
            columns = tuple(THRESHOLDS[k] for k in printed)
            paper = Grid(published.SOURCE, columns, rows, "high", 4, ("% of spikes", share))
        note = MEASURES[measure][0].upper() + MEASURES[measure][1:] + "."
        if key == "statistical" and measure == "accuracy":
            note += (
                " A share of 49.1 % for xbar and 24.91 % for the median is as printed; they may be swapped."
            )
        tables.append(Table(f"{key}-{measure}", f"Spikes by {title}", ours, paper, note, ()))
    return tables


def _alarm_grid(origin: str, result: StudyResult, kinds: tuple[str, ...], measure: str) -> Grid:
    nan = float("nan")
    rows = tuple(
        (name, tuple(result.alarms.get(k, {}).get(m, {}).get(measure, nan) for k in kinds))
        for m, name in ALARM_METHODS.items()
    )
    share = tuple(
        100.0 * result.alarms.get(k, {}).get("share of spikes", {}).get(measure, nan) for k in kinds
    )
    name = origin.rsplit(", in ", 1)[0]  # an accuracy has no unit
    return Grid(name, tuple(THRESHOLDS[k] for k in kinds), rows, "high", 4, ("% of spikes", share))


def all_tables(results: dict[str, StudyResult]) -> list[Table]:
    """Return every table of the study, in the paper's order, then the other measures of spikes."""
    tables = [daily_table(results), similar_table(results), windows_table(results)]
    for measure in MEASURES:
        tables += alarm_tables(results, measure)
    return tables


def as_text(grid: Grid) -> str:
    """Return a grid as plain text; the best of each column is starred."""
    footer = [grid.footer] if grid.footer else []
    above = ["", *(label if not place else "" for label, span in grid.groups for place in range(span))]
    lines = [above, ["", *grid.columns]] if grid.groups else [["", *grid.columns]]
    for row, (label, cells) in enumerate(grid.rows):
        marks = ["*" if grid.is_best(row, column) else " " for column in range(len(cells))]
        lines.append([label, *(f"{grid.show(v)}{mark}" for v, mark in zip(cells, marks, strict=True))])
    for label, cells in footer:
        lines.append([label, *("– " if math.isnan(v) else f"{v:.2f} " for v in cells)])
    widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if not place else cell.rjust(w) for place, (cell, w) in enumerate(pairs)
        ).rstrip()
        for pairs in (list(zip(line, widths, strict=True)) for line in lines)
    )
