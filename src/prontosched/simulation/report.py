"""A study in tables and in words."""

from __future__ import annotations

from collections.abc import Iterator

from prontosched.simulation.goals import goals
from prontosched.simulation.rules import RULES
from prontosched.simulation.study import Interval, Study

COLUMNS = (
    f"{'rule':<16}{'slowdown':>23}{'p99':>6}{'by work':>8}{'met':>6}{'queued':>8}{'jobs/s':>7}"
    f"{'closed':>7}{'removed':>20}{'of oracle':>10}"
)


def table(study: Study, part: str) -> Iterator[str]:
    """Yield the lines of one part: a block for every scenario and placer."""
    for name in study.names(part):
        for placer in dict.fromkeys(cell.placer for cell in study.parts[part] if cell.name == name):
            yield f"{name}, {placer}"
            yield f"  {COLUMNS}"
            rules = [cell.rule for cell in study.parts[part] if (cell.name, cell.placer) == (name, placer)]
            for rule in rules:
                yield f"  {_row(study, name, placer, rule)}"
            yield ""


def legend() -> list[str]:
    """Say what the columns mean."""
    return [
        "slowdown: time from arrival to end over the time alone, mean over jobs [95 % interval over seeds]; p99: its",
        "99th percentile; by work: the mean weighted by work; met: share of jobs that ran over 5 % longer than alone;",
        "queued: seconds before the start; closed: share of node time; removed: share of the placer's excess slowdown",
        "that is gone; of oracle: the same, relative to one who knows the tenants' future.",
    ]


def rule_names() -> list[str]:
    """Say what every rule is."""
    return [f"  {name:<24}{words}" for name, (_, words) in RULES.items()]


def words(study: Study) -> list[str]:
    """Say where the forecast pays and where it cannot."""
    pays: list[str] = []
    fails: list[str] = []
    for part in study.parts:
        for name in study.names(part):
            for placer in dict.fromkeys(cell.placer for cell in study.parts[part] if cell.name == name):
                if not study.has(name, placer, "nothing", "ready", "pronto"):
                    continue
                ours, line = study.removed(name, placer, "pronto"), study.removed(name, placer, "ready")
                against = study.ratio(name, placer, "pronto", "ready")
                said = (
                    f"{name}, {placer}: the default removes {ours.mean:.0%} of the excess, "
                    f"the one-line rule {line.mean:.0%}"
                )
                (pays if ours.low > 0.1 and against.high < 1.0 else fails).append(said)
    lines = []
    if pays:
        lines += [
            "Where the forecast pays (over a tenth of the excess, and more than the one line, within seeds):"
        ]
        lines += [f"  {said}" for said in dict.fromkeys(pays)]
    if fails:
        lines += ["Where it cannot, or cannot be told from the one line:"]
        lines += [f"  {said}" for said in dict.fromkeys(fails)]
    return lines


def goal_lines(study: Study) -> list[str]:
    """Return the goals as met or missed."""
    found = goals(study)
    if not found:
        return []
    met = sum(goal.met for goal in found)
    return [f"Goals: {met} of {len(found)} met", *(f"  {goal}" for goal in found)]


def _row(study: Study, name: str, placer: str, rule: str) -> str:
    cell = {
        measure: study.interval(name, placer, rule, measure)
        for measure in (
            "slowdown_mean",
            "slowdown_p99",
            "slowdown_by_work",
            "contended",
            "queueing_mean",
            "throughput",
            "downtime",
        )
    }
    removed = relative = ""
    if rule != "nothing" and study.has(name, placer, "nothing"):
        share = study.removed(name, placer, rule)
        removed = f"{_percent(share)}"
        if study.has(name, placer, "oracle"):
            best = study.removed(name, placer, "oracle").mean
            relative = f"{share.mean / best:.0%}" if best > 0.05 else "-"
    return (
        f"{rule:<16}{cell['slowdown_mean']!s:>23}{cell['slowdown_p99'].mean:>6.2f}"
        f"{cell['slowdown_by_work'].mean:>8.3f}{cell['contended'].mean:>6.3f}"
        f"{cell['queueing_mean'].mean:>8.2f}{cell['throughput'].mean:>7.2f}"
        f"{cell['downtime'].mean:>7.3f}{removed:>20}{relative:>10}"
    )


def _percent(share: Interval) -> str:
    return f"{share.mean:.0%} [{share.low:.0%}, {share.high:.0%}]"
