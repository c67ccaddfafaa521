"""Answers as bytes, made once per timestep: only their age is written anew for each who asks."""

from __future__ import annotations

import json
from typing import NamedTuple

from prontosched.agent.loop import Agent

MOST = 4096
_JSON = json.JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False)


class _Said(NamedTuple):
    version: int
    said_at: float
    age: float
    until: float
    head: bytes
    tail: bytes


class Spoken:
    """The last answer of each node, ready to be sent again.

    Between two timesteps an answer changes in nothing but its age, until it is too old to count.

    Notes
    -----
    Memory: a few hundred bytes for each of at most `MOST` nodes.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._said: dict[str | None, _Said] = {}

    def decision(self, node: str | None) -> bytes:
        """Return the answer for one node as JSON; `KeyError` as from `Agent.answer`."""
        now = self._agent.pace.clock()
        said = self._said.get(node)
        if said is None or said.version != self._agent.version or now > said.until:
            said = self._say(node)
        return b"%s%.6f%s" % (said.head, said.age + now - said.said_at, said.tail)

    def _say(self, node: str | None) -> _Said:
        version, now = self._agent.version, self._agent.pace.clock()
        found = self._agent.answer(node)
        plain = found.as_json()
        del plain["age_seconds"]
        left = self._agent.silence.valid_seconds - found.age_seconds
        said = _Said(
            version,
            now,
            found.age_seconds,
            # Once it is stale its reason counts the seconds, so that it is made anew each time.
            now + left if left > 0 and not found.stale else now,
            _JSON.encode(plain).encode()[:-1] + b',"age_seconds":',
            b"}",
        )
        if len(self._said) >= MOST:
            self._said.clear()
        self._said[node] = said
        return said
