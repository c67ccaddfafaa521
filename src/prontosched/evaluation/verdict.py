"""What the numbers say: is the signal worth obeying here, and are the goals of the default met.

The one answer (yes, no, or too early) comes with the numbers behind it; sentences compare the methods; a row for
each goal says what is measured, the goal, and whether this run meets it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from prontosched.evaluation.methods import Method
from prontosched.evaluation.nulls import Interval, plain
from prontosched.evaluation.study import FEWEST_BLOCKS, FEWEST_ONSETS, VARIANTS, Study
from prontosched.subspace import Array

# Refusals must meet at least this many times the contention that a coin of the same downtime would. Where contention
# follows most moments that is out of reach: there they must come halfway from the coin to what is possible.
WORTH = 1.5
# A signal must have begun to refuse this often before its refusals can be judged.
FEWEST_REFUSALS = 10
# With so many times the fewest onsets, a signal that hardly refuses is of no use here.
PLENTY = 3
# Chance that the same decisions, shifted in time, would have done as well.
LEVEL = 0.01
# If the record would have to be longer than this many times to be sure, there is nothing much to be sure of.
LONGEST_WAIT = 4.0
DEFAULT = "learned"
BLIND = "learned-blind"
READY_METHOD = "ready"


@dataclass(frozen=True, slots=True)
class Assessment:
    """The answer to "is it worth obeying here?"."""

    answer: str  # yes, no or too early
    subject: str  # the method that is judged: the default signal and policy where it ran
    because: str
    lift: Interval  # how many times more contention the refusals met than chance would have
    recall: float  # share of the moments before contention that were refused
    downtime: float  # and of all moments
    more_hours: float | None = None  # how much longer to record, about, where that can be told

    @property
    def sentence(self) -> str:
        """The whole answer in words."""
        wait = "" if self.more_hours is None else f" (record about {_hours(self.more_hours)} more)"
        return f"{self.answer.capitalize()}{wait}: {self.because}"

    def as_dict(self) -> dict[str, Any]:
        """Return plain numbers and words."""
        figures = {"recall": plain(self.recall), "downtime": plain(self.downtime)}
        said = ("answer", "because", "sentence", "subject", "more_hours")
        words = {key: getattr(self, key) for key in said}
        return {**words, "lift": self.lift.as_dict(), **figures}


def answer(study: Study) -> Assessment:
    """Say whether the default signal and policy are worth obeying on these nodes.

    Yes needs all of: enough separate onsets of contention and refusals; refusals that meet contention more
    often than a coin's would, by the interval and by shifting them in time; and not surely less than
    current CPU Ready at the same downtime.
    """
    method = subject(study)
    name = method.name
    nothing = Interval(math.nan, math.nan, math.nan)
    recall, downtime = (study.interval(name, key).value for key in ("own_recall", "own_downtime"))

    def say(found: str, because: str, *, times: float = math.nan, lift: Interval = nothing) -> Assessment:
        hours = study.hours * (times - 1.0) if math.isfinite(times) else math.nan
        more = hours if math.isfinite(hours) and found == "too early" else None
        return Assessment(found, method.label, because, lift, recall, downtime, more)

    if not math.isfinite(downtime):
        unknown = "the unit of CPU Ready is not known here: name another method"
        return say("too early", f"{method.label} has its limit in percent, and {unknown}.")
    early = _too_little(study)
    if early is not None:
        return say("too early", early[0], times=early[1])
    refusals = study.refusals(name)
    if refusals < FEWEST_REFUSALS:
        came = f"while contention came {_times(study.onsets)}"
        few = f"{method.label} began to refuse {_times(refusals)} {came}"
        if study.onsets >= PLENTY * FEWEST_ONSETS:
            if downtime < 0.5:
                return say("no", f"{few}: it would change next to nothing.")
            few += f", and refused {downtime:.1%} of the time"
            return say("no", f"{few}: it tells next to nothing apart.")
        return say("too early", f"{few}.", times=2.0 * FEWEST_REFUSALS / max(refusals, 1))
    lift = study.lift(name)
    found = _found(method.label, lift, recall, downtime) + _one_line(study, name, method.label)
    if not lift.high > lift.low and lift.value > 0:
        return say("too early", f"{found} How sure that is cannot be told yet.", times=2.0, lift=lift)
    p = study.null_test(name, "own").p
    sure = lift.low > 1.0 and p <= LEVEL
    worth = min(WORTH, (1.0 + study.most_lift(name)) / 2.0)
    if sure and name in study.worse_than_ready:
        return say("no", f"{found} That is surely less.", lift=lift)
    if sure and lift.value >= worth:
        return say("yes", found, lift=lift)
    if sure:
        return say("no", f"{found} That is hardly better than chance.", lift=lift)
    longer = _longer(lift)
    if lift.value >= worth and longer <= LONGEST_WAIT:
        return say("too early", f"{found} That may still be chance.", times=max(longer, 1.5), lift=lift)
    less = "less than" if lift.high < 1.0 or not lift.value > 0 else "what"
    return say("no", f"{found} That is {less} chance gives.", lift=lift)


def subject(study: Study) -> Method:
    """Return the method that is judged: Pronto's default, or else the first that is no null."""
    ranked = [m for m in study.methods if m.family not in ("null", "sweep")] or study.methods
    return next((m for m in ranked if m.name == "learned"), ranked[0])


