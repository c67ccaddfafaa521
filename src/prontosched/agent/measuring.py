"""What the nodes of an agent did at the last timestep, for the decision log."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from prontosched.agent.answer import Answer
from prontosched.agent.decision_log import Row
from prontosched.agent.minutes import Measured
from prontosched.agent.nodes import LiveNode, expects
from prontosched.agent.projected import pack
from prontosched.decision import Evidence


def row_of(met: Answer, time: float, evidence: Evidence | None, begun: list[int]) -> Row:
    """Return one node's decision as a row; without `evidence` there was no new telemetry."""
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
        directions=None if evidence is None else pack(evidence.projections, evidence.spikes, begun),
        contended=met.state == "contended",
    )


def measured(nodes: Sequence[LiveNode], time: float) -> Measured:
    """Return what nodes did that were stepped just now.

    Of many nodes it is the signal that counts: that a node refuses because of jobs on their
    way, or for lack of telemetry, is not kept.
    """
    decisions = [node.decision for node in nodes if node.decision is not None]
    raised = np.array([decision.raised for decision in decisions], np.bool_)
    return Measured(
        time,
        [node.name for node in nodes],
        raised,
        raised,
        np.array([decision.score for decision in decisions], np.float64),
        np.array([node.ready for node in nodes], np.float64),
        contended=np.array([expects(decision) for decision in decisions], np.bool_) & ~raised,
    )
