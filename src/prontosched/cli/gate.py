"""`pronto gate`: see, watch and undo what Pronto does at schedulers."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from prontosched.cli.options import Duration, asking_options, node_option, stopped_by_signals, together
from prontosched.errors import IntegrationError, ProntoError, SettingsError
from prontosched.settings import pairs, with_durations

if TYPE_CHECKING:
    from prontosched.gates.gate import Gate, Observed
    from prontosched.gates.sweep import SweepResult

_gate_options = together(
    click.option(
        "--gate",
        "names",
        multiple=True,
        metavar="NAME",
        help="Which scheduler; again for more. Without it, all that are found on this machine.",
    ),
    click.option(
        "--option",
        "options",
        multiple=True,
        metavar="KEY=VALUE",
        help="An option of the gate, such as conf=/etc/slurm/slurm.conf; needs one --gate.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print JSON, one object on a line."),
)


@click.group(name="gate")
def command() -> None:
    """See, watch and undo what Pronto does at schedulers."""


@command.command(name="list", short_help="List the gates, and whose scheduler is on this machine.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def list_gates(as_json: bool) -> None:
    """List the gates, and which of them have their scheduler on this machine.

    \b
    Example:
        pronto gate list
    """
    from prontosched.gates.registry import gate_names, missing_engine

    lacking: dict[str, str | None] = {}
    for name in gate_names():
        try:
            lacking[name] = missing_engine(name)
        except IntegrationError as error:  # its package cannot be imported
            lacking[name] = str(error)
    if as_json:
        click.echo(json.dumps({name: not words for name, words in lacking.items()}))
        return
    for name, words in lacking.items():
        here = "needs no engine" if words is None else "engine found here"
        click.echo(f"{name:<16}{f'known, engine not found here: {words}' if words else here}")


@command.command(short_help="Show which nodes Pronto holds closed or ranks, and why.")
@_gate_options
@click.option("--node", "nodes", multiple=True, help="Show this node, whoever closed it; again for more.")
def status(names: tuple[str, ...], options: tuple[str, ...], nodes: tuple[str, ...], as_json: bool) -> None:
    """Show which nodes Pronto holds closed or ranks, why and for how long.

    \b
    Example:
        pronto gate status --gate slurm --node n2
    """
    from prontosched.gates.sweep import marked

    failed = False
    for gate in _gates(names, options):
        try:
            seen = {node: gate.observe(node) for node in nodes} if nodes else marked(gate)
        except IntegrationError as error:
            failed = True
            click.echo(f"pronto: {gate.name}: {error}", err=True)
            continue
        if as_json:
            shown = {node: _fields(observed) for node, observed in seen.items()}
            click.echo(json.dumps({"gate": gate.name, "nodes": shown}))
        elif not seen:
            click.echo(f"{gate.name}: no node is closed or ranked by Pronto")
        for node, observed in seen.items() if not as_json else ():
            click.echo(f"{gate.name} {node}: {_line(observed)}".rstrip())
    if failed:
        raise click.exceptions.Exit(1)


@command.command(short_help="Open all nodes that Pronto closed, and take off its ranks.")
@_gate_options
def release(names: tuple[str, ...], options: tuple[str, ...], as_json: bool) -> None:
    """Undo all that Pronto did to nodes, at once: open those it closed, take off its ranks.

    Nodes that others closed are not touched. Agents that run leave a node open for five
    minutes when someone opened it over their refusal; run them without --enforce to
    stop them for good.

    \b
    Example:
        pronto gate release
    """
    from prontosched.gates.sweep import release as release_all

    if not _report_each(_gates(names, options), release_all, as_json):
        raise click.exceptions.Exit(1)


@command.command(short_help="Undo what has ended because its agent fell silent.")
@_gate_options
@click.option("--node", help="Watch only this node; without it, all that the gate reaches.")
@click.option(
    "--every",
    type=Duration(0.2),
    default="10s",
    metavar="TIME",
    help="Time between two looks.",
)
@click.option("--once", is_flag=True, help="Look once and end, for a health check or cron.")
def watch(
    names: tuple[str, ...],
    options: tuple[str, ...],
    node: str | None,
    every: float,
    once: bool,
    as_json: bool,
) -> None:
    """Undo what has ended because its agent died or fell silent: refusals and ranks.

    Needs no agent. A node stays closed for at most its verdict's time plus --every.

    \b
    Example:
        pronto gate watch --gate slurm --every 10s
    """
    from prontosched.gates.sweep import sweep

    gates = _gates(names, options)

    def look(gate: Gate) -> SweepResult:
        return sweep(gate, now=time.time(), node=node, seconds=math.inf if once else every)

    if once:
        if not _report_each(gates, look, as_json):
            raise click.exceptions.Exit(1)
        return
    stop = stopped_by_signals()
    click.echo(f"watching {', '.join(gate.name for gate in gates)} every {every:g} s", err=True)
    while not stop.is_set():
        _report_each(gates, look, as_json, only_changes=True)
        stop.wait(every)


@command.command(short_help="Print the chance of contention as LSF's external load.")
@asking_options
@node_option
@click.option(
    "--every",
    type=Duration(1.0),
    default="15s",
    metavar="TIME",
    help="Time between two updates; LSF passes them on every 15 seconds.",
)
@click.option("--once", is_flag=True, help="Print one update and end.")
@click.option(
    "--veto", is_flag=True, help="A queue closes hosts by these values: tell the agent that it is obeyed."
)
def elim(node: str | None, every: float, once: bool, veto: bool, **asked: Any) -> None:
    """Print this node's chance of contention as LSF's external load indices.

    For LSF_SERVERDIR/elim.pronto; LSF starts and ends it. While no agent answers, values
    say that nothing is known: between calm and contended. Ends with ELIM_ABORT_VALUE on a
    host from which LSF expects none of our indices.

    \b
    Example:
        pronto gate elim --once
    """
    from prontosched.cli.options import find
    from prontosched.gates.lsf import ABORT, report, wanted

    if not wanted():
        code = os.environ.get("ELIM_ABORT_VALUE", "")
        raise click.exceptions.Exit(int(code) if code.isdecimal() and int(code) < 256 else ABORT)
    stop = stopped_by_signals()

    def chances() -> Iterator[float | None]:
        while True:
            try:
                agent, _ = find(**asked)
                yield None if agent is None else _chance(agent.decision(node, enforcing=veto))
            except SettingsError:
                raise
            except (ProntoError, OSError):  # no agent, or not now: nothing is known of the node
                yield None

    try:
        report(chances(), lambda line: os.write(1, line), lambda: once or stop.wait(every))
    except OSError as error:
        raise IntegrationError(f"standard output must take load updates, got {error}") from error


def _chance(answer: dict[str, Any]) -> float | None:
    from prontosched.gates.gate import Verdict, chance

    accept, probability = answer.get("accept"), answer.get("probability")
    if answer.get("stale") or not isinstance(accept, bool):
        return None
    score = chance(None if probability is None else float(probability), refuse=not accept)
    return Verdict(not accept, score, "", math.inf).expected


def _gates(names: tuple[str, ...], options: tuple[str, ...]) -> list[Gate]:
    from prontosched.gates.registry import make_gate, present_gates

    given = with_durations(pairs(options, "--option"))
    if given and len(names) != 1:
        raise click.UsageError("--option belongs to one gate: name it with --gate")
    if names:
        return [make_gate(name, **given) for name in names]
    gates = []
    for name in present_gates():
        try:
            gates.append(make_gate(name))
        except SettingsError as error:
            click.echo(f"pronto: {name} left out: {error}", err=True)
    if not gates:
        raise IntegrationError("no scheduler was found on this machine: name one with --gate")
    return gates


def _report_each(
    gates: list[Gate], work: Callable[[Gate], SweepResult], as_json: bool, *, only_changes: bool = False
) -> bool:
    """Do the work at each gate and print what it did; return whether all went well."""
    from prontosched.gates.sweep import SweepResult

    well = True
    for gate in gates:
        try:
            swept = work(gate)
        except IntegrationError as error:
            swept = SweepResult(failed={"*": str(error)})
        for node, words in swept.failed.items():
            well = False
            where = gate.name if node == "*" else f"{gate.name} {node}"
            click.echo(f"pronto: {where}: {words}", err=True)
        if only_changes and not (swept.opened or swept.restored):
            continue
        if as_json:
            click.echo(json.dumps({"gate": gate.name, **asdict(swept)}))
            continue
        for what, nodes in (
            ("opened", swept.opened),
            ("restored", swept.restored),
            ("still holding", swept.kept),
        ):
            if nodes:
                click.echo(f"{gate.name}: {what} {', '.join(nodes)}")
        if not (swept.opened or swept.restored or swept.kept or swept.failed):
            click.echo(f"{gate.name}: no node is closed or ranked by Pronto")
    return well


def _line(observed: Observed) -> str:
    """Return where a node stands, in words."""
    words = str(observed.state)
    if observed.ours:
        left = observed.valid_until - time.time()
        words += f" for {left:.0f} s more" if left > 0 else ", its verdict has ended"
    if observed.rank is not None:
        left = observed.rank.valid_until - time.time()
        words += f", level {observed.rank.level}"
        words += f" for {left:.0f} s more" if left > 0 else ", which has ended"
    return f"{words}  {observed.detail}"


def _fields(observed: Observed) -> dict[str, Any]:
    """Return where a node stands, for `--json`."""
    until, score = observed.valid_until, observed.score
    return {
        "state": observed.state,
        "detail": observed.detail,
        "score": None if math.isnan(score) else score,
        "valid_until": None if math.isnan(until) else datetime.fromtimestamp(until, UTC).isoformat(),
        "level": observed.rank.level if observed.rank else 0,
    }