def _too_little(study: Study) -> tuple[str, float] | None:
    """Say what there is too little of, and how many times longer the record must be; None if there is enough."""
    hours, steps = f"in {_hours(study.hours)}", [node.steps for node in study.nodes]
    if len(steps) > 1:
        mean = "" if max(steps) < 1.1 * min(steps) else ", on average,"
        hours += f"{mean} on each of {len(steps)} nodes"
    scored, positive = sum(n.scored for n in study.nodes), sum(n.positive for n in study.nodes)
    if not any(node.spikes for node in study.nodes):
        return f"there was no contention {hours}, so nothing could be foretold.", math.nan
    if study.enough:
        return None
    if positive >= scored * 0.95:
        return "nearly every moment counts as contention, so that refusing is always right.", math.nan
    if not study.onsets:
        calm = f"{study.setting.horizon} calm steps"
        return f"contention never began after {calm} {hours}, so that nothing could be foretold.", math.nan
    blocks = study.contended_blocks
    needed = max(FEWEST_ONSETS / study.onsets, FEWEST_BLOCKS / max(blocks, 0.5))
    stretches = f"{blocks} stretch{'es' * (blocks != 1)} of time"
    came = f"contention came {_times(study.onsets)} {hours}, in {stretches}"
    least = f"at least {FEWEST_ONSETS} times in {FEWEST_BLOCKS} stretches are needed"
    return f"{came}; {least}.", 1.25 * max(needed, 1.2)


def _longer(lift: Interval) -> float:
    """Return how many times longer the record must be for the interval to leave 1, if the value stays."""
    if not (lift.value > 1.0 and lift.low > 0):
        return math.inf
    half, distance = math.log(lift.value / lift.low), math.log(lift.value)
    return (half / distance) ** 2


def _found(label: str, lift: Interval, recall: float, downtime: float) -> str:
    between = f" ({lift.low:.1f}–{lift.high:.1f})" if math.isfinite(lift.low) else ""
    return (
        f"{label} refused {downtime:.1%} of the time and met {recall:.0%} of the moments before contention, "
        f"{lift.value:.1f} times{between} what chance would."
    )


def _one_line(study: Study, name: str, label: str) -> str:
    """Say what the one line that an operator would write does, for comparison."""
    if "ready" not in study or name == "ready":
        return ""
    refused, met = (study.interval("ready", key).value for key in ("own_downtime", "own_recall"))
    line = f" One line, refusing while CPU Ready is high, refused {refused:.1%} and met {met:.0%}."
    ratio = study.ratio(name, "ready", "recall")
    if not math.isfinite(ratio.low):
        return line
    times = f"{ratio.value:.2f} times ({ratio.low:.2f}–{ratio.high:.2f}) what that line does"
    if ratio.low <= 1.0:
        times += ": the line does better" if ratio.high < 1.0 else ": the line may do as well"
    return f"{line} At equal downtime of {study.setting.budget:.0%}, {label} meets {times}."


def _times(number: int) -> str:
    return {0: "never", 1: "once"}.get(number, f"{number:,} times")


def _hours(hours: float) -> str:
    if hours < 1.0:
        return f"{max(1, round(hours * 60))} minutes"
    if hours < 48.0:
        return f"{hours:.0f} hours" if hours >= 10 else f"{hours:.1f} hours"
    return f"{hours / 24:.0f} days"


def comparison(study: Study) -> str:
    """Say which methods are better than their null, and which better than current CPU Ready."""
    if not study.enough:
        return "Too early to compare methods."
    found = study.better_than_null["recall"]
    if not (found or study.tells_apart):
        return "The record is too short to compare so many methods: name fewer, or record for longer."
    beats = _listed([method.label for method in named(study) if method.name in found])
    at = f"{study.setting.budget:.0%} downtime"
    first = (
        f"At {at}, better than the same signal shifted in time: {beats}"
        if beats
        else f"At {at}, no method is better than the same signal shifted in time"
    )
    if "ready" not in study:
        return f"{first}."
    better = _listed([method.label for method in named(study) if method.name in study.better_than_ready])
    second = f"better than current CPU Ready: {better}" if better else "none is better than current CPU Ready"
    return f"{first}; {second}."


def anticipation(study: Study) -> str:
    """Say which methods foretell contention out of quiet."""
    found = study.better_than_null["quiet"]
    if not (study.enough and (found or study.tells_apart)):
        return ""
    better = _listed([method.label for method in named(study) if method.name in found])
    if not better:
        return "Out of quiet, no method foretells contention better than chance."
    return f"Out of quiet (CPU Ready still below its threshold), better than chance: {better}."


