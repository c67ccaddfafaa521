"""The link over NATS: one background thread that reconnects for as long as it takes.

Nothing waits for the bus, except `get` and `compare_and_set`, which give up after the timeout.
While the bus is away the newest value of every key is kept, and sent when it is back. Needs the
extra `agent`.
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
from prontosched.federation.address import Address
from prontosched.federation.link import Entry, LinkDownError, Subscription
from prontosched.federation.nats_session import LOST, PUTS_AT_ONCE, NatsSession
from prontosched.federation.signing import Identity, KeyRing, Seals, read_identity, unsealed
from prontosched.federation.tree import MAX_NODES

log = logging.getLogger(__name__)

Result = TypeVar("Result")

FIRST_WAIT_SECONDS = 0.1
LONGEST_WAIT_SECONDS = 5.0
RESYNC_SECONDS = 30.0
# Clocks that differ by less are taken for the same: a network is not faster.
CLOCK_SECONDS = 1.0


class NatsLink:
    """A link over NATS with JetStream.

    `name` is shown in the bus's own reports. `timeout` bounds any one answer, in seconds. A `quiet`
    link leaves it to the caller to say that the bus went or came. `identity` is the file with the
    private key, where the address has `keys` and no `sign`; it is made if it is missing, and None is
    for a link that only reads.

    `sessions` counts connections, `refused` values that the bus will never take (too long, or not
    allowed), and `faults` what the bus reported and connections that were lost. A bus that cannot be
    reached is no fault: `connected` tells it. Memory: the newest value of each key that was put and
    not withdrawn, and what its subscriptions hold.
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
        self.sessions = self.refused = self.faults = 0
        self.last_fault = self.last_error = ""
        self.stepped = 0.0
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

    def forget(self, topic: str, key: str) -> None:
        """Keep the value of a key no longer: when the bus comes back it is not sent again."""
        with self._lock:
            self._outbox.pop((topic, key), None)
            self._newest.pop((topic, key), None)

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
        except (*LOST, concurrent.futures.TimeoutError, concurrent.futures.CancelledError) as error:
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
            # The client library may leave tasks behind.
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
        except LOST as error:
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
        self._set_clock(session.offset)
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
                # Either clock may have been set, or this machine may have slept.
                await session.compare_clocks()
                self._set_clock(session.offset)
            try:
                await asyncio.wait_for(self._wake.wait(), 0.5)
            except TimeoutError:
                continue
        if self._closing:
            await self._send(session)

    def _set_clock(self, offset: float) -> None:
        """Follow the clock of the bus; what lies within the time that messages take is no step."""
        if abs(offset - self._offset) > CLOCK_SECONDS or not self.sessions:
            self.stepped += offset - self._offset if self.sessions else 0.0
            self._offset = offset

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
                    # Names that come and go would add up.
                    if (not arrived or not value) and self._newest.get(place) is value:
                        del self._newest[place]


def _signing(address: Address, identity: Path | None) -> tuple[Seals | None, str]:
    """Return the seals of a link, and the seed of the key by which the bus may know it."""
    seals, known = None, address.user is None and address.creds is None
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
