"""Answers as bytes, made once per timestep: only their age is written anew for each who asks."""

from __future__ import annotations

from typing import NamedTuple

from prontosched.agent.loop import Agent

MOST_CACHED = 4096


class _Encoded(NamedTuple):
    version: int
    encoded_at: float
    age: float
    until: float
    head: bytes
    tail: bytes


class AnswerCache:
    """The last answer of each node, ready to be sent again.

    Between two timesteps an answer changes in nothing but its age, until it is too old to count.

    Notes
    -----
    Memory: a few hundred bytes for each of at most `MOST_CACHED` nodes.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._held: dict[str | None, _Encoded] = {}

    def decision(self, node: str | None) -> bytes:
        """Return the answer for one node as JSON; `KeyError` as from `Agent.answer`."""
        now = self._agent.pace.clock()
        held = self._held.get(node)
        if held is None or held.version != self._agent.version or now > held.until:
            held = self._encode(node)
        return b"%s%.6f%s" % (held.head, held.age + now - held.encoded_at, held.tail)

    def _encode(self, node: str | None) -> _Encoded:
        version, now = self._agent.version, self._agent.pace.clock()
        found = self._agent.answer(node)
        plain = found.as_json()
        del plain["age_seconds"]
        left = self._agent.silence.valid_seconds - found.age_seconds
        held = _Encoded(
            version,
            now,
            found.age_seconds,
            # Once it is stale its reason counts the seconds, so that it is made anew each time.
            now + left if left > 0 and not found.stale else now,
            _JSON.encode(plain).encode()[:-1] + b',"age_seconds":',
            b"}",
        )
        if len(self._held) >= MOST_CACHED:
            self._held.clear()
        self._held[node] = held
        return held