def named(study: Study) -> list[Method]:
    """Return the methods a comparison names: no variants of another."""
    return [m for m in study.methods if m.family != "sweep" and m.name not in VARIANTS]


def _listed(names: Sequence[str]) -> str:
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def goals(study: Study, data: str = "traces") -> list[dict[str, Any]]:
    """Return one row per goal of the default that can be measured here.

    `data` says what was evaluated: `traces`, `shipped` for Pronto's own, or the name of a generated fleet. Each has
    goals of its own; the other rows are measured all the same.
    """
    if DEFAULT not in study or not study.nodes:
        return []
    real = data == "traces"
    usual = real and study.setting.truth == "p95" and study.setting.horizon == 5
    rows = []
    for key, what, goal, sense in (
        ("own_recall", "recall of the default policy", 0.45, "at least"),
        ("own_precision", "precision of the default policy", 0.70, "at least"),
        ("own_contended_accepted", "share of contended time that is accepted", 0.30, "at most"),
        ("own_downtime", "share of time refused", None, ""),
        ("own_changes_per_hour", "changes an hour", None, ""),
    ):
        found, each = study.interval(DEFAULT, key), study.values(DEFAULT, key)
        rows.append(_row(key, what, found, goal if usual else None, sense, each))
    calm = [k for k, node in enumerate(study.nodes) if node.spikes == 0]
    if calm:
        raised, what = (
            float(study.paper(DEFAULT, "downtime")[calm].mean()),
            "downtime on nodes without contention",
        )
        rows.append(_row("downtime_when_calm", what, raised, 0.0, "at most"))
    low, chosen = (f"recall at {downtime:.0%} downtime against" for downtime in study.setting.targets)
    held = {"traces": 1.10, "shipped": 1.0}.get(data)
    ratios: list[tuple[str, str, str, float | None]] = [
        ("ready", "recall_low", f"{low} current CPU Ready", 1.10 if real else None),
        ("ready", "recall", f"{chosen} current CPU Ready", held),
        ("ready", "quiet_average_precision", "quiet-state average precision against current CPU Ready",
         1.25 if real else None),
        ("ewma", "recall_low", f"{low} its EWMA", None),
        ("ewma", "recall", f"{chosen} its EWMA", None),
        ("boosting", "average_precision", "average precision against gradient boosting trained on all the past", 0.98),
        (BLIND, "recall", "recall with the embedding's inputs against without", 0.99),
    ]  # fmt: skip
    for other, statistic, what, least in ratios:
        if other in study:
            found = study.ratio(DEFAULT, other, statistic)
            each = _each_ratio(study, other, statistic)
            rows.append(_row(f"{statistic}_against_{other}", what, found, least, "at least", each))
    if READY_METHOD in study:
        each = _each_ratio(study, READY_METHOD, "average_precision")
        worst = float(np.fmin.reduce(each, initial=math.inf))
        rows.append(_row("worst_average_precision", "average precision against current CPU Ready, of the worst node",
                         worst, 1.0 if real else None, "at least", each))  # fmt: skip
        cold, before = (study.mean_of(name, "cold_average_precision") for name in (DEFAULT, READY_METHOD))
        rows.append(_row("cold_average_precision", "average precision over steps 20 to 500 against current CPU Ready",
                         cold / before if before > 0 else math.nan, 0.95, "at least"))  # fmt: skip
    for key, what, contended in (
        ("calibration_error", "expected calibration error", False),
        ("calibration_error_contended", "expected calibration error while contended", True),
    ):
        error = study.calibration_error(DEFAULT, contended=contended)
        each = study.calibration_errors(DEFAULT, contended=contended)
        rows.append(_row(key, what, error, 0.02, "at most", each))
    quiet, least = study.interval(DEFAULT, "quiet_roc"), 0.75 if data == "positive" else None
    return [*rows, _row("quiet_roc", "quiet-state ROC area", quiet, least, "at least")]


def _each_ratio(study: Study, other: str, statistic: str) -> Array:
    with np.errstate(invalid="ignore", divide="ignore"):
        return study.values(DEFAULT, statistic) / study.values(other, statistic)


def _row(
    key: str, what: str, found: Interval | float, goal: float | None, sense: str, each: Array | None = None
) -> dict[str, Any]:
    found = found if isinstance(found, Interval) else Interval(found, math.nan, math.nan)
    met: bool | None = None
    if goal is not None and math.isfinite(found.value):
        met = found.value >= goal if sense == "at least" else found.value <= goal + 1e-12
    return {
        "key": key,
        "what": what,
        **found.as_dict(),
        "goal": goal,
        "goal_in_words": f"{sense} {goal:g}" if goal is not None else "no goal on these traces",
        "met": met,
        "each": [] if each is None else [plain(value) for value in each],
    }
