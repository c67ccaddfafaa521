"""What a study says: tables in the paper's layout beside the paper's, and its four questions answered.

A difference counts only if its interval over nodes (bootstrap, 95 %) does not hold zero: with a handful of nodes
that is a coarse sieve, and the answer says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from prontosched.evaluation.forecast import paper_tables
from prontosched.evaluation.forecast.models import GROUPINGS, METHODS
from prontosched.evaluation.forecast.panel import LENGTHS
from prontosched.evaluation.forecast.study import (
    ALARM_METHODS,
    PAST_DAYS,
    THRESHOLDS,
    Errors,
    StudyResult,
    mean_rmse,
    node_rmse,
)

BOOTSTRAP_DRAWS = 2000
# With fewer, the bootstrap draws the same few nodes again and again and its interval says little.
FEWEST_NODES = 5
PAPER_MS = f"{paper_tables.SOURCE}, in ms"
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
QUESTIONS = {
    "how many": "How many other VMs should be used to forecast?",
    "how much past": "How much data from the past?",
    "how far": "How far into the future can be forecast?",
    "which method": "Which is the best method?",
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """How much larger one error is than another, in percent of the other, over the nodes both have.

    Attributes
    ----------
    change
        Mean of the first minus mean of the second, in percent of the second.
    low, high
        95 % interval over nodes.
    """

    change: float
    low: float
    high: float
    nodes: int

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.nodes >= FEWEST_NODES and (self.low > 0.0 or self.high < 0.0)

    def words(self) -> str:
        """Say how the first compares to the second."""
        interval = f"{self.change:+.1f} % [{self.low:+.1f}, {self.high:+.1f}]"
        if not self.clear:
            few = "" if self.nodes >= FEWEST_NODES else ", too few to tell"
            return f"no clear difference ({interval} over {self.nodes} nodes{few})"
        return f"{'lower' if self.change < 0 else 'higher'} ({interval} over {self.nodes} nodes)"


@dataclass(frozen=True, slots=True)
class QuestionAnswer:
    """An answer in one sentence, and the numbers behind it."""

    verdict: str
    numbers: tuple[str, ...] = ()


def compare(first: dict[str, float], second: dict[str, float], *, seed: int = 0) -> Comparison | None:
    """Compare the errors of the nodes that both have; None if there is none."""
    nodes = sorted(first.keys() & second.keys())
    if not nodes:
        return None
    a, b = np.array([first[n] for n in nodes]), np.array([second[n] for n in nodes])
    draws = np.random.default_rng(seed).integers(len(nodes), size=(BOOTSTRAP_DRAWS, len(nodes)))
    change = 100.0 * (a[draws].mean(axis=1) / np.maximum(b[draws].mean(axis=1), 1e-12) - 1.0)
    low, high = np.percentile(change, [2.5, 97.5])
    middle = 100.0 * (a.mean() / max(b.mean(), 1e-12) - 1.0)
    return Comparison(float(middle), float(low), float(high), len(nodes))


Parts = list[tuple[str, Comparison | None]]


def answer(result: StudyResult) -> dict[str, QuestionAnswer]:
    """QuestionAnswer the four questions; a question without numbers says so."""
    return {
        "how many": _how_many(result),
        "how much past": _how_much_past(result),
        "how far": _how_far(result),
        "which method": _which_method(result),
    }


def _how_many(result: StudyResult) -> QuestionAnswer:
    parts: Parts = []
    for days, errors in result.daily.items():
        pairs = [
            (f"{METHODS[method]} from {days} days", f"same cluster/{method}", f"same node/{method}")
            for method in ("arima", "svm")
        ]
        best = min(GROUPINGS, key=lambda g: np.nan_to_num(mean_rmse(errors, f"similar/{g}"), nan=np.inf))
        similar = f"SVM from {days} days, similar nodes ({GROUPINGS[best]}) against the cluster"
        for label, first, second in (*pairs, (similar, f"similar/{best}", "same cluster/svm")):
            parts.append((label, compare(node_rmse(errors, first), node_rmse(errors, second))))
    return _compared(
        parts,
        "the data set is too short for daily medians",
        ("Using other nodes lowers the error", "Using other nodes raises the error"),
        "error with other nodes against without:",
    )


def _how_much_past(result: StudyResult) -> QuestionAnswer:
    short, long = PAST_DAYS
    if short not in result.daily or long not in result.daily:
        return QuestionAnswer(f"Not answered: the data set is too short for past windows of {long} days.")
    near, far = result.daily[short], result.daily[long]
    parts: Parts = []
    for scope in SCOPES:
        for method in METHODS:
            if method == "naive":
                continue  # yesterday is yesterday in either window
            key = f"{scope}/{method}"
            common = _steps(near, key) & _steps(far, key)
            found = compare(node_rmse(far, key, common), node_rmse(near, key, common))
            parts.append((f"{METHODS[method]}, {scope}", found))
    return _compared(
        parts,
        "too few days are forecast from both windows",
        (f"{long} days are better than {short}", f"{long} days are worse than {short}"),
        f"error from {long} days against {short}, on the same days:",
    )


def _compared(parts: Parts, lack: str, verdicts: tuple[str, str], title: str) -> QuestionAnswer:
    """Return the answer that comparisons of errors give: lower, higher, or neither."""
    found = [(label, one) for label, one in parts if one is not None]
    if not found:
        return QuestionAnswer(f"Not answered: {lack}.")
    signs = {one.change < 0 for _, one in found if one.clear}
    if len(signs) == 1:
        verdict = f"{verdicts[0] if True in signs else verdicts[1]}."
    else:
        verdict = "It depends on the method." if signs else "No clear difference."
    return QuestionAnswer(verdict, (title, *(f"{label}: {one.words()}" for label, one in found)))


def _how_far(result: StudyResult) -> QuestionAnswer:
    best = {
        length: min(
            (m for m in METHODS if mean_rmse(errors, m) == mean_rmse(errors, m)),
            default="",
            key=lambda m: mean_rmse(errors, m),
        )
        for length, errors in result.windows.items()
    }
    known = {length: method for length, method in best.items() if method}
    if len(known) < 2:
        return QuestionAnswer("Not answered: the data set has fewer than two window lengths.")
    longest, shortest = max(known), min(known)
    errors = {length: mean_rmse(result.windows[length], method) for length, method in known.items()}
    easiest = min(errors, key=lambda length: errors[length])
    found = compare(
        node_rmse(result.windows[shortest], known[shortest]),
        node_rmse(result.windows[longest], known[longest]),
    )
    lines = [
        f"{LENGTHS[length]}: {errors[length]:.4g} ({METHODS[known[length]]})"
        for length in sorted(errors, reverse=True)
    ]
    if found is not None:
        lines.append(f"{LENGTHS[shortest]} against {LENGTHS[longest]}: {found.words()}")
    verdict = f"The error of the best method is smallest for windows of {LENGTHS[easiest]}."
    return QuestionAnswer(verdict, ("error of the best method:", *lines))


def _which_method(result: StudyResult) -> QuestionAnswer:
    wins: dict[str, int] = dict.fromkeys(METHODS, 0)
    beats: dict[str, int] = dict.fromkeys(METHODS, 0)
    columns = 0
    tables: list[tuple[Errors, str]] = [(errors, "") for errors in result.windows.values()]
    tables += [(e, f"{scope}/") for e in result.daily.values() for scope in ("same node", "same cluster")]
    for errors, prefix in tables:
        means = {m: mean_rmse(errors, f"{prefix}{m}") for m in METHODS}
        known = {m: v for m, v in means.items() if v == v}
        if not known:
            continue
        columns += 1
        wins[min(known, key=lambda m: known[m])] += 1
        # The bar for all of them: the same node's last value.
        bar = node_rmse(errors, "same node/naive" if prefix else "naive")
        for method in METHODS:
            found = compare(node_rmse(errors, f"{prefix}{method}"), bar)
            if method != "naive" and found is not None and found.clear and found.change < 0:
                beats[method] += 1
    if not columns:
        return QuestionAnswer("Not answered: there are no forecasts.")
    best = max(wins, key=lambda m: wins[m])
    won = ", ".join(f"{METHODS[m]} {n}" for m, n in wins.items())
    clear = ", ".join(f"{METHODS[m]} {n}" for m, n in beats.items() if m != "naive")
    return QuestionAnswer(
        f"{METHODS[best]} has the smallest error most often.",
        (
            f"of {columns} columns of the tables, smallest in: {won}",
            f"clearly better than the node's own last value in: {clear}",
        ),
    )


def _steps(errors: Errors, key: str) -> set[int]:
    return {step for by_step in errors.get(key, {}).values() for step in by_step}


@dataclass(frozen=True, slots=True)
class Grid:
    """One table of numbers.

    Attributes
    ----------
    origin
        Whose numbers, and their unit: a data set of ours, or the paper.
    rows
        Label and numbers; NaN where there is none.
    footer
        A row apart, such as the share of spikes.
    groups
        Headings over the headings, each with the number of columns it spans.
    best
        Whether the smallest ("low") or largest ("high") number of a column is the best.
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
    ours
        One grid per data set.
    paper
        What the paper printed; None where it has no such table.
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


