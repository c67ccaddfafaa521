"""How many nodes the federation has now, as the root counts them.

Covers: the small message by which the root tells it, and the number for those who
need it, above all the capacity floor (`prontosched.federation.leases`).
"""

from __future__ import annotations

from prontosched.codec import encode
from prontosched.errors import FederationError
from prontosched.federation.arrival import decoded, whole
from prontosched.federation.link import VIEWS, Link

CENSUS_KEY = "census"
_LIMIT = 1024


def census_to_bytes(nodes: int) -> bytes:
    """Return the message."""
    return encode("census", 1, {"nodes": nodes})


class Census:
    """The number of nodes, heard from the root.

    Parameters
    ----------
    fallback
        What to answer while the root has not been heard.

    Examples
    --------
    >>> from prontosched.federation.link import Board, LocalLink
    >>> link = LocalLink(Board())
    >>> census = Census(link, fallback=1)
    >>> link.put("views", "census", census_to_bytes(40))
    >>> census()
    40
    """

    def __init__(self, link: Link, *, fallback: int = 1) -> None:
        self.nodes = fallback
        self.rejected = 0
        self._feed = link.subscribe(VIEWS, CENSUS_KEY)

    def __call__(self) -> int:
        """Return the number of nodes, never waiting."""
        for entry in self._feed.drain():
            try:
                self.nodes = max(1, whole(decoded(entry.value, "census", 1, _LIMIT), "nodes"))
            except FederationError:
                self.rejected += 1
        return self.nodes
