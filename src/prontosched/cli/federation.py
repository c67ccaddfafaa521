"""`pronto federation`: the tree as it is now."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from prontosched.cli.federation_words import from_bus, words
from prontosched.cli.options import Duration, asking_options, find


@click.command()
@click.option("--nats", metavar="ADDRESS", help="Bus to ask instead: nats://host:port/group?creds=FILE.")
@asking_options
@click.option(
    "--top", type=click.IntRange(0), default=20, show_default=True, help="Nodes shown, outliers first."
)
@click.option(
    "--wait", type=Duration(0.1), default="5s", metavar="TIME", help="How long to wait for the bus."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
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


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
