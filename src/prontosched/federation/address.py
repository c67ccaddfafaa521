"""The address of a federation: one setting that says where the bus is and who we are there.

`nats://host:4222/group?creds=/etc/pronto/node.creds&ca=/etc/pronto/ca.pem&shards=16`:
the path is the group, the query names files and shapes the tree. Several servers are
joined by commas. Only the host is needed.
"""

from __future__ import annotations

import importlib.util
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from prontosched.errors import FederationError
from prontosched.extras import missing_extra
from prontosched.federation.publisher import Propagation
from prontosched.federation.tree import Tree

# What may follow the question mark: files, the tree, and the rule of propagation.
FILES = ("creds", "ca", "cert", "key", "names", "keys", "sign")
TREE: dict[str, Callable[[str], Any]] = {"depth": int, "shards": int}
RULE: dict[str, tuple[str, Callable[[str], Any]]] = {
    "epsilon": ("epsilon", float),
    "trigger": ("kind", str),
    "max_age": ("max_age_seconds", float),
}
# Where private keys lie in the state folder, by role.
KEY_FILES = {"node": "federation.key", "aggregator": "aggregate.key", "viewer": "viewer.key"}
KEYS = (*FILES, *TREE, *RULE)
_GROUP = re.compile(r"[A-Za-z0-9_-]{1,32}")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a federation is, and who we are there.

    Examples
    --------
    >>> found = Address.parse("nats://10.0.0.1:4222/prod?shards=16")
    >>> found.servers, found.group, found.tree.shards
    (('nats://10.0.0.1:4222',), 'prod', 16)
    """

    servers: tuple[str, ...]
    group: str = "default"
    creds: str | None = None  # file with NATS credentials
    ca: str | None = None  # file with the authority to trust
    cert: str | None = None  # file with the own certificate, and its key
    key: str | None = None
    names: str | None = None  # file with the key under which metric names are hashed
    keys: str | None = None  # file with the registered public keys; None neither signs nor checks messages
    sign: str | None = None  # file with the private key; None for the one in the state folder
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tree: Tree = field(default_factory=Tree)
    rule: Mapping[str, Any] = field(default_factory=dict)  # what members pass to `Propagation`

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read an address, or say what is wrong with it; a password is never repeated."""
        try:
            parts = [urlsplit(one if "://" in one else f"nats://{one}") for one in text.strip().split(",")]
            servers = [_server(part) for part in parts]
        except ValueError as error:
            raise FederationError(
                f"a bus must be given as nats://host:port or tls://host:port, got {error}"
            ) from error
        first, last = parts[0], parts[-1]
        options = dict(parse_qsl(last.query))
        unknown = sorted(set(options) - set(KEYS))
        if unknown:
            raise FederationError(f"an address may have {', '.join(KEYS)} after '?', got {unknown[0]!r}")
        group = checked_group(last.path.strip("/") or "default")
        try:
            tree = Tree(
                **{name: _value(options, name, kind) for name, kind in TREE.items() if name in options}
            )
            rule = {name: _value(options, key, kind) for key, (name, kind) in RULE.items() if key in options}
            Propagation(**rule)
        except ValueError as error:
            raise FederationError(f"address of the bus: {error}") from error
        return cls(
            tuple(servers),
            group,
            user=unquote(first.username) if first.username else None,
            password=unquote(first.password) if first.password else None,
            tree=tree,
            rule=rule,
            **{name: options[name] for name in FILES if name in options},
        )

    def name_key(self) -> bytes | None:
        """Return the key for metric names, or None where they are sent as they are."""
        if self.names is None:
            return None
        try:
            key = Path(self.names).read_bytes().strip()
        except OSError as error:
            raise FederationError(f"names must be a readable file, got {error}: check the path") from error
        if not 16 <= len(key) <= 1024:
            raise FederationError(f"{self.names} must hold a key of 16 to 1024 bytes, got {len(key)}")
        return key

    def client_options(self) -> dict[str, Any]:
        """Return what the NATS client is told: servers, credentials, and TLS where it is asked for."""
        options: dict[str, Any] = {"servers": list(self.servers)}
        if self.creds is not None:
            if not Path(self.creds).is_file():
                raise FederationError(
                    f"creds must name a credentials file, got {self.creds!r}: check the path"
                )
            if importlib.util.find_spec("nkeys") is None:
                raise FederationError(missing_extra("a credentials file", "agent"))
            options["user_credentials"] = self.creds
        if self.user is not None:
            options |= {"user": self.user, "password": self.password or ""}
        secure = any(server.startswith(("tls", "wss")) for server in self.servers)
        if secure or self.ca or self.cert:
            options["tls"] = self._tls()
        return options

    def _tls(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.cert:
                context.load_cert_chain(self.cert, self.key)
        except OSError as error:
            raise FederationError(
                f"ca, cert and key must be readable PEM files, got {error} for "
                f"{', '.join(filter(None, (self.ca, self.cert, self.key)))}: check them"
            ) from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context


def checked_group(group: str) -> str:
    """Return the name of a federation, or say what is wrong with it."""
    if not _GROUP.fullmatch(group):
        raise FederationError(f"group must be 1 to 32 letters, digits, '-' or '_', got {group!r}")
    return group


def _server(part: SplitResult) -> str:
    if part.scheme not in ("nats", "tls", "ws", "wss") or not part.hostname:
        raise ValueError(repr(f"{part.scheme}://{part.hostname}"))
    host = f"[{part.hostname}]" if ":" in part.hostname else part.hostname
    return f"{part.scheme}://{host}:{part.port or 4222}"


def _value(options: Mapping[str, str], name: str, kind: Callable[[str], Any]) -> Any:
    try:
        return kind(options[name])
    except ValueError as error:
        raise ValueError(f"{name} must be a number, got {options[name]!r:.40}") from error
