"""A study in tables, in words and as a figure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from prontosched.evaluation.figures import canvas
from prontosched.simulation.study import SeedInterval, SimulationStudy, goals

COLUMNS = (
    f"{'rule':<16}{'slowdown':>23}{'p99':>6}{'by work':>8}{'met':>6}{'queued':>8}{'jobs/s':>7}"
    f"{'closed':>7}{'removed':>20}{'of oracle':>10}"
)
PANELS_A_ROW = 4
COLOURS = {"oracle": "#54a24b", "ready": "#4c78a8", "ready-score": "#4c78a8"}


def table(study: SimulationStudy, part: str) -> Iterator[str]:
    """Yield the lines of one part: a block for every scenario and placer."""
    for (name, placer), rules in study.blocks(part).items():
        yield f"{name}, {placer}"
        yield f"  {COLUMNS}"
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


def words(study: SimulationStudy) -> list[str]:
    """Say where the forecast pays and where it cannot."""
    pays: list[str] = []
    fails: list[str] = []
    for name, placer in (block for part in study.parts for block in study.blocks(part)):
        if not study.has(name, placer, "nothing", "ready", "pronto"):
            continue
        ours, line = study.removed(name, placer, "pronto"), study.removed(name, placer, "ready")
        against = study.ratio(name, placer, "pronto", "ready")
        said = (
            f"  {name}, {placer}: preference and veto remove {ours.mean:.0%} of the excess, "
            f"the one-line rule {line.mean:.0%}"
        )
        (pays if ours.low > 0.1 and against.high < 1.0 else fails).append(said)
    title = "Where the forecast pays (over a tenth of the excess, and more than the one line, within seeds):"
    lines = [title, *dict.fromkeys(pays)] if pays else []
    if fails:
        lines += ["Where it cannot, or cannot be told from the one line:", *dict.fromkeys(fails)]
    return lines


def goal_lines(study: SimulationStudy) -> list[str]:
    """Return the goals as met or missed."""
    found = goals(study)
    met = sum(goal.met for goal in found)
    return [f"Goals: {met} of {len(found)} met", *(f"  {goal}" for goal in found)] if found else []


def _row(study: SimulationStudy, name: str, placer: str, rule: str) -> str:
    def mean(measure: str) -> float:
        return study.interval(name, placer, rule, measure).mean

    removed = relative = ""
    if rule != "nothing" and study.has(name, placer, "nothing"):
        share = study.removed(name, placer, rule)
        removed = _percent(share)
        if study.has(name, placer, "oracle"):
            best = study.removed(name, placer, "oracle").mean
            relative = f"{share.mean / best:.0%}" if best > 0.05 else "-"
    return (
        f"{rule:<16}{study.interval(name, placer, rule, 'slowdown_mean')!s:>23}{mean('slowdown_p99'):>6.2f}"
        f"{mean('slowdown_by_work'):>8.3f}{mean('contended'):>6.3f}{mean('queueing_mean'):>8.2f}"
        f"{mean('throughput'):>7.2f}{mean('downtime'):>7.3f}{removed:>20}{relative:>10}"
    )


def _percent(share: SeedInterval) -> str:
    interval = f" [{share.low:.0%}, {share.high:.0%}]" if share.low == share.low else ""
    return f"{share.mean:.0%}{interval}"


def draw(study: SimulationStudy, path: Path) -> None:
    """Draw what every rule removes of the excess slowdown, one panel a scenario and placer: PNG or SVG.

    Every panel must have the rule `nothing` to compare with.
    """
    panels: dict[tuple[str, str], dict[str, None]] = {}
    for part in study.parts:
        for block, rules in study.blocks(part).items():
            panels.setdefault(block, {}).update(dict.fromkeys(rules))
    across = min(PANELS_A_ROW, len(panels))
    down = -(-len(panels) // across)
    figure, axes = canvas(3.6 * across, 3.4 * down, down, across)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, ((name, placer), every) in zip(axes.flat, panels.items(), strict=False):
        compared = [rule for rule in every if rule != "nothing"]
        shares = [study.removed(name, placer, rule) for rule in compared]
        for at, (rule, share) in enumerate(zip(compared, shares, strict=True)):
            low, high = share.mean - share.low, share.high - share.mean
            error = None if low != low else [[max(low, 0.0)], [max(high, 0.0)]]
            colour = COLOURS.get(rule, "#e45756" if rule.startswith("pronto") else "#9aa0a6")
            axis.barh(at, max(share.mean, -1.0), xerr=error, color=colour, height=0.7)
        axis.set_yticks(range(len(compared)), compared, fontsize=7)
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