# Where a cell of a table of errors comes from: part of the study, past days or length, and method.
Cell = tuple[str, int, str]


def _rmse_table(
    head: tuple[str, str, str, tuple[str, ...]],
    results: dict[str, StudyResult],
    columns: tuple[str, ...],
    cells: dict[str, list[Cell]],
    printed: dict[str, list[float]],
    groups: tuple[tuple[str, int], ...] = (),
) -> Table:
    """Return a table of average errors, the smallest best; `head` is its key, title, note and questions."""
    key, title, note, questions = head

    def grid(origin: str, rows: dict[str, list[float]], digits: int) -> Grid:
        filled = tuple((label, tuple(values)) for label, values in rows.items())
        return Grid(origin, columns, filled, "low", digits, groups=groups)

    ours = []
    for origin, result in results.items():
        rows = {
            label: [mean_rmse(getattr(result, part).get(group, {}), name) for part, group, name in row]
            for label, row in cells.items()
        }
        ours.append(grid(origin, rows, digits_for([value for row in rows.values() for value in row])))
    return Table(key, title, tuple(ours), grid(PAPER_MS, printed, 2), note, questions)


def daily_table(results: dict[str, StudyResult]) -> Table:
    """Table of daily medians from the same node and from the same cluster."""
    return _rmse_table(
        (
            "daily",
            "Average RMSE of days, from the same node and from all nodes of its cluster",
            "For the cluster, the naive method and exponential smoothing forecast the average node.",
            ("Q1", "Q2", "Q4"),
        ),
        results,
        tuple(f"{days} days" for _ in SCOPES for days in PAST_DAYS),
        {
            title: [("daily", days, f"{scope}/{method}") for scope in SCOPES for days in PAST_DAYS]
            for method, title in METHODS.items()
        },
        {METHODS[m]: list(row.values()) for m, row in paper_tables.DAILY.items()},
        tuple((scope, len(PAST_DAYS)) for scope in SCOPES),
    )


