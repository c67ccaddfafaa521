"""`python -m tools.load`: make a real, bounded and repeatable load."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import click

from prontosched.cli.options import Duration
from tools.load.run import run_load
from tools.load.schedule import plan_load


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--for", "seconds", type=Duration(above=True), default="10m", help="How long it lasts.")
@click.option(
    "--share",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.35,
    help="Most CPU time to take, as a share of all CPUs.",
)
@click.option("--seed", type=int, default=1, help="Same seed, same schedule.")
@click.option(
    "--memory",
    type=click.FloatRange(1, 65536),
    default=256.0,
    help="Most memory to hold, in megabytes.",
)
@click.option("--plan", is_flag=True, help="Print the schedule and run nothing.")
@click.option(
    "--schedule",
    "schedule_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the schedule and what was done to this file, as JSON.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    seconds: float,
    share: float,
    seed: int,
    memory: float,
    plan: bool,
    schedule_file: Path | None,
    as_json: bool,
) -> None:
    """Load this machine: bursts, storms of short processes, I/O, memory, alone and together.

    Part of the contention comes at once, part is announced by memory, I/O or new processes, and some of
    those are followed by nothing. Ends by itself; Ctrl-C ends it at once. Nobody but you should need the
    machine meanwhile.

    \b
    Example:
        python -m tools.load --for 5m --share 0.3 --seed 7 --schedule load.json
    """
    cpus = len(os.sched_getaffinity(0))
    schedule = plan_load(seed=seed, seconds=seconds, cpus=cpus, share=share, memory_megabytes=memory)
    if plan:
        result = schedule.to_json()
        lines = [f"{e.start:7.1f} s  {e.kind:<10} {e.seconds:5.1f} s" for e in schedule.events[1:]]
        lines.append(
            f"{len(schedule.events) - 1} events, at most {schedule.planned_share:.0%} of {cpus} CPUs"
        )
    else:
        came: list[int] = []
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, frame: came.append(number))
        report = run_load(
            schedule, stopped=lambda: bool(came), progress=lambda line: click.echo(line, err=True)
        )
        result = report.to_json()
        lines = [
            f"{len(report.done) - 1} events in {report.seconds:.0f} s, {len(report.skipped)} skipped, "
            f"{report.share:.0%} of {cpus} CPUs taken"
        ]
    if schedule_file is not None:
        schedule_file.write_text(json.dumps(result, indent=1) + "\n")
    click.echo(json.dumps(result) if as_json else "\n".join(lines))


if __name__ == "__main__":
    command(prog_name="python -m tools.load")
