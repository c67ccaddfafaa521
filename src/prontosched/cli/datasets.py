"""`pronto datasets`: which data sets can be evaluated, and where they are published."""

from __future__ import annotations

import json

import click


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(as_json: bool) -> None:
    """List data sets: what each holds, where it is published, its licence and size, and how to read it.

    `host` and `server` come with Pronto; nothing is fetched.

    \b
    Example:
        pronto datasets
    """
    from prontosched.evaluation.datasets.catalogue import CATALOGUE

    if as_json:
        found = {"datasets": [one._asdict() for one in CATALOGUE]}
        click.echo(json.dumps(found, indent=1, ensure_ascii=False))
        return
    for one in CATALOGUE:
        click.echo(click.style(one.name, bold=True))
        for word in ("what", "ready", "where", "licence", "size", "command"):
            label = "CPU Ready" if word == "ready" else word
            click.echo(f"  {label:10} {getattr(one, word)}")
