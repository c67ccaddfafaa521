"""One connection to a nats-server, from its first message until it breaks.

Covers: buckets, values read, written, compared and subscribed to, signed where there are keys, and
what a server refuses. `prontosched.federation.nats` opens one after another. Needs the extra `agent`.

Each topic is a JetStream stream laid out as a key-value bucket. New values arrive on plain
subjects, so a fleet of ten thousand needs no consumer per node. What was there before is read
once at the start, and again now and then in case something was lost.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from typing import Any

from prontosched.errors import FederationError
from prontosched.extras import missing_extra
from prontosched.federation.accounts import API, Subjects
from prontosched.federation.address import Address
from prontosched.federation.link import (
    DECISIONS,
    LEASES,
    MAX_KEYS,
    MESSAGE_LIMIT,
    SUMMARIES,
    TOPICS,
    Entry,
    Subscription,
)
from prontosched.federation.signing import Seals, unsealed

try:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.errors import Error as NatsError
    from nats.errors import NoServersError, UnexpectedEOF
    from nats.js import JetStreamContext
    from nats.js.api import DiscardPolicy, Header, RePublish, StorageType, StreamConfig
    from nats.js.errors import APIError, BadRequestError, NotFoundError
except ModuleNotFoundError as error:
    raise FederationError(missing_extra("a bus", "agent")) from error

log = logging.getLogger(__name__)
# The event loop says so at the end of every connection under TLS; it is nobody's concern.
logging.getLogger("asyncio").addFilter(lambda record: "eof_received() has no effect" not in str(record.msg))

PUTS_AT_ONCE = 64
PUT_ATTEMPTS = 3
# Clocks are compared again, where the answer took longer than this.
CLOCK_ATTEMPTS, CLOCK_SECONDS = 4, 0.1
WRONG_REVISION = (10071, 10164)
BUCKET_EXISTS = 10058
# How long a value stays without being renewed, in seconds; others stay for ever.
KEPT_SECONDS = {SUMMARIES: 3600.0, DECISIONS: 600.0}
MAX_BUCKET_BYTES = 1024 * 1024 * 1024
# What a role may read of a topic, by whether it may subscribe and whether it may read the store.
_ALLOWED = {
    (True, False): "only as they come",
    (False, True): "only now and then",
    (False, False): "not at all",
}
# What means that a connection is dead.
LOST = (NatsError, OSError, asyncio.TimeoutError)
# What the client library reports of a server that is not there; the link counts lost connections itself.
_UNREACHABLE = (OSError, NoServersError, UnexpectedEOF)


class _Client(Client):
    """A client that sends its credentials only where it was told to: under TLS, or anywhere."""

    def __init__(self, *, secure: bool) -> None:
        super().__init__()
        self._secure = secure

    @property
    def asks_for_key(self) -> bool:
        """True where the server lets in only who can sign what it gave out."""
        return bool(self._server_info.get("nonce"))

    def _connect_command(self) -> bytes:
        # The library would go on in the clear, password and all, with a server that has no TLS.
        if self._secure and not self._server_info.get("tls_required"):
            raise FederationError(
                "the bus must speak TLS as the address says, got one that does not: give nats:// if that is meant"
            )
        return super()._connect_command()


class NatsSession:
    """One connection; any method may raise one of `LOST`, and then it is dead.

    `report` is called with every fault that the bus reports: a user or a right that it refuses, a
    consumer that is too slow. By `user_seed` we are known to a bus that knows its users by keys.
    `offset` is how far the clock of the bus lies from this machine's monotonic clock.
    """

    def __init__(
        self,
        address: Address,
        *,
        name: str,
        timeout: float,
        report: Callable[[str], None],
        seals: Seals | None = None,
        user_seed: str = "",
    ) -> None:
        self.options = address.client_options()
        if user_seed:
            self.options["nkeys_seed_str"] = user_seed
        self.group = address.group
        self.name = name
        self.timeout = timeout
        self.seals = seals
        self.offset = 0.0
        self.complaint = ""
        self.subscriptions: dict[Subscription, Any] = {}
        self._subjects = Subjects(address.group)
        self._report = report
        self._denied: set[str] = set()
        self._unreadable: set[str] = set()
        self._private = False
        self._client: _Client
        self._js: JetStreamContext

    @property
    def alive(self) -> bool:
        """True while the connection stands."""
        return self._client.is_connected

    async def open(self) -> None:
        """Connect, make sure that the buckets exist, and compare clocks."""
        # Made here and not by `nats.connect`, which would leave the socket of a failed attempt open.
        self._client = _Client(secure="tls" in self.options)
        try:
            await self._client.connect(
                **self.options,
                name=f"pronto {self.name}",
                allow_reconnect=False,
                # Even so the client library tries a server that is away sixty times, two seconds apart.
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=max(1, round(self.timeout)),
                ping_interval=5,
                max_outstanding_pings=2,
                error_cb=self._complain,
            )
            # A bus that asks for a key has an account for each; see `prontosched.federation.accounts`.
            self._private = "nkeys_seed_str" in self.options and self._client.asks_for_key
            self._js = self._client.jetstream(timeout=self.timeout, prefix=self._api)
            for topic in TOPICS:
                await self._make_bucket(topic)
            await self.compare_clocks()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Disconnect; the client library may wait for a broken connection, so not for long."""
        try:
            await asyncio.wait_for(self._client.close(), 0.5)
        except LOST as error:
            log.debug("closed without a goodbye: %r", error)

    async def put(self, topic: str, key: str, value: bytes) -> bool:
        """Store a value; False when the bus will never take it (too long, or not allowed)."""
        return await self._put(topic, key, self.seals.seal(topic, key, value) if self.seals else value)

    async def _put(self, topic: str, key: str, value: bytes) -> bool:
        subject = self._subjects.key(topic, key)
        if len(value) > MESSAGE_LIMIT:
            # The client library would raise, as for a connection that is lost.
            log.warning(
                "a message must have at most %d bytes, got %d on %s", MESSAGE_LIMIT, len(value), subject
            )
            return False
        for attempt in range(PUT_ATTEMPTS):
            if subject.lower() in self._denied:
                return False
            try:
                await self._js.publish(subject, value, timeout=self.timeout)
                return True
            except APIError as error:
                log.warning(
                    "the bus must take %d bytes on %s, got %s", len(value), subject, error.description
                )
                return False
            except (NatsError, TimeoutError):
                # A forbidden subject answers with an error on the side and with silence here.
                if attempt == PUT_ATTEMPTS - 1 and subject.lower() not in self._denied:
                    raise
                # Slow or gone? A bus that still answers a ping is only slow.
                await self._flush()
        return False

    async def get(self, topic: str, key: str) -> Entry | None:
        """Return the newest value of a key, or None; one that is wrongly signed as withdrawn."""
        entry = await self._get(topic, key)
        if self.seals is not None:
            return self.seals.answer(topic, entry)
        return entry and entry._replace(value=unsealed(entry.value))

    async def _get(self, topic: str, key: str) -> Entry | None:
        try:
            found = await self._js.get_msg(
                self._subjects.stream(topic), subject=self._subjects.key(topic, key), direct=True
            )
        except NotFoundError:
            return None
        when = found.time.timestamp() if found.time else time.monotonic() + self.offset
        return Entry(key, found.data or b"", found.seq or 0, when)

    async def compare_and_set(self, topic: str, key: str, value: bytes, revision: int) -> int | None:
        """Store a value if `revision` is still the newest; None if it is not."""
        if self.seals is not None:
            value = self.seals.seal(topic, key, value)
        headers: dict[str, str] = {Header.EXPECTED_LAST_SUBJECT_SEQUENCE.value: str(revision)}
        try:
            stored = await self._js.publish(
                self._subjects.key(topic, key), value, timeout=self.timeout, headers=headers
            )
        except APIError as error:
            if error.err_code in WRONG_REVISION:
                return None
            raise
        return stored.seq

    async def subscribe(self, subscription: Subscription) -> None:
        """Deliver to a subscription: from now on live, then what was there before."""

        async def arrived(message: Msg) -> None:
            key = message.subject[len(self._live(subscription.topic, "")) :]
            subscription.deliver(Entry(key, message.data, 0, time.monotonic() + self.offset))

        subscription.age()
        subject = self._live(subscription.topic, subscription.pattern)
        self.subscriptions[subscription] = await self._client.subscribe(subject, cb=arrived)
        await self._flush()
        # In this order: the report that subscribing is forbidden may come a moment later.
        stored = await self.read_store(subscription)
        live = subject.lower() not in self._denied
        allowed = live and stored
        subscription.denied = "" if allowed else f"{subscription.topic} {_ALLOWED[live, stored]}"
        subscription.ready = True

    async def unsubscribe(self, subscription: Subscription) -> None:
        """Stop delivering to a subscription."""
        at_client = self.subscriptions.pop(subscription)
        if self.alive:
            await at_client.unsubscribe()

    async def read_store(self, subscription: Subscription) -> bool:
        """Deliver what the bus holds for a subscription now; False when reading is not allowed."""
        topic = subscription.topic
        if topic in self._unreadable:
            return False
        reading = asyncio.ensure_future(self._read_store(subscription))
        try:
            while not reading.done():
                await asyncio.wait({reading}, timeout=0.05)
                # What is forbidden answers with an error on the side, and here with silence.
                if not reading.done() and self._forbidden(topic):
                    self._unreadable.add(topic)
                    return False
            await reading
        finally:
            reading.cancel()
        return True

    async def _read_store(self, subscription: Subscription) -> None:
        """Read key by key: a consumer costs the server more, and could not deliver across accounts."""
        topic, pattern, keys = subscription.topic, subscription.pattern, [subscription.pattern]
        if "*" in pattern or ">" in pattern:
            start, wanted = len(self._subjects.key(topic, "")), self._subjects.key(topic, pattern)
            info = await self._js.stream_info(self._subjects.stream(topic), subjects_filter=wanted)
            keys = [subject[start:] for subject in info.state.subjects or {}][:MAX_KEYS]
        for first in range(0, len(keys), PUTS_AT_ONCE):
            batch = keys[first : first + PUTS_AT_ONCE]
            for entry in await asyncio.gather(*(self._get(topic, key) for key in batch)):
                if entry is not None:
                    subscription.deliver(entry, live=False)

    async def _make_bucket(self, topic: str) -> None:
        """Make sure that the stream of a topic exists, laid out as NATS lays out a key-value bucket."""
        why = "none, and this user may not begin one"
        try:
            try:
                await self._js.stream_info(self._subjects.stream(topic))
                return
            except NotFoundError:
                log.debug("no bucket for %s yet", topic)
            kept = KEPT_SECONDS.get(topic)
            # Across accounts nothing is received but what the store itself tells that it took.
            told = RePublish(src=self._subjects.key(topic), dest=self._subjects.live(topic))
            await self._js.add_stream(
                StreamConfig(
                    name=self._subjects.stream(topic),
                    subjects=[self._subjects.key(topic)],
                    max_msgs_per_subject=1,
                    max_age=kept,
                    duplicate_window=min(120.0, kept or 120.0),
                    max_msg_size=MESSAGE_LIMIT,
                    max_bytes=MAX_BUCKET_BYTES if topic == SUMMARIES else MAX_BUCKET_BYTES // 16,
                    # A member that fills the store must not keep the others from renewing what they said.
                    discard=DiscardPolicy.OLD,
                    deny_delete=True,
                    allow_rollup_hdrs=True,
                    allow_direct=True,
                    storage=StorageType.MEMORY if topic == DECISIONS else StorageType.FILE,
                    republish=told if self._private else None,
                )
            )
            return
        except BadRequestError as error:
            if error.err_code == BUCKET_EXISTS:  # another member was faster
                return
            why = str(error.description)
        except (NatsError, TimeoutError):
            if not self._forbidden(topic):
                raise
        raise FederationError(
            f"the bus must hold a federation {self.group!r}, got {why}: start `pronto aggregate`, or check the group"
        )

    async def compare_clocks(self) -> None:
        """Find the offset of the bus's clock by a round trip; by the shortest, where a busy machine makes them long."""
        key, shortest = f"clock.{self.name}", math.inf
        for _ in range(CLOCK_ATTEMPTS):
            before = time.monotonic()
            if not await self._put(LEASES, key, b"-"):
                self.offset = time.time() - before
                return
            trip = time.monotonic() - before
            entry = await self._get(LEASES, key)
            if trip < shortest:
                shortest = trip
                self.offset = (entry.time if entry else time.time()) - (before + trip / 2.0)
            if trip < CLOCK_SECONDS:
                return

    async def _complain(self, error: Exception) -> None:
        self.complaint = str(error).removeprefix("nats: ").strip("'")
        log.debug("bus: %s", self.complaint)
        if not isinstance(error, _UNREACHABLE):
            self._report(self.complaint)
        if "permissions violation" in self.complaint.lower():
            # The client library hands errors on in lower case.
            self._denied.add(self.complaint.lower().rpartition(" to ")[2].strip("\"' "))

    async def _flush(self) -> None:
        await self._client.flush(timeout=max(1, round(self.timeout)))

    @property
    def _api(self) -> str:
        return API if self._private else "$JS.API"

    def _forbidden(self, topic: str) -> bool:
        """Tell whether the bus has refused to answer for the store of a topic."""
        prefix, stream = f"{self._api.lower()}.", self._subjects.stream(topic).lower()
        return any(subject.startswith(prefix) and stream in subject for subject in self._denied)

    def _live(self, topic: str, key: str) -> str:
        """Return where values of a key arrive as they come."""
        return self._subjects.live(topic, key) if self._private else self._subjects.key(topic, key)
