"""Who may ask: loopback freely, anyone else with a token over TLS; and who may announce jobs."""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import os
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Middleware

from prontosched.errors import SettingsError

MIN_TOKEN_CHARACTERS = 16
OPEN_PATHS = frozenset({"/healthz"})
JOBS_PATH = "/v1/jobs"
LOOPBACK_NAMES = frozenset({"localhost", "localhost.", "ip6-localhost"})

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Access:
    """Where to listen and what to ask of whoever comes: beyond loopback, a token and TLS.

    The token is a bearer's or the password of basic authentication. Port 0 takes any free one.

    Examples
    --------
    >>> Access("127.0.0.1", 7077).loopback
    True
    """

    host: str = "127.0.0.1"
    port: int = 7077
    token: str | None = None
    tls: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        """Refuse to stand open to the network."""
        if not self.loopback and (self.token is None or self.tls is None):
            lacking = " and ".join(
                name
                for name, given in (("--token-file", self.token), ("--tls-cert with --tls-key", self.tls))
                if given is None
            )
            raise SettingsError(
                f"listening beyond loopback needs a token and TLS, got {self.host} without {lacking}: "
                "give them, or listen on 127.0.0.1"
            )

    @classmethod
    def read(cls, listen: str, token_file: Path | None, certificate: Path | None, key: Path | None) -> Access:
        """Return what options ask for: an address, and files with a token, a certificate and its key."""
        if (certificate is None) != (key is None):
            raise SettingsError("--tls-cert and --tls-key must come together, got only one of them")
        host, port = split_address(listen)
        token = None if token_file is None else read_token(token_file)
        return cls(host, port, token, tls_context(certificate, key) if certificate and key else None)

    @property
    def loopback(self) -> bool:
        """True when only this machine can ask."""
        return loopback(self.host)

    @property
    def scheme(self) -> str:
        """`https` with TLS, else `http`."""
        return "http" if self.tls is None else "https"


def loopback(host: str) -> bool:
    """Tell whether an address or name is this machine's own.

    Examples
    --------
    >>> loopback("127.0.0.1"), loopback("::1"), loopback("localhost"), loopback("0.0.0.0")
    (True, True, True, False)
    """
    if host.lower() in LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def split_address(text: str) -> tuple[str, int]:
    """Read `HOST:PORT`, `[V6]:PORT`, `:PORT` or `PORT`.

    Examples
    --------
    >>> split_address("[::1]:7077"), split_address("7078")
    (('::1', 7077), ('127.0.0.1', 7078))
    """
    host, _, port = text.rpartition(":")
    try:
        number = int(port)
        valid = 0 <= number <= 65535
    except ValueError:
        valid = False
    if not valid or (":" in host and not host.startswith("[")):
        raise SettingsError(f"an address must be HOST:PORT with a port from 0 to 65535, got {text!r}")
    return host.strip("[]") or "127.0.0.1", number


def read_token(path: Path) -> str:
    """Read a token from a file, without the white space around it."""
    try:
        token = path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise SettingsError(f"the token file must be readable, got {error.strerror} for {path}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: a token must be plain ASCII, got byte {error.start}") from error
    if len(token) < MIN_TOKEN_CHARACTERS or not token.isprintable():
        raise SettingsError(
            f"{path}: a token must have at least {MIN_TOKEN_CHARACTERS} printable characters, got {len(token)}: "
            "make one with `openssl rand -hex 32`"
        )
    return token


def tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return a server context of TLS 1.2 or newer."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(
            f"certificate and key must fit and be readable, got {error} for {certificate} and {key}"
        ) from error
    return context


def guard(access: Access) -> Middleware:
    """Return a middleware that lets in only who may ask."""
    only_local = access.loopback

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if only_local and not _local_name(request.headers.get("Host", "localhost")):
            # A page elsewhere can point a name of its own at 127.0.0.1; its requests carry that name.
            raise web.HTTPForbidden(text="the Host header must name this machine: use localhost or 127.0.0.1")
        origin = request.headers.get("Origin")
        if origin is not None and _netloc(origin) != request.headers.get("Host"):
            raise web.HTTPForbidden(text="requests from pages of another origin are refused")
        if access.token is not None and request.path not in OPEN_PATHS:
            _check_token(request.headers.get("Authorization", ""), access.token)
        if (
            access.token is None
            and request.method in ("POST", "DELETE")
            and request.path.startswith(JOBS_PATH)
        ):
            # Loopback is every user of this machine, and nothing tells one from the other.
            raise web.HTTPForbidden(
                text="jobs are announced with a token (--token-file), or over the agent's socket as `pronto run` does"
            )
        return await handler(request)

    return check


def announcer(request: web.Request) -> tuple[int | None, int | None]:
    """Return the ordinary user and the process at the other end of the socket for jobs.

    None and None for root, for the agent's own user and for whoever has shown the token: their
    word is a scheduler's.
    """
    transport = request.transport
    peer = None if transport is None else transport.get_extra_info("socket")
    if peer is None or peer.family != socket.AF_UNIX:
        return None, None
    pid, uid = peer_credentials(peer)
    return (None, None) if uid in (0, os.geteuid()) else (uid, pid)


def peer_credentials(peer: Any) -> tuple[int, int]:
    """Return the process and the user at the other end of a Unix socket, as the kernel knows them."""
    pid, uid, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid


@lru_cache(maxsize=256)
def _local_name(host_header: str) -> bool:
    try:
        name = urlsplit(f"//{host_header}").hostname
    except ValueError:
        return False
    return name is not None and loopback(name)


def _netloc(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def _check_token(header: str, token: str) -> None:
    kind, _, given = header.partition(" ")
    if kind.lower() == "basic":
        try:
            given = base64.b64decode(given, validate=True).decode("ascii").partition(":")[2]
        except (binascii.Error, ValueError):
            given = ""
    elif kind.lower() != "bearer":
        given = ""
    if not hmac.compare_digest(given.strip().encode("utf-8", "replace"), token.encode()):
        raise web.HTTPUnauthorized(
            text="a token is needed: send it as 'Authorization: Bearer …'",
            # Browsers read one scheme a header, and Basic is the one they can ask a person for.
            headers={"WWW-Authenticate": 'Basic realm="pronto"'},
        )
