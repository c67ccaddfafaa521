"""Ask agents for the decisions of their nodes, for the extender and for Dask.

`PolledDecisions` asks each agent for `GET /v1/decision` in turn; `read_decision` makes a
verdict of the answer.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from prontosched.errors import IntegrationError, SettingsError
from prontosched.gates.gate import Verdict, chance
from prontosched.gates.kubernetes_client import node_name

if TYPE_CHECKING:
    import aiohttp

log = logging.getLogger(__name__)

ANSWER_LIMIT = 64 * 1024
AT_ONCE = 64
# A server's Date header has whole seconds; a smaller difference says nothing about its clock.
_CLOCK_GRAIN = 2.0


class CalledDecisions:
    """Ask a callable for the newest verdict of a node.

    Examples
    --------
    >>> CalledDecisions({"n1": Verdict(True, 0.9, "busy", valid_until=60.0)}.get).verdict("n1").reason
    'busy'
    """

    def __init__(self, ask: Callable[[str], Verdict | None]) -> None:
        self._ask = ask

    def verdict(self, node: str) -> Verdict | None:
        """Return what the callable says."""
        return self._ask(node)


class Addresses:
    """Where each node's agent listens.

    Parameters
    ----------
    template
        Such as `http://{node}:7077`, or `{address}` for the node's internal address.
    table
        Addresses by node, which come before the template.
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

    Parameters
    ----------
    addresses
        Where the agents listen.
    interval_seconds
        Time between two questions to one agent.
    valid_seconds
        Longest time that one answer may count, whatever it says itself.
    token, ca_file, server_name
        Shown to the agents; whom to trust when they speak TLS, and the name that their
        certificate must bear (empty: the name or number they are reached by).

    Notes
    -----
    Memory: one verdict for each node that is watched.
    An agent that does not answer is not an agent that accepts or refuses: its last
    verdict stays until it expires, and then nothing is known of the node.
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
    ) -> None:
        self.addresses = addresses
        self.interval_seconds = interval_seconds
        self.valid_seconds = valid_seconds
        self.timeout_seconds = timeout_seconds
        self.silent: dict[str, str] = {}
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._server_name = server_name or None
        self._trust = ssl.create_default_context(cafile=str(ca_file)) if ca_file else True
        self._heard: dict[str, Verdict] = {}

    def verdict(self, node: str) -> Verdict | None:
        """Return the newest verdict that the agent of `node` gave."""
        return self._heard.get(node)

    async def run(self, names: Callable[[], Iterable[str]]) -> None:
        """Poll the agents of `names()` until cancelled."""
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=self.timeout_seconds)
        async with aiohttp.ClientSession(timeout=timeout, headers=self._headers) as session:
            while True:
                started = time.monotonic()
                await self.poll(session, names())
                await asyncio.sleep(max(0.05, self.interval_seconds - (time.monotonic() - started)))

    async def poll(self, session: aiohttp.ClientSession, names: Iterable[str]) -> None:
        """Ask each agent once, 64 at a time."""
        wanted = set(names)
        for gone in self._heard.keys() - wanted:
            del self._heard[gone]
        slots = asyncio.Semaphore(AT_ONCE)

        async def ask(node: str) -> None:
            async with slots:
                await self._ask(session, node)

        await asyncio.gather(*(ask(node) for node in wanted))

    async def _ask(self, session: aiohttp.ClientSession, node: str) -> None:
        import aiohttp

        try:
            if (base := self.addresses.of(node)) is None:
                raise IntegrationError(f"no address is known for the agent of {node}")
            url = base.rstrip("/") + "/v1/decision"
            name = self._server_name if url.startswith("https:") else None
            async with session.get(
                url, ssl=self._trust, server_hostname=name, allow_redirects=False
            ) as answer:
                data = await answer.content.read(ANSWER_LIMIT + 1)
                if answer.status != 200 or len(data) > ANSWER_LIMIT:
                    raise IntegrationError(f"agent answered {answer.status} with {len(data)} bytes")
                ahead = _clock_ahead(answer.headers.get("Date", ""), time.time())
            self._heard[node] = read_decision(
                data, now=time.time(), clock_ahead=ahead, valid_seconds=self.valid_seconds
            )
        except (TimeoutError, aiohttp.ClientError, OSError, IntegrationError) as error:
            if node not in self.silent:
                log.info(
                    "agent of %s is silent, its node will count as unknown: %s", node, error or "timeout"
                )
            self.silent[node] = str(error) or "timeout"
            return
        if self.silent.pop(node, None) is not None:
            log.info("agent of %s answers again", node)


def read_decision(data: bytes, *, now: float, clock_ahead: float, valid_seconds: float) -> Verdict:
    """Read an agent's answer as a verdict by our own clock.

    Parameters
    ----------
    clock_ahead
        Seconds by which the agent's clock is ahead of ours.
    valid_seconds
        Longest time that the verdict may count from now on.

    Raises
    ------
    IntegrationError
        The answer is not a decision.
    """
    try:
        found: Any = json.loads(data)
        accept, until = found["accept"], float(found["valid_until"])
        probability = found.get("probability")
        score = chance(None if probability is None else float(probability), refuse=not accept)
        # Names of what runs on a node are not for the events of pods.
        offenders = str(found.get("offenders") or "")
        reason = str(found.get("reason") or "no reason given").removesuffix(f"; {offenders}")[:500]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise IntegrationError(
            f"an agent must answer with accept, probability, reason and valid_until, got {data[:80]!r}"
        ) from error
    if not isinstance(accept, bool) or not math.isfinite(until):
        raise IntegrationError(
            f"accept must be true or false and valid_until a time, got {accept!r} and {until}"
        )
    return Verdict(not accept, score, reason, min(until - clock_ahead, now + valid_seconds))


def _clock_ahead(date: str, now: float) -> float:
    try:
        ahead = parsedate_to_datetime(date).timestamp() - now
    except (ValueError, TypeError):
        return 0.0
    return ahead if abs(ahead) > _CLOCK_GRAIN else 0.0
