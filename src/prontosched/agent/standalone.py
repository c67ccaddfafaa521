"""Watch this machine for a few seconds, where no agent has been watching for longer.

For `pronto run`, `pronto status` and `pronto explain`: an agent within this process, which keeps nothing. A node that
another agent left behind is taken up warm and never written.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

from prontosched.agent.config import make_agent, source_of
from prontosched.agent.loop import Agent
from prontosched.agent.store import make_private
from prontosched.agent.store.state import read_state
from prontosched.errors import StateError
from prontosched.settings import AgentSettings

WATCH_SECONDS, INTERVAL_SECONDS = 3.0, 0.5


def watch(folder: Path, *, seconds: float = WATCH_SECONDS, interval: float = INTERVAL_SECONDS) -> Agent:
    """Return an agent that has watched this machine for some seconds; `folder` is where another may have left state."""
    # What would trouble an agent of long standing is part of its answers here.
    logging.getLogger("prontosched").addHandler(logging.NullHandler())
    settings = AgentSettings(interval=interval, keep=False, probe=False)
    source = source_of(settings)
    agent = make_agent(settings, source)
    with contextlib.suppress(OSError, StateError):
        agent.nodes.restore(agent.nodes.fallback_name, read_state(folder / f"{source.name}.state"))
    asyncio.run(agent.run(asyncio.Event(), seconds))
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
        yield _turn(handle, deadline)
    finally:
        os.close(handle)


def _turn(handle: int, deadline: float) -> bool:
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.1)
