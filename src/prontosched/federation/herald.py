"""How a node tells everyone its decision: when it changes, and before it expires."""

from __future__ import annotations

from collections.abc import Callable

from prontosched.decision import Decision
from prontosched.federation.link import DECISIONS, Link
from prontosched.federation.message import DecisionMessage
from prontosched.federation.tree import place


class Herald:
    """Publish the decisions of one node.

    Parameters
    ----------
    name
        The node's place in the tree.
    seconds
        How long a decision holds without being renewed.
    """

    def __init__(self, link: Link, name: str, *, seconds: float = 60.0) -> None:
        self.link = link
        self.name = name
        self.seconds = seconds
        self._key = place(name)
        self._said: tuple[bool | None, float] = (None, 0.0)

    def due(self, accept: bool, now: float) -> bool:
        """Tell whether a decision is worth saying: it is new, or a third of its life has passed."""
        accepted, when = self._said
        return accept != accepted or now - when >= self.seconds / 3.0

    def say(self, accept: bool, decision: Callable[[], Decision]) -> bool:
        """Publish a decision if that is due; `decision` is asked only then."""
        now = self.link.now()
        if not self.due(accept, now):
            return False
        found = decision()
        message = DecisionMessage(
            self.name,
            accept,
            float(found.score),
            found.reason,
            issued=now,
            valid_until=now + self.seconds,
            threshold=float(found.threshold),
            probability=float(found.probability),
        )
        self.link.put(DECISIONS, self._key, message.to_bytes())
        self._said = (accept, now)
        return True

    def take_back(self) -> None:
        """Let the decision go before it expires."""
        self.link.put(DECISIONS, self._key, b"")
