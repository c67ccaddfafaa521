"""Watch for a few seconds, where no agent has been watching for longer.

For `pronto run`, `pronto status` and `pronto explain`: an agent within this process, which keeps nothing. Nodes that
another agent left behind are taken up warm and never written.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from prontosched.agent.config import make_agent, source_of
from prontosched.agent.loop import Agent
from prontosched.agent.store import default_folder, make_private
from prontosched.agent.store.state import read_state, restore_nodes, state_paths
from prontosched.errors import SettingsError, StateError
from prontosched.settings import AgentSettings

WATCH_SECONDS, INTERVAL_SECONDS = 3.0, 0.5


def watched(settings: AgentSettings) -> str:
    """Return what `watch` watches, in words."""
    return "this machine" if settings.source == "linux" else f"source {settings.source}"


def watch(
    settings: AgentSettings,
    node: str | None = None,
    *,
    seconds: float = WATCH_SECONDS,
    interval: float = INTERVAL_SECONDS,
) -> Agent:
    """Return an agent that has watched for some seconds, and that knows `node`, or only one where none is named.

    It decides by `settings` and takes up what another agent left in their state folder. It tells no scheduler, no bus
    and no service manager, and keeps nothing.
    """
    # What would trouble an agent of long standing is part of its answers here.
    logging.getLogger("prontosched").addHandler(logging.NullHandler())
    alone = replace(settings, interval=interval, keep=False, probe=False, gate=None, nats=None)
    source = source_of(alone)
    agent = make_agent(alone, source)
    for path in state_paths(settings.state or default_folder(), source.name):
        with contextlib.suppress(OSError, StateError):
            restore_nodes(agent.nodes, read_state(path))
    asyncio.run(agent.run(asyncio.Event(), seconds))
    try:
        agent.known(node)
    except KeyError as error:
        raise SettingsError(f"--node must be one that is watched, got {node!r}: {error.args[0]}") from error
    return agent


@contextlib.contextmanager
def one_at_a_time(folder: Path, deadline: float) -> Iterator[bool]:
    """Hold the machine's turn, so that whoever comes next sees the job that is about to start.

    Yields False when the turn did not come before `deadline` on the monotonic clock. The turn
    ends with the process's image: a program that takes its place gives it up. An `OSError` where
    the folder cannot be written to.
    """
    make_private(folder)
    handle = os.open(folder / "run.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        while not (turn := _take(handle)) and time.monotonic() < deadline:
            time.sleep(0.1)
        yield turn
    finally:
        os.close(handle)


def _take(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
