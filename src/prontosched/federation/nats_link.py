"""The link over NATS: one background thread, reconnecting for as long as it takes.

Covers: what other threads call. Nothing here waits for the bus, except `get` and
`compare_and_set`, which give up after the timeout. While the bus is away the newest
value of every key is kept and sent when it is back. The connection itself is
`prontosched.federation.nats_session`. Needs the extra `agent`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import logging
import random
import re
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from prontosched.errors import FederationError
from prontosched.extras import missing_extra
from prontosched.federation.address import Address
from prontosched.federation.feed import Entry, Feed
from prontosched.federation.link import LinkDownError
from prontosched.federation.nats_options import client_options

try:
    from prontosched.federation.nats_session import Session
except ModuleNotFoundError as error:
    raise FederationError(missing_extra("a bus", "agent")) from error

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

FIRST_WAIT_SECONDS = 0.1
LONGEST_WAIT_SECONDS = 5.0
RESYNC_SECONDS = 30.0
PUTS_AT_ONCE = 64


class NatsLink:
    """A link over NATS with JetStream.

    Parameters
    ----------
    address
        Where the bus is and who we are there; see `prontosched.federation.address`.
    group
        Overrides the group of the address.
    name
        Who connects: shown in the bus's own reports, and unlike any other's.
    timeout
        Seconds to wait for any one answer.
    quiet
        Leave it to the caller to say that the bus went or came.

    Notes
    -----
    Memory: the newest value of each key that was put, and what its feeds hold.
    """

    def __init__(
        self,
        address: str | Address,
        *,
        group: str | None = None,
        name: str = "member",
        timeout: float = 2.0,
        quiet: bool = False,
    ) -> None:
        place = Address.parse(address) if isinstance(address, str) else address
        self.address = place if group is None else dataclasses.replace(place, group=group)
        self.group = self.address.group
        self.name_key = self.address.name_key()
        self.rule = self.address.rule
        self.timeout = timeout
        self.quiet = quiet
        self.sessions = 0
        self.last_error = ""
        self._told_away = False
        self.refused = 0
        self._options = client_options(self.address)
        self._name = re.sub(r"[^A-Za-z0-9_-]", "-", name)[:60] or "member"
        self._offset = time.time() - time.monotonic()
        self._outbox: dict[tuple[str, str], bytes] = {}
        self._newest: dict[tuple[str, str], bytes] = {}
        self._feeds: list[Feed] = []
        self._lock = threading.Lock()
        self._closing = False
        self._session: Session | None = None
        self._loop = asyncio.new_event_loop()
        self._wake = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=f"nats {self._name}", daemon=True)
        self._thread.start()

    @property
    def connected(self) -> bool:
        """True while the bus answers."""
        return self._session is not None

    def now(self) -> float:
        """Return the time by the clock of the bus; by this machine's until it was first heard."""
        return time.monotonic() + self._offset

    def put(self, topic: str, key: str, value: bytes) -> None:
        """Hand over a value; it is sent at once, or when the bus is back."""
        with self._lock:
            self._outbox[topic, key] = self._newest[topic, key] = value
        self._nudge()

    def get(self, topic: str, key: str) -> Entry | None:
        """Return the newest value of `key`, or None."""
        return self._ask(lambda session: session.get(topic, key))

    def compare_and_set(self, topic: str, key: str, value: bytes, *, revision: int) -> int | None:
        """Replace the value of `revision`; None if someone else was faster."""
        return self._ask(lambda session: session.compare_and_set(topic, key, value, revision))

    def subscribe(self, topic: str, pattern: str) -> Feed:
        """Return a feed; it is ready once the bus has answered."""
        feed = Feed(topic, pattern)
        with self._lock:
            self._feeds.append(feed)
        self._nudge()
        return feed

    def unsubscribe(self, feed: Feed) -> None:
        """Stop a feed."""
        with self._lock:
            if feed in self._feeds:
                self._feeds.remove(feed)
        self._nudge()

    def wait_until_connected(self, seconds: float) -> bool:
        """Wait for the bus, for tools that can do nothing without it."""
        limit = time.monotonic() + seconds
        while not self.connected and time.monotonic() < limit:
            time.sleep(0.02)
        return self.connected

    def flush(self, seconds: float = 5.0) -> bool:
        """Wait until all that was put has arrived; False when it did not in time."""
        limit = time.monotonic() + seconds
        while time.monotonic() < limit:
            with self._lock:
                empty = not self._outbox
            if empty and self.connected:
                return True
            time.sleep(0.005)
        return False

    def close(self) -> None:
        """Disconnect and end the thread; what could not be sent is dropped."""
        if self._closing:
            return
        self._closing = True
        self._nudge()
        self._thread.join(timeout=self.timeout + 3.0)

    def _ask(self, question: Callable[[Session], Coroutine[Any, Any, Answer]]) -> Answer:
        session = self._session
        if session is None or self._closing:
            raise LinkDownError(
                f"the bus must be connected, got no connection: {self.last_error or 'not yet up'}"
            )
        future = asyncio.run_coroutine_threadsafe(question(session), self._loop)
        try:
            return future.result(timeout=self.timeout + 1.0)
        except (*Session.LOST, concurrent.futures.TimeoutError, concurrent.futures.CancelledError) as error:
            future.cancel()
            raise LinkDownError(f"the bus must answer within {self.timeout} s, got {error!r}") from error

    def _nudge(self) -> None:
        if not self._loop.is_closed():
            try:
                self._loop.call_soon_threadsafe(self._wake.set)
            except RuntimeError:
                log.debug("the link closed while it was nudged")

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
            session = Session(self._options, group=self.group, name=self._name, timeout=self.timeout)
            started = time.monotonic()
            try:
                await session.open()
                try:
                    await self._serve(session)
                finally:
                    self._session = None
                    await session.close()
            except (*Session.LOST, FederationError) as error:
                self._lose(session, error)
            except Exception as error:
                # Credentials that cannot be read, say. Trying goes on: the file may be mended.
                self._lose(session, error)
                log.debug("the bus cannot be joined", exc_info=error)
            if self._closing:
                break
            if time.monotonic() - started > LONGEST_WAIT_SECONDS:
                wait = FIRST_WAIT_SECONDS
            # Jitter: a fleet that lost one bus must not come back in one moment.
            await self._rest(wait * random.uniform(0.5, 1.5))
            wait = min(2.0 * wait, LONGEST_WAIT_SECONDS)

    def _lose(self, session: Session, error: Exception) -> None:
        """Note why the bus is away, and say so once until it is back."""
        self.last_error = (
            str(error) if isinstance(error, FederationError) else f"{error}".removeprefix("nats: ")
        )
        if session.complaint and not isinstance(error, FederationError):
            self.last_error = session.complaint.removeprefix("nats: ").strip("'")
        self.last_error = self.last_error or type(error).__name__
        log.log(
            logging.DEBUG if self._told_away or self._closing or self.quiet else logging.WARNING,
            "the bus does not answer, going on without it and trying again: %s",
            self.last_error,
        )
        self._told_away = True

    async def _rest(self, seconds: float) -> None:
        limit = time.monotonic() + seconds
        while not self._closing and (left := limit - time.monotonic()) > 0:
            await asyncio.sleep(min(0.1, left))

    async def _serve(self, session: Session) -> None:
        self._offset = session.offset
        self.sessions += 1
        log.log(
            logging.DEBUG if self.quiet else logging.INFO,
            "%s the bus at %s, group %s",
            "back on" if self.sessions > 1 else "on",
            ",".join(self.address.servers),
            self.group,
        )
        self._told_away, self.last_error = False, ""
        with self._lock:
            # The bus may have lost what it held; sending it again harms no one.
            self._outbox = {**self._newest, **self._outbox}
        resync = time.monotonic() + RESYNC_SECONDS
        while session.alive and not self._closing:
            self._wake.clear()
            await self._tend_feeds(session)
            self._session = session
            await self._send(session)
            if time.monotonic() > resync:
                resync = time.monotonic() + RESYNC_SECONDS
                for feed in list(session.opened):
                    await session.read_store(feed)
            try:
                await asyncio.wait_for(self._wake.wait(), 0.5)
            except TimeoutError:
                continue
        if self._closing:
            await self._send(session)

    async def _tend_feeds(self, session: Session) -> None:
        with self._lock:
            wanted = list(self._feeds)
        for feed in wanted:
            if feed not in session.opened:
                await session.listen(feed)
        for feed in [f for f in session.opened if f not in wanted]:
            await session.unlisten(feed)

    async def _send(self, session: Session) -> None:
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
