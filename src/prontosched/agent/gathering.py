"""Nodes that stood on their own go on in a crowd."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from prontosched.agent.crowd_notes import Notes
from prontosched.agent.nodes import OneNode
from prontosched.agent.transplant import with_metrics
from prontosched.errors import StateError
from prontosched.pipeline.fleet import Fleet
from prontosched.pipeline.joining import join

LOG = logging.getLogger("prontosched.agent")


def gather(
    alone: Mapping[str, OneNode],
    fleet: Fleet,
    place: Mapping[str, int],
    metrics: tuple[str, ...],
    notes: Notes,
) -> int:
    """Give nodes their places in a fleet, with all that they know; return how many go on.

    Where a place holds more already, because the node was in a crowd before, that stays.
    """
    gone_on = 0
    for name, one in alone.items():
        at, node = place.get(name), one.node
        if at is None or node is None or node.timestep <= fleet.timestep[at]:
            continue
        try:
            join(fleet, at, node if node.metrics == metrics else with_metrics(node, metrics))
        except StateError as error:
            LOG.warning("%s starts cold: %s", name, error)
            continue
        gone_on += 1
        if one.names:
            known = one.known(one.names[0])
            notes.decided[at] = known.decision is not None
            notes.raised[at] = known.decision is not None and bool(known.decision.raised)
            notes.changed_at[at] = known.changed_at
    return gone_on
