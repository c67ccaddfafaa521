"""What a study says: tables in the paper's layout beside the paper's, and its four questions answered.

A difference counts only if its interval over nodes (bootstrap, 95 %) does not hold zero: with a handful of nodes
that is a coarse sieve, and the answer says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from prontosched.evaluation.forecast import paper_tables
from prontosched.evaluation.forecast.models import GROUPINGS, METHODS
from prontosched.evaluation.forecast.panel import LENGTHS
from prontosched.evaluation.forecast.study import (
    ALARM_METHODS,
    FIXED_MS,
    PAST_DAYS,
    PERCENTILES,
    THRESHOLDS,
    Errors,
    StudyResult,
    mean_rmse,
    node_rmse,
)
from prontosched.evaluation.report import align

BOOTSTRAP_DRAWS = 2000
# With fewer, the bootstrap draws the same few nodes again and again and its interval says little.
FEWEST_NODES = 5
SCOPES = ("same node", "same cluster")
# Title, note, and the questions that each table of errors bears on.
VALUE_TABLES = {
    "daily": (
        "Average RMSE of days, from the same node and from all nodes of its cluster",
        "For the cluster, the naive method and exponential smoothing forecast the average node.",
        ("Q1", "Q2", "Q4"),
    ),
    "similar": (
        "Average RMSE of days, from similar nodes",
        "SVM regression on the nodes of the same group; groups of about ten nodes.",
        ("Q1", "Q2"),
    ),
    "windows": (
        "Average RMSE for different forecasting windows",
        "The next window's median or mean is forecast from the inside of the window before it, as long.",
        ("Q3", "Q4"),
    ),
}
SPIKE_TABLES = {
    "fixed": ("a fixed threshold, in ms", FIXED_MS),
    "percentiles": ("percentiles of the node's past", PERCENTILES),
    "statistical": ("statistical thresholds and the median", ("3sigma", "xbar", "median", "mean+xbar")),
}
MEASURES = {
    "accuracy": "Accuracy per node (mean of TP/P and TN/N).",
    "balanced": "Balanced accuracy over all nodes and days.",
    "plain": "Plain accuracy (share of right answers).",
    "literal": "The formula as printed (numbers forecast over numbers actual; can exceed 1).",
}
SWAPPED = " A share of 49.1 % for xbar and 24.91 % for the median is as printed; they may be swapped."
QUESTIONS = {
    "how many": "How many other VMs should be used to forecast?",
    "how much past": "How much data from the past?",
    "how far": "How far into the future can be forecast?",
    "which method": "Which is the best method?",
}
NAN = float("nan")


@dataclass(frozen=True, slots=True)
class Comparison:
    """How much larger one error is than another, in percent, with its 95 % interval over the nodes both have."""

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


@dataclass(frozen=True, slots=True)
class QuestionAnswer:
    """An answer in one sentence, and the numbers behind it."""

    verdict: str
    numbers: tuple[str, ...] = ()


Parts = list[tuple[str, Comparison | None]]


def answer(result: StudyResult) -> dict[str, QuestionAnswer]:
    """Answer the four questions; a question without numbers says so."""
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
        means = {grouping: mean_rmse(errors, f"similar/{grouping}") for grouping in GROUPINGS}
        best = _best(means) or "ordered"
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
    windows = result.windows
    found = {length: {m: mean_rmse(windows[length], m) for m in METHODS} for length in windows}
    known = {length: best for length, means in found.items() if (best := _best(means))}
    if len(known) < 2:
        return QuestionAnswer("Not answered: the data set has fewer than two window lengths.")
    errors = {length: found[length][method] for length, method in known.items()}
    longest, shortest = max(known), min(known)
    apart = compare(*(node_rmse(windows[length], known[length]) for length in (shortest, longest)))
    lengths = sorted(errors, reverse=True)
    lines = [f"{LENGTHS[n]}: {errors[n]:.4g} ({METHODS[known[n]]})" for n in lengths]
    if apart is not None:
        lines.append(f"{LENGTHS[shortest]} against {LENGTHS[longest]}: {apart.words()}")
    easiest = min(errors, key=lambda length: errors[length])
    verdict = f"The error of the best method is smallest for windows of {LENGTHS[easiest]}."
    return QuestionAnswer(verdict, ("error of the best method:", *lines))


def _which_method(result: StudyResult) -> QuestionAnswer:
    wins, beats = dict.fromkeys(METHODS, 0), dict.fromkeys(METHODS, 0)
    columns = [(errors, "") for errors in result.windows.values()]
    columns += [(errors, f"{scope}/") for errors in result.daily.values() for scope in SCOPES]
    counted = 0
    for errors, prefix in columns:
        smallest = _best({method: mean_rmse(errors, f"{prefix}{method}") for method in METHODS})
        if not smallest:
            continue
        counted += 1
        wins[smallest] += 1
        # The bar for all of them: the same node's last value.
        bar = node_rmse(errors, "same node/naive" if prefix else "naive")
        for method in METHODS:
            found = compare(node_rmse(errors, f"{prefix}{method}"), bar)
            beats[method] += found is not None and found.clear and found.change < 0
    if not counted:
        return QuestionAnswer("Not answered: there are no forecasts.")
    best = max(wins, key=lambda method: wins[method])
    won = ", ".join(f"{METHODS[method]} {times}" for method, times in wins.items())
    clear = ", ".join(f"{METHODS[method]} {times}" for method, times in beats.items() if method != "naive")
    return QuestionAnswer(
        f"{METHODS[best]} has the smallest error most often.",
        (
            f"of {counted} columns of the tables, smallest in: {won}",
            f"clearly better than the node's own last value in: {clear}",
        ),
    )


def _best(errors: dict[str, float]) -> str:
    """Return the name of the smallest error that is known, empty where none is."""
    known = {name: error for name, error in errors.items() if not math.isnan(error)}
    return min(known, key=lambda name: known[name], default="")


def _steps(errors: Errors, key: str) -> set[int]:
    return {step for by_step in errors.get(key, {}).values() for step in by_step}


@dataclass(frozen=True, slots=True)
class Grid:
    """One table of numbers: of a data set of ours, or the paper's."""

    origin: str
    columns: tuple[str, ...]
    rows: dict[str, list[float]]  # by label; NaN where there is no number
    best: str  # of a column: `min` or `max`
    digits: int
    shares: tuple[float, ...] = ()  # percentage of spikes in each column; none for errors
    groups: tuple[tuple[str, int], ...] = ()  # headings over the headings, with the columns each spans

    @property
    def known(self) -> bool:
        """Whether there is any number."""
        return any(not math.isnan(value) for row in self.rows.values() for value in row)

    def is_best(self, label: str, column: int) -> bool:
        """Tell whether a cell is the best of its column."""
        value = self.rows[label][column]
        known = [row[column] for row in self.rows.values() if not math.isnan(row[column])]
        if math.isnan(value) or len(known) < 2:
            return False
        best = min(known) if self.best == "min" else max(known)
        return round(value, self.digits) == round(best, self.digits)

    def show(self, value: float, digits: int | None = None) -> str:
        """Return a number as it is printed."""
        return "–" if math.isnan(value) else f"{value:.{self.digits if digits is None else digits}f}"

    def as_text(self) -> str:
        """Return plain text; the best of each column is starred."""
        above = ["", *(label if not place else "" for label, span in self.groups for place in range(span))]
        lines = [above, ["", *self.columns]] if self.groups else [["", *self.columns]]
        for label, row in self.rows.items():
            marks = ["*" if self.is_best(label, column) else " " for column in range(len(row))]
            lines.append([label, *(f"{self.show(v)}{mark}" for v, mark in zip(row, marks, strict=True))])
        if self.shares:
            lines.append(["% of spikes", *(f"{self.show(share, 2)} " for share in self.shares)])
        return "\n".join(align(lines))


