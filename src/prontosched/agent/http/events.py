"""Each timestep as an event, for those who watch live: encoded once, and handed to all."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Mapping
from typing import Any

REMEMBERED = 600
WAITING = 16
MAX_WATCHERS = 64
MAPS = ("state_map", "ready_map")
JSON = json.JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False)


class Events:
    """Hand every event to all who watch, as JSON, and remember the last `REMEMBERED`.

    One who watches too slowly loses the oldest events, never anyone's time. Maps of all
    nodes are remembered of the newest event only: a thousand numbers each would add up.
    """

    def __init__(self) -> None:
        self.dropped = 0
        # The newest event apart, whole and without its maps, as it will be remembered.
        self._past: deque[bytes] = deque(maxlen=REMEMBERED - 1)
        self._newest = self._small = b""
        self._watchers: set[asyncio.Queue[bytes | None]] = set()

    @property
    def watchers(self) -> int:
        """How many watch now."""
        return len(self._watchers)

    def recent(self, limit: int = REMEMBERED) -> list[bytes]:
        """Return the last events, oldest first."""
        return [*self._past, self._newest][-limit:] if self._newest else []

    def watch(self) -> asyncio.Queue[bytes | None]:
        """Return a queue of the events to come; None in it means that there will be no more.

        `OverflowError` where `MAX_WATCHERS` watch already.
        """
        if len(self._watchers) >= MAX_WATCHERS:
            raise OverflowError(f"at most {MAX_WATCHERS} may watch at once: close another page first")
        watcher: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=WAITING)
        self._watchers.add(watcher)
        return watcher

    def leave(self, watcher: asyncio.Queue[bytes | None]) -> None:
        """Hand no more events to `watcher`."""
        self._watchers.discard(watcher)

    def publish(self, event: Mapping[str, Any]) -> None:
        """Hand one event to all who watch."""
        if self._newest:
            self._past.append(self._small)
        self._newest = self._small = JSON.encode(event).encode()
        if MAPS[0] in event:
            self._small = JSON.encode({k: v for k, v in event.items() if k not in MAPS}).encode()
        for watcher in self._watchers:
            self._put(watcher, self._newest)

    def close(self) -> None:
        """Tell all who watch that there will be no more."""
        for watcher in self._watchers:
            self._put(watcher, None)

    def _put(self, watcher: asyncio.Queue[bytes | None], event: bytes | None) -> None:
        if watcher.full():
            watcher.get_nowait()
            self.dropped += 1
        watcher.put_nowait(event)
