"""What the agent shows of itself, as plain values: status, nodes, and why a node answers as it does.

Serving it is `prontosched.agent.http.api`; the arithmetic of explanations is `prontosched.explain`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from typing import Any

from prontosched.agent.followers import probe_view
from prontosched.agent.loop import Agent
from prontosched.agent.nodes import Answer, LiveNode
from prontosched.agent.record import plain, record_shown
from prontosched.decision import Evidence
from prontosched.explain import MetricShare, changes, directions, drivers, families, sentence, turning
from prontosched.subspace import Array

SHOWN_NOTES = 20
SHOWN_PARTS = 6
WORDED_NODES = 200
LISTED = (
    *("node", "accept", "state", "held_by", "raised", "score", "probability"),
    *("reason", "since", "valid_until", "stale", "cpu_ready_percent"),
)


def decision_within(agent: Agent, node: str | None, asked: int) -> dict[str, Any]:
    """Return a node's answer, with the chance of contention within the horizon offered that is nearest to `asked`."""
    found = agent.answer(node)
    offered = dict(found.outlook)
    if (own := settings_of(agent.known(found.node)).get("horizon")) is not None:
        offered.setdefault(own, found.probability)
    # Apart by a factor, not by a difference: 100 steps are nearer to 120 than to 30.
    nearest = min(offered, key=lambda steps: abs(math.log(steps / asked)), default=None)
    chance = {
        "asked": asked,
        "steps": nearest,
        "probability": None if nearest is None or found.stale else plain(offered[nearest]),
        "offered": sorted(offered),
    }
    return {**found.as_json(), "horizon": chance}


def slowdown(*, busy: float, waiting: float, ahead: float, asked: float, capacity: float) -> float:
    """Return how many times as long as alone a job would take: all who want to run share the CPUs.

    CPUs are `busy` with normal work, wanted by those `waiting` (CPU Ready times the CPUs), by jobs announced
    and not yet seen (`ahead`), and by the job itself (`asked`).

    Examples
    --------
    >>> slowdown(busy=2.0, waiting=3.0, ahead=0.0, asked=1.0, capacity=2.0)
    3.0
    """
    known = [value for value in (busy, waiting) if not math.isnan(value)]
    return max(1.0, (math.fsum(known) + ahead + asked) / capacity) if known else math.nan


HARDLY_SLOWER = 1.1
"""Slowdown below which a job would not notice the others."""


def waiting(agent: Agent, met: Answer, cpus: float) -> dict[str, Any]:
    """Return what helps a job of `cpus` to decide whether to wait.

    Its slowdown if it started now, and how many seconds the present contention will go on by
    this node's own past; null where that cannot be told. And whether its CPUs are free now: there is no
    contention, and it would hardly be slowed down.
    """
    known = agent.known(met.node)
    announced = agent.announced(met.node)
    share = agent.capacity / 100.0
    found = slowdown(
        busy=(known.utilisation - known.background) * share,
        waiting=known.ready * share,
        ahead=announced.cpus,
        asked=cpus,
        capacity=agent.capacity,
    )
    left = known.record.lengths.left() * agent.pace.interval_seconds
    free = known.ready < known.record.tolerance and found < HARDLY_SLOWER
    return {"slowdown": plain(found), "contention_left_seconds": plain(left), "cpus_free": bool(free)}


@cache
def package_version() -> str:
    """Return the version of this package; read once, for that takes files."""
    return version("prontosched")


def status(agent: Agent) -> dict[str, Any]:
    """Return all that an operator may want to know, in one object."""
    nodes = agent.nodes
    now = agent.pace.clock()
    found: dict[str, Any] = {
        "version": package_version(),
        "pid": os.getpid(),
        "source": agent.reader.source.name,
        "interval_seconds": agent.pace.interval_seconds,
        "uptime_seconds": plain(now - agent.started_at),
        "nodes": len(nodes),
        "features": nodes.features,
        "capacity_cpus": agent.capacity,
        "capacity_factor": agent.capacity_factor,
        "valid_seconds": agent.silence.valid_seconds,
        "when_silent": agent.silence.answer,
        "loop": {
            **_values(agent.pace, "ticks late skipped lag_seconds worst_lag_seconds"),
            "read_seconds": plain(agent.reader.last_seconds),
            "hanging": agent.reader.hanging,
        },
        "faults": dict(agent.faults),
        "last_fault": agent.last_fault,
        "last_fault_seconds": plain(now - agent.last_fault_at),
        "tally": _values(nodes.tally, "decisions raised contended flips downtime ready_mean ready_max"),
        "enforced": agent.enforced,
        "watchers": agent.events.watchers,
        "disk": disk_status(agent),
        "followers": {follower.name: follower.status() for follower in agent.followers},
    }
    if len(nodes) <= 1:
        found["decision"] = agent.answer().as_json()
        found.update(_one_node(agent, agent.known()))
    found["left_out"] = nodes.left_out
    found["probe"] = probe_view(agent)
    return found


def _values(of: object, names: str) -> dict[str, Any]:
    return {name: plain(getattr(of, name)) for name in names.split()}


