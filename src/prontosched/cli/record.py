"""`pronto record`: write what a source sees."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import click

from prontosched.cli.options import ERASE, Duration, columns_of, is_live, stopped_by_signals
from prontosched.errors import SettingsError


@click.command()
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--for", "seconds", type=Duration(), help="How long, e.g. 90s, 45m, 2h.  [default: until Ctrl-C]"
)
@click.option("--interval", type=Duration(above=True), default="1s", help="Time between two readings.")
@click.option("--source", "name", default="linux", help="linux, prometheus or vsphere.")
@click.option(
    "--target", "targets", multiple=True, help="Address of an exporter or a vCenter; may be repeated."
)
@click.option(
    "--root",
    type=click.Path(path_type=Path),
    default=Path("/"),
    help="Folder with the machine's proc and sys.",
)
@click.option("--node", help="Name of the node.  [default: the host name]")
@click.option("--part", "part_seconds", type=Duration(above=True), default="60s", help="Age of a part file.")
@click.option("--single", is_flag=True, help="Store metrics as 32-bit numbers (Parquet).")
@click.option(
    "--probe/--no-probe",
    "probing",
    default=True,
    help="Record what a piece of CPU work suffers, every 15 s (source linux).",
)
@click.option("--join", is_flag=True, help="Record nothing: join the parts of a recording that was cut off.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    out: Path,
    seconds: float | None,
    interval: float,
    name: str,
    targets: tuple[str, ...],
    root: Path,
    node: str | None,
    part_seconds: float,
    single: bool,
    probing: bool,
    join: bool,
    as_json: bool,
) -> None:
    """Record what a source sees to OUT, a .csv file or, with the extra `trace`, a .parquet file of two fifths the size.

    While recording, closed part files lie in the folder OUT.parts, and a kill loses at most the open one;
    `pronto replay` and `pronto evaluate` read that folder as well. Stop with Ctrl-C.

    \b
    Example:
        pronto record host.csv --for 45m
    """
    from prontosched.agent.config import source_of
    from prontosched.recording import Recorder, join_parts, record
    from prontosched.settings import AgentSettings

    if not out.suffix:
        out = out.with_name(out.name + ".csv")
    if join:
        _print({"file": str(out), "rows": join_parts(out)}, as_json)
        return
    if name == "trace":
        raise click.UsageError("a trace is recorded already: use `pronto replay` or `pronto evaluate`")
    if name == "linux" and targets:
        raise click.UsageError("--target goes with --source prometheus or vsphere, got --source linux")
    if name != "linux" and node is not None:
        raise click.UsageError(f"--node goes with --source linux, got --source {name}")
    settings = AgentSettings(source=name, target=targets, root=str(root), interval=interval, name=node)
    try:
        source: Any = source_of(settings)
    except SettingsError as error:
        raise click.UsageError(str(error)) from error
    recorder = Recorder(out, part_seconds=part_seconds, single_precision=single)
    meter = _Meter(seconds, interval)
    probe = None
    if probing and name == "linux":
        from prontosched.telemetry.probe import Probe, runs_on

        probe = Probe(root, prepare=source.exclude_thread) if runs_on(root) else None
    try:
        state = record(
            source,
            recorder,
            seconds=math.inf if seconds is None else seconds,
            probe=probe,
            stopped=stopped_by_signals().is_set,
            progress=meter.show,
        )
    finally:
        meter.end()
        if probe is not None:
            probe.close()
        source.close()
    rows = recorder.finish()
    facts = {
        "file": str(out),
        "rows": rows,
        "timesteps": state.timesteps,
        "metrics": state.metrics,
        "late": state.late,
        "probes": state.probes,
        "seconds": round(state.seconds, 1),
        "bytes": out.stat().st_size if rows else 0,
    }
    _print(facts, as_json)


def _print(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(facts))
    else:
        click.echo(", ".join(f"{name} {value}" for name, value in facts.items()))


class _Meter:
    """A line of progress on standard error: every second on a terminal, else every minute."""

    def __init__(self, seconds: float | None, interval: float) -> None:
        self._terminal = is_live(sys.stderr)
        self._every = max(1.0, interval) if self._terminal else 60.0
        self._of = "" if seconds is None else f" of {seconds:.0f}"
        self._next = 0.0

    def show(self, now: Any) -> None:
        if now.seconds < self._next:
            return
        self._next = now.seconds + self._every
        ready = "" if math.isnan(now.ready) else f", CPU Ready {now.ready:.1f} %"
        line = (
            f"{now.seconds:.0f}{self._of} s, {now.rows} rows of {now.metrics} metrics, {now.parts} parts closed, "
            f"{now.late} late{ready}"
        )
        if self._terminal:
            # A line that the terminal breaks could not be drawn over.
            line = f"\r{line[: columns_of(sys.stderr) - 1]}\x1b[K"
        click.echo(line, err=True, nl=not self._terminal)

    def end(self) -> None:
        """Take the line away, so that nothing is written behind it."""
        if self._terminal:
            click.echo(ERASE, err=True, nl=False)
