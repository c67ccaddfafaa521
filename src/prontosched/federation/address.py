"""The address of a federation: one setting that says where the bus is and who we are there.

`nats://host:4222/group?creds=/etc/pronto/node.creds&ca=/etc/pronto/ca.pem&shards=16`:
the path is the group, the query names files and bends the tree. Several servers are
joined by commas. Only the host is needed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from prontosched.errors import FederationError
from prontosched.federation.propagation import Propagation
from prontosched.federation.tree import Tree

Number = TypeVar("Number", int, float)

KEYS = ("creds", "ca", "cert", "key", "names", "depth", "shards", "epsilon", "trigger", "max_age")
_GROUP = re.compile(r"^[A-Za-z0-9_-]{1,32}$")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a federation is.

    Attributes
    ----------
    servers
        What to connect to, without secrets.
    group
        Name of the federation on that bus.
    credentials, authority, certificate, key
        Files; None for none.
    names
        File with a key of at least 16 bytes under which metric names are hashed; None
        sends them as they are.
    user, password
        Given before the host, where there is no credentials file.
    tree
        Who reports to whom.
    rule
        What members pass to `Propagation`: when a summary is worth sending.

    Examples
    --------
    >>> found = Address.parse("nats://10.0.0.1:4222/prod?shards=16")
    >>> found.servers, found.group, found.tree.shards
    (('nats://10.0.0.1:4222',), 'prod', 16)
    """

    servers: tuple[str, ...]
    group: str = "default"
    credentials: str | None = None
    authority: str | None = None
    certificate: str | None = None
    key: str | None = None
    names: str | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tree: Tree = field(default_factory=Tree)
    rule: Mapping[str, Any] = field(default_factory=dict)

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

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read an address, or say what is wrong with it; a password is never repeated."""
        written = [one if "://" in one else f"nats://{one}" for one in text.strip().split(",")]
        parts, rest = urlsplit(written[0]), urlsplit(written[-1])
        shown = f"{parts.scheme}://{parts.hostname}"
        if parts.scheme not in ("nats", "tls", "ws", "wss") or not parts.hostname:
            raise FederationError(
                f"a bus must be given as nats://host:port or tls://host:port, got {shown!r}"
            )
        options = dict(parse_qsl(rest.query))
        unknown = sorted(set(options) - set(KEYS))
        if unknown:
            raise FederationError(f"an address may have {', '.join(KEYS)} after '?', got {unknown[0]!r}")
        group = rest.path.strip("/") or "default"
        if not _GROUP.match(group):
            raise FederationError(f"group must be 1 to 32 letters, digits, '-' or '_', got {group!r}")
        try:
            servers = [f"{p.scheme}://{p.hostname}:{p.port or 4222}" for p in map(urlsplit, written)]
            depth = _number(options, "depth", int) if "depth" in options else None
            tree = Tree(depth=depth, shards=_number(options, "shards", int) if "shards" in options else 1)
            rule = _rule(options)
        except ValueError as error:
            raise FederationError(f"address of the bus: {error}") from error
        return cls(
            tuple(servers),
            group,
            options.get("creds"),
            options.get("ca"),
            options.get("cert"),
            options.get("key"),
            options.get("names"),
            unquote(parts.username) if parts.username else None,
            unquote(parts.password) if parts.password else None,
            tree,
            rule,
        )


def _number(options: Mapping[str, str], name: str, kind: Callable[[str], Number]) -> Number:
    try:
        return kind(options[name])
    except ValueError as error:
        raise ValueError(f"{name} must be a number, got {options[name]!r:.40}") from error


def _rule(options: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of propagation that an address names, checked."""
    rule: dict[str, Any] = {}
    if "epsilon" in options:
        rule["epsilon"] = _number(options, "epsilon", float)
    if "max_age" in options:
        rule["max_age_seconds"] = _number(options, "max_age", float)
    if "trigger" in options:
        if options["trigger"] not in ("projector", "elementwise"):
            raise ValueError(f"trigger must be projector or elementwise, got {options['trigger']!r}")
        rule["kind"] = options["trigger"]
    Propagation(**rule)
    return rule
