"""A study in tables, in words and as a figure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from prontosched.simulation.rules import RULES
from prontosched.simulation.study import SeedInterval, SimulationStudy, goals

COLUMNS = (
    f"{'rule':<16}{'slowdown':>23}{'p99':>6}{'by work':>8}{'met':>6}{'queued':>8}{'jobs/s':>7}"
    f"{'closed':>7}{'removed':>20}{'of oracle':>10}"
)


def table(study: SimulationStudy, part: str) -> Iterator[str]:
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


def words(study: SimulationStudy) -> list[str]:
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


def goal_lines(study: SimulationStudy) -> list[str]:
    """Return the goals as met or missed."""
    found = goals(study)
    if not found:
        return []
    met = sum(goal.met for goal in found)
    return [f"Goals: {met} of {len(found)} met", *(f"  {goal}" for goal in found)]


def _row(study: SimulationStudy, name: str, placer: str, rule: str) -> str:
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


def _percent(share: SeedInterval) -> str:
    return f"{share.mean:.0%} [{share.low:.0%}, {share.high:.0%}]"


PANELS_A_ROW = 4


def colour_of(rule: str) -> str:
    """Return the colour of a rule: ours, the oracle's, and everyone else's."""
    if rule.startswith("pronto"):
        return "#e45756"
    return {"oracle": "#54a24b", "ready": "#4c78a8", "ready-score": "#4c78a8"}.get(rule, "#9aa0a6")


def draw(study: SimulationStudy, path: Path) -> None:
    """Write the figure; the ending of `path` chooses PNG or SVG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    panels: dict[tuple[str, str], list[str]] = {}
    for cell in (cell for cells in study.parts.values() for cell in cells):
        rules = panels.setdefault((cell.name, cell.placer), [])
        if cell.rule != "nothing" and cell.rule not in rules:
            rules.append(cell.rule)
    across = min(PANELS_A_ROW, len(panels))
    down = -(-len(panels) // across)
    figure, axes = plt.subplots(
        down, across, figsize=(3.6 * across, 3.4 * down), squeeze=False, layout="constrained"
    )
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, ((name, placer), rules) in zip(axes.flat, panels.items(), strict=False):
        shares = [study.removed(name, placer, rule) for rule in rules]
        for at, (rule, share) in enumerate(zip(rules, shares, strict=True)):
            low, high = share.mean - share.low, share.high - share.mean
            error = None if low != low else [[max(low, 0.0)], [max(high, 0.0)]]
            axis.barh(at, max(share.mean, -1.0), xerr=error, color=colour_of(rule), height=0.7)
        axis.set_yticks(range(len(rules)), rules, fontsize=7)
        axis.invert_yaxis()
        axis.axvline(0.0, color="black", linewidth=0.6)
        axis.set_xlim(max(-1.05, min([-0.1, *(s.mean - 0.05 for s in shares)])), 1.0)
        axis.set_title(f"{name}\n{placer}", fontsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(
        f"share of the placer's excess slowdown removed: mean and 95 % interval over {len(study.seeds)} seeds",
        fontsize=10,
    )
    figure.savefig(path, dpi=140)
    plt.close(figure)
