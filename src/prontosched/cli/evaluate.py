"""`pronto evaluate`: is a rejection signal worth obeying, on these traces."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from prontosched.extras import require_extra

if TYPE_CHECKING:
    from collections.abc import Callable

    from prontosched.evaluation.inputs import Plan, Setting


SWEPT = ("rank", "lag", "block_size", "forgetting")


def _sweeps(
    ctx: click.Context, param: click.Parameter, given: tuple[str, ...]
) -> tuple[tuple[str, tuple[float, ...]], ...]:
    """Read `name=value,value,…`."""
    found = []
    for text in given:
        name, _, values = text.partition("=")
        if name not in SWEPT:
            raise click.BadParameter(f"a sweep must be over {', '.join(SWEPT)}, got '{name}'")
        try:
            numbers = tuple(map(float, values.split(",")))
        except ValueError as error:
            wrong = f"a sweep must give numbers, got '{values}'"
            raise click.BadParameter(f"{wrong}: write e.g. rank=2,4,8") from error
        most = 1.0 if name == "forgetting" else 4096.0
        for number in numbers:
            if not 0 < number <= most or (name != "forgetting" and not number.is_integer()):
                raise click.BadParameter(f"{name} must be above 0 and at most {most:g}, got {number:g}")
        found.append((name, numbers))
    return tuple(found)


@click.command(name="evaluate")
@click.argument("traces", nargs=-1, type=click.Path(path_type=str))
@click.option("--ready", metavar="COLUMN", help="Column that holds CPU Ready, or what stands for it.")
@click.option("--utilisation", metavar="COLUMN", help="Column that holds CPU utilisation.")
@click.option("--exclude", metavar="PATTERN", multiple=True, help="Columns left out; * works. Repeatable.")
@click.option("--methods", metavar="NAME,…", help="Methods to run, all but the slowest; `list` names them.")
@click.option(
    "--truth",
    default=None,
    help="What counts as a spike: p95, 3sigma, xbar, median, or a value such as 5%, 1000ms, 0.2.  [default: p95]",
)
@click.option(
    "--horizon", type=click.IntRange(1, 240), default=5, help="How many timesteps ahead a spike counts."
)
@click.option(
    "--window", type=click.IntRange(2, 240), default=10, help="The paper's window w, for its own measures."
)
@click.option("--budget", type=click.FloatRange(0.02, 0.3), default=0.1, help="Downtime of the comparison.")
@click.option("--with-ready", is_flag=True, help="Let CPU Ready, which is the answer, be a metric too.")
@click.option(
    "--qos",
    metavar="COLUMN",
    help="Column of what jobs suffer, higher is worse: what refusing would have saved is told in its unit. "
    "No method sees it.  [default: probe_slowdown, where a trace has it]",
)
@click.option("--tolerance", default=None, help="What signals are told contention is; the truth by default.")
@click.option(
    "--sweep",
    "sweeps",
    callback=_sweeps,
    metavar="NAME=V,V,…",
    multiple=True,
    help="Also run the published signal with these values of rank, lag, block_size or forgetting. Repeatable.",
)
@click.option(
    "--control",
    type=click.Choice(["positive", "negative", "paper"]),
    help="Evaluate a generated fleet: contention announced by other metrics, not announced, or the paper's shape.",
)
@click.option("--nodes", type=click.IntRange(1, 100_000), default=12, help="Nodes of the generated fleet.")
@click.option("--steps", type=click.IntRange(100, 10_000_000), default=6000, help="Timesteps of that fleet.")
@click.option(
    "--engine",
    type=click.Choice(["local", "dask"]),
    default="local",
    help="Processes on this machine, or a Dask cluster.",
)
@click.option("--scheduler", metavar="ADDRESS", help="Address of a Dask scheduler, e.g. tcp://10.0.0.4:8786.")
@click.option("--workers", type=click.IntRange(1, 4096), help="Processes to use; all cores by default.")
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a report to this HTML file, figures and numbers beside it.",
)
@click.option("--seed", type=click.IntRange(0), default=7, help="Of everything drawn at random.")
@click.option(
    "--paper",
    "claims",
    is_flag=True,
    help="Print every claim of the paper with its command, what came out and a verdict; nothing is run.",
)
@click.option("--timing", is_flag=True, help="Also say what a node-step took, in steps of a default node.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(traces: tuple[str, ...], control: str | None, claims: bool, **options: Any) -> None:
    """Find out whether a rejection signal is worth obeying.

    Streams TRACES through every method at once and scores them: by the paper's measures, and by measures a
    clock or a coin cannot game, at equal downtime. Without TRACES, the trace that comes with Pronto is used.
    Needs the extra `evaluation`, and `dask` for --engine dask.

    \b
    Examples:
        pronto evaluate --report report.html
        pronto evaluate smd/ --truth p95 --methods learned,ready,ewma,paper,random
        pronto evaluate host-*.csv --ready cpu_ready --exclude 'cpu_*' --json
        pronto evaluate --control negative
        pronto evaluate --paper
        pronto evaluate traces/ --engine dask --scheduler tcp://10.0.0.4:8786
    """
    from prontosched.evaluation.methods import methods as all_methods

    if claims:
        _print_claims(as_json=options["as_json"])
        return
    if options["methods"] == "list":
        for name, method in all_methods().items():
            extra = "" if method.default else " (name it to run it)"
            click.echo(f"{name:18} {method.label:32} {method.about}{extra}")
        return
    if control and traces:
        raise click.UsageError("--control generates its own fleet: leave out the traces")
    if options["scheduler"] and options["engine"] != "dask":
        raise click.UsageError("--scheduler needs --engine dask")
    if options["report"]:
        require_extra("a report", "evaluation")
    if not traces and not control:
        require_extra("the shipped trace", "evaluation")
    options["truth"] = options["truth"] or ("5%" if control in ("positive", "negative") else "p95")
    setting = _setting(options)
    plan = _plan(traces, control, options)
    _run(plan, setting, options, data=control or ("shipped" if set(traces) <= {"host"} else "traces"))


def _print_claims(*, as_json: bool) -> None:
    from prontosched.evaluation.claims import claim_rows, paper_numbers, print_claims

    numbers = paper_numbers()
    rows = claim_rows(numbers)
    if as_json:
        found = {"claims": [row._asdict() for row in rows], "numbers": numbers}
        click.echo(json.dumps(found, indent=1, ensure_ascii=False))
    else:
        click.echo(print_claims(rows, numbers))


def _setting(options: dict[str, Any]) -> Setting:
    """Return what is asked; what is asked wrongly is a usage error."""
    from prontosched.errors import SettingsError
    from prontosched.evaluation.inputs import Setting, Truth
    from prontosched.evaluation.methods import choose, default_methods

    given = options["methods"]
    names = default_methods() if given is None else tuple(filter(None, map(str.strip, given.split(","))))
    if not names:
        at_least = "--methods must name at least one method, got none"
        raise click.UsageError(f"{at_least}: `--methods list` names them")
    keys = ("truth", "horizon", "window", "budget", "tolerance", "seed", "with_ready", "sweeps")
    try:
        choose(names, options["sweeps"])
        Truth.parse(options["truth"])
        return Setting(methods=names, **{key: options[key] for key in keys})
    except SettingsError as error:
        raise click.UsageError(str(error)) from error


def _plan(traces: tuple[str, ...], control: str | None, options: dict[str, Any]) -> Plan:
    from prontosched.evaluation.datasets import shipped_trace
    from prontosched.evaluation.generators import plan_control
    from prontosched.evaluation.inputs import Columns, plan_traces

    if control:
        return plan_control(control, nodes=options["nodes"], steps=options["steps"], seed=options["seed"])
    columns = Columns(**{key: options[key] for key in ("ready", "utilisation", "exclude", "qos")})
    plan = plan_traces(traces or (shipped_trace(),), columns)
    for reason in plan.refused.values():
        click.echo(f"warning: left out: {reason}", err=True)
    return plan


def _run(plan: Plan, setting: Setting, options: dict[str, Any], *, data: str) -> None:
    from prontosched.evaluation.evaluate import evaluate
    from prontosched.evaluation.report import print_outcome, write_report

    told = {f"left out: {reason}" for reason in plan.refused.values()}
    spread = {key: options[key] for key in ("engine", "workers", "scheduler")}
    command, timed = shlex.join(["pronto", *sys.argv[1:]]), options["timing"]
    with _progress(sum(part.rows for part in plan.parts)) as progress:
        evaluation = evaluate(
            plan, setting, **spread, progress=progress, data=data, command=command, timed=timed
        )
    for line in evaluation.warnings:
        if line not in told:
            click.echo(f"warning: {line}", err=True)
    if options["report"]:
        for path in write_report(evaluation, options["report"]):
            click.echo(f"wrote {path}", err=True)
    if options["as_json"]:
        click.echo(json.dumps(evaluation.outcome, indent=1, allow_nan=False))
    else:
        click.echo(print_outcome(evaluation.outcome))


@contextmanager
def _progress(rows: int) -> Iterator[Callable[[int], None]]:
    """Show progress with the time left, on standard error, if anyone is watching."""
    if rows <= 0 or not sys.stderr.isatty():
        yield lambda done: None
        return
    with click.progressbar(length=rows, label="evaluating", show_eta=True, file=sys.stderr) as bar:
        yield bar.update
        bar.update(max(0, rows - bar.pos))
