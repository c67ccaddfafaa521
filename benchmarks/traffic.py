"""The traffic of many agents from one process, to see what a bus can carry.

Every agent sends a summary and a decision as often as asked, changed each time, through
the same code as a real one. Whether all of it arrived is for the other end to count:
`pronto aggregate --json` tells what it heard.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks.federation import FEATURES, summary_of
from prontosched.federation.link import DECISIONS
from prontosched.federation.message import DecisionMessage
from prontosched.federation.nats import NatsLink
from prontosched.federation.publisher import Propagation, SummaryPublisher
from prontosched.federation.schema import SchemaCache
from prontosched.federation.tree import Tree, place

# Distinct summaries; taken in turn they differ each time, at no cost while measuring.
VARIANTS = 16


def traffic(
    link: NatsLink,
    *,
    agents: int,
    seconds: float,
    every: float = 2.0,
    prefix: str = "load",
    tree: Tree | None = None,
) -> dict[str, Any]:
    """Send the traffic of `agents` agents for `seconds` and return what was sent.

    Parameters
    ----------
    every
        Seconds between two messages of one agent; all agents are spread over them.
    prefix
        Beginning of the agents' names, unlike that of any other process.
    """
    rng = np.random.default_rng(len(prefix))
    metrics = tuple(f"metric_{i:03d}" for i in range(FEATURES))
    variants = [summary_of(prefix, metrics, rng) for _ in range(VARIANTS)]
    schemas, where = SchemaCache(link), tree or Tree()
    publishers = [
        SummaryPublisher(
            link,
            f"{prefix}-{i:04d}",
            tree=where,
            schemas=schemas,
            rule=Propagation(epsilon=0.0, max_age_seconds=3600.0),
        )
        for i in range(agents)
    ]
    if not link.wait_until_connected(10.0):
        raise TimeoutError(f"the bus must answer within 10 s, got {link.last_error or 'nothing'}")
    while not all(publisher.ready for publisher in publishers):
        time.sleep(0.01)
    started, sent, late = time.monotonic(), 0, 0.0
    rounds = max(1, int(seconds / every))
    for turn in range(rounds):
        for index, publisher in enumerate(publishers):
            due = started + every * (turn + index / agents)
            wait = due - time.monotonic()
            if wait > 0:
                time.sleep(wait)
            late = max(late, -wait)
            sent += publisher.publish(variants[(turn + index) % VARIANTS])
            _decide(link, publisher.name, turn)
    flushed = link.flush(30.0)
    return {
        "agents": agents,
        "seconds": time.monotonic() - started,
        "summaries": sent,
        "decisions": rounds * agents,
        "bytes": sum(publisher.bytes_sent for publisher in publishers),
        "arrived": flushed,
        "refused": link.refused,
        "sessions": link.sessions,
        "latest_seconds": late,
    }


def _decide(link: NatsLink, name: str, turn: int) -> None:
    now = link.now()
    message = DecisionMessage(name, turn % 10 > 0, 0.1, "simulated agent", issued=now, valid_until=now + 60.0)
    link.put(DECISIONS, place(name), message.to_bytes())
