"""LSF: a node's chance of contention as external load indices, printed by an `elim`.

LSF itself compares hosts by an index (`order[]`) and closes them for a queue by a threshold
(`loadSched`), so nothing is written anywhere and nothing has to be undone: an elim that ends
takes its indices with it. Configuration is in `deploy/lsf`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping

from prontosched.gates.preference import level_of

CONTENTION, LEVEL = "pronto_contention", "pronto_level"
INDICES = (CONTENTION, LEVEL)
# LSF gives the exit code that means "not on this host"; this is what it has always been.
ABORT = 97
# Nothing is known of the node: neither calm nor contended.
UNKNOWN_PERCENT, UNKNOWN_LEVEL = 50, 2


def load_update(chance: float | None, previous: int | None = None) -> tuple[str, int | None]:
    """Return one load update string, and the level so far for the next one.

    It is the number of indices, then their names and values. The chance is None while nothing
    is known of the node.

    Examples
    --------
    >>> load_update(0.62)
    ('2 pronto_contention 62 pronto_level 3\\n', 3)
    >>> load_update(None)
    ('2 pronto_contention 50 pronto_level 2\\n', None)
    """
    if chance is None or math.isnan(chance):
        percent, level, kept = UNKNOWN_PERCENT, UNKNOWN_LEVEL, None
    else:
        percent = round(100.0 * min(1.0, max(0.0, chance)))
        kept = level = level_of(chance, previous)
    return f"{len(INDICES)} {CONTENTION} {percent} {LEVEL} {level}\n", kept


def wanted(environment: Mapping[str, str] = os.environ) -> bool:
    """Tell whether LSF expects any of our indices from this host; True where it does not say.

    Examples
    --------
    >>> wanted({"LSF_RESOURCES": "scratch pronto_contention"}), wanted({"LSF_RESOURCES": "scratch"})
    (True, False)
    """
    named = environment.get("LSF_RESOURCES")
    return named is None or not named.split() or bool(set(INDICES) & set(named.split()))


def report(chances: Iterable[float | None], write: Callable[[bytes], int], wait: Callable[[], bool]) -> None:
    """Print one update for each chance until `wait` returns True.

    `write` returns how many bytes LSF took; an error ends the elim, as LSF asks.
    """
    level: int | None = None
    for chance in chances:
        text, level = load_update(chance, level)
        line = text.encode("ascii")
        # In one piece: LSF starts an elim anew that leaves a string unfinished.
        if write(line) != len(line):
            raise OSError(f"a load update must be written whole, got fewer than {len(line)} bytes taken")
        if wait():
            return
