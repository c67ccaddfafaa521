"""`pronto report`: what happened over some days, and what to do about it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click

from prontosched.cli.options import Duration, asking, find, node_option
from prontosched.errors import IntegrationError


@click.command()
@click.option("--since", type=Duration(60.0), default="7d", metavar="TIME", help="How far to look back.")
@node_option
@asking(
    click.option(
        "--agent",
        "urls",
        multiple=True,
        metavar="URL",
        help="Agent to ask; repeatable.  [default: this machine's]",
    )
)
@click.option(
    "--html", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write a page instead."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    since: float, node: str | None, urls: tuple[str, ...], html: Path | None, as_json: bool, **asked: Any
) -> None:
    """Say what happened on nodes over some days, and what to do about it.

    For each node: hours contended, refused, preferred away and closed, the slowdown of probes in each state, and
    the forecast against a coin. Then which nodes and units are contended again and again, and what to do. It reads
    the decision logs of the agents that it asks, or the one in this machine's state folder.

    \b
    Example:
        pronto report --since 7d --html week.html
        pronto report --agent http://n1:7077 --agent http://n2:7077
    """
    from prontosched.agent.config import tolerance_of
    from prontosched.agent.report import as_html, as_text, make_report, read_agent, read_log
    from prontosched.agent.store.decision_log import DecisionLog

    end = time.time()
    begin = end - since
    found = []
    for url in urls or (None,):
        client, settings = find(url, **asked)
        if client is not None:
            found += read_agent(client, begin, end, node)
            continue
        folder = settings.state
        assert folder is not None
        paths = sorted(folder.glob("*.decisions.sqlite"))
        if not paths:
            raise IntegrationError(
                f"no agent answers and {folder} has no decision log: name an agent, or its folder"
            )
        for path in paths:
            log = DecisionLog(path)
            found += read_log(log, begin, end, node, tolerance=tolerance_of(settings))
            log.close()
    report = make_report(found, begin, end)
    if html is not None:
        html.write_text(as_html(report), encoding="utf-8")
        click.echo(f"written to {html}", err=True)
    if as_json:
        click.echo(json.dumps(report.as_json()))
    elif html is None:
        click.echo(as_text(report))
