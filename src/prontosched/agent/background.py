"""One thread beside the event loop for work that may block: reading a source, writing a disk."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

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