def home(agent: Agent) -> str:
    """Return what a person is told who opens the agent's address in a browser."""
    names = agent.nodes.names
    if len(names) > 1:
        refusing = sum(agent.state_of(node) == "refusing" for node in agent.nodes)
        now = f"{len(names)} nodes, {refusing} refusing"
    else:
        answer = agent.answer()
        now = f"{answer.node}: {answer.state}: {answer.reason}"
    if trouble := agent.health.trouble:
        now += f"\nnot healthy: {trouble}"
    asked = (
        ("/v1/decision", "may I send a job here?" + (" (?node=NAME)" if len(names) > 1 else "")),
        ("/v1/nodes", "all nodes with their answers"),
        ("/v1/explain", "why it answers so"),
        ("/v1/status", "all there is to know of the agent"),
        ("/metrics", "for Prometheus"),
        ("/healthz", "does it decide?"),
        ("/openapi.json", "all of this, for machines"),
    )
    lines = [f"  {path:<15}{what}" for path, what in asked]
    return "\n".join(
        [f"Pronto agent {package_version()}", now, "", *lines, "", "`pronto up` shows it on a page.", ""]
    )


def node_rows(agent: Agent) -> Iterator[dict[str, Any]]:
    """Yield the answer of every node in its shortest form; of many, only those not accepting say why."""
    few = len(agent.nodes) <= WORDED_NODES
    for node in list(agent.nodes):
        if node.name not in agent.nodes:
            continue
        found = agent.answer(node.name).as_json()
        if not few and found["state"] == "accepting":
            found["reason"] = ""
        yield {key: found[key] for key in LISTED}


def federation(agent: Agent) -> dict[str, Any] | None:
    """Return the federation as far as this agent may see it; None until it has been read."""
    from prontosched.agent.federation import FederationFollower, alone

    for follower in agent.followers:
        if isinstance(follower, FederationFollower):
            return follower.overview(agent.wall())
    return alone(agent.wall())


def disk_status(agent: Agent) -> dict[str, Any] | None:
    """Return where state and decisions are kept and how that goes; None where they are not."""
    disk = agent.disk
    if disk is None:
        return None
    return {
        "folder": str(disk.folder),
        **_values(disk, "saves save_errors last_error"),
        "state_bytes": disk.state.size_bytes,
        "log_bytes": disk.log.size_bytes,
        "log_errors": disk.log.errors,
        "log_rows_lost": disk.log.lost,
        "every_decision": agent.logs_every_decision,
    }


def record_figures(node: LiveNode) -> dict[str, Any]:
    """Return the record of a node's signal so far."""
    standing = None
    if node.node is not None and hasattr(node.node.signal, "standing"):
        standing = node.node.signal.standing()._asdict()
    found: dict[str, Any] = plain(record_shown(node.record, standing))
    return {"tolerance_percent": plain(node.record.tolerance), **found}


def settings_of(node: LiveNode) -> dict[str, Any]:
    """Return the settings of a node's signal; nothing before its first sample."""
    return {} if node.node is None else dict(node.node.signal.settings())


def _one_node(agent: Agent, node: LiveNode) -> dict[str, Any]:
    found: dict[str, Any] = {"record": record_figures(node), "rebuilds": node.rebuilds}
    if node.node is None or node.schema is None:
        return found
    found["signal"] = {"name": node.node.signal.name, "settings": node.node.signal.settings()}
    announced = agent.announced(node.name)
    found["jobs"] = {"ids": announced.ids[:100], "count": len(announced), "cpus": plain(announced.cpus)}
    found["notes"] = list(node.notes[:SHOWN_NOTES])
    found["metrics_missing"] = list(node.schema.missing[:SHOWN_NOTES])
    found["metrics_extra"] = list(node.schema.extra[:SHOWN_NOTES])
    if (evidence := node.evidence) is not None and evidence.subspace is not None:
        found["rank"] = int(evidence.subspace.rank)
        found["singular_values"] = [plain(float(s)) for s in evidence.subspace.singular_values]
    return found


def explanation(agent: Agent, node: str | None = None) -> dict[str, Any]:
    """Return why a node answers as it does, as plain values; `KeyError` as from `Agent.known`."""
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
        for d in directions(evidence.subspace, one.metrics, top=SHOWN_PARTS)
    ]
    explained["drivers"] = _parts(_all_drivers(one, evidence)[:SHOWN_PARTS])
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
        "drivers": _parts(parts[:SHOWN_PARTS]),
        "families": _parts(families(parts)),
        "words": sentence(parts[:3]),
    }


def _all_drivers(node: LiveNode, evidence: Evidence | None, vector: Array | None = None) -> list[MetricShare]:
    """Return what sets a vector apart, by default that of the evidence; nothing while warming up."""
    if evidence is None or evidence.subspace is None or evidence.vector is None or evidence.metrics is None:
        return []
    metrics, spikes = evidence.metrics, evidence.spikes if node.by_spikes else None
    found = evidence.vector if vector is None else vector
    return drivers(found, evidence.subspace, metrics, spikes=spikes, top=len(metrics))


def _parts(parts: list[MetricShare]) -> list[dict[str, Any]]:
    return [{"metric": p.metric, "share": plain(p.share), "sign": p.sign} for p in parts]
