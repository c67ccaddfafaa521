"""Ask agents for the decisions of their nodes, for the extender: `GET /v1/decision`, again and again."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from prontosched.errors import IntegrationError, SettingsError
from prontosched.gates.gate import ANSWER_LIMIT, ENFORCING, Verdict, read_decision
from prontosched.gates.kubernetes_client import node_name

log = logging.getLogger(__name__)

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
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._server_name = server_name or None
        self._trust = ssl.create_default_context(cafile=str(ca_file)) if ca_file else True
        self._newest: dict[str, Verdict] = {}

    def verdicts(self) -> Mapping[str, Verdict]:
        """Return the newest verdict of each agent that gave one."""
        return self._newest

    async def run(self, names: Callable[[], Iterable[str]]) -> None:
        """Poll the agents of `names()` until cancelled."""
        timeout = aiohttp.ClientTimeout(total=self.timeout_seconds)
        async with aiohttp.ClientSession(timeout=timeout, headers=self._headers) as session:
            while True:
                started = time.monotonic()
                await self.poll(session, names(), over_seconds=SPREAD * self.interval_seconds)
                await asyncio.sleep(max(0.05, self.interval_seconds - (time.monotonic() - started)))

    async def poll(
        self, session: aiohttp.ClientSession, names: Iterable[str], *, over_seconds: float = 0.0
    ) -> None:
        """Ask each agent once, at most 64 at a time, one after the other over some time.

        A thousand answers at once would keep a scheduler waiting that asks meanwhile.
        """
        wanted = set(names)
        for gone in self._newest.keys() - wanted:
            del self._newest[gone]
        slots = asyncio.Semaphore(AT_ONCE)

        async def ask(node: str) -> None:
            try:
                await self._ask(session, node)
            finally:
                slots.release()

        async with asyncio.TaskGroup() as asking:
            for node in wanted:
                await slots.acquire()
                asking.create_task(ask(node))
                await asyncio.sleep(over_seconds / len(wanted))

    async def _ask(self, session: aiohttp.ClientSession, node: str) -> None:
        try:
            self._newest[node] = await self._fetch(session, node)
        except Exception as error:  # whatever one agent says or does, the others are asked
            if node not in self.silent:
                log.info(
                    "agent of %s is silent, its node will count as unknown: %s", node, error or "timeout"
                )
            self.silent[node] = str(error) or "timeout"
            return
        if self.silent.pop(node, None) is not None:
            log.info("agent of %s answers again", node)

    async def _fetch(self, session: aiohttp.ClientSession, node: str) -> Verdict:
        if (base := self.addresses.of(node)) is None:
            raise IntegrationError(f"no address is known for the agent of {node}")
        url = base.rstrip("/") + "/v1/decision"
        status, data, ahead = await self._get(session, url + ENFORCING if self.enforcing else url)
        if status == 400 and self.enforcing:  # an agent of a release that does not know the parameter
            status, data, ahead = await self._get(session, url)
        if status != 200 or len(data) > ANSWER_LIMIT:
            raise IntegrationError(f"agent answered {status} with {len(data)} bytes")
        return read_decision(data, now=time.time(), valid_seconds=self.valid_seconds, clock_ahead=ahead)

    async def _get(self, session: aiohttp.ClientSession, url: str) -> tuple[int, bytes, float]:
        """Return the status, the body, and by how much the agent's clock is ahead."""
        name = self._server_name if url.startswith("https:") else None
        async with session.get(url, ssl=self._trust, server_hostname=name, allow_redirects=False) as answer:
            data = await answer.content.read(ANSWER_LIMIT + 1)
            return answer.status, data, _clock_ahead(answer.headers.get("Date", ""), time.time())


def _clock_ahead(date: str, now: float) -> float:
    try:
        ahead = parsedate_to_datetime(date).timestamp() - now
    except (ValueError, TypeError):
        return 0.0
    return ahead if abs(ahead) > _CLOCK_GRAIN else 0.0
