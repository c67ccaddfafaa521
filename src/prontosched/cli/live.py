"""What `pronto agent` and `pronto up` do: run an agent, show a status line, and print a summary."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import select
import sys
import threading
from collections import deque
from typing import Any, TextIO

import click

from prontosched.agent.config import local_source, make_agent, source_of
from prontosched.agent.followers import ChangeLog, ServiceManager
from prontosched.agent.http.auth import Access
from prontosched.agent.http.server import serve
from prontosched.agent.logs import log_to_stderr
from prontosched.agent.loop import Agent
from prontosched.agent.nodes import LiveNode
from prontosched.agent.record import DecisionCounts
from prontosched.agent.views import record_figures, status
from prontosched.cli.options import COLOURS, ERASE, columns_of, is_live, lasting, settings_of
from prontosched.dashboard.app import routes
from prontosched.telemetry.linux.cgroup import printable

LOG = logging.getLogger("prontosched.cli")
# From how many on a share of decisions is told.
ENOUGH_DECISIONS = 100


def run_agent(options: dict[str, Any], *, pages: bool = False) -> None:
    """Run an agent with the options of a command until it is told to stop, then print its summary.

    With `pages` it serves the dashboard, on the next free port, shows a status line on a terminal,
    and replays a generated trace where this machine cannot be read.
    """
    seconds, verbose, form, as_json = map(options.pop, ("seconds", "verbose", "log_format", "as_json"))
    screen = Screen(sys.stderr) if pages and form == "text" and is_live(sys.stderr) else None
    log_to_stderr(verbose=verbose, form=form, stream=screen)
    settings = settings_of(options)
    access = Access.read(settings.listen, settings.token_file, settings.tls_cert, settings.tls_key)
    if pages:
        settings, source, instead = local_source(settings)
        if instead:
            LOG.warning("%s", instead)
    else:
        source = source_of(settings)
    agent = make_agent(settings, source, embed=pages)
    agent.followers += [ServiceManager(), ChangeLog()]
    line = None if screen is None else StatusLine(screen)
    if line is not None:
        agent.followers.append(line)

    def started(url: str) -> None:
        shown = f"open {url}/" if pages else f"ask {url}/v1/decision"
        end = "until Ctrl-C" if seconds is None else f"for {seconds:g} s"
        LOG.info("watching %s every %g s, %s: %s", source.name, agent.pace.interval_seconds, end, shown)
        if line is not None:
            line.url = f"{url}/"

    extra = routes() if pages else ()
    asyncio.run(serve(agent, access, seconds=seconds, next_free=pages, extra=extra, started=started))
    for handler in logging.getLogger("prontosched").handlers:
        handler.flush()
    if as_json:
        click.echo(json.dumps(status(agent)))
    elif form == "json":
        LOG.info("%s", summary(agent).replace("\n", "; "))
    else:
        click.echo(summary(agent))


def summary(agent: Agent) -> str:
    """Say in a few lines how it went, and nothing that so short a run cannot tell."""
    tally, pace = agent.nodes.tally, agent.pace
    names = agent.nodes.names
    who = names[0] if len(names) == 1 else f"{len(names)} nodes"
    lines = [
        f"{tally.decisions} decision{_s(tally.decisions)} for {who} in {lasting(pace.clock() - agent.started_at)}"
    ]
    if tally.decisions:
        lines[0] += f": {_refused(tally)}"
    lines.append(_ready(tally))
    if agent.nodes.only is not None and (told := _record(agent.nodes.only)):
        lines.append(told)
    if pace.late or pace.skipped:
        lines.append(
            f"{pace.late} of {pace.ticks} ticks came late, by {pace.worst_lag_seconds * 1000:.0f} ms at most; "
            f"{pace.skipped} left out"
        )
    if agent.faults:
        count = sum(agent.faults.values())
        lines.append(f"{count} fault{_s(count)}, the last: {agent.last_fault}")
    if agent.disk is not None and tally.decisions:
        told = f"what it learned is kept in {agent.disk.folder}: the next start goes on from there"
        if agent.disk.last_error:
            told = f"not all that it learned could be written: {agent.disk.last_error}"
        lines.append(told)
    return "\n".join(lines)


def _refused(tally: DecisionCounts) -> str:
    """Say how much was refused: a share only where the run was long enough for one."""
    if not tally.raised:
        return "none refused"
    turns = f"{tally.flips} change{_s(tally.flips)} of mind"
    if tally.decisions < ENOUGH_DECISIONS:
        return f"{tally.raised} refused, {turns}"
    return f"refused {tally.downtime:.1%} of the time, {turns}"


def _ready(tally: DecisionCounts) -> str:
    if not tally.ready_count:
        return "CPU Ready: never known"
    told = f"CPU Ready: mean {tally.ready_mean:.2f} %, highest {tally.ready_max:.2f} % per CPU"
    return f"{told}; at the tolerance or above in {tally.contended} of {tally.ready_count} timesteps"


def _record(node: LiveNode) -> str:
    """Say what refusals were worth over all runs of this node, as pages do: only where enough came to tell."""
    figures = record_figures(node)
    contentions, preceded = figures["contentions"], figures["preceded"]
    if not contentions:
        return ""
    told = (
        ""
        if preceded is None
        else f"{round(preceded * contentions)} of {contentions} contentions came after a refusal had begun. "
    )
    return f"record: {told}{figures['words']}"


def _s(count: int) -> str:
    return "" if count == 1 else "s"


MOST_WAITING = 200
NARROWEST = 20


class Screen(io.TextIOBase):
    """A terminal for whole lines, with a status line below them.

    It writes nothing while the terminal takes nothing (someone pressed Ctrl-S), so that the agent never
    waits for it. Lines that wait are bounded.
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
        return max(NARROWEST, columns_of(self._stream))

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
        if state in COLOURS and not os.environ.get("NO_COLOR"):
            return click.style(state, fg=COLOURS[state], bold=True) + text[len(state) :]
        return text


