"""The federation as a page shows it: one bounded answer, kept up to date beside the loop.

Covers: watching the bus in a thread while someone looks, and the answer of
`/v1/federation`. An agent that nobody asks reads nothing but its own view.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from prontosched.agent.record import plain
from prontosched.errors import FederationError
from prontosched.federation.clash import clashing
from prontosched.federation.link import Link
from prontosched.federation.lookout import Lookout
from prontosched.federation.overview import Overview, misplaced
from prontosched.federation.tree import Tree

LOG = logging.getLogger("prontosched.agent")
MAX_GROUPS = 256
MAX_MEMBERS = 100
REFRESH_SECONDS = 2.0
IDLE_SECONDS = 60.0
PATIENCE_SECONDS = 1.5
BREATH_SECONDS = 0.003
ALONE: dict[str, Any] = {
    "joined": False,
    "embedded": False,
    "connected": False,
    "revision": None,
    "view_age_seconds": None,
    "view_nodes": 0,
    "nodes": 0,
    "unreadable": 0,
    "adopted": 0,
    "started": 0,
    "clashes": [],
    "saved": {"messages_sent": 0, "messages_saved": 0, "share_saved": 0.0, "bytes_saved": 0},
    "groups": [],
    "members": [],
    "more": 0,
    "note": "",
}


class TreeView:
    """Watch a federation for as long as someone asks.

    The first question opens a way of its own to the bus; a minute after the last one it
    is closed again. In a fleet of thousands it would cost each agent the traffic of all.

    Parameters
    ----------
    open_link
        Opens a way to the bus that nothing else uses; closed here.
    tree
        Gives the tree as it is now.
    connected
        Tells whether the bus answers this agent.
    embedded
        Whether the federation lives in this process.
    wall
        Seconds since 1970, shown to people.

    Notes
    -----
    Memory: that of a `Lookout` while someone looks.
    """

    def __init__(
        self,
        open_link: Callable[[], Link],
        tree: Callable[[], Tree],
        *,
        connected: Callable[[], bool] = lambda: False,
        embedded: bool,
        refresh_seconds: float = REFRESH_SECONDS,
        idle_seconds: float = IDLE_SECONDS,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._open_link = open_link
        self._tree = tree
        self._connected = connected
        self._embedded = embedded
        self._refresh_seconds = refresh_seconds
        self._idle_seconds = idle_seconds
        self._wall = wall
        self._asked_at = -float("inf")
        self._found: dict[str, Any] | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def ask(self) -> dict[str, Any] | None:
        """Return the newest answer, at most a few seconds old; None until there is one.

        Call it from one thread only.
        """
        self._asked_at = time.monotonic()
        if (self._thread is None or not self._thread.is_alive()) and not self._stop.is_set():
            self._found = None
            self._thread = threading.Thread(target=self._run, name="pronto-federation", daemon=True)
            self._thread.start()
        return self._found

    def close(self) -> None:
        """Stop watching; returns within moments."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(2.0)

    def _run(self) -> None:
        link: Link | None = None
        try:
            link = self._open_link()
            lookout = Lookout(link, tree=self._tree())
            patient = time.monotonic() + PATIENCE_SECONDS
            while self._wanted() and self._tree() == lookout.tree:
                lookout.take(_breathe)
                young = not lookout.ready or lookout.waiting > 0
                if not young or time.monotonic() > patient:
                    self._look(link, lookout)
                self._stop.wait(0.05 if young else self._refresh_seconds)
        except Exception as error:
            # A page without a tree is no reason to stop deciding.
            LOG.warning("cannot watch the federation: %s", error)
            note = str(error) if isinstance(error, FederationError) else type(error).__name__
            self._found = {**ALONE, **self._standing(link), "note": f"cannot watch the federation: {note}"}
            self._stop.wait(self._refresh_seconds)
        finally:
            if link is not None:
                link.close()

    def _wanted(self) -> bool:
        return not self._stop.is_set() and time.monotonic() - self._asked_at < self._idle_seconds

    def _look(self, link: Link, lookout: Lookout) -> None:
        seen = lookout.overview(_breathe)
        note = ""
        if not link.connected and link.last_error:
            note = f"the bus does not answer ({link.last_error}): shown is what was heard last"
        elif not lookout.ready:
            note = "still reading the bus"
        elif seen.denied:
            note = f"the bus lets this agent read only a part: {seen.denied}"
        elif seen.clashes:
            note = clashing(seen.clashes)
        elif seen.misplaced:
            note = misplaced(seen.misplaced)
        self._found = {**answer(seen, lookout.tree), **self._standing(link), "note": note}

    def _standing(self, link: Link | None) -> dict[str, Any]:
        return {
            "joined": True,
            "embedded": self._embedded,
            "connected": self._connected() or (link is not None and link.connected),
            "as_of": plain(self._wall()),
        }


def alone(now: float) -> dict[str, Any]:
    """Return the answer of an agent that is in no federation."""
    return {**ALONE, "as_of": plain(now)}


def answer(seen: Overview, tree: Tree) -> dict[str, Any]:
    """Return an overview as plain values, bounded: groups from the root down, members outliers first."""
    groups = seen.groups(tree)
    members = seen.nodes
    return {
        "revision": seen.revision,
        "view_age_seconds": plain(seen.view_age_seconds),
        "view_nodes": seen.view_nodes,
        "nodes": len(members),
        "unreadable": seen.unreadable,
        "clashes": list(seen.clashes),
        "saved": seen.saved,
        "groups": [
            {
                "name": group.name,
                "parent": group.parent,
                "children": group.children,
                "nodes": group.nodes,
                "samples": plain(group.samples),
                "age_seconds": plain(group.age_seconds),
                "refusing": group.refusing,
            }
            for group in groups[:MAX_GROUPS]
        ],
        "members": [
            {
                "name": row.name,
                "parent": row.parent,
                "samples": plain(row.samples),
                "age_seconds": plain(row.age_seconds),
                "distance": plain(row.distance),
                "accept": row.accept,
                "reason": row.reason,
            }
            for row in members[:MAX_MEMBERS]
        ],
        "more": max(0, len(members) - MAX_MEMBERS),
    }


def _breathe() -> None:
    """Let the loop run: numbers for a page must not make a tick late."""
    time.sleep(BREATH_SECONDS)
