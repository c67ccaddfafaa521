"""The paper's four questions, answered from the numbers of one data set.

A difference counts only if its interval over nodes (bootstrap, 95 %) does not hold zero: with a handful of nodes
that is a coarse sieve, and the answer says so.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from prontosched.evaluation.forecast.methods import METHODS
from prontosched.evaluation.forecast.neighbours import GROUPINGS
from prontosched.evaluation.forecast.panel import LENGTHS
from prontosched.evaluation.forecast.study import Errors, StudyResult, mean_rmse, node_rmse
from prontosched.evaluation.forecast.values import PAST_DAYS

DRAWS = 2000
# With fewer, the bootstrap draws the same few nodes again and again and its interval says little.
FEWEST_NODES = 5
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
    nodes
        How many.
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
class Answer:
    """An answer in one sentence, and the numbers behind it."""

    verdict: str
    numbers: tuple[str, ...] = ()


def compare(first: dict[str, float], second: dict[str, float], *, seed: int = 0) -> Comparison | None:
    """Compare the errors of the nodes that both have; None if there is none."""
    nodes = sorted(first.keys() & second.keys())
    if not nodes:
        return None
    a, b = np.array([first[n] for n in nodes]), np.array([second[n] for n in nodes])
    draws = np.random.default_rng(seed).integers(len(nodes), size=(DRAWS, len(nodes)))
    change = 100.0 * (a[draws].mean(axis=1) / np.maximum(b[draws].mean(axis=1), 1e-12) - 1.0)
    low, high = np.percentile(change, [2.5, 97.5])
    middle = 100.0 * (a.mean() / max(b.mean(), 1e-12) - 1.0)
    return Comparison(float(middle), float(low), float(high), len(nodes))


def answer(result: StudyResult) -> dict[str, Answer]:
    """Answer the four questions; a question without numbers says so."""
    return {
        "how many": _how_many(result),
        "how much past": _how_much_past(result),
        "how far": _how_far(result),
        "which method": _which_method(result),
    }


def _how_many(result: StudyResult) -> Answer:
    parts = []
    for days, errors in result.daily.items():
        for method in ("arima", "svm"):
            found = compare(
                node_rmse(errors, f"same cluster/{method}"), node_rmse(errors, f"same node/{method}")
            )
            if found:
                parts.append((found, f"{METHODS[method]} from {days} days: {found.words()}"))
        best = min(GROUPINGS, key=lambda g: _or_infinite(mean_rmse(errors, f"similar/{g}")))
        found = compare(node_rmse(errors, f"similar/{best}"), node_rmse(errors, "same cluster/svm"))
        if found:
            parts.append(
                (
                    found,
                    f"SVM from {days} days, similar nodes ({GROUPINGS[best]}) against the cluster: {found.words()}",
                )
            )
    if not parts:
        return Answer("Not answered: the data set is too short for daily medians.")
    gains = [c for c, _ in parts if c.clear and c.change < 0]
    losses = [c for c, _ in parts if c.clear and c.change > 0]
    head = _verdict(gains, losses, "Using other nodes lowers the error", "Using other nodes raises the error")
    return Answer(head, ("error with other nodes against without:", *(text for _, text in parts)))


def _how_much_past(result: StudyResult) -> Answer:
    short, long = PAST_DAYS
    if short not in result.daily or long not in result.daily:
        return Answer(f"Not answered: the data set is too short for past windows of {long} days.")
    near, far = result.daily[short], result.daily[long]
    parts = []
    for scope in ("same node", "same cluster"):
        for method in METHODS:
            key = f"{scope}/{method}"
            if method == "naive":
                continue  # yesterday is yesterday in either window
            common = _steps(near, key) & _steps(far, key)
            found = compare(node_rmse(far, key, common), node_rmse(near, key, common))
            if found:
                parts.append((found, f"{METHODS[method]}, {scope}: {found.words()}"))
    if not parts:
        return Answer("Not answered: too few days are forecast from both windows.")
    gains = [c for c, _ in parts if c.clear and c.change < 0]
    losses = [c for c, _ in parts if c.clear and c.change > 0]
    head = _verdict(
        gains, losses, f"{long} days are better than {short}", f"{long} days are worse than {short}"
    )
    title = f"error from {long} days against {short}, on the same days:"
    return Answer(head, (title, *(text for _, text in parts)))


def _how_far(result: StudyResult) -> Answer:
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
        return Answer("Not answered: the data set has fewer than two window lengths.")
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
    return Answer(verdict, ("error of the best method:", *lines))


def _which_method(result: StudyResult) -> Answer:
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
        return Answer("Not answered: there are no forecasts.")
    best = max(wins, key=lambda m: wins[m])
    won = ", ".join(f"{METHODS[m]} {n}" for m, n in wins.items())
    clear = ", ".join(f"{METHODS[m]} {n}" for m, n in beats.items() if m != "naive")
    return Answer(
        f"{METHODS[best]} has the smallest error most often.",
        (
            f"of {columns} columns of the tables, smallest in: {won}",
            f"clearly better than the node's own last value in: {clear}",
        ),
    )


def _verdict(gains: list[Comparison], losses: list[Comparison], better: str, worse: str) -> str:
    if gains and not losses:
        return f"{better}."
    if losses and not gains:
        return f"{worse}."
    return "It depends on the method." if gains and losses else "No clear difference."


def _steps(errors: Errors, key: str) -> set[int]:
    return {step for by_step in errors.get(key, {}).values() for step in by_step}


def _or_infinite(value: float) -> float:
    return value if value == value else float("inf")
