"""A small HTTP load for benchmarks: many keep-alive connections to one port of this machine."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from types import TracebackType

from prontosched.errors import ProntoError


class _Connection(asyncio.Protocol):
    """One keep-alive connection that has at most one request under way."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.answered: asyncio.Future[None] | None = None
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def ask(self, request: bytes) -> asyncio.Future[None]:
        assert self.transport is not None
        self.answered = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self.answered

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        if not found or self.answered is None:
            return
        length = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0] or b"0")
        if len(body) < length:
            return
        self._buffer = body[length:]
        if not head.startswith(b"HTTP/1.1 2"):
            self.answered.set_exception(ProntoError(f"expected an answer, got {head[:40]!r}"))
        else:
            self.answered.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.answered is not None and not self.answered.done():
            self.answered.set_exception(ProntoError(f"a connection was lost: {exc}"))


class Connections:
    """A number of open connections to a port of this machine."""

    def __init__(self, port: int, count: int) -> None:
        self.port = port
        self.count = count
        self.all: list[_Connection] = []

    async def __aenter__(self) -> Connections:
        loop = asyncio.get_running_loop()
        for _ in range(self.count):
            _, made = await loop.create_connection(_Connection, "127.0.0.1", self.port)
            self.all.append(made)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in self.all:
            if connection.transport is not None:
                connection.transport.close()
        await asyncio.sleep(0)

    def request(self, path: str) -> bytes:
        """Return the bytes that ask for `path`."""
        return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n\r\n".encode()


async def closed_loop(connections: Connections, path: str, seconds: float) -> float:
    """Ask on every connection as soon as the last answer came; return answers per second."""
    request = connections.request(path)
    begin = time.monotonic()
    end = begin + seconds

    async def keep_asking(connection: _Connection) -> int:
        count = 0
        while time.monotonic() < end:
            await connection.ask(request)
            count += 1
        return count

    counts = await asyncio.gather(*(keep_asking(connection) for connection in connections.all))
    return sum(counts) / (time.monotonic() - begin)


async def open_loop(connections: Connections, path: str, *, rate: float, seconds: float) -> list[float]:
    """Ask at fixed times whether or not answers came; return seconds from due to answered."""
    request = connections.request(path)
    free = deque(connections.all)
    waiting: deque[float] = deque()
    latencies: list[float] = []
    failures: list[BaseException] = []
    total = int(rate * seconds)
    begin = time.monotonic()

    def send(connection: _Connection, due: float) -> None:
        def done(answered: asyncio.Future[None]) -> None:
            if (error := answered.exception()) is not None:
                failures.append(error)
            latencies.append(time.monotonic() - due)
            if waiting:
                send(connection, waiting.popleft())
            else:
                free.append(connection)

        connection.ask(request).add_done_callback(done)

    for number in range(total):
        due = begin + number / rate
        while (early := due - time.monotonic()) > 0:
            await asyncio.sleep(early)
        if free:
            send(free.popleft(), due)
        else:
            waiting.append(due)
        if number % 64 == 63:
            await asyncio.sleep(0)  # a client that is behind must still read answers
    while len(latencies) < total and not failures:
        await asyncio.sleep(0.005)
    if failures:
        raise failures[0]
    return latencies
