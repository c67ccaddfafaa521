"""Two agents under one name, told from one that was started again.

Each start of an agent takes a larger incarnation than any before it, so whoever started
last is heard and the other is not. After a restart the former incarnation is silent for
ever; one that goes on saying new things is another agent: a cloned machine, or a copied
configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

# Names that are told at most; when they have been dealt with, others follow.
MAX_CLASHES = 32
# New words of the older one that make a clash: the first may have been on its way when it ended.
AGAIN = 2
SHOWN = 5
# Incarnations of one name that are told apart.
MAX_FORMER = 16

Version = tuple[int, int]


@dataclass(slots=True)
class _Former:
    """Older incarnations of a name with the last sequence heard of each, and how often they spoke since."""

    sequences: dict[int, int] = field(default_factory=dict)
    times: int = 0
    when: float = 0.0

    def note(self, version: Version) -> bool:
        """Take note of a summary; True when it is something new of someone known."""
        incarnation, sequence = version
        last = self.sequences.get(incarnation)
        if last is not None and sequence <= last:
            return False
        # In the order in which they spoke, so that those who fell silent go first.
        self.sequences.pop(incarnation, None)
        self.sequences[incarnation] = sequence
        while len(self.sequences) > MAX_FORMER:
            del self.sequences[next(iter(self.sequences))]
        return last is not None


class Clashes:
    """Notice names under which more than one agent speaks.

    Parameters
    ----------
    seconds
        Silence of the older one after which there is no clash any more.

    Notes
    -----
    Memory: a few dozen numbers for each name that was heard in two incarnations.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._former: dict[str, _Former] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names, sorted."""
        return tuple(sorted(name for name, former in self._former.items() if former.times >= AGAIN))

    def replaced(self, name: str, version: Version) -> None:
        """Take note that a newer incarnation speaks; `version` is the last of the one before."""
        self._former.setdefault(name, _Former()).note(version)

    def heard(self, name: str, version: Version, now: float) -> bool:
        """Take note that an older incarnation spoke; True when that makes a clash."""
        former = self._former.setdefault(name, _Former())
        if not former.note(version):
            # A duplicate, a replay, or the first that is heard of it.
            return False
        former.when = now
        former.times += 1
        return former.times == AGAIN

    def lapse(self, now: float) -> bool:
        """Forget clashes in which the older one fell silent; True when there were any."""
        over = [f for f in self._former.values() if f.times and now - f.when > self.seconds]
        ended = any(former.times >= AGAIN for former in over)
        for former in over:
            former.times = 0
        return ended

    def forget(self, name: str) -> None:
        """Forget a name that is gone."""
        self._former.pop(name, None)


def clashing(names: Sequence[str]) -> str:
    """Say that some names are not the name of one agent, and what to do.

    Examples
    --------
    >>> clashing(["rack/n1"])
    'more than one agent runs as rack/n1 and each hides the other: give every agent a --name of its own'
    """
    shown = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
    return (
        f"more than one agent runs as {shown} and each hides the other: give every agent a --name of its own"
    )
