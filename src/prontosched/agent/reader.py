"""Read a source in a thread beside the loop, so that one that hangs cannot hang the loop."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from prontosched.telemetry.source import Sample, Source


def unanswered(source: Source) -> Mapping[str, str]:
    """Return why nodes gave nothing at the last reading, by name; sources that know have a method for it."""
    ask: Callable[[], Mapping[str, str]] | None = getattr(source, "unanswered", None)
    return {} if ask is None else ask()


class Reader:
    """Ask a source once per tick and wait for it no longer than `timeout` seconds.

    A read that takes longer goes on in its thread; the ticks meanwhile get None,
    and the first tick after it returned gets what it read. At no time are two
    reads under way.

    Parameters
    ----------
    source
        Asked from one thread only, and closed there.
    timeout
        Seconds a tick waits.

    Attributes
    ----------
    hanging
        Ticks in a row that got nothing because a read was still under way.
    last_seconds
        How long the last finished read took, for the loop's health.
    """

    def __init__(
        self, source: Source, *, timeout: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.source = source
        self.timeout = timeout
        self.hanging = 0
        self.last_seconds = 0.0
        self._clock = clock
        self._thread = Background("pronto-source")
        self._pending: asyncio.Future[list[Sample]] | None = None

    async def read(self) -> list[Sample] | None:
        """Return the samples of this tick, or None while the source has not answered.

        Raises
        ------
        EOFError
            When a trace has ended; and whatever else the source raises.
        """
        if self._pending is None:
            self._pending = self._thread.submit(self._timed_read)
        done, _ = await asyncio.wait((self._pending,), timeout=self.timeout)
        if not done:
            self.hanging += 1
            return None
        finished, self._pending = self._pending, None
        self.hanging = 0
        return finished.result()

    async def close(self) -> None:
        """Close the source in its thread; one that still hangs is left behind."""
        if self._pending is not None:
            self._pending.add_done_callback(_retrieve)
        closing = self._thread.submit(self.source.close)
        done, _ = await asyncio.wait((closing,), timeout=min(self.timeout, 2.0))
        if done:
            self._thread.stop(1.0)
            closing.result()
        else:
            closing.add_done_callback(_retrieve)

    def _timed_read(self) -> list[Sample]:
        begin = self._clock()
        samples = self.source.read()
        self.last_seconds = self._clock() - begin
        return samples


def _retrieve(future: asyncio.Future[Any]) -> None:
    # An exception nobody asked for any more would be reported when it is collected.
    if not future.cancelled():
        future.exception()


Result = TypeVar("Result")


class Background:
    """Do what is handed in, one thing after the other, on one thread of its own.

    The thread is a daemon: a call that never returns (a dead disk, a source that
    hangs) cannot keep the process from ending, as a thread pool would.

    Parameters
    ----------
    name
        Name of the thread, as tools show it.
    """

    def __init__(self, name: str) -> None:
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], _Reply] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], Result]) -> asyncio.Future[Result]:
        """Queue `work` and return the future of its result, on the running event loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        self._work.put((work, _Reply(loop, future)))
        return future

    def stop(self, timeout: float) -> bool:
        """Let what is queued finish; return whether the thread ended within `timeout` seconds."""
        self._work.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (entry := self._work.get()) is not None:
            work, reply = entry
            try:
                result = work()
            except BaseException as error:  # handed over to whoever waits
                reply.give(None, error)
            else:
                reply.give(result, None)
            del work, reply, entry


class _Reply:
    def __init__(self, loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any]) -> None:
        self._loop = loop
        self._future = future

    def give(self, result: Any, error: BaseException | None) -> None:
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._settle, result, error)

    def _settle(self, result: Any, error: BaseException | None) -> None:
        if self._future.done():
            return
        if error is None:
            self._future.set_result(result)
        elif isinstance(error, StopIteration):
            # A future refuses StopIteration: it would end the coroutine that awaits it.
            self._future.set_exception(RuntimeError(f"unexpected end of iteration: {error!r}"))
        else:
            self._future.set_exception(error)
