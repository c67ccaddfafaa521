"""What `pronto agent` and `pronto up` do once their source is open: run, and say how it went."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from aiohttp import web

    from prontosched.agent.access import Access
    from prontosched.agent.loop import Agent
    from prontosched.settings import AgentSettings
    from prontosched.telemetry.source import Source


def go(
    settings: AgentSettings,
    source: Source,
    access: Access,
    *,
    seconds: float | None,
    as_json: bool,
    pages: bool = False,
) -> None:
    """Run an agent until it is told to stop, then print its summary."""
    from prontosched.agent.assembly import make_agent
    from prontosched.agent.running import run, summary
    from prontosched.agent.views import status

    agent = make_agent(settings, source, embed=pages)

    def started(url: str) -> None:
        shown = f"open {url}/" if pages and dashboard_routes() is not None else f"ask {url}/v1/decision"
        click.echo(f"watching {source.name} every {agent.pace.interval_seconds:g} s: {shown}", err=True)
        click.echo("stop with Ctrl-C" if seconds is None else f"stopping after {seconds:g} s", err=True)

    run(
        agent,
        access,
        seconds=seconds,
        next_free=pages,
        extra=_extra if pages else None,
        started=started,
    )
    if as_json:
        click.echo(json.dumps(status(agent)))
    else:
        click.echo(summary(agent))


def dashboard_routes() -> Callable[[], Iterable[web.AbstractRouteDef]] | None:
    """Return what gives the dashboard's routes, or None where it is not installed."""
    if importlib.util.find_spec("prontosched.dashboard.app") is None:
        return None
    app: Any = importlib.import_module("prontosched.dashboard.app")
    found: Callable[[], Iterable[web.AbstractRouteDef]] | None = getattr(app, "routes", None)
    return found


def _extra(agent: Agent) -> Iterable[web.AbstractRouteDef]:
    routes = dashboard_routes()
    return () if routes is None else routes()
