"""`pronto check`: what this machine can measure, what not, and why."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from prontosched.extras import EXTRAS, install_command, missing_extras


@click.command()
@click.option(
    "--root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path("/"),
    show_default=True,
    help="Folder with the machine's proc and sys.",
)
@click.option(
    "--compare/--no-compare", default=True, help="Compare the cost to node_exporter's, if installed."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(root: Path, compare: bool, as_json: bool) -> None:
    """Explain what this machine can measure, what it cannot and why, and what reading it costs.

    \b
    Example:
        pronto check --json
    """
    from prontosched.telemetry.linux.check import inspect_machine, node_exporter_cost
    from prontosched.telemetry.source import SEPARATION

    report = inspect_machine(root)
    other = node_exporter_cost(progress=lambda line: click.echo(line, err=True)) if compare else None
    missing = missing_extras()
    if as_json:
        facts = {
            **asdict(report),
            "node_exporter": asdict(other) if other else None,
            "extras": {name: name not in missing for name in EXTRAS},
        }
        click.echo(json.dumps({name: _plain(value) for name, value in facts.items()}))
        return
    click.echo(f"Linux {report.kernel}, {report.cpus} CPUs, {report.metrics} metrics from {report.root}")
    click.echo(
        f"CPU Ready {_number(report.ready_percent)} % per CPU, utilisation {_number(report.utilisation_percent)} %"
    )
    parts = report.ready_parts
    click.echo(
        f"  {_number(parts['normal'])} waiting at normal priority, {_number(parts['unseen'])} of threads not seen, "
        f"{_number(parts['steal'])} steal; not counted: {_number(parts['throttled'])} held back by quotas, "
        f"{_number(parts['background'])} background"
    )
    click.echo(f"  {report.ready_note}")
    good = [finding for finding in report.findings if finding.state == "ok"]
    bad = [finding for finding in report.findings if finding.state != "ok"]
    click.echo(f"\nCan be measured ({len(good)}):")
    for finding in good:
        click.echo(f"  {finding.what}  ({finding.path})")
    click.echo(f"\nCannot be measured ({len(bad)}):" if bad else "\nNothing is missing.")
    for finding in bad:
        remedy = f": {finding.remedy}" if finding.remedy else ""
        click.echo(f"  {finding.what}  ({finding.path} {finding.state}){remedy}")
    click.echo(
        f"\nA reading costs {report.cost.milliseconds:.1f} ms of CPU time with {report.threads} threads: "
        f"{report.cost.percent_of_core:.2f} % of a core at one a second"
    )
    click.echo(
        f"A probe costs {_number(report.probe.milliseconds)} ms every 15 s: "
        f"{report.probe.percent_of_core:.2f} % of a core, less while nothing happens; --no-probe turns it off"
    )
    if other is not None:
        click.echo(
            f"node_exporter here: {other.milliseconds:.1f} ms a scrape, {other.percent_of_core:.2f} % of a core, "
            f"{other.milliseconds / report.cost.milliseconds:.1f} times ours"
        )
    elif compare:
        click.echo("node_exporter is not installed: nothing to compare with")
    click.echo("\nWhat CPU Ready of each source tells apart:")
    for name, words in SEPARATION.items():
        click.echo(f"  {name}: {words}")
    click.echo("\nExtras not installed, and what adds them:" if missing else "\nAll extras are installed.")
    for name in missing:
        click.echo(f"  {name}: {install_command(name)}")


def _number(value: float) -> str:
    return "unknown" if math.isnan(value) else f"{value:.1f}"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value