class StatusLine:
    """A follower that shows the agent's state on a screen; `url` is the address of the page, once it is known."""

    name = "terminal"

    def __init__(self, screen: Screen) -> None:
        self.screen = screen
        self.url = ""

    def follow(self, agent: Agent) -> None:
        """Draw the line for the timestep just made."""
        self.screen.show(fitting(self._parts(agent), self.screen.columns - 1))

    def status(self) -> dict[str, Any]:
        """Return nothing: no status is kept of a terminal."""
        return {}

    def close(self) -> None:
        """Take the line away."""
        self.screen.end()

    def _parts(self, agent: Agent) -> list[str]:
        if trouble := agent.health.trouble:
            return [f"not deciding: {trouble}", "", self.url]
        names, tally = agent.nodes.names, agent.nodes.tally
        ran = lasting(agent.pace.clock() - agent.started_at)
        refused = f"refused {_percent(tally.downtime)} of {ran}" if tally.decisions else f"waiting for {ran}"
        if len(names) != 1:
            return [*_many(agent), refused, self.url]
        answer = agent.answer(names[0])
        parts = [f"{answer.state} {lasting(agent.wall() - answer.since)}"]
        if answer.cpu_ready_percent == answer.cpu_ready_percent:
            parts.append(f"CPU Ready {answer.cpu_ready_percent:.1f} %")
        if answer.probability == answer.probability:
            parts.append(f"p {answer.probability:.2f}")
        waiting, _, _ = answer.offenders.partition(";")
        return [*parts, waiting, refused, self.url]


def fitting(parts: list[str], width: int) -> list[str]:
    """Return the parts that fit: who waits gives way first, then what was refused, then the address.

    Examples
    --------
    >>> fitting(["refusing 3 s", "2.1 CPUs waiting: make 2.1", "refused 2 % of 1 min", "http://x/"], 46)
    ['refusing 3 s', 'refused 2 % of 1 min', 'http://x/']
    """
    kept = [part for part in parts if part]
    for place in (-3, -2, -1):
        if len("  ".join(kept)) <= width:
            break
        part = parts[place] if len(parts) >= -place else ""
        if part in kept[1:]:
            kept.remove(part)
    return kept


def _percent(share: float) -> str:
    """Return a share in percent, with a digit where it is small and not nothing."""
    return f"{100 * share:.1f} %" if 0 < share < 0.1 else f"{100 * share:.0f} %"


def _many(agent: Agent) -> list[str]:
    if not len(agent.nodes):
        return ["starting", ""]
    count = sum(agent.state_of(node) == "refusing" for node in agent.nodes)
    refusing = f"{count} of {len(agent.nodes)} nodes refusing"
    known = [(node.ready, node.name) for node in agent.nodes if node.ready == node.ready]
    ready, name = max(known, default=(0.0, ""))
    return [refusing, f"highest CPU Ready {ready:.1f} % ({name})" if known else ""]
