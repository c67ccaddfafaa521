"""`pronto simulate`: what preferring and refusing nodes does to jobs, in a cluster that reacts to it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from prontosched.errors import SettingsError
from prontosched.extras import require_extra

# CPUs in use beyond what was asked for that are told, as a share.
TOO_BUSY = 0.05
PARTS = ("placers", "utilisation", "length", "tenants")
# Settings of one scenario that have no default here.
ONE = ("busy", "tenants", "length")


def _names(known: list[str], what: str, value: str | None) -> list[str] | None:
    if value is None:
        return None
    chosen = known if value == "all" else [name.strip() for name in value.split(",") if name.strip()]
    unknown = [name for name in chosen if name not in known]
    if unknown or not chosen:
        raise click.BadParameter(f"must be among {', '.join(known)}, got {value!r}: name {what} by comma")
    return list(dict.fromkeys(chosen))


def _placers(ctx: click.Context, param: click.Parameter, value: str | None) -> list[str] | None:
    from prontosched.simulation.placers import PLACERS

    return _names(list(PLACERS), "placers", value)


def _rules(ctx: click.Context, param: click.Parameter, value: str | None) -> list[str] | None:
    from prontosched.simulation.rules import RATIONED, RULES

    # Which rules are all depends on --equal-downtime.
    return ["all"] if value == "all" else _names(list(dict.fromkeys([*RULES, *RATIONED])), "rules", value)


def _tenants(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    from prontosched.simulation.tenants import TENANTS

    if value is not None and value not in TENANTS:
        raise click.BadParameter(f"must be one of {', '.join(TENANTS)}, got {value!r}")
    return value


@click.command("simulate")
@click.option("--nodes", type=click.IntRange(2, 10_000), default=60, help="Nodes of a cluster.")
@click.option("--cores", type=click.FloatRange(1), default=8.0, help="CPUs of a node.")
@click.option("--steps", type=click.IntRange(100), default=2400, help="Seconds to simulate.")
@click.option("--seeds", type=click.IntRange(1, 1000), default=5, help="Repetitions.")
@click.option(
    "--overcommit",
    type=click.FloatRange(0.1, 100),
    default=1.0,
    help="CPUs that jobs on a node may ask for, as a share of its own; beyond it they wait.",
)
@click.option("--delay", type=click.IntRange(0, 600), default=1, help="Seconds telemetry is late.")
@click.option(
    "--parts",
    default="all",
    callback=lambda ctx, param, value: _names(list(PARTS), "parts", value),
    help=f"Parts of the whole study, by comma: {', '.join(PARTS)}.",
)
@click.option(
    "--busy",
    type=click.FloatRange(0, 2, min_open=True),
    help="One scenario: CPUs in use by jobs and tenants together, as a share.  [default: 0.66]",
)
@click.option("--tenants", callback=_tenants, help="One scenario: kind of hidden tenants.  [default: bursty]")
@click.option(
    "--length",
    type=click.FloatRange(1, 36_000),
    help="One scenario: mean seconds of a job.  [default: heavy-tailed]",
)
@click.option("--unequal", is_flag=True, help="One scenario: nodes of half, once and twice the CPUs.")
@click.option(
    "--background",
    multiple=True,
    type=click.Path(path_type=Path),
    help="One scenario: traces that tenants replay, with their own metrics; `host` and `server` come with Pronto. "
    "Repeatable.",
)
@click.option(
    "--load-column",
    metavar="COLUMN",
    help="Their column that tells the load.  [default: utilisation and CPU Ready]",
)
@click.option("--exclude", multiple=True, metavar="PATTERN", help="Columns no signal sees. Repeatable.")
@click.option(
    "--placers", callback=_placers, help="One scenario: placers, by comma, or all.  [default: three of them]"
)
@click.option("--rules", callback=_rules, help="One scenario: rules, by comma, or all.")
@click.option("--equal-downtime", is_flag=True, help="One scenario: all rules refuse the same share of time.")
@click.option("--budget", type=click.FloatRange(0, 1, min_open=True), default=0.1, help="That share.")
@click.option("--figure", type=click.Path(dir_okay=False, path_type=Path), help="Draw it: a PNG or SVG file.")
@click.option("--workers", type=click.IntRange(1), help="Processes.  [default: all cores]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(seeds: int, figure: Path | None, workers: int | None, as_json: bool, **options: Any) -> None:
    """Simulate clusters with rules that prefer and refuse nodes, and see what that does to jobs.

    Without options for one scenario the whole study runs: placers, utilisations, lengths
    of jobs and kinds of tenants, with goals at the end. Arrivals and tenants are the same
    for every placer and rule. Needs the extra `evaluation`.

    \b
    Example:
        pronto simulate --seeds 3 --parts placers --figure slowdown.svg
        pronto simulate --busy 0.8 --tenants chronic --rules nothing,ready,pronto
    """
    from prontosched.simulation.report import draw, goal_lines, legend, table, words
    from prontosched.simulation.study import SimulationStudy, goals, run_cells

    if figure is not None:
        require_extra("drawing", "evaluation")
        rules = options["rules"]
        if rules and not {"nothing", "all"} & set(rules):
            raise click.UsageError(
                f"a figure compares with the placer alone: --rules must have nothing among them, got {','.join(rules)}"
            )
    chosen = _cells(options)
    cells = [cell for some in chosen.values() for cell in some]
    numbers = tuple(range(1, seeds + 1))
    found = {}
    with click.progressbar(
        run_cells(cells, numbers, workers), length=len(set(cells)), label="simulating", file=sys.stderr
    ) as runs:
        for cell, outcomes in runs:
            found[cell] = outcomes
    study = SimulationStudy(chosen, numbers, found)
    for line in _check(found):
        click.echo(f"warning: {line}", err=True)
    if figure is not None:
        draw(study, figure)
        click.echo(f"drawn: {figure}", err=True)
    if as_json:
        whole = {**study.as_json(), "goals": [goal.as_json() for goal in goals(study)]}
        click.echo(json.dumps(whole, allow_nan=False))
        return
    lines = [line for part in study.parts for line in table(study, part)]
    click.echo("\n".join([*lines, *legend(), "", *goal_lines(study), "", *words(study)]))


def _check(found: dict[Any, Any]) -> list[str]:
    """Refuse runs without a job that counts; warn where more CPUs were in use than was asked for."""
    lines = {}
    for (name, scenario, *_), outcomes in found.items():
        if not all(outcome.jobs for outcome in outcomes):
            raise SettingsError(
                f"{name}: at least one job must come after the warm-up and be able to end in time, got none in "
                f"{scenario.steps} s: give more --steps, more --nodes, or a shorter --length"
            )
        used = sum(outcome.utilisation for outcome in outcomes) / len(outcomes)
        if used > scenario.busy + TOO_BUSY:
            asked = f"{used:.0%} of the CPUs were in use, not {scenario.busy:.0%} as asked"
            lines[name] = f"{name}: {asked}: tenants alone use many, or the run is short"
    return list(lines.values())


def _cells(options: dict[str, Any]) -> dict[str, list[Any]]:
    """Return the cells to run, by part: of one scenario if any of its options was given, else of all parts."""
    from prontosched.simulation.rules import RATIONED, RULES
    from prontosched.simulation.run import Scenario
    from prontosched.simulation.study import EQUAL_RULES, EVERY_RULE, PLACERS_COMPARED, cells_of, whole_grid
    from prontosched.simulation.tenants import read_background, shipped_background

    taken = ("parts", "background", "load_column", "exclude", "placers", "rules")
    parts, background, load, exclude, placers, rules = (options.pop(name) for name in taken)
    given = {name: value for name in ONE if (value := options.pop(name)) is not None}
    if not (given or background or placers or rules or options["unequal"] or options["equal_downtime"]):
        scenario = Scenario(**options, background=shipped_background() if "tenants" in parts else None)
        grid = whole_grid(scenario)
        return {part: grid[part] for part in PARTS if part in parts}
    if background and "tenants" in given:
        raise SettingsError("tenants must be of one kind, got both --tenants and --background: leave one out")
    if background:
        recorded = read_background(background, load=load, exclude=exclude)
        given |= {"tenants": "trace", "background": recorded}
    scenario = Scenario(**options, **given)
    equal = scenario.equal_downtime
    known = ["nothing", *RATIONED] if equal else list(RULES)
    rules = known if rules == ["all"] else rules or list(EQUAL_RULES if equal else EVERY_RULE)
    if unknown := [rule for rule in rules if rule not in known]:
        raise SettingsError(
            f"rules {'at equal downtime ' if equal else ''}must be among {', '.join(known)}, "
            f"got {', '.join(unknown)}: name others"
        )
    name = f"{scenario.tenants} tenants, utilisation {scenario.busy:.2f}"
    return {"scenario": cells_of(name, scenario, placers or list(PLACERS_COMPARED), rules)}
