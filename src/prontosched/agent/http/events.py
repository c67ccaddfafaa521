"""Each timestep as an event, for those who watch live."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any

REMEMBERED = 600
WAITING = 16
MAX_WATCHERS = 64
MAPS = ("state_map", "ready_map")


class Events:
    """Hand every event to all who watch, and remember the last `REMEMBERED`.

    One who watches too slowly loses the oldest events, never anyone's time. Maps of all
    nodes are remembered of the newest event only: a thousand numbers each would add up.
    """

    def __init__(self) -> None:
        self.recent: deque[Mapping[str, Any]] = deque(maxlen=REMEMBERED)
        self.dropped = 0
        self._watchers: set[asyncio.Queue[Mapping[str, Any] | None]] = set()

    @property
    def watchers(self) -> int:
        """How many watch now."""
        return len(self._watchers)

    def watch(self) -> asyncio.Queue[Mapping[str, Any] | None]:
        """Return a queue of the events to come; None in it means that there will be no more.

        `OverflowError` where `MAX_WATCHERS` watch already.
        """
        if len(self._watchers) >= MAX_WATCHERS:
            raise OverflowError(f"at most {MAX_WATCHERS} may watch at once: close another page first")
        watcher: asyncio.Queue[Mapping[str, Any] | None] = asyncio.Queue(maxsize=WAITING)
        self._watchers.add(watcher)
        return watcher

    def leave(self, watcher: asyncio.Queue[Mapping[str, Any] | None]) -> None:
        """Hand no more events to `watcher`."""
        self._watchers.discard(watcher)

    def publish(self, event: Mapping[str, Any]) -> None:
        """Hand one event to all who watch."""
        if self.recent and "ready_map" in self.recent[-1]:
            self.recent[-1] = {key: value for key, value in self.recent[-1].items() if key not in MAPS}
        self.recent.append(event)
        for watcher in self._watchers:
            self._put(watcher, event)

    def close(self) -> None:
        """Tell all who watch that there will be no more."""
        for watcher in self._watchers:
            self._put(watcher, None)

    def _put(self, watcher: asyncio.Queue[Mapping[str, Any] | None], event: Mapping[str, Any] | None) -> None:
        if watcher.full():
            watcher.get_nowait()
            self.dropped += 1
        watcher.put_nowait(event)
