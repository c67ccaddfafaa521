"""Ask an agent from the command line, without an event loop."""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from prontosched.agent.http.auth import loopback, split_address
from prontosched.agent.store import read_address, socket_folders, socket_name
from prontosched.errors import ProntoError, SettingsError
from prontosched.settings import AgentSettings

DEFAULT_URL = "http://127.0.0.1:7077"
# The answers of 16,384 nodes take 6 MB.
MAX_ANSWER_BYTES = 16 * 1024 * 1024
TIMEOUT_SECONDS = 5.0


class UnreachableError(ProntoError):
    """No agent answers at the address."""


class UntrustedError(UnreachableError):
    """An agent answers, with a certificate that is not trusted here."""


class NotAllowedError(ProntoError):
    """The agent answers and does not let this user do that."""


class _SocketConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket: the kernel tells the agent who we are."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=TIMEOUT_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class Client:
    """One agent, by its address.

    `certificate` is the authority that signed the agent's, where the system does not know it. Jobs are announced over
    the socket in one of `folders`, unless there is a token.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        certificate: Path | None = None,
        folders: Sequence[Path] = (),
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SettingsError(f"an agent's address must look like {DEFAULT_URL}, got {url!r}")
        self.url = url.rstrip("/")
        self.host = parts.hostname
        self._parts = parts
        self._token = token
        self._folders = folders if token is None and loopback(parts.hostname) else ()
        self._tls = None
        if parts.scheme == "https":
            self._tls = ssl.create_default_context(cafile=None if certificate is None else str(certificate))

    def decision(
        self, node: str | None = None, *, horizon: int | None = None, enforcing: bool = False
    ) -> dict[str, Any]:
        """Return the agent's present answer, with the chance of contention within `horizon` timesteps.

        `enforcing` tells the agent that its refusals are obeyed.
        """
        given = {"node": node, "horizon": horizon, "enforcing": "true" if enforcing else None}
        asked = {name: value for name, value in given.items() if value is not None}
        return self._ask("GET", f"/v1/decision?{urlencode(asked)}" if asked else "/v1/decision")[1]

    def get(self, path: str) -> dict[str, Any]:
        """Return what the agent serves at `path`."""
        return self._ask("GET", path)[1]

    def health(self) -> dict[str, Any]:
        """Ask whether the agent decides; one that does not still answers, and says why."""
        return self._ask("GET", "/healthz", allowed=(503,))[1]

    def announce(
        self,
        job: str,
        *,
        cpus: float,
        ttl: float,
        if_uncontended: bool,
        pid: int | None = None,
        node: str | None = None,
    ) -> tuple[bool, dict[str, Any]]:
        """Announce a job, on the only node or the one named; return whether it counts, and the answer it met.

        `NotAllowedError` where the agent has no socket that this user can reach, and there is no token.
        """
        body: dict[str, Any] = {"id": job, "cpus": cpus, "ttl": ttl, "if_uncontended": if_uncontended}
        if pid is not None:
            body["pid"] = pid
        if node is not None:
            body["node"] = node
        status, answer = self._ask("POST", "/v1/jobs", body, allowed=(409, 503))
        if status == 503:  # so many are announced already
            answer = {"reason": answer.get("error", "no reason given")}
        return status == 200, answer

    def withdraw(self, job: str) -> None:
        """Take an announcement back; nothing happens where there is none."""
        self._ask("DELETE", f"/v1/jobs/{quote(job, safe='')}")

    def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, allowed: tuple[int, ...] = ()
    ) -> tuple[int, dict[str, Any]]:
        connection = self._connect(path)
        headers = {"Accept": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        data = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = json.dumps(body).encode()
        try:
            connection.request(method, path, body=data, headers=headers)
            response = connection.getresponse()
            raw = response.read(MAX_ANSWER_BYTES)
        except ssl.SSLCertVerificationError as error:
            raise UntrustedError(
                f"the certificate of {self.url} must be trusted, got {error.verify_message}: give the name that it "
                f"is made out to with --agent https://NAME:{self._parts.port or 443}, and its authority with --ca"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise UnreachableError(
                f"an agent must answer at {self.url}, got {error}: start one with `pronto up`"
            ) from error
        finally:
            connection.close()
        try:
            answer = json.loads(raw) if raw else {}
        except ValueError as error:
            raise UnreachableError(
                f"{self.url} must answer in JSON, got {raw[:40]!r}: is it an agent?"
            ) from error
        if not isinstance(answer, dict):
            raise UnreachableError(
                f"{self.url} must answer with an object, got {raw[:40]!r}: is it an agent?"
            )
        if response.status >= 400 and response.status not in allowed:
            kind = NotAllowedError if response.status in (401, 403) else ProntoError
            raise kind(f"{self.url} refused ({response.status}): {answer.get('error', 'no reason given')}")
        return response.status, answer

    def _connect(self, path: str) -> http.client.HTTPConnection:
        port = self._parts.port
        if path.startswith("/v1/jobs"):
            for folder in self._folders:
                at_socket = _SocketConnection(folder / socket_name(port or 80))
                try:
                    at_socket.connect()
                except OSError:  # none there, or not for us, or of an agent that was killed
                    at_socket.close()
                    continue
                return at_socket
        if self._tls is not None:
            return http.client.HTTPSConnection(
                self.host, port or 443, timeout=TIMEOUT_SECONDS, context=self._tls
            )
        return http.client.HTTPConnection(self.host, port or 80, timeout=TIMEOUT_SECONDS)


def local_url(settings: AgentSettings) -> str:
    """Return the address at which an agent with these settings answers on this machine.

    Examples
    --------
    >>> local_url(AgentSettings(listen="[::1]:7078")), local_url(AgentSettings(listen="0.0.0.0:443"))
    ('http://[::1]:7078', 'http://127.0.0.1:443')
    """
    host, port = split_address(settings.listen)
    if not port:  # any free one: only the note in its folder tells which
        return DEFAULT_URL
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return (
        f"{'http' if settings.tls_cert is None else 'https'}://{f'[{host}]' if ':' in host else host}:{port}"
    )


def find_agent(
    url: str | None,
    folder: Path,
    *,
    token: str | None = None,
    certificate: Path | None = None,
    usual: str | None = DEFAULT_URL,
) -> Client | None:
    """Return the agent at `url`, or the one of `folder`, or that at the address `usual`, or None where none answers.

    `none` for `url` asks nobody; where another is given and nobody answers, `UnreachableError`. One that answers and
    is not trusted is not none: `UntrustedError`.
    """
    if url == "none":
        return None
    if url is not None:
        client = Client(url, token, certificate, socket_folders(folder))
        client.health()
        return client
    for address in dict.fromkeys((read_address(folder), usual)):
        if address is None:
            continue
        client = Client(address, token, certificate, socket_folders(folder))
        try:
            client.health()
        except UntrustedError:
            raise
        except ProntoError:
            continue
        return client
    return None


def job_name() -> str:
    """Return a name for a job of this process."""
    return f"run-{os.uname().nodename}-{os.getpid()}"[:128]
