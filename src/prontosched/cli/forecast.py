"""`pronto forecast`: the paper's study of predicting CPU Ready."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from prontosched.cli.options import Duration
from prontosched.extras import require_extra

if TYPE_CHECKING:
    from prontosched.evaluation.forecast.study import ForecastSettings

PATH = click.Path(path_type=Path)
DAY_SECONDS = 86400.0


@click.command()
@click.argument("traces", nargs=-1, type=PATH)
@click.option("--ready", metavar="COLUMN", help="Column to forecast; without it the trace's CPU Ready.")
@click.option(
    "--unit",
    type=click.Choice(["ms", "percent", "other"]),
    help="What that column is measured in: ms per interval, percent per CPU, or something else.",
)
@click.option("--interval", type=Duration(0.001), metavar="TIME", help="Time between two rows.")
@click.option(
    "--level",
    type=click.Choice(["median", "mean"]),
    default="median",
    help="What to forecast of a day or window.",
)
@click.option("--report", type=PATH, metavar="OUT.html", help="Write a report, its figures and a JSON file.")
@click.option(
    "--targets",
    type=click.IntRange(min=1),
    help="Nodes per cluster to forecast.  [default: 2, at least 6 in all]",
)
@click.option("--windows", type=click.IntRange(min=3), default=12, help="Windows per length and cluster.")
@click.option(
    "--alarm-length",
    type=Duration(DAY_SECONDS),
    default="7d",
    metavar="TIME",
    help="Last days whose spikes to forecast.",
)
@click.option("--clusters", type=click.IntRange(min=1), default=3, help="Clusters of the generated data set.")
@click.option("--vms", type=click.IntRange(min=4), default=40, help="VMs per generated cluster.")
@click.option(
    "--length",
    type=Duration(17 * DAY_SECONDS),
    default="28d",
    metavar="TIME",
    help="Length of the generated data set.",
)
@click.option("--full", is_flag=True, help="As the paper: 350 VMs a cluster, every window and day. Hours.")
@click.option("--no-generated", is_flag=True, help="Never use generated data, even for short traces.")
@click.option("--jobs", type=click.IntRange(min=1), help="Processes; all CPUs without it.")
@click.option("--seed", type=click.IntRange(min=0), default=7, help="For all that is drawn.")
@click.option("--cache", type=PATH, metavar="FOLDER", help="Where finished pieces are kept, to go on later.")
@click.option("--fresh", is_flag=True, help="Neither use nor keep finished pieces.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(report: Path | None, as_json: bool, **options: Any) -> None:
    """Forecast CPU Ready of TRACES as the paper does, and answer its four questions.

    Four methods, from the same node, its cluster and similar nodes; windows from 15 minutes to a day; spikes by
    the alarm method. Numbers stand beside the paper's. Traces are files or folders: Pronto's own, SMD,
    Bitbrains, or CSV exports of vSphere; those of one folder are one cluster. Where none is long enough, a
    generated data set of the paper's shape is used as well. A run that is stopped goes on where it was.
    Needs the extra `evaluation`.

    \b
    Example:
        pronto forecast
        pronto forecast smd/*.parquet --ready load_1 --report forecast.html
    """
    require_extra("forecasting", "evaluation")
    from prontosched.evaluation.forecast.report import as_json as to_json
    from prontosched.evaluation.forecast.report import as_plain_text, write_report
    from prontosched.evaluation.forecast.study import run_forecast

    settings = _settings(options)
    began = time.monotonic()
    outcome = run_forecast(settings, _bar)
    line = shlex.join(["pronto", *sys.argv[1:]])
    for warning in (line for one in outcome.studied for line in one.panel.warnings):
        click.echo(f"warning: {warning}", err=True)
    if report is not None:
        for written in write_report(outcome, report, command=line, seconds=time.monotonic() - began):
            click.echo(f"wrote {written}", err=True)
    click.echo(json.dumps(to_json(outcome, line)) if as_json else as_plain_text(outcome))


def _settings(options: dict[str, Any]) -> ForecastSettings:
    """Turn options into settings."""
    from prontosched.evaluation.datasets.paper_shape import PaperShape
    from prontosched.evaluation.forecast.study import ForecastSettings, StudySettings

    traces, seed, vms = options["traces"], options["seed"], options["vms"]
    if options["no_generated"] and not traces:
        raise click.UsageError("--no-generated needs TRACES: there is nothing else to forecast")
    if options["full"]:
        study = StudySettings(100_000 if traces else 3, None, None, seed, options["level"])
        shape = PaperShape(options["clusters"], hosts=14, vms=350, days=28, seed=seed)
    else:
        alarm_days, days = (round(options[key] / DAY_SECONDS) for key in ("alarm_length", "length"))
        study = StudySettings(options["targets"], options["windows"], alarm_days, seed, options["level"])
        shape = PaperShape(options["clusters"], hosts=max(1, vms // 20), vms=vms, days=days, seed=seed)
    return ForecastSettings(
        traces=traces,
        ready=options["ready"],
        unit=options["unit"],
        interval_seconds=options["interval"],
        shape=shape,
        generated=not options["no_generated"],
        study=study,
        jobs=options["jobs"] or os.cpu_count() or 1,
        cache=None if options["fresh"] else options["cache"] or _cache_folder(),
    )


@contextmanager
def _bar(label: str, size: int) -> Iterator[Callable[[int], None]]:
    """Show a bar with the time left on standard error."""
    with click.progressbar(length=size, label=label, file=sys.stderr, show_pos=True) as bar:
        yield bar.update


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "pronto" / "forecast"
