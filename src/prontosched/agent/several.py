"""A few nodes through one source, each with its own metrics and its own memory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prontosched.agent.answer import Known
from prontosched.agent.nodes import Insight, OneNode, Overview
from prontosched.agent.tally import Tally
from prontosched.errors import StateError
from prontosched.telemetry.source import Sample

LOG = logging.getLogger("prontosched.agent")
MOST = 64
"""Beyond this many, nodes are stepped together as arrays (`prontosched.agent.crowd`)."""


class SeveralNodes:
    """Nodes by name, made when their first sample comes.

    Parameters
    ----------
    make
        Makes one by its name.
    name
        What the agent is called while it knows none.
    """

    def __init__(self, make: Callable[[str], OneNode], *, name: str) -> None:
        self.fallback_name = name
        self.tally = Tally()
        self._make = make
        self._members: dict[str, OneNode] = {}
        self._changed: list[str] = []

    @property
    def names(self) -> list[str]:
        """Names of the nodes that have been seen, in the order they came."""
        return [name for name, member in self._members.items() if member.names]

    @property
    def changed(self) -> list[str]:
        """Names of the nodes whose signal turned at the last timestep."""
        return self._changed

    @property
    def features(self) -> int:
        """Metrics of the node that has most."""
        return max((member.features for member in self._members.values()), default=0)

    def add(self, name: str, member: OneNode) -> None:
        """Take in a node that was alone before."""
        self._members[name] = member
        member.tally = self.tally

    def step(self, samples: Sequence[Sample], now: float) -> None:
        """Carry each sample to its node's decision; one node's trouble is not another's."""
        self._changed = []
        failure: Exception | None = None
        for sample in samples:
            if sample.node not in self._members:
                self.add(sample.node, self._make(sample.node))
            member = self._members[sample.node]
            try:
                member.step((sample,), now)
            except Exception as error:
                failure = error
            self._changed += member.changed
        if failure is not None:
            raise failure

    @property
    def members(self) -> dict[str, OneNode]:
        """All of them by name, restored ones that have not been seen again too."""
        return dict(self._members)

    def member(self, name: str) -> OneNode:
        """Return one of them."""
        return self._members[name]

    def overview(self) -> Overview:
        """Return all nodes at a glance."""
        parts = [self._members[name].overview() for name in self.names]
        return Overview(
            [one for part in parts for one in part.raised],
            [one for part in parts for one in part.contended],
            [one for part in parts for one in part.ready],
        )

    def known(self, name: str, *, words: bool = True) -> Known:
        """Return the newest that is known of a node."""
        if name not in self._members:
            raise KeyError(f"no node {name!r} among {len(self._members)}")
        return self._members[name].known(name)

    def fresh(self, name: str | None, now: float) -> bool:
        """Tell whether the node (None: any) was stepped at `now`."""
        if name is None:
            return any(member.fresh(None, now) for member in self._members.values())
        return name in self._members and self._members[name].fresh(name, now)

    def insight(self, name: str) -> Insight | None:
        """Return what the last decision of a node was made from."""
        self.known(name)
        return self._members[name].insight(name)

    def state(self) -> dict[str, Any]:
        """Return the state of all nodes, each under its number."""
        fields: dict[str, Any] = {"form": "several", "names": self.names}
        for number, name in enumerate(self.names):
            fields.update({f"{number}/{key}": value for key, value in self._members[name].state().items()})
        return fields

    def restore(self, fields: Mapping[str, Any]) -> str:
        """Go on from what `state` returned, as far as each node's part can be used."""
        names = fields.get("names")
        if fields.get("form") != "several" or not isinstance(names, list):
            raise StateError(f"expected the state of several nodes, got {fields.get('form')!r}: discard it")
        for number, name in enumerate(names[:MOST]):
            part = {
                key.partition("/")[2]: value for key, value in fields.items() if key.startswith(f"{number}/")
            }
            member = self._make(str(name))
            try:
                member.restore(part)
            except StateError as error:
                LOG.warning("%s starts cold: %s", name, error)
                continue
            self.add(str(name), member)
        return f"warm, {len(self._members)} nodes"
