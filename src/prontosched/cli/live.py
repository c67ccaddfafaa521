"""What `pronto agent` and `pronto up` do once their source is open: run, and say how it went."""

from __future__ import annotations

import importlib.util
import json
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from prontosched.cli.terminal import Screen, StatusLine

if TYPE_CHECKING:
    from aiohttp import web

    from prontosched.agent.http.auth import Access
    from prontosched.agent.logs import LogFormat
    from prontosched.agent.loop import Agent
    from prontosched.settings import AgentSettings
    from prontosched.telemetry.source import Source

LOG = logging.getLogger("prontosched.cli")


def go(
    settings: AgentSettings,
    source: Source,
    access: Access,
    *,
    seconds: float | None,
    as_json: bool,
    form: LogFormat = "text",
    pages: bool = False,
    screen: Screen | None = None,
) -> None:
    """Run an agent until it is told to stop, then print its summary.

    Parameters
    ----------
    form
        With `json` nothing but objects is printed, the summary among them.
    pages
        Serve the dashboard, on the next free port.
    screen
        A terminal to show a status line on.
    """
    from prontosched.agent.config import make_agent
    from prontosched.agent.http.server import run, summary
    from prontosched.agent.logs import ChangeLog
    from prontosched.agent.status import status

    agent = make_agent(settings, source, embed=pages)
    agent.followers.append(ChangeLog())
    line = None if screen is None else StatusLine(screen)
    if line is not None:
        agent.followers.append(line)

    def started(url: str) -> None:
        shown = f"open {url}/" if pages and dashboard_routes() is not None else f"ask {url}/v1/decision"
        end = "until Ctrl-C" if seconds is None else f"for {seconds:g} s"
        LOG.info("watching %s every %g s, %s: %s", source.name, agent.pace.interval_seconds, end, shown)
        if line is not None:
            line.url = f"{url}/"

    run(
        agent,
        access,
        seconds=seconds,
        next_free=pages,
        extra=_extra if pages else None,
        started=started,
    )
    for handler in logging.getLogger("prontosched").handlers:
        handler.flush()
    if as_json:
        click.echo(json.dumps(status(agent)))
    elif form == "json":
        LOG.info("%s", summary(agent).replace("\n", "; "))
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
