"""Read a source beside the loop, so that one that hangs cannot hang the loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from prontosched.agent.background import Background
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
