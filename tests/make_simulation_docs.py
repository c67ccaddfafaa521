"""Write the results of a simulation into `docs/simulation.md`.

pronto simulate --json > whole.json
pronto simulate --equal-downtime --json > equal.json
python -m tests.make_simulation_docs whole.json equal.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from prontosched.simulation.report import words
from prontosched.simulation.rules import RULES
from prontosched.simulation.run import RunOutcome, Scenario
from prontosched.simulation.study import Cell, SeedInterval, SimulationStudy, goals

PAGE = Path(__file__).parent.parent / "docs" / "simulation.md"
BEGIN, END = "<!-- results: python -m tests.make_simulation_docs -->", "<!-- end of results -->"
LEAST = "least-allocated"


def read_study(path: Path) -> SimulationStudy:
    """Return a study as `pronto simulate --json` printed it."""
    found = json.loads(path.read_text())
    parts: dict[str, list[Cell]] = {}
    outcomes = {}
    for part, rows in found["parts"].items():
        for row in rows:
            cell = Cell(row["name"], Scenario(**row["scenario"]), row["placer"], row["rule"])
            parts.setdefault(part, []).append(cell)
            outcomes[cell] = [RunOutcome(**outcome) for outcome in row["outcomes"]]
    return SimulationStudy(parts, tuple(found["seeds"]), outcomes)


def percent(share: SeedInterval) -> str:
    """Return a share with its interval."""
    return f"{share.mean:.0%} [{share.low:.0%}, {share.high:.0%}]"


def by_placer(study: SimulationStudy, part: str) -> Iterator[str]:
    """Yield one row a rule: what it removes with each placer, and what it closes."""
    (name,) = study.names(part)
    placers = list(dict.fromkeys(cell.placer for cell in study.parts[part]))
    yield "| rule | " + " | ".join(f"{placer}: slowdown, p99, removed" for placer in placers) + " | closed |"
    yield "|---|" + "---|" * (len(placers) + 1)
    for rule in dict.fromkeys(cell.rule for cell in study.parts[part]):
        cells, closed = [], []
        for placer in placers:
            slowdown = study.interval(name, placer, rule, "slowdown_mean").mean
            tail = study.interval(name, placer, rule, "slowdown_p99").mean
            removed = "" if rule == "nothing" else f", {percent(study.removed(name, placer, rule))}"
            cells.append(f"{slowdown:.3f}, {tail:.2f}{removed}")
            closed.append(study.interval(name, placer, rule, "downtime").mean)
        said = RULES[rule][1] if part == "placers" else ""
        label = f"**{rule}**" if rule.startswith("pronto") else rule
        words_for = f"{label}: {said}" if said else label
        yield f"| {words_for} | " + " | ".join(cells) + f" | {min(closed):.2f}–{max(closed):.2f} |"


def by_scenario(study: SimulationStudy, part: str) -> Iterator[str]:
    """Yield one row a scenario: what each rule removes with the least-allocated placer."""
    rules = [rule for rule in dict.fromkeys(cell.rule for cell in study.parts[part]) if rule != "nothing"]
    yield "| | alone: slowdown, by work | " + " | ".join(rules) + " |"
    yield "|---|" + "---|" * (len(rules) + 1)
    for name in study.names(part):
        alone = study.interval(name, LEAST, "nothing", "slowdown_mean").mean
        by_work = study.interval(name, LEAST, "nothing", "slowdown_by_work").mean
        removed = [percent(study.removed(name, LEAST, rule)) for rule in rules]
        yield f"| {name} | {alone:.3f}, {by_work:.3f} | " + " | ".join(removed) + " |"


def results(whole: SimulationStudy, equal: SimulationStudy) -> Iterator[str]:
    """Yield the lines between the marks."""
    first = whole.parts["placers"][0].scenario
    yield BEGIN
    yield "## What it shows"
    yield ""
    yield (
        f"`pronto simulate`: {first.nodes} nodes of {first.cores:g} CPUs, {first.steps} s, {len(whole.seeds)} seeds. "
        "Removed: share of the placer's excess slowdown, with its 95 % interval over seeds."
    )
    for title, part in (
        ("By placer, at utilisation 0.66", "placers"),
        ("By utilisation, least allocated", "utilisation"),
        ("By length of jobs, least allocated, utilisation 0.66", "length"),
        ("By kind of tenants and nodes, least allocated, utilisation 0.66", "tenants"),
    ):
        yield from ("", f"### {title}", "")
        yield from by_placer(whole, part) if part == "placers" else by_scenario(whole, part)
    yield from ("", "### Vetoes at equal downtime", "", "`pronto simulate --equal-downtime`:", "")
    yield from by_placer(equal, "scenario")
    found = goals(whole)
    yield from ("", "### Goals", "", f"{sum(goal.met for goal in found)} of {len(found)} are met.", "")
    yield "| | figure | goal | |"
    yield "|---|---|---|---|"
    for goal in found:
        sign = "≤" if goal.at_most else "≥"
        yield f"| {goal.claim} | {goal.figure} | {sign} {goal.bound:g} | {'met' if goal.met else '**missed**'} |"
    yield from ("", "### Where the forecast pays, and where it cannot", "")
    for line in words(whole):
        yield f"- {line.strip()}" if line.startswith(" ") else f"\n{line}\n"
    yield ""
    yield END


def main() -> None:
    """Replace what is between the marks."""
    whole, equal = (read_study(Path(name)) for name in sys.argv[1:3])
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(before + "\n".join(results(whole, equal)) + after)


if __name__ == "__main__":
    main()
