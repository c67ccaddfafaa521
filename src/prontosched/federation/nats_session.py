"""One connection to NATS, from its first greeting until it breaks.

Covers: buckets, puts, reads, feeds and the clock of the bus, on one event loop.
Reconnecting and everything that other threads call is `prontosched.federation.nats_link`.

Each topic is a JetStream key-value bucket. What comes is heard on plain subjects, so a
fleet of ten thousand needs no consumer per node; what was there before is read once at
the start and again now and then, in case something was lost.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import Header, StorageType
from nats.js.errors import APIError, BadRequestError, KeyNotFoundError, NotFoundError
from nats.js.kv import KeyValue

from prontosched.errors import FederationError
from prontosched.federation.feed import MESSAGE_LIMIT, Entry, Feed
from prontosched.federation.link import DECISIONS, LEASES, SCHEMAS, SUMMARIES, TOPICS

log = logging.getLogger(__name__)
# The event loop says so at the end of every connection under TLS; it is nobody's concern.
logging.getLogger("asyncio").addFilter(lambda record: "eof_received() has no effect" not in str(record.msg))

WRONG_REVISION = (10071, 10164)
PUT_ATTEMPTS = 3
# How long a value stays without being renewed, in seconds; 0 for ever.
KEPT_SECONDS = {SUMMARIES: 3600.0, DECISIONS: 600.0, SCHEMAS: 0.0, LEASES: 0.0}
MEMORY_TOPICS = (DECISIONS,)
MAX_BUCKET_BYTES = 1024 * 1024 * 1024
# What a role may read of a topic, by whether it may listen and whether it may read the store.
_ALLOWED = {
    (True, False): "only as they come",
    (False, True): "only now and then",
    (False, False): "not at all",
}
_LOST = (NatsError, OSError, asyncio.TimeoutError)


class _Client(Client):
    """A client that says who it is only where it was told to: under TLS, or anywhere."""

    def __init__(self, *, secure: bool) -> None:
        super().__init__()
        self._secure = secure

    def _connect_command(self) -> bytes:
        # The library would go on in the clear, password and all, with a server that has no TLS.
        if self._secure and not self._server_info.get("tls_required"):
            raise FederationError(
                "the bus must speak TLS as the address says, got one that does not: give nats:// if that is meant"
            )
        return super()._connect_command()


class Session:
    """A living connection; any method may raise one of `LOST`, and then it is dead.

    Parameters
    ----------
    options
        What `nats.connect` takes.
    group
        Federation on this bus; others do not see it.
    name
        Who connects, for the bus's own reports.
    timeout
        Seconds to wait for any one answer.

    Attributes
    ----------
    complaint
        What the bus or the way to it complained of last.
    """

    LOST = _LOST

    def __init__(self, options: dict[str, Any], *, group: str, name: str, timeout: float) -> None:
        self.options = options
        self.group = group
        self.name = name
        self.timeout = timeout
        self.offset = 0.0
        self.complaint = ""
        self.denied: set[str] = set()
        self.opened: set[Feed] = set()
        self._unreadable: set[str] = set()
        self._subscriptions: dict[Feed, Any] = {}
        self._client: Client
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
            self._js = self._client.jetstream(timeout=self.timeout)
            for topic in TOPICS:
                await self._bucket(topic)
            await self._compare_clocks()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Disconnect; the client library may wait for a broken connection, so not for long."""
        try:
            await asyncio.wait_for(self._client.close(), 0.5)
        except _LOST as error:
            log.debug("closed without a goodbye: %r", error)

    async def put(self, topic: str, key: str, value: bytes) -> bool:
        """Store a value; False when the bus will never take it (too long, or not allowed)."""
        subject = self._subject(topic, key)
        for attempt in range(PUT_ATTEMPTS):
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
                if subject.lower() in self.denied:
                    return False
                if attempt == PUT_ATTEMPTS - 1:
                    raise
                # Slow or gone? A bus that still answers a ping is only slow.
                await self._client.flush(timeout=max(1, round(self.timeout)))
        return False

    async def get(self, topic: str, key: str) -> Entry | None:
        """Return the newest value of a key, or None."""
        try:
            found = await self._js.get_msg(
                self._stream(topic), subject=self._subject(topic, key), direct=True
            )
        except (KeyNotFoundError, NotFoundError):
            return None
        when = found.time.timestamp() if found.time else time.monotonic() + self.offset
        return Entry(key, found.data or b"", found.seq or 0, when)

    async def compare_and_set(self, topic: str, key: str, value: bytes, revision: int) -> int | None:
        """Store a value if `revision` is still the newest; None if it is not."""
        headers: dict[str, str] = {Header.EXPECTED_LAST_SUBJECT_SEQUENCE.value: str(revision)}
        try:
            stored = await self._js.publish(
                self._subject(topic, key), value, timeout=self.timeout, headers=headers
            )
        except APIError as error:
            if error.err_code in WRONG_REVISION:
                return None
            raise
        return stored.seq

    async def listen(self, feed: Feed) -> None:
        """Open a feed: from now on live, then what was there before."""

        async def heard(message: Msg) -> None:
            key = message.subject[len(self._subject(feed.topic, "")) :]
            feed.offer(Entry(key, message.data, 0, time.monotonic() + self.offset))

        self.opened.add(feed)
        feed.age()
        subject = self._subject(feed.topic, feed.pattern)
        self._subscriptions[feed] = await self._client.subscribe(subject, cb=heard)
        await self._client.flush(timeout=max(1, round(self.timeout)))
        # In this order: the word that listening is forbidden may come a moment later.
        held = await self.read_store(feed)
        live = subject.lower() not in self.denied
        feed.denied = "" if live and held else f"{feed.topic} {_ALLOWED[live, held]}"
        feed.ready = True

    async def unlisten(self, feed: Feed) -> None:
        """Close a feed."""
        self.opened.discard(feed)
        subscription = self._subscriptions.pop(feed, None)
        if subscription is not None and self.alive:
            await subscription.unsubscribe()

    async def read_store(self, feed: Feed) -> bool:
        """Offer a feed what the bus holds for it now; False when that is not allowed."""
        if feed.topic in self._unreadable:
            return False
        reading = asyncio.ensure_future(self._read_store(feed))
        try:
            while not reading.done():
                await asyncio.wait({reading}, timeout=0.05)
                # What is forbidden answers with an error on the side, and here with silence.
                if not reading.done() and self._forbidden(self._stream(feed.topic)):
                    self._unreadable.add(feed.topic)
                    return False
            await reading
        finally:
            reading.cancel()
        return True

    def _forbidden(self, stream: str) -> bool:
        """Tell whether the bus has refused to answer for a stream."""
        return any(subject.startswith("$js.api.") and stream.lower() in subject for subject in self.denied)

    async def _read_store(self, feed: Feed) -> None:
        if "*" not in feed.pattern and ">" not in feed.pattern:
            entry = await self.get(feed.topic, feed.pattern)
            if entry is not None:
                feed.offer(entry, live=False)
            return
        bucket = self._bucket_name(feed.topic)
        values = KeyValue(bucket, f"KV_{bucket}", f"$KV.{bucket}.", self._js, True)
        watcher: Any = await values.watch(feed.pattern, inactive_threshold=30)
        try:
            while (held := await watcher.updates(timeout=self.timeout)) is not None:
                when = held.created.timestamp() if hasattr(held.created, "timestamp") else 0.0
                feed.offer(Entry(held.key, held.value or b"", held.revision or 0, when), live=False)
        finally:
            await watcher.stop()

    async def _bucket(self, topic: str) -> None:
        try:
            await self._js.stream_info(self._stream(topic))
        except NotFoundError:
            try:
                await self._js.create_key_value(
                    bucket=self._bucket_name(topic),
                    history=1,
                    ttl=KEPT_SECONDS.get(topic, 0.0) or None,
                    max_value_size=MESSAGE_LIMIT,
                    max_bytes=MAX_BUCKET_BYTES if topic == SUMMARIES else MAX_BUCKET_BYTES // 16,
                    storage=StorageType.MEMORY if topic in MEMORY_TOPICS else StorageType.FILE,
                    direct=True,
                )
            except BadRequestError as error:
                if error.err_code != 10058:  # another member was faster
                    raise self._homeless(str(error.description)) from error
            except (NatsError, TimeoutError) as error:
                if not self._forbidden(self._stream(topic)):
                    raise
                raise self._homeless("none, and this user may not begin one") from error

    def _homeless(self, why: str) -> FederationError:
        return FederationError(
            f"the bus must hold a federation {self.group!r}, got {why}: start `pronto aggregate`, or check the group"
        )

    async def _compare_clocks(self) -> None:
        """Find how far the clock of the bus lies from this machine's watch."""
        before = time.monotonic()
        key = f"clock.{self.name}"
        if not await self.put(LEASES, key, b"-"):
            self.offset = time.time() - before
            return
        after = time.monotonic()
        entry = await self.get(LEASES, key)
        when = entry.time if entry else time.time()
        self.offset = when - (before + after) / 2.0

    async def _complain(self, error: Exception) -> None:
        text = str(error)
        self.complaint = text
        log.debug("bus: %s", text)
        if "permissions violation" in text.lower():
            # The client library hands errors on in lower case.
            self.denied.add(text.lower().rpartition(" to ")[2].strip("\"' "))

    def _bucket_name(self, topic: str) -> str:
        return f"pronto-{self.group}-{topic}"

    def _stream(self, topic: str) -> str:
        return f"KV_{self._bucket_name(topic)}"

    def _subject(self, topic: str, key: str) -> str:
        return f"$KV.{self._bucket_name(topic)}.{key}"
