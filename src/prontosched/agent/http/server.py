"""Run an agent with its port until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from aiohttp import web

from prontosched.agent.http.api import build_app, jobs_app
from prontosched.agent.http.auth import Access
from prontosched.agent.http.connections import (
    MOST_CONNECTIONS,
    MOST_OF_PEER,
    BoundedSite,
    Connections,
    listen,
    raise_descriptors,
)
from prontosched.agent.loop import Agent
from prontosched.agent.store import (
    default_folder,
    remove_address,
    socket_folders,
    socket_name,
)
from prontosched.errors import ProntoError

LOG = logging.getLogger("prontosched.agent")
SWITCH_SECONDS = 0.0005


def stop_on_signals() -> asyncio.Event:
    """Return an event that is set when the process is asked to end."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


async def serve(
    agent: Agent,
    access: Access,
    *,
    seconds: float | None = None,
    next_free: bool = False,
    extra: Iterable[web.AbstractRouteDef] = (),
    started: Callable[[str], None] | None = None,
) -> None:
    """Run until a signal, the end of the source, or `seconds` have passed.

    With `next_free`, take the next free port where the wanted one is taken. `extra` are more routes, such as pages;
    `started` is called with the address once it answers.
    """
    # A source's thread would otherwise keep the loop waiting for 5 ms at a time.
    sys.setswitchinterval(SWITCH_SECONDS)
    stop = stop_on_signals()
    server = Server(agent, access, extra)
    try:
        url = await server.start(next_free=next_free)
    except BaseException:
        await agent.close()
        raise
    try:
        if agent.disk is not None:
            agent.disk.note_address(url)
        if started is not None:
            started(url)
        await agent.run(stop, seconds)
    finally:
        await server.stop()
        if agent.disk is not None:
            remove_address(agent.disk.folder)


NEXT_PORTS = 50


class Server:
    """The agent's HTTP server, and the socket where users of this machine announce jobs, where there can be one."""

    def __init__(self, agent: Agent, access: Access, extra: Iterable[web.AbstractRouteDef] = ()) -> None:
        self.access = access
        self.url = ""
        self.socket: Path | None = None
        self._folder = default_folder() if agent.disk is None else agent.disk.folder
        self._runner, self._jobs = (
            web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
            for app in (build_app(agent, access, extra), jobs_app(agent))
        )
        # Half of the descriptors stay for the machine's files, the state and the scheduler.
        half = raise_descriptors() // 2
        self._connections = Connections(min(MOST_CONNECTIONS, half - half // 4))
        self._users = Connections(min(MOST_CONNECTIONS, half) // 4, MOST_OF_PEER // 4)

    async def start(self, *, next_free: bool = False) -> str:
        """Listen; with `next_free`, on the next port that nobody has. Return the address."""
        await self._runner.setup()
        ports = [self.access.port]
        if next_free and self.access.port:
            ports += [*range(self.access.port + 1, min(self.access.port + NEXT_PORTS, 65536)), 0]
        for port in ports:
            try:
                await listen(self._runner, self._connections, self.access, port)
            except OSError as error:
                if error.errno == errno.EADDRINUSE and port != ports[-1]:
                    continue
                await self._runner.cleanup()
                raise ProntoError(_not_listening(self.access.host, port, error)) from error
            break
        host, port = self._runner.addresses[0][:2]
        self.url = f"{self.access.scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        await self._open_socket(port)
        return self.url

    async def _open_socket(self, port: int) -> None:
        """Listen for jobs in the first folder that may be used; without any, only a token announces jobs."""
        await self._jobs.setup()
        trouble: OSError | None = None
        for folder in socket_folders(self._folder) if hasattr(socket, "SO_PEERCRED") else ():
            path = folder / socket_name(port)
            try:
                if folder != self._folder:
                    folder.mkdir(mode=0o755, exist_ok=True)
                opened = partial(asyncio.get_running_loop().create_unix_server, path=path)
                await BoundedSite(self._jobs, self._users, opened).start()
                # Everyone may: who it is, the kernel says.
                os.chmod(path, 0o666)
            except OSError as error:
                trouble = error
                continue
            self.socket = path
            return
        LOG.warning(
            "no socket for `pronto run` of other users: %s",
            trouble or "this system has none that tells who asks",
        )

    async def stop(self) -> None:
        """Close the port, the socket and the connections."""
        await self._runner.cleanup()
        await self._jobs.cleanup()
        if self.socket is not None:
            with contextlib.suppress(OSError):
                self.socket.unlink()


def _not_listening(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} must be free, got it taken: stop what listens there, or give --listen another"
    if error.errno == errno.EACCES:
        return f"port {port} must be one that this user may take, got {error.strerror}: give --listen one from 1024 on"
    return f"{host}:{port} must be an address of this machine, got {error.strerror}: give --listen another"
