"""Who reports to whom: the federation tree, given by the names of the nodes.

A node is named by its place, `site/row/rack/node`. Every part but the last names an
aggregator; the root has the empty name. The name alone gives the parent, so nothing is
registered. Two settings change the tree without renaming a node: `depth` limits its levels,
`shards` puts a level under the root for fleets with flat names.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote, unquote

from prontosched.errors import FederationError

ROOT = ""
MAX_NAME = 200
MAX_LEVELS = 8
# Nodes of one federation at most.
MAX_NODES = 10_000_000
# Shards are named so that no host can be: a host's name never begins with a tilde.
_SHARD = "~"
_ESCAPED = re.compile(r"=([0-9A-F]{2})")


@dataclass(frozen=True, slots=True)
class Tree:
    """The rule that gives every node and aggregator its parent.

    `depth` limits the levels of aggregators, the root included; None follows the names, and with 1
    every node reports to the root. `shards` are aggregators under the root among which nodes
    without a place are spread by a hash of their name; 1 for none.

    Examples
    --------
    >>> Tree().parent("paris/row2/rack7/n3")
    'paris/row2/rack7'
    >>> Tree(depth=2).parent("paris/row2/rack7/n3")
    'paris'
    >>> Tree().parent("paris")
    ''
    """

    depth: int | None = None
    shards: int = 1

    def __post_init__(self) -> None:
        if self.depth is not None and not 1 <= self.depth <= MAX_LEVELS:
            raise ValueError(f"depth must be from 1 to {MAX_LEVELS}, got {self.depth}")
        if not 1 <= self.shards <= 4096:
            raise ValueError(f"shards must be from 1 to 4096, got {self.shards}")

    @classmethod
    def balanced(cls, nodes: int, *, fan_out: int) -> Tree:
        """Return a tree for `nodes` flat names with about `fan_out` children per aggregator."""
        if fan_out < 2:
            raise ValueError(f"fan_out must be at least 2, got {fan_out}")
        return cls(shards=max(1, math.ceil(nodes / fan_out)) if nodes > fan_out else 1)

    def parent(self, name: str) -> str:
        """Return the aggregator to which `name` reports; the root is the empty name."""
        parts = split(name)
        above = parts[:-1]
        if not above and self.shards > 1 and not name.startswith(_SHARD):
            digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
            return _shard(int.from_bytes(digest, "big") % self.shards)
        if self.depth is not None:
            above = above[: self.depth - 1]
        return "/".join(above)

    def aggregators(self, nodes: Iterable[str]) -> list[str]:
        """Return every aggregator that `nodes` need, the deepest first and the root last."""
        found = {ROOT}
        for node in nodes:
            above = self.parent(node)
            while above not in found:
                found.add(above)
                above = self.parent(above)
        return sorted(found, key=lambda name: (-level(name), name))

    def key(self, name: str) -> str:
        """Return the key of the summary of `name`: `paris.rack7.n3=2Eexample` of `paris/rack7/n3.example`.

        It is the parent's place and the own name. So `child_pattern(parent)` matches the children only.
        """
        above = self.parent(name)
        rest = name[len(above) + 1 :] if above and name.startswith(above + "/") else name
        return f"{place(above)}.{_escape(rest)}" if above else _escape(rest)


def split(name: str) -> list[str]:
    """Return the parts of a name, or say what is wrong with it."""
    parts = name.split("/")
    if len(name) > MAX_NAME or len(parts) > MAX_LEVELS or not all(parts) or not name.isprintable():
        raise FederationError(
            f"a name must be 1 to {MAX_LEVELS} parts joined by '/' and at most {MAX_NAME} printable characters, "
            f"got {name[:80]!r}"
        )
    return parts


def level(name: str) -> int:
    """Return how far `name` lies under the root: 2 for `paris/rack7`."""
    return len(name.split("/")) if name else 0


def place(name: str) -> str:
    """Return a name as dotted tokens that any bus can carry; the root as `=root`."""
    return _escape(name).replace("/", ".") if name else "=root"


def child_pattern(name: str) -> str:
    """Return the pattern that matches the keys of the children of aggregator `name`."""
    return f"{place(name)}.*" if name else "*"


def name_of(key: str) -> str:
    """Return the name behind a key of `Tree.key` or `place`; the key where that is no printable name."""
    if key == "=root":
        return ROOT
    name = unquote(_ESCAPED.sub(r"%\1", key.replace(".", "/")))
    return name if name.isprintable() else ascii(key)[1:-1]


def without_shard(name: str) -> str:
    """Return the name of a node without the shard that its key is under: `n5` of `~0003/n5`."""
    first, _, rest = name.partition("/")
    return rest if rest and first.startswith(_SHARD) else name


def _shard(number: int) -> str:
    return f"{_SHARD}{number:04d}"


def _escape(name: str) -> str:
    """Return `name` in letters, digits, `_`, `-` and `/`; all else as `=XX`, byte by byte."""
    return quote(name).replace(".", "%2E").replace("~", "%7E").replace("%", "=")
