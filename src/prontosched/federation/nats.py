"""The link over NATS: one background thread that reconnects for as long as it takes.

Covers: `NatsLink`, which other threads call, and `NatsSession`, one connection from its first
message until it breaks. Nothing waits for the bus, except `get` and `compare_and_set`, which
give up after the timeout. While the bus is away the newest value of every key is kept, and sent
when it is back. Needs the extra `agent`.

Each topic is a JetStream key-value bucket. New values arrive on plain subjects, so a fleet of
ten thousand needs no consumer per node. What was there before is read once at the start, and
again now and then in case something was lost.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import random
import re
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

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
    LinkDownError,
    Subscription,
)
from prontosched.federation.signing import Identity, KeyRing, Seals, read_identity, unsealed
from prontosched.federation.tree import MAX_NODES

try:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.errors import Error as NatsError
    from nats.errors import NoServersError, UnexpectedEOF
    from nats.js import JetStreamContext
    from nats.js.api import Header, RePublish, StorageType
    from nats.js.errors import APIError, BadRequestError, NotFoundError
    from nats.js.kv import KeyValue
except ModuleNotFoundError as error:
    raise FederationError(missing_extra("a bus", "agent")) from error

log = logging.getLogger(__name__)
# The event loop says so at the end of every connection under TLS; it is nobody's concern.
logging.getLogger("asyncio").addFilter(lambda record: "eof_received() has no effect" not in str(record.msg))

Result = TypeVar("Result")

FIRST_WAIT_SECONDS = 0.1
LONGEST_WAIT_SECONDS = 5.0
RESYNC_SECONDS = 30.0
PUTS_AT_ONCE = 64
PUT_ATTEMPTS = 3
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
_LOST = (NatsError, OSError, asyncio.TimeoutError)
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
    """One connection; any method may raise one of `_LOST`, and then it is dead.

    Parameters
    ----------
    name
        Who connects, for the bus's own reports.
    timeout
        Seconds to wait for any one answer.
    report
        Called with every fault that the bus reports: a user or a right that it refuses, a
        consumer that is too slow.
    seals
        Signs what is sent and checks what arrives; None where messages are not signed.
    user_seed
        Who we are to a bus that knows its users by keys; empty for no one.

    Attributes
    ----------
    offset
        How far the clock of the bus lies from this machine's monotonic clock.
    complaint
        What the client library reported last.
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
        self._report = report
        self._denied: set[str] = set()
        self._unreadable: set[str] = set()
        self._private = False
        self._api = "$JS.API"
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
            self._api = API if self._private else "$JS.API"
            self._js = self._client.jetstream(timeout=self.timeout, prefix=self._api)
            for topic in TOPICS:
                await self._make_bucket(topic)
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
        return await self._put(topic, key, self.seals.seal(topic, key, value) if self.seals else value)

    async def _put(self, topic: str, key: str, value: bytes) -> bool:
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
                if subject.lower() in self._denied:
                    return False
                if attempt == PUT_ATTEMPTS - 1:
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
                self._stream(topic), subject=self._subject(topic, key), direct=True
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
                self._subject(topic, key), value, timeout=self.timeout, headers=headers
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
        topic, pattern = subscription.topic, subscription.pattern
        if "*" not in pattern and ">" not in pattern:
            entry = await self._get(topic, pattern)
            if entry is not None:
                subscription.deliver(entry, live=False)
            return
        if self._private:
            await self._read_each(subscription)
            return
        bucket = self._bucket(topic)
        values = KeyValue(bucket, self._stream(topic), self._subject(topic, ""), self._js, True)
        watcher: Any = await values.watch(pattern, inactive_threshold=30)
        try:
            while (held := await watcher.updates(timeout=self.timeout)) is not None:
                when = held.created.timestamp() if hasattr(held.created, "timestamp") else 0.0
                entry = Entry(held.key, held.value or b"", held.revision or 0, when)
                subscription.deliver(entry, live=False)
        finally:
            await watcher.stop()

    async def _read_each(self, subscription: Subscription) -> None:
        """Read key by key: across accounts no consumer can deliver."""
        topic, start = subscription.topic, len(self._subject(subscription.topic, ""))
        wanted = self._subject(topic, subscription.pattern)
        info = await self._js.stream_info(self._stream(topic), subjects_filter=wanted)
        subjects = list(info.state.subjects or {})[:MAX_KEYS]
        for first in range(0, len(subjects), PUTS_AT_ONCE):
            batch = [subject[start:] for subject in subjects[first : first + PUTS_AT_ONCE]]
            for entry in await asyncio.gather(*(self._get(topic, key) for key in batch)):
                if entry is not None:
                    subscription.deliver(entry, live=False)

    async def _make_bucket(self, topic: str) -> None:
        why = "none, and this user may not begin one"
        try:
            try:
                await self._js.stream_info(self._stream(topic))
                return
            except NotFoundError:
                log.debug("no bucket for %s yet", topic)
            await self._js.create_key_value(
                bucket=self._bucket(topic),
                history=1,
                ttl=KEPT_SECONDS.get(topic),
                max_value_size=MESSAGE_LIMIT,
                max_bytes=MAX_BUCKET_BYTES if topic == SUMMARIES else MAX_BUCKET_BYTES // 16,
                storage=StorageType.MEMORY if topic == DECISIONS else StorageType.FILE,
                direct=True,
                republish=self._republished(topic),
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

    async def _compare_clocks(self) -> None:
        before = time.monotonic()
        key = f"clock.{self.name}"
        if not await self._put(LEASES, key, b"-"):
            self.offset = time.time() - before
            return
        after = time.monotonic()
        entry = await self._get(LEASES, key)
        self.offset = (entry.time if entry else time.time()) - (before + after) / 2.0

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

    def _forbidden(self, topic: str) -> bool:
        """Tell whether the bus has refused to answer for the store of a topic."""
        stream = self._stream(topic).lower()
        return any(
            subject.startswith(f"{self._api.lower()}.") and stream in subject for subject in self._denied
        )

    def _bucket(self, topic: str) -> str:
        return f"pronto-{self.group}-{topic}"

    def _stream(self, topic: str) -> str:
        return f"KV_{self._bucket(topic)}"

    def _live(self, topic: str, key: str) -> str:
        """Return where values of a key are heard as they come."""
        return Subjects(self.group).live(topic, key) if self._private else self._subject(topic, key)

    def _republished(self, topic: str) -> RePublish | None:
        """Let the store itself tell what it took: across accounts nothing else is heard."""
        return (
            RePublish(src=self._subject(topic, ">"), dest=self._live(topic, ">")) if self._private else None
        )

    def _subject(self, topic: str, key: str) -> str:
        return f"$KV.{self._bucket(topic)}.{key}"


class NatsLink:
    """A link over NATS with JetStream.

    Parameters
    ----------
    address
        Where the bus is and who we are there; see `prontosched.federation.address`.
    name
        Who connects: shown in the bus's own reports, and unlike any other's.
    timeout
        Seconds to wait for any one answer.
    quiet
        Leave it to the caller to say that the bus went or came.
    identity
        File with the private key, where the address names keys but no own one; made if it is
        missing. None for a link that only reads.

    Attributes
    ----------
    sessions
        Connections made so far.
    refused
        Values that the bus will never take: too long, or not allowed.
    faults, last_fault
        How many faults the bus reported and how many connections were lost, and the last of
        these. A bus that cannot be reached is no fault: `connected` tells it.

    Notes
    -----
    Memory: the newest value of each key that was put, and what its subscriptions hold.
    """

    def __init__(
        self,
        address: str | Address,
        *,
        name: str = "member",
        timeout: float = 2.0,
        quiet: bool = False,
        identity: Path | None = None,
    ) -> None:
        self.address = Address.parse(address) if isinstance(address, str) else address
        self.name_key = self.address.name_key()
        self.rule = self.address.rule
        self.timeout = timeout
        self.quiet = quiet
        self.sessions = 0
        self.refused = 0
        self.faults = 0
        self.last_fault = ""
        self.last_error = ""
        # Raises here, not in the thread, what is wrong with the address.
        self.address.client_options()
        self.seals, self._user_seed = _signing(self.address, identity)
        self.signed = self.seals is not None
        self._name = re.sub(r"[^A-Za-z0-9_-]", "-", name)[:60] or "member"
        self._offset = time.time() - time.monotonic()
        self._outbox: dict[tuple[str, str], bytes] = {}
        self._newest: dict[tuple[str, str], bytes] = {}
        self._subscriptions: list[Subscription] = []
        self._lock = threading.Lock()
        self._closing = False
        self._away = False
        self._session: NatsSession | None = None
        self._loop = asyncio.new_event_loop()
        self._wake = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=f"nats {self._name}", daemon=True)
        self._thread.start()

    @property
    def connected(self) -> bool:
        """True while the bus answers."""
        return self._session is not None

    @property
    def dropped(self) -> int:
        """Messages that were dropped because they were not rightly signed."""
        return self.seals.dropped if self.seals else 0

    def most_nodes(self, place: str) -> int:
        """Return how many nodes under an aggregator have a key; without keys there is no telling."""
        return self.seals.ring.most_nodes(place) if self.seals else MAX_NODES

    def now(self) -> float:
        """Return the time by the clock of the bus; by this machine's until the first connection."""
        return time.monotonic() + self._offset

    def put(self, topic: str, key: str, value: bytes) -> None:
        """Hand over a value; it is sent at once, or when the bus is back."""
        with self._lock:
            self._outbox[topic, key] = self._newest[topic, key] = value
        self._notify()

    def get(self, topic: str, key: str) -> Entry | None:
        """Return the newest value of `key`, or None."""
        return self._ask(lambda session: session.get(topic, key))

    def compare_and_set(self, topic: str, key: str, value: bytes, *, revision: int) -> int | None:
        """Replace the value of `revision`; None if it is no longer the newest."""
        return self._ask(lambda session: session.compare_and_set(topic, key, value, revision))

    def subscribe(self, topic: str, pattern: str) -> Subscription:
        """Return a subscription; it is ready once the bus has answered."""
        check = self.seals.window(topic) if self.seals else _unchecked
        subscription = Subscription(topic, pattern, check)
        with self._lock:
            self._subscriptions.append(subscription)
        self._notify()
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """End a subscription."""
        with self._lock:
            if subscription in self._subscriptions:
                self._subscriptions.remove(subscription)
        self._notify()

    def wait_until_connected(self, seconds: float) -> bool:
        """Wait for the bus, for tools that can do nothing without it."""
        return _wait(lambda: self.connected, seconds)

    def flush(self, seconds: float = 5.0) -> bool:
        """Wait until all that was put has arrived; False when it did not in time."""
        return _wait(lambda: not self._outbox and self.connected, seconds)

    def close(self) -> None:
        """Disconnect and end the thread; what could not be sent is dropped."""
        if self._closing:
            return
        self._closing = True
        self._notify()
        self._thread.join(timeout=self.timeout + 3.0)
        if self.seals is not None and self.seals.identity is not None:
            self.seals.identity.close()

    def _ask(self, question: Callable[[NatsSession], Coroutine[Any, Any, Result]]) -> Result:
        session = self._session
        if session is None or self._closing:
            raise LinkDownError(
                f"the bus must be connected, got no connection: {self.last_error or 'not yet up'}"
            )
        future = asyncio.run_coroutine_threadsafe(question(session), self._loop)
        try:
            return future.result(timeout=self.timeout + 1.0)
        except (*_LOST, concurrent.futures.TimeoutError, concurrent.futures.CancelledError) as error:
            future.cancel()
            raise LinkDownError(f"the bus must answer within {self.timeout} s, got {error!r}") from error

    def _notify(self) -> None:
        """Wake the thread: there is something to do."""
        if not self._loop.is_closed():
            try:
                self._loop.call_soon_threadsafe(self._wake.set)
            except RuntimeError:
                log.debug("the link closed meanwhile")

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._stay_connected())
        finally:
            # The client library leaves watchers behind where reading was not allowed.
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.close()

    async def _stay_connected(self) -> None:
        wait = FIRST_WAIT_SECONDS
        while not self._closing:
            started = time.monotonic()
            try:
                await self._connect()
            except Exception as error:
                # Whatever it is, credentials that cannot be read, say: the file may be mended.
                self._note_outage(str(error).removeprefix("nats: ") or type(error).__name__)
                log.debug("the bus cannot be used", exc_info=error)
            if time.monotonic() - started > LONGEST_WAIT_SECONDS:
                wait = FIRST_WAIT_SECONDS
            # Jitter: a fleet that lost one bus must not come back in one moment.
            limit = time.monotonic() + wait * random.uniform(0.5, 1.5)
            while not self._closing and (left := limit - time.monotonic()) > 0:
                await asyncio.sleep(min(0.1, left))
            wait = min(2.0 * wait, LONGEST_WAIT_SECONDS)

    async def _connect(self) -> None:
        """Open a session and serve it until it ends."""
        session = NatsSession(
            self.address,
            name=self._name,
            timeout=self.timeout,
            report=self._fault,
            seals=self.seals,
            user_seed=self._user_seed,
        )
        try:
            await session.open()
            try:
                await self._serve(session)
            finally:
                self._session = None
                if not self._closing:
                    self._fault("the connection was lost")
                await session.close()
        except _LOST as error:
            # What was reported on the side says more than the broken connection.
            raise FederationError(session.complaint or str(error) or type(error).__name__) from error

    def _note_outage(self, reason: str) -> None:
        """Note why the bus is away; log it once until it is back."""
        if self._closing:
            return
        log.log(
            logging.DEBUG if self._away or self.quiet else logging.WARNING,
            "the bus does not answer, going on without it and trying again: %s",
            reason,
        )
        self._away, self.last_error = True, reason

    def _fault(self, reason: str) -> None:
        self.faults += 1
        self.last_fault = reason

    async def _serve(self, session: NatsSession) -> None:
        self._offset = session.offset
        self.sessions += 1
        self._away, self.last_error = False, ""
        log.log(
            logging.DEBUG if self.quiet else logging.INFO,
            "%s the bus at %s, group %s, %s",
            "back on" if self.sessions > 1 else "on",
            ",".join(self.address.servers),
            self.address.group,
            "signed" if self.signed else "unsigned: whoever is on it can speak for anyone",
        )
        with self._lock:
            # The bus may have lost what it held; sending it again harms no one.
            self._outbox = {**self._newest, **self._outbox}
        resync = time.monotonic() + RESYNC_SECONDS
        while session.alive and not self._closing:
            self._wake.clear()
            await self._update_subscriptions(session)
            self._session = session
            await self._send(session)
            if time.monotonic() > resync:
                resync = time.monotonic() + RESYNC_SECONDS
                for subscription in list(session.subscriptions):
                    await session.read_store(subscription)
            try:
                await asyncio.wait_for(self._wake.wait(), 0.5)
            except TimeoutError:
                continue
        if self._closing:
            await self._send(session)

    async def _update_subscriptions(self, session: NatsSession) -> None:
        with self._lock:
            wanted = list(self._subscriptions)
        for subscription in wanted:
            if subscription not in session.subscriptions:
                await session.subscribe(subscription)
        for subscription in session.subscriptions.keys() - set(wanted):
            await session.unsubscribe(subscription)

    async def _send(self, session: NatsSession) -> None:
        while True:
            with self._lock:
                batch = list(self._outbox.items())[:PUTS_AT_ONCE]
            if not batch:
                return
            taken = await asyncio.gather(*(session.put(*place, value) for place, value in batch))
            with self._lock:
                for (place, value), arrived in zip(batch, taken, strict=True):
                    self.refused += not arrived
                    if self._outbox.get(place) is value:
                        del self._outbox[place]
                    if not arrived and self._newest.get(place) is value:
                        del self._newest[place]


def _signing(address: Address, identity: Path | None) -> tuple[Seals | None, str]:
    """Return the seals of a link, and the seed of the key by which the bus may know it."""
    seals, known = None, address.user is None and address.credentials is None
    path = Path(address.sign) if address.sign else identity
    own: Identity | None = None
    if address.keys is not None:
        ring = KeyRing(Path(address.keys), address.tree)
        if identity is not None and path is not None:
            own = Identity.open(path, registered=ring.registered)
        seals = Seals(address.group, ring, own)
    if own is None and address.sign:
        own = read_identity(Path(address.sign))
    return seals, own.user_seed if own is not None and known else ""


def _unchecked(entry: Entry) -> Entry:
    return entry._replace(value=unsealed(entry.value))


def _wait(condition: Callable[[], bool], seconds: float) -> bool:
    limit = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > limit:
            return False
        time.sleep(0.005)
    return True
