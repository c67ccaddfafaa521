"""A thread beside the event loop, for calls that may hang: reading a source, writing to a disk."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


class Background:
    """Do what is handed in, one thing after the other, on one thread of its own.

    The thread is a daemon: a call that never returns (a dead disk, a source that
    hangs) cannot keep the process from ending, as a thread pool would.
    """

    def __init__(self, name: str) -> None:
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], Result]) -> asyncio.Future[Result]:
        """Queue `work` and return the future of its result, on the running event loop."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._work.put((work, future))
        return future

    def stop(self, timeout: float) -> bool:
        """Let what is queued finish; return whether the thread ended within `timeout` seconds."""
        self._work.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (entry := self._work.get()) is not None:
            work, future = entry
            result, error = None, None
            try:
                result = work()
            except BaseException as problem:  # handed over to whoever waits
                error = problem
            with contextlib.suppress(RuntimeError):  # the event loop has closed: nobody waits
                future.get_loop().call_soon_threadsafe(_settle, future, result, error)
            del work, future, entry, result, error


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    elif isinstance(error, StopIteration):
        # A future refuses StopIteration: it would end the coroutine that awaits it.
        future.set_exception(RuntimeError(f"unexpected end of iteration: {error!r}"))
    else:
        future.set_exception(error)
