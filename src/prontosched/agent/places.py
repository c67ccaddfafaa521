"""Who has which place in a crowd: newcomers, nodes that come back, and nodes that left.

Covers: the order of names alone. Moving what is known of them is `prontosched.agent.crowd`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

MOST_NODES = 16_384
"""Nodes one agent watches; more are left out."""
SPARE_SHARE = 0.25


class Arrangement(NamedTuple):
    """Names by place.

    Attributes
    ----------
    names
        First those that have been seen, then those that are waited for.
    listed
        How many have been seen.
    size
        Places there are, taken or free.
    left_out
        Newcomers that found no place.
    """

    names: list[str]
    listed: int
    size: int
    left_out: int = 0


def welcome(
    held: Arrangement, new: Sequence[str], gone: Sequence[int] = (), *, most: int = MOST_NODES
) -> Arrangement:
    """Return where everyone goes when nodes come that are not listed yet.

    A node that is listed keeps its place. Newcomers take free places first, then those of
    nodes that are gone, and only then are there more places: a quarter more than are needed,
    but none to spare at the beginning, for most crowds never grow.

    Parameters
    ----------
    new
        Names that are not listed, each once.
    gone
        Places to give away, in this order.

    Examples
    --------
    >>> welcome(Arrangement(["a", "b"], 2, 2), ["c"], [0])
    Arrangement(names=['c', 'b'], listed=2, size=2, left_out=0)
    >>> welcome(Arrangement(["a", "b"], 1, 3), ["c", "b"])
    Arrangement(names=['a', 'c', 'b'], listed=3, size=3, left_out=0)
    """
    waiting = set(held.names[held.listed :])
    strangers = [name for name in new if name not in waiting]
    given = list(gone[: max(0, len(strangers) - (held.size - len(held.names)))])
    staying = len(held.names) - len(given)
    size, needed = held.size, staying + len(strangers)
    if needed > size:
        size = min(most, int(needed * (1.0 + SPARE_SHARE)) + 1 if held.size else needed)
    left_out = max(0, needed - size)
    coming = strangers[: len(strangers) - left_out]
    names = held.names[: held.listed]
    direct = coming[: sum(place < held.listed for place in given)]
    for place, name in zip((place for place in given if place < held.listed), direct, strict=True):
        names[place] = name
    welcomed, placed = {*waiting, *coming}, set(direct)
    arriving = [name for name in new if name in welcomed and name not in placed]
    dropped = {*arriving, *(held.names[place] for place in given)}
    listed = len(names) + len(arriving)
    rest = [name for name in held.names[held.listed :] if name not in dropped]
    return Arrangement([*names, *arriving, *rest], listed, size, left_out)


def without(held: Arrangement, gone: Sequence[int]) -> Arrangement:
    """Return the places without those of `gone`, and no more than are taken.

    Examples
    --------
    >>> without(Arrangement(["a", "b", "c"], 2, 8), [0])
    Arrangement(names=['b', 'c'], listed=1, size=2, left_out=0)
    """
    left = set(gone)
    names = [name for place, name in enumerate(held.names) if place not in left]
    listed = held.listed - sum(place < held.listed for place in left)
    return Arrangement(names, listed, max(1, len(names)))
