"""What the nodes of an agent did at the last timestep, for the decision log."""

from __future__ import annotations

import numpy as np

from prontosched.agent.answer import Answer, expects
from prontosched.agent.crowd import Crowd
from prontosched.agent.decision_log import Row
from prontosched.agent.minutes import Measured
from prontosched.agent.nodes import Insight, Nodes
from prontosched.agent.projected import pack


def row_of(met: Answer, time: float, insight: Insight | None, begun: list[int]) -> Row:
    """Return one node's decision as a row; without `insight` there was no new telemetry."""
    return Row(
        time=time,
        node=met.node,
        raised=bool(met.raised),
        accept=met.accept,
        score=met.score,
        threshold=met.threshold,
        ready=met.cpu_ready_percent,
        utilisation=met.utilisation_percent,
        expected=met.expected_ready,
        reason=None if met.state == "accepting" else met.full_reason,
        directions=None if insight is None else pack(insight.projections, insight.spikes, begun),
        contended=met.state == "contended",
    )


def measured(nodes: Nodes, now: float, time: float) -> Measured | None:
    """Return all nodes that were stepped at `now`; None where none was.

    Of many nodes it is the signal that counts: that a node refuses because of jobs on their
    way, or for lack of telemetry, is not kept.
    """
    names = nodes.names
    if isinstance(nodes, Crowd):
        standing = nodes.standing()
        here = np.flatnonzero(standing.seen_at == now)
        if here.size < len(names):
            names = [names[i] for i in here]
        raised, contended = standing.raised[here], standing.contended[here] & ~standing.raised[here]
        score, ready = standing.score[here], standing.ready[here]
        found = Measured(time, names, raised, raised, score, ready, contended=contended)
    else:
        known = [nodes.known(name, words=False) for name in names if nodes.fresh(name, now)]
        some = [(one.name, one.decision, one.ready) for one in known if one.decision is not None]
        raised = np.array([decision.raised for _, decision, _ in some], np.bool_)
        score = np.array([decision.score for _, decision, _ in some], np.float64)
        ready = np.array([value for _, _, value in some], np.float64)
        contended = np.array([expects(decision) for _, decision, _ in some], np.bool_) & ~raised
        found = Measured(
            time, [name for name, _, _ in some], raised, raised, score, ready, contended=contended
        )
    return found if len(found.names) else None
