"""Signed messages: who may say what on the bus, proved by Ed25519.

Covers: the `Identity` of a process, which is its private key and the number of its start; the
`KeyRing`, the file in which the operator registers public keys by place; and `Seals`, which
signs what a link sends and checks what it receives.

A seal names the key and covers group, topic, key, content, incarnation and sequence. So a
message counts only where its sender put it, and never after a newer one of that sender. Names
of metrics need no seal: they are found by their own fingerprint. Needs the extra `agent`.
"""

from __future__ import annotations

import base64
import binascii
import fcntl
import hashlib
import logging
import os
import re
import struct
import tempfile
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from prontosched.errors import FederationError
from prontosched.extras import missing_extra
from prontosched.federation.link import DECISIONS, LEASES, SCHEMAS, SUMMARIES, VIEWS, Entry
from prontosched.federation.tree import MAX_NODES, ROOT, Tree, name_of, split, without_shard

try:
    import nkeys
    from nacl.exceptions import BadSignatureError
    from nacl.signing import SigningKey, VerifyKey
except ModuleNotFoundError as error:
    raise FederationError(missing_extra("signed messages", "agent")) from error

log = logging.getLogger(__name__)

NODE, AGGREGATOR, VIEWER = "node", "aggregator", "viewer"
MAGIC = b"PSE1"
_HEAD = struct.Struct("<4s8sQQ64s")
_NUMBERS = struct.Struct("<QQ")
_PUBLIC = "ed25519:"
_NKEY = re.compile(r"^U[A-Z2-7]{55}$")
# Nodes that one line with a `*` stands for at most: as many as an aggregator takes by default.
PATTERN_NODES = 1024
RELOAD_SECONDS = 2.0
MAX_VERIFIED = 8192
MAX_HEARD = 16_384
MAX_NAMED = 1024

Version = tuple[int, int]


class Identity:
    """A private key in a file, used by one process at a time.

    The incarnation is the number of this start: larger than any before, by a count kept beside
    the key, and not less than the time in milliseconds. `public` is the key as it is registered.
    By `user` and `user_seed` the bus knows this process. They are made out of the private key, and
    are a key of their own because a server chooses what is signed with it.
    """

    def __init__(self, key: SigningKey, *, incarnation: int = 1) -> None:
        self._key = key
        self.incarnation = incarnation
        self.public = _PUBLIC + base64.b64encode(bytes(key.verify_key)).decode()
        self.key_id = key_id(bytes(key.verify_key))
        raw = hashlib.blake2b(bytes(key), digest_size=32, person=b"pronto nats user").digest()
        seed: bytes = nkeys.encode_seed(raw, nkeys.PREFIX_BYTE_USER)
        self.user_seed = seed.decode()
        self.user: str = nkeys.from_seed(bytearray(seed)).public_key.decode()
        self._lock: int | None = None

    @classmethod
    def make(cls) -> Identity:
        """Return a new one that is kept nowhere."""
        return cls(SigningKey.generate())

    @classmethod
    def open(cls, path: Path, *, registered: Callable[[str], bool] | None = None) -> Identity:
        """Return the identity in a file, made at the first start, for this process alone.

        The next key (`next_path`) takes the place of the present one once it is `registered`.
        """
        found, following = _locked(path), next_path(path)
        if registered is not None and following.exists() and registered(read_identity(following).public):
            following.replace(path)
            found.close()
            found = _locked(path)
        found.incarnation = _next_incarnation(path.with_suffix(".count"))
        return found

    def close(self) -> None:
        """Let another process use the key."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def sign(self, text: bytes) -> bytes:
        """Return the signature of a text, 64 bytes."""
        return self._key.sign(text).signature


def read_identity(path: Path) -> Identity:
    """Return the key in a file, made where there is none; it is not locked and has no incarnation yet."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not path.exists():
            _make_key(path)
        if path.stat().st_mode & 0o007:
            raise FederationError(f"{path} must be closed to others, got one they can open: chmod 600 {path}")
        return Identity(SigningKey(base64.b64decode(path.read_bytes().strip(), validate=True)))
    except (OSError, ValueError, TypeError, binascii.Error) as error:
        if isinstance(error, FederationError):
            raise
        raise FederationError(f"{path} must hold a private key, got {error}: mend or remove it") from error


