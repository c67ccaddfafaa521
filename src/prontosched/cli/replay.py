"""`pronto replay`: carry a trace, or a generated stream, through nodes and show what they decide."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import click

from prontosched.agent.config import node_builder
from prontosched.cli.options import policy_options
from prontosched.decision import Decision
from prontosched.pipeline.node import Node
from prontosched.settings import SIGNAL_SETTINGS, AgentSettings
from prontosched.signals import SIGNALS, find_signal
from prontosched.telemetry.source import Sample, Source, samples

GENERATED_STEPS = 600


class ReplayTally:
    """What the nodes did over the whole replay: decisions, and CPU Ready over refused and accepted timesteps."""

    def __init__(self) -> None:
        self.last: dict[str, bool] = {}
        self.decisions = {True: 0, False: 0}
        self.ready: dict[bool, list[float]] = {True: [], False: []}

    def add(self, node: str, decision: Decision, ready: float) -> bool:
        """Count a decision; True when it differs from the node's one before."""
        changed = decision.raised != self.last.get(node, False)
        self.last[node] = decision.raised
        self.decisions[decision.raised] += 1
        total = self.ready[decision.raised] or [0.0, 0.0]
        if not math.isnan(ready):
            self.ready[decision.raised] = [total[0] + ready, total[1] + 1.0]
        return changed

    def sum_up(self) -> str:
        """Return what came of it, in one line or two."""
        refused, steps, nodes = self.decisions[True], sum(self.decisions.values()), len(self.last)
        found = (
            f"{steps} decision{'s' if steps > 1 else ''} of {nodes} node{'s' if nodes > 1 else ''}: "
            f"refused {refused} ({100 * refused / steps:.1f} % downtime)"
        )
        words = {True: "refused", False: "accepted"}
        means = [f"{v[0] / v[1]:.2f} over {words[raised]} timesteps" for raised, v in self.ready.items() if v]
        return f"{found}\nmean CPU Ready {', '.join(means)}" if means else found


@click.command("replay")
@click.argument("trace", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--signal",
    default="learned",
    metavar="NAME",
    help=f"Rejection signal: {', '.join(sorted(SIGNALS))}, or one of an installed package.",
)
@policy_options
@click.option("--ready", metavar="COLUMN", help="Column that holds CPU Ready.  [default: ready]")
@click.option("--utilisation", metavar="COLUMN", help="Column of CPU utilisation.  [default: utilisation]")
@click.option(
    "--exclude",
    metavar="A,B",
    default="",
    show_default=False,
    help="Columns to leave out of the metrics; * matches anything.",
)
@click.option(
    "--preset", type=click.Choice(["default", "paper"]), help="How nodes are set up.  [default: the signal's]"
)
@click.option("--steps", type=click.IntRange(min=1), help="Stop after this many timesteps.")
@click.option("--nodes", type=click.IntRange(1, 1000), default=1, help="Nodes of the generated stream.")
@click.option("--seed", type=int, default=0, help="Seed of the generated stream.")
@click.option("--all", "every", is_flag=True, help="Show every decision, not only changes.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per node and timestep.")
def command(trace: tuple[Path, ...], as_json: bool, every: bool, **options: Any) -> None:
    """Replay TRACE and show decisions as they come.

    TRACE is CSV or Parquet, a row per timestep, with an optional `node` column; `host` and `server` come with Pronto.
    Without one, a generated stream with planted contention is replayed.

    \b
    Example:
        pronto replay host.csv --signal paper --json | head
    """
    names = ("preset", "signal", "embedding", "energy_bounds", *SIGNAL_SETTINGS)
    build = node_builder(AgentSettings(**{name: options[name] for name in names}))
    source = _source(trace, options)
    tally = ReplayTally()
    if trace and getattr(source, "ready_column", "") is None and _needs_ready(options["signal"]):
        from prontosched.telemetry.trace import ready_wanted

        wanted = ready_wanted(source.metrics)  # type: ignore[attr-defined]
        click.echo(f"pronto: no column of CPU Ready: nothing can be refused without it: {wanted}", err=True)
    for timestep, sample, decision in decisions(source, build, options["steps"]):
        changed = tally.add(sample.node, decision, sample.ready)
        if as_json:
            click.echo(json.dumps(_row(timestep, sample, decision)))
        elif every or changed:
            click.echo(_line(sample, decision))
    counts = getattr(source, "counts", None)
    for warning in [] if counts is None else counts.warnings():
        click.echo(f"pronto: {warning}", err=True)
    if not tally.last:
        raise click.ClickException("a trace must have at least one row, got none: check the file")
    if not as_json:
        click.echo(tally.sum_up(), err=True)


def decisions(
    source: Source, build: Callable[[tuple[str, ...]], Node], steps: int | None
) -> Iterator[tuple[int, Sample, Decision]]:
    """Yield every decision of every node, in the order of the trace."""
    nodes: dict[str, Node] = {}
    for read in islice(samples(source), steps):
        for sample in read:
            if (node := nodes.get(sample.node)) is None:
                node = nodes[sample.node] = build(sample.metrics)
            timestep, about = node.timestep, {"ready": sample.ready, "utilisation": sample.utilisation}
            yield timestep, sample, node.step(sample.vector, **about, time=sample.timestamp)


def _source(trace: tuple[Path, ...], options: dict[str, Any]) -> Source:
    if trace:
        from prontosched.evaluation.datasets import resolve
        from prontosched.telemetry.trace import open_trace

        exclude = [name for name in options["exclude"].split(",") if name]
        paths = map(resolve, trace)
        return open_trace(paths, ready=options["ready"], utilisation=options["utilisation"], exclude=exclude)
    from prontosched.telemetry.synthetic import SyntheticFleet, SyntheticSource

    click.echo("pronto: no trace given: replaying a generated stream with planted contention", err=True)
    fleet = SyntheticFleet(options["nodes"], 64, seed=options["seed"])
    return SyntheticSource(fleet, steps=options["steps"] or GENERATED_STEPS)


def _needs_ready(signal: str) -> bool:
    """Tell whether a signal judges by CPU Ready; one with a tolerance does."""
    return "tolerance" in inspect.signature(find_signal(signal).one).parameters


def _number(value: float) -> float | None:
    """Return a number as JSON can say it: NaN is not JSON."""
    return value if math.isfinite(value) else None


def _row(timestep: int, sample: Sample, decision: Decision) -> dict[str, Any]:
    return {
        "timestep": timestep,
        "node": sample.node,
        "timestamp": _number(sample.timestamp),
        "accept": decision.accept,
        "score": _number(float(decision.score)),
        "threshold": _number(float(decision.threshold)),
        "probability": _number(float(decision.probability)),
        "expected_ready": _number(float(decision.expected_ready)),
        "ready": _number(float(sample.ready)),
        "reason": decision.reason,
    }


def _line(sample: Sample, decision: Decision) -> str:
    colours = {"fg": "red", "bold": True} if decision.raised else {"fg": "green"}
    word = click.style("refuse" if decision.raised else "accept", **colours)
    ready = "" if math.isnan(sample.ready) else f"  ready {sample.ready:6.2f}"
    return f"{decision.timestep:7d}  {sample.node}  {word}{ready}  score {decision.score:6.2f}  {decision.reason}"
