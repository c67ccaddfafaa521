"""Why a node answers as it does: its directions, its last rejection, what changed.

Covers: how that is put together; the arithmetic is `prontosched.explain`.
"""

from __future__ import annotations

from typing import Any

from prontosched.agent.loop import Agent
from prontosched.agent.nodes import LiveNode
from prontosched.agent.probe import probe_view
from prontosched.agent.record import plain
from prontosched.agent.status import record_figures, settings_of
from prontosched.decision import Evidence
from prontosched.explain import Part, changes, directions, drivers, families, sentence, turning
from prontosched.subspace import Array

TOP = 6


def explanation(agent: Agent, node: str | None = None) -> dict[str, Any]:
    """Return why a node answers as it does, as plain values.

    Raises
    ------
    KeyError
        There is no such node, or there are several and none is named.
    """
    found, one = agent.answer(node), agent.known(node)
    explained: dict[str, Any] = {
        "node": found.node,
        "decision": found.as_json(),
        "directions": [],
        "drivers": [],
        "last_rejection": _last_rejection(one),
        "change": None,
        "projections": [],
        "spikes": None,
        "record": None,
        "budget": None,
        "offenders": agent.offenders.view(),
        "probe": probe_view(agent),
    }
    if one.node is None:
        return explained
    explained["record"] = record_figures(one)
    explained["budget"] = plain(settings_of(one).get("budget"))
    evidence = one.evidence
    if evidence is None or evidence.subspace is None:
        return explained
    explained["projections"] = [plain(float(p)) for p in evidence.projections]
    explained["spikes"] = None if evidence.spikes is None else [int(s) for s in evidence.spikes]
    explained["directions"] = [
        {
            "number": d.number,
            "singular_value": plain(d.singular_value),
            "strength": plain(d.strength),
            "sign": d.sign,
            "parts": _parts(d.parts),
            "families": _parts(d.families),
            "words": sentence(d.parts[:3]),
        }
        for d in directions(evidence.subspace, one.metrics, top=TOP)
    ]
    explained["drivers"] = _parts(_all_drivers(one, evidence)[:TOP])
    if (blocks := one.last_blocks) is not None and blocks[1].features == len(one.metrics):
        change = changes(*blocks, one.metrics)
        explained["change"] = {
            "distance": plain(change.distance),
            "words": turning(change.distance),
            "rank_before": change.rank_before,
            "rank": change.rank,
            "gained": _parts(change.gained),
            "lost": _parts(change.lost),
        }
    return explained


def drivers_now(node: LiveNode, most: int = 2) -> list[str]:
    """Return the metrics that set a node's present apart, the strongest first."""
    return [part.metric for part in _all_drivers(node, node.evidence)[:most]]


def _last_rejection(node: LiveNode) -> dict[str, Any] | None:
    """Return a node's last rejection and what stood out while it lasted, or None."""
    last = node.rejection
    if last is None:
        return None
    parts = _all_drivers(node, last.evidence, last.vector)
    return {
        "time": plain(last.time),
        "reason": last.decision.reason,
        "score": plain(float(last.decision.score)),
        "cpu_ready_percent": plain(float(last.ready)),
        "offenders": last.offenders,
        "drivers": _parts(parts[:TOP]),
        "families": _parts(families(parts)),
        "words": sentence(parts[:3]),
    }


def _all_drivers(node: LiveNode, evidence: Evidence | None, vector: Array | None = None) -> list[Part]:
    """Return what sets a vector apart, by default that of the evidence; nothing while warming up."""
    if evidence is None or evidence.subspace is None or evidence.vector is None or evidence.metrics is None:
        return []
    metrics, spikes = evidence.metrics, evidence.spikes if node.by_spikes else None
    found = evidence.vector if vector is None else vector
    return drivers(found, evidence.subspace, metrics, spikes=spikes, top=len(metrics))


def _parts(parts: list[Part]) -> list[dict[str, Any]]:
    return [{"metric": p.metric, "share": plain(p.share), "sign": p.sign} for p in parts]