@dataclass(frozen=True, slots=True)
class Table:
    """A table of ours, one grid per data set, beside what the paper printed, if it has such a table."""

    key: str
    title: str
    ours: list[Grid]
    paper: Grid | None
    note: str = ""
    questions: tuple[str, ...] = ()


def all_tables(results: dict[str, StudyResult]) -> list[Table]:
    """Return every table of the study, in the paper's order, then the other measures of spikes."""
    tables = _value_tables(results)
    for measure in MEASURES:
        tables += [_spike_table(results, key, measure) for key in SPIKE_TABLES]
    return tables


def _value_tables(results: dict[str, StudyResult]) -> list[Table]:
    """Return the tables of average errors: of days, from similar nodes, and of forecasting windows."""
    scoped = [(scope, past) for scope in SCOPES for past in PAST_DAYS]
    days = tuple(f"{past} days" for past in PAST_DAYS)
    groups = tuple((scope, len(PAST_DAYS)) for scope in SCOPES)
    # Each row's cells: part of the study, past days or length, and method.
    daily = {m: [("daily", past, f"{scope}/{m}") for scope, past in scoped] for m in METHODS}
    similar = {g: [("daily", past, f"similar/{g}") for past in PAST_DAYS] for g in GROUPINGS}
    windows = {m: [("windows", length, m) for length in LENGTHS] for m in METHODS}
    titles, lengths = METHODS | {"svm": "SVM cluster"}, tuple(LENGTHS.values())
    return [
        _value_table("daily", results, days * len(SCOPES), METHODS, daily, paper_tables.DAILY, groups),
        _value_table("similar", results, days, GROUPINGS, similar, paper_tables.SIMILAR),
        _value_table("windows", results, lengths, titles, windows, paper_tables.WINDOWS),
    ]


