"""`pronto simulate`: what refusing does to jobs, in a cluster that reacts to it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from prontosched.errors import SettingsError


def _names(known: list[str], what: str) -> Any:
    def read(ctx: click.Context, param: click.Parameter, value: str) -> list[str]:
        chosen = known if value == "all" else [name.strip() for name in value.split(",") if name.strip()]
        unknown = [name for name in chosen if name not in known]
        if unknown or not chosen:
            raise click.BadParameter(f"must be among {', '.join(known)}, got {value!r}: name {what} by comma")
        return list(dict.fromkeys(chosen))

    return read


def _placers(ctx: click.Context, param: click.Parameter, value: str) -> list[str]:
    from prontosched.simulation.placers import PLACERS

    found: list[str] = _names(list(PLACERS), "placers")(ctx, param, value)
    return found


def _rules(ctx: click.Context, param: click.Parameter, value: str) -> list[str]:
    from prontosched.simulation.rules import rule_names

    found: list[str] = _names(rule_names(), "rules")(ctx, param, value)
    return found


@click.command("simulate")
@click.option("--nodes", type=click.IntRange(2, 100_000), default=100, show_default=True, help="Nodes.")
@click.option("--cores", type=click.FloatRange(1), default=8.0, show_default=True, help="CPUs of a node.")
@click.option(
    "--steps", type=click.IntRange(100), default=3000, show_default=True, help="Seconds to simulate."
)
@click.option(
    "--load",
    type=click.FloatRange(0, 2, min_open=True),
    default=0.35,
    show_default=True,
    help="Work of arriving jobs, as a share of all CPUs; hidden tenants come on top.",
)
@click.option(
    "--budget",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.1,
    show_default=True,
    help="Share of time a node may refuse, the same for all rules.",
)
@click.option(
    "--delay", type=click.IntRange(0, 600), default=1, show_default=True, help="Seconds telemetry is late."
)
@click.option(
    "--placers",
    default="random,two-choices,least-allocated",
    show_default=True,
    callback=_placers,
    help="Placers to compare, by comma, or all.",
)
@click.option(
    "--rules", default="all", show_default=True, callback=_rules, help="Rejection rules, by comma, or all."
)
@click.option("--seeds", type=click.IntRange(1, 1000), default=5, show_default=True, help="Repetitions.")
@click.option(
    "--background",
    type=click.Path(exists=True, path_type=Path),
    help="Trace whose utilisation the hidden tenants replay, instead of made-up bursts.",
)
@click.option("--utilisation", metavar="COLUMN", help="Its utilisation column.  [default: utilisation]")
@click.option(
    "--figure", type=click.Path(dir_okay=False, path_type=Path), help="Draw the result: a PNG or SVG file."
)
@click.option("--workers", type=click.IntRange(1), help="Processes.  [default: all cores]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    placers: list[str],
    rules: list[str],
    seeds: int,
    background: Path | None,
    utilisation: str | None,
    figure: Path | None,
    workers: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Simulate a cluster whose nodes refuse, and see what that does to jobs.

    Every placer runs alone and with every rejection rule, on the same arrivals and
    hidden tenants; every rule may refuse the same share of time.

    \b
    Example:
        pronto simulate --nodes 50 --seeds 3 --figure slowdown.png
    """
    from prontosched.simulation.run import Scenario
    from prontosched.simulation.study import MEASURES, collect, outcomes

    scenario = Scenario(**options, background=_background(background, utilisation))
    numbers = list(range(1, seeds + 1))
    found = []
    with click.progressbar(
        outcomes(scenario, placers, rules, numbers, workers),
        length=len(placers) * len(rules) * seeds,
        label="simulating",
        file=sys.stderr,
    ) as runs:
        for outcome in runs:
            found.append(outcome)
    study = collect(scenario, placers, rules, numbers, found)
    if figure is not None:
        _draw(study, figure)
    if as_json:
        click.echo(json.dumps(study.as_json()))
        return
    click.echo(f"{'placer':<18}{'rule':<10}{'slowdown':>24}{'p50':>7}{'p99':>7}{'waiting':>9}{'queued':>8}"
               f"{'jobs/s':>8}{'busy':>7}{'refusing':>10}{'refusals/job':>14}")  # fmt: skip
    for placer in placers:
        for rule in rules:
            cell = {name: study.interval(placer, rule, name) for name in MEASURES}
            click.echo(
                f"{placer:<18}{rule:<10}{cell['slowdown_mean']!s:>24}{cell['slowdown_p50'].mean:>7.2f}"
                f"{cell['slowdown_p99'].mean:>7.2f}{cell['waiting_share'].mean:>9.3f}"
                f"{cell['queueing_mean'].mean:>8.2f}{cell['throughput'].mean:>8.2f}"
                f"{cell['utilisation'].mean:>7.2f}{cell['downtime'].mean:>10.3f}"
                f"{cell['refusals_per_job'].mean:>14.2f}"
            )
    for line in study.findings():
        click.echo(line)


def _background(path: Path | None, utilisation: str | None) -> Any:
    if path is None:
        return None
    import numpy as np

    from prontosched.telemetry.trace import open_trace

    source = open_trace([path], utilisation=utilisation)
    values = np.concatenate([chunk.utilisation for chunk in source.chunks()])
    if not np.isfinite(values).sum() >= 10:
        raise SettingsError(f"{path}: no utilisation column with numbers: name one with --utilisation")
    return values


def _draw(study: Any, path: Path) -> None:
    from prontosched.simulation.figure import draw

    draw(study, path)
    click.echo(f"drawn: {path}", err=True)