def similar_table(results: dict[str, StudyResult]) -> Table:
    """Table of daily medians from groups of similar nodes."""
    return _rmse_table(
        (
            "similar",
            "Average RMSE of days, from similar nodes",
            "SVM regression on the nodes of the same group; groups of about ten nodes.",
            ("Q1", "Q2"),
        ),
        results,
        tuple(f"{days} days" for days in PAST_DAYS),
        {
            title: [("daily", days, f"similar/{key}") for days in PAST_DAYS]
            for key, title in GROUPINGS.items()
        },
        {GROUPINGS[k]: list(v.values()) for k, v in paper_tables.SIMILAR.items()},
    )


def windows_table(results: dict[str, StudyResult]) -> Table:
    """Table of forecasting windows, each from a past window as long."""
    titles = {"naive": "naive", "expsmo": "ExpSmo", "arima": "ARIMA", "svm": "SVM cluster"}
    return _rmse_table(
        (
            "windows",
            "Average RMSE for different forecasting windows",
            "The next window's median or mean is forecast from the inside of the window before it, as long.",
            ("Q3", "Q4"),
        ),
        results,
        tuple(LENGTHS.values()),
        {title: [("windows", length, method) for length in LENGTHS] for method, title in titles.items()},
        {titles[m]: list(row) for m, row in paper_tables.WINDOWS.items()},
    )


def alarm_tables(results: dict[str, StudyResult], measure: str = "accuracy") -> list[Table]:
    """Tables of spikes forecast by the alarm method, for one measure."""
    tables = []
    for key, (title, kinds) in SPIKE_TABLES.items():
        ours = tuple(_alarm_grid(origin, result, kinds, measure) for origin, result in results.items())
        paper = None
        if measure == "accuracy":
            printed = tuple(k for k in kinds if k in paper_tables.ALARMS["naive"])
            rows = tuple(
                (name, tuple(paper_tables.ALARMS[m][k] for k in printed)) for m, name in ALARM_METHODS.items()
            )
            share = tuple(100.0 * paper_tables.ALARMS["share of spikes"][k] for k in printed)
            columns = tuple(THRESHOLDS[k] for k in printed)
            paper = Grid(paper_tables.SOURCE, columns, rows, "high", 4, ("% of spikes", share))
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
