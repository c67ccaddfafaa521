"""`pronto check`: what this machine can measure, what not, and why."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from prontosched.cli.options import agent_settings, asking_options, find
from prontosched.extras import EXTRAS, install_command, missing_extras

if TYPE_CHECKING:
    from prontosched.agent.http.client import Client

COLOURS = {"stops": "red", "misleads": "yellow", "limits": "cyan"}


@click.command()
@click.option(
    "--root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path("/"),
    help="Folder with the machine's proc and sys.",
)
@asking_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(root: Path, as_json: bool, **asked: Any) -> None:
    """Say what is wrong here and what mends it; what this machine can measure, and what reading it costs.

    Problems come first, the most important at the top, each with the command that mends it: permissions,
    the agent, cgroups, pressure, the clock, the bus, the gate's rights, marks left at a scheduler. It goes by
    the settings that `pronto agent` would have here, and changes nothing.

    \b
    Exit code:
        0  nothing stops decisions
        1  something does
    \b
    Example:
        pronto check --json
    """
    from prontosched.agent.diagnosis import diagnose
    from prontosched.agent.http.client import UntrustedError
    from prontosched.agent.record import plain
    from prontosched.telemetry.linux.check import inspect_machine
    from prontosched.telemetry.source import SEPARATION

    report = inspect_machine(root)
    missing = missing_extras()
    agent: Client | UntrustedError | None
    try:
        agent, _ = find(**asked)
    except UntrustedError as error:
        agent = error
    settings = agent_settings()
    settings = replace(settings, state=asked["state"] or settings.state)
    problems = diagnose(settings, report, agent, root=root)
    code = int(any(problem.severity == "stops" for problem in problems))
    if as_json:
        facts = {
            "problems": [asdict(problem) for problem in problems],
            **asdict(report),
            "extras": {name: name not in missing for name in EXTRAS},
        }
        click.echo(json.dumps(plain(facts)))
        raise click.exceptions.Exit(code)
    click.echo("What is wrong, most important first:" if problems else "Nothing is wrong.")
    for problem in problems:
        click.echo(f"  {click.style(problem.severity, fg=COLOURS[problem.severity])}: {problem.what}")
        click.echo(f"      {problem.remedy}")
    click.echo()
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
        f"{_number(report.probe.percent_of_core, 2)} % of a core, less while nothing happens; --no-probe turns it off"
    )
    click.echo("\nWhat CPU Ready of each source tells apart:")
    for name, words in SEPARATION.items():
        click.echo(f"  {name}: {words}")
    click.echo("\nExtras not installed, and what adds them:" if missing else "\nAll extras are installed.")
    for name in missing:
        click.echo(f"  {name}: {install_command(name)}")
    raise click.exceptions.Exit(code)


def _number(value: float, digits: int = 1) -> str:
    return "unknown" if math.isnan(value) else f"{value:.{digits}f}"
