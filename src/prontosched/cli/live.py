"""What `pronto agent` and `pronto up` do once their source is open: run, show a line, and say how it went."""

from __future__ import annotations

import importlib.util
import io
import json
import logging
import os
import select
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TextIO

import click
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


MOST_WAITING = 200
NARROWEST = 20
USUAL = 80
ERASE = "\r\x1b[K"
COLOURS = {"accepting": "green", "contended": "yellow", "refusing": "red"}


def is_live(stream: TextIO) -> bool:
    """Tell whether a status line can be drawn on a stream."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def printable(text: str) -> str:
    """Return a text without what a terminal would obey: names of nodes and processes are data.

    Examples
    --------
    >>> printable("a\\x1b[2Jb")
    'a?[2Jb'
    """
    return "".join(sign if sign.isprintable() else "?" for sign in text)


class Screen(io.TextIOBase):
    """A stream for whole lines, with a status line below them.

    Writes nothing while the terminal takes nothing (someone pressed Ctrl-S), so that an agent is
    never held up by it; lines that wait are bounded.

    Parameters
    ----------
    stream
        The terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.RLock()
        self._waiting: deque[str] = deque(maxlen=MOST_WAITING)
        self._part = ""
        self._status: list[str] = []

    @property
    def columns(self) -> int:
        """The terminal's width now."""
        try:
            found = os.get_terminal_size(self._stream.fileno()).columns
        except OSError:
            found = 0
        # A terminal that was never told its size has none.
        return max(NARROWEST, found) if found else USUAL

    def write(self, text: str) -> int:
        """Print whole lines above the status line."""
        with self._lock:
            *lines, self._part = (self._part + text).split("\n")
            self._waiting.extend(lines)
            self._draw()
        return len(text)

    def show(self, parts: list[str]) -> None:
        """Put another status line in place of the last; its first word may be a state."""
        with self._lock:
            self._status = parts
            self._draw()

    def end(self) -> None:
        """Take the status line away."""
        self.show([])

    def _draw(self) -> None:
        if not select.select([], [self._stream], [], 0)[1]:
            return
        lines = "".join(f"{printable(line)}\n" for line in self._waiting)
        self._waiting.clear()
        self._stream.write(f"{ERASE}{lines}{self._line()}")
        self._stream.flush()

    def _line(self) -> str:
        if not self._status:
            return ""
        text = printable("  ".join(self._status))[: self.columns - 1]
        state = self._status[0].split(" ")[0]
        if state in COLOURS and "NO_COLOR" not in os.environ:
            return click.style(state, fg=COLOURS[state], bold=True) + text[len(state) :]
        return text


class StatusLine:
    """Follow the agent and show where it stands on a screen.

    Attributes
    ----------
    url
        Where the page is, once it is known.
    """

    name = "terminal"

    def __init__(self, screen: Screen) -> None:
        self.screen = screen
        self.url = ""

    def follow(self, agent: Agent) -> None:
        """Draw the line for the timestep just made."""
        self.screen.show(fitting(self._parts(agent), self.screen.columns - 1))

    def status(self) -> dict[str, Any]:
        """Return nothing: a terminal has no standing."""
        return {}

    def close(self) -> None:
        """Take the line away."""
        self.screen.end()

    def _parts(self, agent: Agent) -> list[str]:
        if trouble := agent.health.trouble:
            return [f"not deciding: {trouble}", "", self.url]
        names, tally = agent.nodes.names, agent.nodes.tally
        ran = lasting(agent.pace.clock() - agent.started_at)
        refused = f"refused {percent(tally.downtime)} of {ran}" if tally.decisions else f"waiting for {ran}"
        if len(names) != 1:
            return [*_many(agent), refused, self.url]
        answer = agent.answer(names[0])
        since = lasting(max(0.0, agent.wall() - answer.since))
        parts = [f"{answer.state} {since}"]
        if answer.cpu_ready_percent == answer.cpu_ready_percent:
            parts.append(f"CPU Ready {answer.cpu_ready_percent:.1f} %")
        if answer.probability == answer.probability:
            parts.append(f"p {answer.probability:.2f}")
        return [*parts, _driven_by(agent, names[0]), refused, self.url]


def fitting(parts: list[str], width: int) -> list[str]:
    """Return the parts that fit: what drives it gives way first, then what was refused, then the address.

    Examples
    --------
    >>> fitting(["refusing 3s", "by load, forks", "refused 2 % of 1 min", "http://x/"], 46)
    ['refusing 3s', 'refused 2 % of 1 min', 'http://x/']
    """
    kept = [part for part in parts if part]
    for place in (-3, -2, -1):
        if len("  ".join(kept)) <= width:
            break
        part = parts[place] if len(parts) >= -place else ""
        if part in kept[1:]:
            kept.remove(part)
    return kept


def lasting(seconds: float) -> str:
    """Return a length of time in as few signs as tell it.

    Examples
    --------
    >>> lasting(42.4), lasting(125), lasting(7260)
    ('42s', '2m05s', '2h01m')
    """
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    return f"{whole // 60}m{whole % 60:02d}s" if whole < 3600 else f"{whole // 3600}h{whole // 60 % 60:02d}m"


def percent(share: float) -> str:
    """Return a share in percent, with a digit where it is small and not nothing."""
    return f"{100 * share:.1f} %" if 0 < share < 0.1 else f"{100 * share:.0f} %"


def _many(agent: Agent) -> list[str]:
    if not len(agent.nodes):
        return ["starting", ""]
    known = [(node.ready, node.name) for node in agent.nodes if node.ready == node.ready]
    parts = [f"{sum(node.raised for node in agent.nodes)} of {len(agent.nodes)} nodes refusing"]
    if known:
        ready, name = max(known)
        parts.append(f"highest CPU Ready {ready:.1f} % ({name})")
    return [*parts, ""] if len(parts) == 1 else parts


def _driven_by(agent: Agent, node: str) -> str:
    from prontosched.agent.explain import drivers_now

    return f"by {', '.join(found)}" if (found := drivers_now(agent.nodes[node])) else ""
