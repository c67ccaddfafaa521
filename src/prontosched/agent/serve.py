"""Open the agent's port, and close it again."""

from __future__ import annotations

import errno
from collections.abc import Iterable

from aiohttp import web

from prontosched.agent.access import Access
from prontosched.agent.api import build_app
from prontosched.agent.loop import Agent
from prontosched.errors import ProntoError

NEXT_PORTS = 50


class Server:
    """The agent's HTTP server.

    Attributes
    ----------
    url
        Where it answers, once started.
    """

    def __init__(self, agent: Agent, access: Access, extra: Iterable[web.AbstractRouteDef] = ()) -> None:
        self.access = access
        self.url = ""
        self._runner = web.AppRunner(
            build_app(agent, access, extra), access_log=None, handle_signals=False, shutdown_timeout=1.0
        )

    async def start(self, *, next_free: bool = False) -> str:
        """Listen; with `next_free`, on the next port that nobody has. Return the address.

        Raises
        ------
        ProntoError
            The port is taken, or may not be used.
        """
        await self._runner.setup()
        ports = [self.access.port]
        if next_free and self.access.port:
            ports += [*range(self.access.port + 1, min(self.access.port + NEXT_PORTS, 65536)), 0]
        for port in ports:
            try:
                await web.TCPSite(
                    self._runner, self.access.host, port, ssl_context=self.access.tls, reuse_address=True
                ).start()
            except OSError as error:
                if error.errno == errno.EADDRINUSE and port != ports[-1]:
                    continue
                await self._runner.cleanup()
                raise ProntoError(_refused(self.access.host, port, error)) from error
            break
        host, port = self._runner.addresses[0][:2]
        self.url = f"{self.access.scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        return self.url

    async def stop(self) -> None:
        """Close the port and the connections."""
        await self._runner.cleanup()


def _refused(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} must be free, got it taken: stop what listens there, or give --listen another"
    return f"{host}:{port} must be an address of this machine, got {error.strerror}: give --listen another"
