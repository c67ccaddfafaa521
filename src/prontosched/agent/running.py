"""Run an agent with its port until it is told to stop, and say how it went.

Covers: signals, the order of starting and stopping, and the summary at the end.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Callable, Iterable

from aiohttp import web

from prontosched.agent.access import Access
from prontosched.agent.loop import Agent
from prontosched.agent.nodes import OneNode
from prontosched.agent.serve import Server
from prontosched.agent.state import remove_address, write_address

LOG = logging.getLogger("prontosched.agent")
SWITCH_SECONDS = 0.0005


def run(
    agent: Agent,
    access: Access,
    *,
    seconds: float | None = None,
    next_free: bool = False,
    extra: Callable[[Agent], Iterable[web.AbstractRouteDef]] | None = None,
    started: Callable[[str], None] | None = None,
) -> None:
    """Run until a signal, the end of the source, or `seconds` have passed.

    Parameters
    ----------
    next_free
        Take the next free port where the wanted one is taken.
    extra
        Gives more routes, such as pages, for an agent.
    started
        Called with the address once it answers.
    """
    # A source's thread would otherwise keep the loop waiting for 5 ms at a time.
    sys.setswitchinterval(SWITCH_SECONDS)
    asyncio.run(_run(agent, access, seconds, next_free, extra, started))


async def _run(
    agent: Agent,
    access: Access,
    seconds: float | None,
    next_free: bool,
    extra: Callable[[Agent], Iterable[web.AbstractRouteDef]] | None,
    started: Callable[[str], None] | None,
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    server = Server(agent, access, () if extra is None else extra(agent))
    try:
        url = await server.start(next_free=next_free)
    except BaseException:
        await agent.abandon()
        raise
    try:
        _note_address(agent, url)
        if started is not None:
            started(url)
        await agent.run(stop, seconds)
    finally:
        await server.stop()
        if agent.disk is not None:
            remove_address(agent.disk.folder)


def _note_address(agent: Agent, url: str) -> None:
    if agent.disk is None:
        return
    try:
        write_address(agent.disk.folder, url)
    except OSError as error:
        LOG.warning("cannot note the address for `pronto run`: %s", error)


def summary(agent: Agent) -> str:
    """Say in a few lines how it went: decisions, downtime, what CPU Ready did."""
    tally, pace = agent.nodes.tally, agent.pace
    took = pace.clock() - agent.started_at
    count = len(agent.nodes.names)
    lines = [f"{tally.decisions} decisions in {_time(took)} for {count} node{'s' if count != 1 else ''}"]
    if tally.decisions:
        lines[0] += f", {tally.raised} rejecting: downtime {tally.downtime:.1%}, {tally.flips} changes"
    if tally.ready_count:
        lines.append(
            f"CPU Ready: mean {tally.ready_mean:.2f} %, highest {tally.ready_max:.2f} % per CPU, "
            f"contended {tally.contended / tally.ready_count:.1%} of the time"
        )
    else:
        lines.append("CPU Ready: never known")
    if isinstance(agent.nodes, OneNode) and agent.nodes.record.onsets:
        figures = agent.nodes.record.figures()
        lines.append(
            f"record of {figures.timesteps} decisions, downtime {figures.downtime:.1%}: "
            f"{figures.contentions} contentions, {figures.preceded:.0%} of them preceded by a rejection "
            f"(by a coin of that downtime: {figures.coin_preceded:.0%})"
        )
    lines.append(
        f"loop: {pace.ticks} ticks, {pace.late} late, {pace.skipped} skipped, "
        f"worst {pace.worst_lag_seconds * 1000:.0f} ms; faults: {sum(agent.faults.values())}"
        + (f" (last: {agent.last_fault})" if agent.faults else "")
    )
    return "\n".join(lines)


def log_to_stderr(*, verbose: bool) -> None:
    """Send what the agent has to say to standard error, one line each."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("pronto: %(message)s"))
    logger = logging.getLogger("prontosched")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.DEBUG if verbose else logging.INFO)
    logger.propagate = False


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