def _value_table(
    key: str,
    results: dict[str, StudyResult],
    columns: tuple[str, ...],
    titles: dict[str, str],
    cells: dict[str, list[tuple[str, int, str]]],
    printed: dict[str, tuple[float, ...]],
    groups: tuple[tuple[str, int], ...] = (),
) -> Table:
    title, note, questions = VALUE_TABLES[key]
    ours = []
    for origin, result in results.items():
        rows = {
            titles[row]: [
                mean_rmse(getattr(result, part).get(group, {}), name) for part, group, name in places
            ]
            for row, places in cells.items()
        }
        digits = _digits_for([value for row in rows.values() for value in row])
        ours.append(Grid(origin, columns, rows, "min", digits, groups=groups))
    theirs = {titles[row]: list(values) for row, values in printed.items()}
    paper = Grid(f"{paper_tables.SOURCE}, in ms", columns, theirs, "min", 2, groups=groups)
    return Table(key, title, [grid for grid in ours if grid.known], paper, note, questions)


def _spike_table(results: dict[str, StudyResult], key: str, measure: str) -> Table:
    """Return the table of spikes forecast by the alarm method, for one kind of threshold and one measure."""
    title, kinds = SPIKE_TABLES[key]
    ours = []
    for origin, result in results.items():
        values = {
            method: {k: result.alarms.get(k, {}).get(method, {}).get(measure, NAN) for k in kinds}
            for method in (*ALARM_METHODS, "share of spikes")
        }
        # An accuracy has no unit.
        ours.append(_spike_grid(origin.rsplit(", in ", 1)[0], kinds, values))
    note, paper = MEASURES[measure], None
    if measure == "accuracy":
        printed = tuple(kind for kind in kinds if kind in paper_tables.ALARMS["naive"])
        paper = _spike_grid(paper_tables.SOURCE, printed, paper_tables.ALARMS)
        note += SWAPPED if key == "statistical" else ""
    return Table(f"{key}-{measure}", f"Spikes by {title}", [g for g in ours if g.known], paper, note)


def _spike_grid(origin: str, kinds: tuple[str, ...], values: dict[str, dict[str, float]]) -> Grid:
    rows = {title: [values[method][kind] for kind in kinds] for method, title in ALARM_METHODS.items()}
    shares = tuple(100.0 * values["share of spikes"][kind] for kind in kinds)
    return Grid(origin, tuple(THRESHOLDS[kind] for kind in kinds), rows, "max", 4, shares)


def _digits_for(values: list[float]) -> int:
    """Return how many decimals show four places or so."""
    known = [abs(v) for v in values if not math.isnan(v) and v]
    return 2 if not known else min(6, max(1, 3 - math.floor(math.log10(max(known)))))
