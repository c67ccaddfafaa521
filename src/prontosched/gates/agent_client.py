"""Ask agents for the decisions of their nodes, for the extender: `GET /v1/decision`, again and again."""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from email.utils import parsedate_to_datetime
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

from prontosched.errors import IntegrationError, SettingsError
from prontosched.gates.gate import ANSWER_LIMIT, ENFORCING, Verdict, read_decision
from prontosched.gates.kubernetes_client import node_name

log = logging.getLogger(__name__)

DECISION = "/v1/decision"
AT_ONCE = 64
# Questions to all agents are spread over this share of the interval.
SPREAD = 0.8
# A server's Date header has whole seconds; a smaller difference says nothing about its clock.
_CLOCK_GRAIN = 2.0


class Addresses:
    """Where each node's agent listens: by a table, else by a template such as `http://{node}:7077`.

    `{address}` stands for the node's internal address, which `internal` has once it is known.
    """

    def __init__(self, template: str = "", table: Mapping[str, str] | None = None) -> None:
        self.template = template
        self.table = dict(table or {})
        self.internal: dict[str, str] = {}
        try:
            sample = [template.format(node="node", address="127.0.0.1")] if template else []
        except (KeyError, IndexError, ValueError) as error:
            raise SettingsError(
                f"address of the agents may hold {{node}} and {{address}}, got {template!r}: {error}"
            ) from error
        for url in [*sample, *self.table.values()]:
            if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
                raise SettingsError(f"address of an agent must begin with http:// or https://, got {url!r}")

    @classmethod
    def read(cls, path: Path, template: str = "") -> Addresses:
        """Read a file with one `node address` on each line; `#` begins a comment."""
        table = {}
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"{path} must be a readable text file of agents, got {error}") from error
        for number, line in enumerate(lines, start=1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            if len(words) != 2:
                raise SettingsError(f"{path}:{number} must be a node and its agent's address, got {line!r}")
            table[words[0]] = words[1]
        return cls(template, table)

    @property
    def needs_internal(self) -> bool:
        """True when no agent can be reached before the nodes' internal addresses are known."""
        return "{address}" in self.template and not self.table

    def of(self, node: str) -> str | None:
        """Return the address of the agent of `node`; None when it cannot be told."""
        if url := self.table.get(node):
            return url
        if not self.template or ("{address}" in self.template and node not in self.internal):
            return None
        address = self.internal.get(node, "")
        return self.template.format(
            node=node_name(node), address=f"[{address}]" if ":" in address else address
        )


class PolledDecisions:
    """Ask every agent for its decision, again and again, and keep the newest of each.

    An answer counts for at most `valid_seconds`, and while its agent is silent until it expires.
    `server_name` is the name that every agent's certificate must bear; empty for the name or
    number that it is reached by. `enforcing` tells the agents that their refusals are obeyed, so
    that their signals learn so.
    """

    def __init__(
        self,
        addresses: Addresses,
        *,
        interval_seconds: float = 2.0,
        valid_seconds: float = 60.0,
        timeout_seconds: float = 2.0,
        token: str = "",
        ca_file: Path | None = None,
        server_name: str = "",
        enforcing: bool = False,
    ) -> None:
        self.addresses = addresses
        self.enforcing = enforcing
        self.interval_seconds = interval_seconds
        self.valid_seconds = valid_seconds
        self.timeout_seconds = timeout_seconds
        self.silent: dict[str, str] = {}
        self._headers = f"Authorization: Bearer {token}\r\n" if token else ""
        self._server_name = server_name or None
        self._trust = ssl.create_default_context(cafile=str(ca_file) if ca_file else None)
        self._connections: dict[str, AgentConnection] = {}
        self._newest: dict[str, Verdict] = {}

    def verdicts(self) -> Mapping[str, Verdict]:
        """Return the newest verdict of each agent that gave one."""
        return self._newest

    async def run(self, names: Callable[[], Iterable[str]]) -> None:
        """Poll the agents of `names()` until cancelled."""
        try:
            while True:
                started = time.monotonic()
                await self.poll(names(), over_seconds=SPREAD * self.interval_seconds)
                await asyncio.sleep(max(0.05, self.interval_seconds - (time.monotonic() - started)))
        finally:
            self.close()

    def close(self) -> None:
        """Let go of every agent."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    async def poll(self, names: Iterable[str], *, over_seconds: float = 0.0) -> None:
        """Ask each agent once, at most 64 at a time, one after the other over some time.

        A thousand answers at once would keep a scheduler waiting that asks meanwhile.
        """
        wanted = set(names)
        for kept in (self._newest, self.silent, self.addresses.internal):
            for gone in kept.keys() - wanted:
                del kept[gone]
        for gone in self._connections.keys() - wanted:
            self._connections.pop(gone).close()
        started, left = time.monotonic(), enumerate(wanted)

        async def ask() -> None:
            for number, node in left:  # each takes the next
                due = started + over_seconds * number / len(wanted)
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                await self._ask(node)

        async with asyncio.TaskGroup() as asking:
            for _ in range(min(AT_ONCE, len(wanted))):
                asking.create_task(ask())

    async def _ask(self, node: str) -> None:
        try:
            self._newest[node] = await self._fetch(node)
        except Exception as error:  # whatever one agent says or does, the others are asked
            if node not in self.silent:
                log.info(
                    "agent of %s is silent, its node will count as unknown: %s", node, error or "timeout"
                )
            self.silent[node] = str(error) or "timeout"
            return
        if self.silent.pop(node, None) is not None:
            log.info("agent of %s answers again", node)

    async def _fetch(self, node: str) -> Verdict:
        if (base := self.addresses.of(node)) is None:
            raise IntegrationError(f"no address is known for the agent of {node}")
        connection = self._connections.get(node)
        if connection is None or connection.base != base:
            if connection is not None:
                connection.close()
            connection = AgentConnection(base, self._headers, self._trust, self._server_name)
            self._connections[node] = connection
        async with asyncio.timeout(self.timeout_seconds):
            status, data, date = await connection.get(DECISION + ENFORCING if self.enforcing else DECISION)
            if status == 400 and self.enforcing:  # an agent of a release that does not know the parameter
                status, data, date = await connection.get(DECISION)
        if status != 200:
            raise IntegrationError(f"agent answered {status}")
        now = time.time()
        ahead = _seconds(date) - now
        return read_decision(
            data,
            now=now,
            valid_seconds=self.valid_seconds,
            clock_ahead=ahead if abs(ahead) > _CLOCK_GRAIN else 0.0,
        )


class AgentConnection:
    """A connection to one agent that is kept between questions.

    Just what an agent needs: a library's client takes three times the CPU time, for which a
    scheduler that asks meanwhile would wait.
    """

    def __init__(self, base: str, headers: str, trust: ssl.SSLContext, server_name: str | None) -> None:
        parts = urlsplit(base)
        self.base = base
        tls = parts.scheme == "https"
        self._address = (parts.hostname, parts.port or (443 if tls else 80))
        self._tls = (trust, server_name) if tls else (None, None)
        self._path = parts.path.rstrip("/")
        self._head = f" HTTP/1.1\r\nHost: {parts.netloc.rpartition('@')[2]}\r\n{headers}\r\n"
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def get(self, path: str) -> tuple[int, bytes, str]:
        """Return the status, the body and the date of an answer; whatever fails ends the connection."""
        try:
            if self._streams is None or self._streams[0].at_eof():
                self.close()
                (host, port), (trust, name) = self._address, self._tls
                self._streams = await asyncio.open_connection(host, port, ssl=trust, server_hostname=name)
            reader, writer = self._streams
            writer.write(f"GET {self._path}{path}{self._head}".encode())
            lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            fields = {
                name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
            }
            status, length = int(lines[0].split()[1]), int(fields["content-length"])
            if not 0 <= length <= ANSWER_LIMIT:
                raise IntegrationError(f"an agent must answer at most {ANSWER_LIMIT} bytes, got {length}")
            data = await reader.readexactly(length)
        except BaseException as error:
            self.close()
            if isinstance(error, EOFError | LookupError | ValueError):
                raise IntegrationError(f"{self.base} did not answer as an agent does: {error}") from error
            raise
        if fields.get("connection", "").lower() == "close":
            self.close()
        return status, data, fields.get("date", "")

    def close(self) -> None:
        """End the connection; the next question makes a new one."""
        if self._streams is not None:
            self._streams[1].transport.abort()  # nothing is left to say, and TLS would say goodbye
            self._streams = None


# Most agents answer within the same second.
@lru_cache(64)
def _seconds(date: str) -> float:
    """Read the Date of an answer; NaN where there is none."""
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError):
        return math.nan
