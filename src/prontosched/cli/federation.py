"""`pronto federation`: the tree as it is now, and what it costs and is worth."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from prontosched.cli.asking import asking_options, find
from prontosched.cli.federation_words import from_bus, words
from prontosched.cli.shared_options import Duration


@click.group(invoke_without_command=True)
@click.option("--nats", metavar="ADDRESS", help="Bus to ask instead: nats://host:port/group?creds=FILE.")
@asking_options
@click.option(
    "--top", type=click.IntRange(0), default=20, show_default=True, help="Nodes shown, outliers first."
)
@click.option(
    "--wait", type=Duration(0.1), default="5s", metavar="TIME", help="How long to wait for the bus."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def command(
    context: click.Context,
    nats: str | None,
    url: str | None,
    token_file: Path | None,
    ca: Path | None,
    state: Path | None,
    top: int,
    wait: float,
    as_json: bool,
) -> None:
    """Show the federation: who is there, how old, how far from the global view.

    Asks the agent of this machine, or the bus itself with --nats.

    \b
    Example:
        pronto federation --nats nats://127.0.0.1:4222
    """
    if context.invoked_subcommand is not None:
        return
    if nats is not None:
        _ask_bus(nats, top, wait, as_json)
        return
    client, _ = find(url, token_file, ca, state)
    if client is None:
        raise click.UsageError(
            "no agent answers on this machine: start one, or name the bus with --nats ADDRESS"
        )
    found = client.get("/v1/federation")
    click.echo(json.dumps(found) if as_json else "\n".join(words(found, top)))


def _ask_bus(address: str, top: int, wait: float, as_json: bool) -> None:
    from prontosched.federation.address import Address
    from prontosched.federation.lookout import look
    from prontosched.federation.nats_link import NatsLink

    place = Address.parse(address)
    link = NatsLink(place, name="overview", quiet=True)
    try:
        seen = look(link, tree=place.tree, seconds=wait)
    finally:
        link.close()
    if not as_json:
        click.echo("\n".join(words(from_bus(seen, place.tree), top)))
        return
    rows = [{k: _plain(v) for k, v in asdict(row).items()} for row in seen.rows]
    found = {
        "revision": seen.revision,
        "nodes": len(seen.nodes),
        "unreadable": seen.unreadable,
        "misplaced": seen.misplaced,
        "clashes": list(seen.clashes),
        "denied": seen.denied,
        "view_age_seconds": _plain(seen.view_age_seconds),
    }
    click.echo(json.dumps({**found, **seen.saved, "rows": rows}))


@command.command()
@click.option(
    "--nodes", type=click.IntRange(100, 100_000), default=10_000, show_default=True, help="Largest fleet."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def bench(nodes: int, as_json: bool) -> None:
    """Measure how exact a tree is, and what it costs as the fleet grows.

    \b
    Example:
        pronto federation bench --nodes 10000
    """
    from prontosched.bench.federation import scale
    from prontosched.bench.federation_error import error

    _print_rows([*error(), *scale(nodes)], as_json)


@command.command()
@click.option(
    "--smd",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Folder with the Server Machine Dataset, to measure on real machines as well.",
)
@click.option("--quick", is_flag=True, help="Fewer machines and steps.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def worth(smd: Path | None, quick: bool, as_json: bool) -> None:
    """Measure what the global view is worth to a new node, also where it is worth nothing.

    \b
    Example:
        pronto federation worth --quick
    """
    from prontosched.bench.federation_worth import worth as measure

    _print_rows(measure(smd, quick=quick), as_json)


@command.command()
@click.option("--nats", metavar="ADDRESS", required=True, help="Bus: nats://host:port/group.")
@click.option(
    "--agents", type=click.IntRange(1, 5000), default=100, show_default=True, help="Agents to simulate."
)
@click.option("--for", "seconds", type=Duration(1.0), default="30s", metavar="TIME", help="How long.")
@click.option("--every", type=Duration(0.1), default="2s", metavar="TIME", help="Time between two messages.")
@click.option("--prefix", default="load", show_default=True, help="Beginning of the agents' names.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def load(nats: str, agents: int, seconds: float, every: float, prefix: str, as_json: bool) -> None:
    """Put the traffic of many simulated agents on a bus, to see what it carries.

    Use a group of its own: the simulated agents take part in the global view.

    \b
    Example:
        pronto federation load --nats nats://127.0.0.1:4222/trial --agents 500
    """
    from prontosched.bench.federation_traffic import traffic
    from prontosched.errors import FederationError
    from prontosched.federation.address import Address
    from prontosched.federation.nats_link import NatsLink

    place = Address.parse(nats)
    link = NatsLink(place, name=f"load-{prefix}", quiet=True)
    try:
        found = traffic(link, agents=agents, seconds=seconds, every=every, prefix=prefix, tree=place.tree)
    except TimeoutError as error:
        raise FederationError(str(error)) from error
    finally:
        link.close()
    if as_json:
        click.echo(json.dumps(found))
    else:
        click.echo(
            f"{found['summaries']} summaries and {found['decisions']} decisions of {agents} agents in "
            f"{found['seconds']:.0f} s, {found['bytes'] / 1e6:.1f} MB, "
            f"{'all arrived' if found['arrived'] and not found['refused'] else 'NOT all arrived'}"
        )


def _print_rows(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"rows": [{k: _plain(v) for k, v in row.items()} for row in rows]}))
        return
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        goal = "" if row["goal"] is None else f"goal {row['goal']}  {'met' if row['met'] else 'NOT MET'}"
        click.echo(f"{row['name']:<{width}}  {row['value']:>12.4g} {row['unit']:<16} {goal}".rstrip())


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