def _locked(path: Path) -> Identity:
    found = read_identity(path)
    found._lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(found._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        found.close()
        raise FederationError(
            f"{path} must belong to one process, got a second: give it sign=FILE in its address"
        ) from error
    return found


def _make_key(path: Path) -> None:
    """Write a new key; it is there whole or not at all, and never takes another's place."""
    handle, scrap = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(base64.b64encode(bytes(SigningKey.generate())) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(scrap, path)
    finally:
        os.unlink(scrap)


def next_path(path: Path) -> Path:
    """Return where the next key of a rotation lies."""
    return path.with_name(f"{path.name}.next")


def _next_incarnation(path: Path) -> int:
    last = 0
    try:
        last = int(path.read_text())
    except (OSError, ValueError):
        log.debug("%s holds no number: beginning with the time", path)
    incarnation = max(last + 1, int(1000.0 * time.time())) % 2**63
    scrap = path.with_name(f".{path.name}")
    try:
        scrap.write_text(f"{incarnation}\n")
        scrap.replace(path)
    except OSError as error:
        # A key may lie where nothing can be written; the time alone then tells starts apart.
        log.debug("%s cannot be kept: %s", path, error)
    return incarnation


def key_id(public: bytes) -> bytes:
    """Return the eight bytes by which a seal names its key."""
    return hashlib.blake2b(public, digest_size=8).digest()


class Grant(NamedTuple):
    """What a key may say: as node, aggregator or viewer, who says nothing, and for which place.

    A place is a name; `rack7/*` stands for all under rack7 and `*` for all there are.
    """

    role: str
    place: str

    def covers(self, place: str) -> bool:
        """Tell whether a place is meant."""
        return place == self.place or (self.pattern and place.startswith(self.place[:-1]))

    @property
    def pattern(self) -> bool:
        """True where it stands for many places."""
        return self.place == "*" or self.place.endswith("/*")


class Registered(NamedTuple):
    """A line of the key ring, with the key by which the bus knows the user; empty where none is given."""

    grant: Grant
    public: bytes
    nkey: str = ""


class KeyRing:
    """The public keys that the operator registered, read again when the file changes.

    A line has role, place and key: `node paris/rack7/n3 ed25519:…`, `aggregator root ed25519:…`.
    A name may have several keys, so that one can follow another. The key of the bus's user may
    stand behind it. The tree says for how many nodes an aggregator can speak. `version` counts how
    often the file was read.
    """

    def __init__(self, path: Path, tree: Tree) -> None:
        self.path = path
        self.tree = tree
        self.lines: list[Registered] = []
        self.version = 0
        self._grants: dict[bytes, tuple[bytes, list[Grant]]] = {}
        self._nodes: Counter[str] = Counter()
        self._stamp: tuple[int, int] | None = None
        self._looked = -RELOAD_SECONDS
        self._complaint = ""
        self._reload()

    def grants(self, key: bytes) -> tuple[bytes, list[Grant]] | None:
        """Return the public key behind a key's id and what it may say."""
        self._look()
        return self._grants.get(key)

    def registered(self, public: str) -> bool:
        """Tell whether a public key is in the file."""
        return key_id(_read_public(public)) in self._grants

    def most_nodes(self, place: str) -> int:
        """Return how many nodes are registered under an aggregator; the root is the empty name."""
        self._look()
        return min(self._nodes[place] + self._nodes["*"], MAX_NODES)

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._looked < RELOAD_SECONDS:
            return
        self._looked = now
        try:
            self._reload()
            self._complaint = ""
        except FederationError as error:
            if str(error) != self._complaint:
                log.warning("the keys stay as they were: %s", error)
            self._complaint = str(error)

    def _reload(self) -> None:
        try:
            stat = self.path.stat()
            stamp = (stat.st_mtime_ns, stat.st_size)
            if stamp == self._stamp:
                return
            text = self.path.read_text()
        except (OSError, ValueError) as error:
            raise FederationError(f"keys must be a readable file, got {error}: check the path") from error
        # Also of a file that turns out wrong: once is enough to say so.
        self._stamp = stamp
        lines = _read_lines(text, self.path)
        grants: dict[bytes, tuple[bytes, list[Grant]]] = {}
        for line in lines:
            grants.setdefault(key_id(line.public), (line.public, []))[1].append(line.grant)
        self.lines, self._grants = lines, grants
        self._nodes = _count_nodes({line.grant for line in lines if line.grant.role == NODE}, self.tree)
        self.version += 1


def _read_lines(text: str, path: Path) -> list[Registered]:
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        nkey = words.pop() if _NKEY.match(words[-1]) else ""
        try:
            if len(words) < 3 or words[0] not in (NODE, AGGREGATOR, VIEWER):
                raise ValueError(
                    f"a line has node, aggregator or viewer, a place and a key, got {line[:60]!r}"
                )
            role, place, public = words[0], " ".join(words[1:-1]), _read_public(words[-1])
            if place != "*":
                split(place.removesuffix("/*"))
        except ValueError as error:
            raise FederationError(f"line {number} of {path}: {error}: mend it") from error
        grant = Grant(role, ROOT if (role, place) == (AGGREGATOR, "root") else place)
        found.append(Registered(grant, public, nkey))
    return found


def _count_nodes(grants: Iterable[Grant], tree: Tree) -> Counter[str]:
    """Return how many nodes are registered under each aggregator, and under `*` those that may be anywhere."""
    found: Counter[str] = Counter()
    for grant in grants:
        count = PATTERN_NODES if grant.pattern else 1
        if grant.place == "*":
            found["*"] += count
            continue
        above = f"{grant.place[:-1]}x" if grant.pattern else grant.place
        while above != ROOT:
            above = tree.parent(above)
            found[above] += count
    return found


def _read_public(text: str) -> bytes:
    try:
        public = base64.b64decode(text.removeprefix(_PUBLIC), validate=True)
    except (ValueError, binascii.Error):
        public = b""
    if len(public) != 32 or not text.startswith(_PUBLIC):
        raise ValueError(f"a key must be {_PUBLIC} and 32 bytes as base64, got {text[:60]!r}")
    return public


class Window:
    """What one subscription has received of each key, so that nothing counts after a newer one.

    Memory: two versions per key and sender. A key that is registered for a pattern can write to
    any number of names. Beyond 16,384 the one it wrote to longest ago is forgotten, for that sender
    alone; a replay of it is then told only by what the message itself says.
    """

    def __init__(self) -> None:
        self._last: dict[str, tuple[bytes, Version]] = {}
        self._newest: dict[bytes, OrderedDict[str, Version]] = {}

    def take(self, key: str, sender: bytes, version: Version) -> bool:
        """Take note of a message; False when it is older than one of that sender, or another's has followed it."""
        newest = self._newest.setdefault(sender, OrderedDict())
        if version <= newest.get(key, (-1, -1)):
            return self._last.get(key) == (sender, version)
        newest[key] = version
        newest.move_to_end(key)
        self._last[key] = (sender, version)
        if len(newest) > MAX_HEARD:
            oldest, gone = newest.popitem(last=False)
            if self._last.get(oldest) == (sender, gone):
                del self._last[oldest]
        return True

    def __len__(self) -> int:
        return sum(map(len, self._newest.values()))


class Seals:
    """Sign what a link sends, and check what it receives.

    A message of one group counts in no other. Without an identity nothing can be sent. `dropped`
    counts messages with a wrong or missing seal; `last_dropped` has the last one's claimed sender
    with the reason.

    Memory: the digests of the last 8,192 messages that were found right, 1,024 names, and the
    versions of 16,384 answers.
    """

    def __init__(self, group: str, ring: KeyRing, identity: Identity | None = None) -> None:
        self.group = group
        self.ring = ring
        self.identity = identity
        self.dropped = 0
        self.last_dropped = ""
        self._sequence = 0
        self._verified: dict[bytes, int] = {}
        self._named: set[str] = set()
        self._asked: OrderedDict[tuple[str, str, bytes], tuple[Version, int]] = OrderedDict()
        self._lock = threading.Lock()
        if identity is not None and not ring.registered(identity.public):
            log.warning(
                "others drop what this process says until its key is registered in %s: "
                "add the line that `pronto federation keys` prints, with %s",
                ring.path,
                identity.public,
            )

    def seal(self, topic: str, key: str, value: bytes) -> bytes:
        """Return a value with its seal."""
        if topic == SCHEMAS:
            return value
        if self.identity is None:
            raise FederationError(f"a message for {topic} must be signed, got no key: give sign=FILE")
        with self._lock:
            self._sequence += 1
            numbers = (self.identity.incarnation, self._sequence)
        signature = self.identity.sign(self._text(topic, key, numbers, value))
        return _HEAD.pack(MAGIC, self.identity.key_id, *numbers, signature) + value

    def window(self, topic: str) -> Callable[[Entry], Entry | None] | None:
        """Return the check of one subscription; None for a topic without seals."""
        if topic == SCHEMAS:
            return None
        window = Window()

        def check(entry: Entry) -> Entry | None:
            found = self._checked(topic, entry)
            if found is None:
                return None
            opened, sender, version = found
            return opened._replace(outdated=not window.take(entry.key, sender, version))

        return check

    def answer(self, topic: str, entry: Entry | None) -> Entry | None:
        """Return what was asked for; as withdrawn, where its seal is wrong or it was put there again."""
        if entry is None or topic == SCHEMAS:
            return entry
        found = self._checked(topic, entry)
        if found is not None:
            opened, sender, version = found
            where, seen = (topic, entry.key, sender), (version, entry.revision)
            before = self._asked.get(where)
            if before is None or version > before[0]:
                self._asked[where] = before = seen
                if len(self._asked) > MAX_HEARD:
                    self._asked.popitem(last=False)
            if before == seen:
                self._asked.move_to_end(where)
                return opened
        return entry._replace(value=b"")

    def _checked(self, topic: str, entry: Entry) -> tuple[Entry, bytes, Version] | None:
        """Return an entry without its seal, who sealed it and its version; None for one that is dropped."""
        try:
            return self._opened(topic, entry)
        except FederationError as error:
            self.dropped += 1
            name = speaker(topic, entry.key) or "root"
            self.last_dropped = f"{name} on {topic}: {error}"
            if name not in self._named and len(self._named) < MAX_NAMED:
                self._named.add(name)
                log.warning("dropped what claims to be from %s", self.last_dropped)
            return None

    def _opened(self, topic: str, entry: Entry) -> tuple[Entry, bytes, Version]:
        value = entry.value
        if len(value) < _HEAD.size or not value.startswith(MAGIC):
            raise FederationError("it is not signed")
        _, sender, incarnation, sequence, signature = _HEAD.unpack_from(value)
        registered = self.ring.grants(sender)
        if registered is None:
            raise FederationError("it is signed with a key that is not registered")
        public, grants = registered
        roles = frozenset(grant.role for grant in grants if allows(grant, topic, entry.key))
        if not roles:
            raise FederationError(f"its key is that of {_words(grants)}")
        content = value[_HEAD.size :]
        text = self._text(topic, entry.key, (incarnation, sequence), content)
        digest = hashlib.blake2b(text, digest_size=16, key=signature).digest()
        if self._verified.get(digest) != self.ring.version:
            try:
                VerifyKey(public).verify(text, signature)
            except BadSignatureError as error:
                raise FederationError("its signature is wrong") from error
            if len(self._verified) >= MAX_VERIFIED:
                self._verified.clear()
            self._verified[digest] = self.ring.version
        return entry._replace(value=content, roles=roles), sender, (incarnation, sequence)

    def _text(self, topic: str, key: str, numbers: Version, value: bytes) -> bytes:
        where = "\n".join(("pronto", self.group, topic, key, "")).encode()
        return where + _NUMBERS.pack(*numbers) + value


def speaker(topic: str, key: str) -> str:
    """Return who speaks on a key: a node, an aggregator, or the root, which is the empty name."""
    if topic == VIEWS:
        return ROOT
    if topic == LEASES:
        return name_of(key.partition(".")[2])
    return without_shard(name_of(key)) if topic == SUMMARIES else name_of(key)


def allows(grant: Grant, topic: str, key: str) -> bool:
    """Tell whether a line of the key ring allows its key to write a key of the bus."""
    if topic == LEASES and key.startswith("refusals."):
        # One table that all nodes write.
        return grant.role == NODE
    roles = {SUMMARIES: (NODE, AGGREGATOR), DECISIONS: (NODE,)}.get(topic, (AGGREGATOR,))
    return grant.role in roles and grant.covers(speaker(topic, key))


def _words(grants: list[Grant]) -> str:
    return ", ".join(f"{grant.role} {grant.place or 'root'}" for grant in grants[:3])


def unsealed(value: bytes) -> bytes:
    """Return a value without its seal, unchecked: what a member that checks none makes of it."""
    return value[_HEAD.size :] if value.startswith(MAGIC) and len(value) >= _HEAD.size else value
