"""One node, several, or a crowd: whatever the source turns out to feed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prontosched.agent.crowd import Crowd
from prontosched.agent.crowd_state import SavedNodes
from prontosched.agent.nodes import OneNode
from prontosched.agent.several import MOST, SeveralNodes
from prontosched.telemetry.source import Sample


class Watched:
    """The nodes behind an agent, in the form that their number asks for.

    Begins as one node and changes form when samples of more come. Whoever was there before
    goes on with all that it knows, among several and in a crowd.

    Parameters
    ----------
    one, crowd
        Make one node by its name, and a crowd.
    name
        What the agent is called before its first sample.

    Attributes
    ----------
    form
        The nodes as they are held now.
    message
        What was found in saved state, for people.
    """

    def __init__(
        self,
        one: Callable[[str], OneNode],
        crowd: Callable[[SavedNodes | None, Mapping[str, OneNode]], Crowd],
        *,
        name: str,
    ) -> None:
        self._one = one
        self._crowd = crowd
        self._name = name
        self.form: OneNode | SeveralNodes | Crowd = one(name)
        self.message = ""
        self._saved: SavedNodes | None = None
        self._return = False

    def step(self, samples: Sequence[Sample], now: float) -> None:
        """Carry samples to decisions, changing form first if need be."""
        if isinstance(self.form, Crowd):
            self.form.step(samples, now)
            return
        names = {*self.form.names, *(sample.node for sample in samples)}
        if len(names) > MOST or (self._return and self._back(names)):
            saved, self._saved = self._saved, None
            before = self.form
            self.form = self._crowd(saved, before.members)
            self.form.tally = before.tally
        elif len(names) > 1 and isinstance(self.form, OneNode):
            alone, self.form = self.form, SeveralNodes(self._one, name=self._name)
            if alone.names:
                self.form.tally = alone.tally
                self.form.add(alone.names[0], alone)
        self.form.step(samples, now)

    def expect(self, saved: SavedNodes, *, at_once: bool) -> None:
        """Take up nodes of a crowd once many come, or at once when half of those come back."""
        self._saved, self._return = saved, at_once

    def _back(self, names: set[str]) -> bool:
        self._return = False
        return self._saved is not None and 2 * len(names & self._saved.absent.keys()) >= len(
            self._saved.absent
        )

    def restore(self, fields: Mapping[str, Any]) -> str:
        """Go on from saved state in the form it was saved in; `StateError` where it cannot be used."""
        if fields.get("form") == "several":
            several = SeveralNodes(self._one, name=self._name)
            found = several.restore(fields)
            self.form = several
            return found
        one = self._one(self._name)
        found = one.restore(fields)
        self.form = one
        return found
