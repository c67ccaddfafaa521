"""Which of an agent's nodes to send a job to: `GET /v1/best`.

Covers: the order, with jobs on their way counted. The rule itself is
`prontosched.gates.preference`.
"""

from __future__ import annotations

import math
from typing import Any

from prontosched.agent.answer import Answer
from prontosched.agent.loop import Agent
from prontosched.agent.record import plain
from prontosched.gates.gate import chance
from prontosched.gates.preference import Candidate, best_first, crowded_chance

MAX_NODES = 1000


def best_nodes(agent: Agent, *, cpus: float, limit: int) -> list[dict[str, Any]]:
    """Return the nodes for a job of `cpus`, best first: with chance, state and why.

    Announced jobs count at once, and until telemetry shows them.
    """
    ordered = best_first(_candidate(agent, name, cpus) for name in agent.nodes.names)[:limit]
    found = []
    for one in ordered:
        # Sentences only for those that are shown: a fleet may have thousands of nodes.
        why = agent.answer(one.node, cpus=cpus).reason
        found.append({key: plain(value) for key, value in one._replace(why=why).as_json().items()})
    return found


def _candidate(agent: Agent, name: str, cpus: float) -> Candidate:
    answer: Answer = agent.answer(name, cpus=cpus)
    if answer.stale:
        return Candidate(name, math.nan, "unknown", "", answer.announced_cpus)
    known = chance(answer.probability, refuse=not answer.accept)
    crowded = crowded_chance(known, answer.announced_cpus, agent.capacity)
    return Candidate(name, crowded, answer.state, "", answer.announced_cpus)
