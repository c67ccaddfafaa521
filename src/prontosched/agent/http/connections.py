"""How many may be connected at once: idle connections make room for those who ask."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from aiohttp import web

from prontosched.agent.http.auth import Access, peer_credentials

# In all, and of one other machine or one user; all of loopback is one peer and has no bound of its own.
MOST_CONNECTIONS, MOST_OF_PEER = 512, 64
IDLE_SECONDS = 15.0
HANDSHAKE_SECONDS = 5.0
WANTED_DESCRIPTORS = 65536

Listen = Callable[[Callable[[], asyncio.Protocol]], Awaitable[asyncio.AbstractServer]]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def raise_descriptors() -> int:
    """Let this process open as many files as it may, within reason; return how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = WANTED_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, WANTED_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    return WANTED_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


class Connections:
    """The open connections of one server, the longest idle first, bounded in all and for one peer.

    A connection beyond the bound takes the place of the one that has been idle the longest, so that
    who asks is always answered, however many only hold a connection open.
    """

    def __init__(self, most: int = MOST_CONNECTIONS, most_of_peer: int = MOST_OF_PEER) -> None:
        self.most = most
        self.most_of_peer = most_of_peer
        self.closed = 0
        self._open: dict[Connection, str] = {}
        self._peers: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: Connection, peer: str) -> None:
        """Count a connection; close the longest idle one where there are too many. No name is no bound by peer."""
        self._open[connection] = peer
        self._peers[peer] += 1
        if peer and self._peers[peer] > self.most_of_peer:
            self._make_room(peer)
        elif len(self._open) > self.most:
            self._make_room(None)

    def remove(self, connection: Connection) -> None:
        """Count a connection no longer."""
        peer = self._open.pop(connection, None)
        if peer is not None:
            self._peers[peer] -= 1
            if not self._peers[peer]:
                del self._peers[peer]

    def answered(self, connection: Connection) -> None:
        """Take note that a connection is idle from now on."""
        if (peer := self._open.pop(connection, None)) is not None:
            self._open[connection] = peer

    def _make_room(self, peer: str | None) -> None:
        idle = (one for one, its in self._open.items() if not one.serving and (peer is None or its == peer))
        if (first := next(idle, None)) is not None:
            self.closed += 1
            self.remove(first)
            first.drop()


class Connection(web.RequestHandler):
    """One connection; `serving` while a request on it is being answered."""

    __slots__ = ("_connections", "serving")

    def __init__(self, server: Any, connections: Connections) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]
            keepalive_timeout=IDLE_SECONDS,
        )
        self._connections = connections
        self.serving = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a place among the open connections."""
        super().connection_made(transport)
        self._connections.add(self, _peer(transport))

    def connection_lost(self, exc: BaseException | None) -> None:
        """Give the place back."""
        self._connections.remove(self)
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Refuse an `Expect` that is not UTF-8; aiohttp fails on it, since its refusal repeats the header."""
        if not isinstance(exc, UnicodeEncodeError):
            return super().handle_error(request, status, exc, message)
        refusal = web.Response(status=417, text="Expect must be UTF-8")
        refusal.force_close()
        return refusal

    def drop(self) -> None:
        """Close at once, whatever waits to be sent."""
        transport = self.transport
        self.force_close()
        if transport is not None:
            transport.abort()

    def set_serving(self, serving: bool) -> None:
        """Take note that a request is being answered, or has been."""
        self.serving = serving
        if not serving:
            self._connections.answered(self)


def _peer(transport: asyncio.BaseTransport) -> str:
    """Return the machine or user at the other end; nothing for loopback, which many share."""
    found = transport.get_extra_info("socket")
    if found is None:
        return ""
    if found.family == socket.AF_UNIX:
        return str(peer_credentials(found)[1])
    address = str((transport.get_extra_info("peername") or ("",))[0])
    return "" if address == "::1" or address.startswith("127.") else address


@web.middleware
async def keep_while_answering(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Let no connection be closed for want of room while its request is being answered."""
    connection = request.protocol
    if not isinstance(connection, Connection):
        return await handler(request)
    connection.set_serving(True)
    try:
        return await handler(request)
    finally:
        connection.set_serving(False)


class BoundedSite(web.BaseSite):
    """A place to listen whose connections are bounded; `listen` opens it, given what makes a connection."""

    __slots__ = ("_connections", "_listen")

    def __init__(self, runner: web.AppRunner, connections: Connections, listen: Listen) -> None:
        super().__init__(runner)
        self._connections = connections
        self._listen = listen

    @property
    def name(self) -> str:
        """What it is called."""
        return "pronto"

    async def start(self) -> None:
        """Listen."""
        await super().start()
        self._server = await self._listen(lambda: Connection(self._runner.server, self._connections))


async def listen(runner: web.AppRunner, connections: Connections, access: Access, port: int) -> None:
    """Open `port` as `access` asks for, with bounded connections."""
    tls = access.tls
    opened = partial(
        asyncio.get_running_loop().create_server,
        host=access.host,
        port=port,
        ssl=tls,
        ssl_handshake_timeout=None if tls is None else HANDSHAKE_SECONDS,
        reuse_address=True,
    )
    await BoundedSite(runner, connections, opened).start()
