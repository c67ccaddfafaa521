"""What the agent shows of itself, as plain values: events, status, the list of nodes.

Covers: turning an agent into JSON. Serving it is `prontosched.agent.api`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from prontosched.agent.answer import Answer, chance_within, plain
from prontosched.agent.crowd import Crowd
from prontosched.agent.nodes import Insight, Nodes, OneNode
from prontosched.agent.probe import probe_view
from prontosched.agent.several import SeveralNodes
from prontosched.agent.slowdown import slowdown
from prontosched.agent.track_record import record_shown
from prontosched.decision import State

if TYPE_CHECKING:
    from prontosched.agent.loop import Agent

MAPPED_NODES = 5000
SHOWN_NOTES = 20
WORDED_NODES = 200
LISTED = (
    "node",
    "accept",
    "state",
    "held_by",
    "raised",
    "score",
    "probability",
    "reason",
    "since",
    "valid_until",
    "stale",
    "cpu_ready_percent",
)
STATES: tuple[State, ...] = ("accepting", "contended", "refusing")


def timestep_event(
    agent: Agent, clock: float, insight: Insight | None, begun: Sequence[int]
) -> dict[str, Any]:
    """Return the last timestep as one event: all of a single node, a map of many.

    Parameters
    ----------
    clock
        When it was, as the decision log has it.
    insight, begun
        What a single node decided from, None without new telemetry; and which directions begin anew.
    """
    names = agent.nodes.names
    loop = {"lag_seconds": plain(agent.pace.lag_seconds), "late": agent.pace.late}
    if len(names) == 1:
        event = agent.answer(names[0]).as_json()
        event["time"] = plain(clock)
        event["loop"] = loop
        event["downtime"] = plain(agent.nodes.tally.downtime)
        if insight is not None:
            event["projections"] = [plain(float(p)) for p in insight.projections]
            event["spikes"] = None if insight.spikes is None else [int(s) for s in insight.spikes]
            event["begun"] = list(begun)
        return event
    found = states(agent)
    every = agent.nodes.overview().ready
    ready = [value for value in every if not math.isnan(value)]
    event = {
        "time": plain(clock),
        "nodes": len(names),
        "states": {state: found.count(state) for state in STATES},
        "cpu_ready_percent": plain(sum(ready) / len(ready)) if ready else None,
        "downtime": plain(agent.nodes.tally.downtime),
        "loop": loop,
    }
    if len(names) <= MAPPED_NODES:
        event["state_map"] = "".join(state[0] for state in found)
        event["ready_map"] = [None if math.isnan(value) else round(value, 1) for value in every]
    return event


def states(agent: Agent) -> list[State]:
    """Return the state of every node by its signal and its gate, in the order of the names."""
    seen = agent.nodes.overview()
    nodes = zip(agent.nodes.names, seen.raised, seen.contended, strict=True)
    return [
        "refusing"
        if raised and not agent.held_open(name)
        else "contended"
        if contended or raised
        else "accepting"
        for name, raised, contended in nodes
    ]


def decision_within(agent: Agent, node: str | None, steps: int) -> dict[str, Any]:
    """Return a node's answer, with the chance of contention within about `steps` timesteps."""
    found = agent.answer(node)
    own = settings_of(agent.nodes, found.node).get("horizon") if agent.nodes.names else None
    return {**found.as_json(), "horizon": chance_within(found, steps, own)}


def waiting(agent: Agent, met: Answer, cpus: float) -> dict[str, Any]:
    """Return what helps a job of `cpus` to decide whether to wait.

    Its slowdown if it started now, and how many seconds the present contention will go on by
    this node's own past; null where that cannot be told.
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
    one = _alone(agent.nodes, met.node)
    left = math.nan if one is None else one.record.lengths.left() * agent.pace.interval_seconds
    return {"slowdown": plain(found), "contention_left_seconds": plain(left)}


def status(agent: Agent) -> dict[str, Any]:
    """Return all that an operator may want to know, in one object."""
    nodes = agent.nodes
    names = nodes.names
    now = agent.pace.clock()
    found: dict[str, Any] = {
        "version": version("prontosched"),
        "pid": os.getpid(),
        "source": agent.reader.source.name,
        "interval_seconds": agent.pace.interval_seconds,
        "uptime_seconds": plain(now - agent.started_at),
        "nodes": len(names),
        "features": nodes.features,
        "capacity_cpus": agent.capacity,
        "capacity_factor": agent.capacity_factor,
        "valid_seconds": agent.silence.valid_seconds,
        "when_silent": agent.silence.answer,
        "loop": {
            "ticks": agent.pace.ticks,
            "late": agent.pace.late,
            "skipped": agent.pace.skipped,
            "lag_seconds": plain(agent.pace.lag_seconds),
            "worst_lag_seconds": plain(agent.pace.worst_lag_seconds),
            "read_seconds": plain(agent.reader.last_seconds),
            "hanging": agent.reader.hanging,
        },
        "faults": dict(agent.faults),
        "last_fault": agent.last_fault,
        "tally": {
            "decisions": nodes.tally.decisions,
            "raised": nodes.tally.raised,
            "contended": nodes.tally.contended,
            "flips": nodes.tally.flips,
            "downtime": plain(nodes.tally.downtime),
            "ready_mean": plain(nodes.tally.ready_mean),
            "ready_max": plain(nodes.tally.ready_max),
        },
        "enforced": agent.enforced,
        "watchers": agent.events.watchers,
        "disk": disk_status(agent),
        "followers": {follower.name: follower.status() for follower in agent.followers},
    }
    if len(names) <= 1:
        found["decision"] = agent.answer().as_json()
    if isinstance(nodes, Crowd):
        found["left_out"] = nodes.left_out
    if isinstance(nodes, OneNode):
        found.update(_one_node(agent, nodes))
    found["probe"] = probe_view(agent)
    return found


def home(agent: Agent) -> str:
    """Return what a person is told who opens the agent's address in a browser."""
    names = agent.nodes.names
    if len(names) > 1:
        refusing = sum(agent.nodes.overview().raised)
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
        [f"Pronto agent {version('prontosched')}", now, "", *lines, "", "`pronto up` shows it on a page.", ""]
    )


def node_rows(agent: Agent) -> Iterator[dict[str, Any]]:
    """Yield the answer of every node in its shortest form; of many, only those not accepting say why."""
    names = agent.nodes.names
    few = len(names) <= WORDED_NODES
    for name, state in zip(names, states(agent), strict=True):
        found = agent.answer(name, words=few or state != "accepting").as_json()
        yield {key: found[key] for key in LISTED}


def federation(agent: Agent) -> dict[str, Any] | None:
    """Return the federation as far as this agent may see it; None until it has been read."""
    from prontosched.agent.federating import FederationFollower
    from prontosched.agent.tree_view import alone

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
        "saves": disk.saves,
        "save_errors": disk.save_errors,
        "state_bytes": disk.saved_bytes + disk.shards.size_bytes,
        "log_bytes": disk.log.size_bytes,
        "log_errors": disk.log.errors,
        "log_rows_lost": disk.log.lost,
        "every_decision": agent.logs_every_decision,
        "last_error": disk.last_error,
    }


def record_figures(nodes: OneNode) -> dict[str, Any]:
    """Return the signal's own record so far."""
    standing = None
    if nodes.node is not None and hasattr(nodes.node.signal, "standing"):
        standing = nodes.node.signal.standing()._asdict()
    record = nodes.record
    found = record_shown(record.horizon, standing, record)
    return {"tolerance_percent": record.tolerance, **_plain(found)}


def record_of(nodes: Nodes, name: str) -> dict[str, Any] | None:
    """Return the record of one node's signal; of a crowd only what the signal itself keeps."""
    if (one := _alone(nodes, name)) is not None:
        return record_figures(one)
    if not isinstance(nodes, Crowd) or nodes.fleet is None:
        return None
    signal = getattr(nodes.fleet, "signal", None)
    if signal is None or not hasattr(signal, "standing"):
        return {"tolerance_percent": nodes.tolerance}
    standing = signal.standing(nodes.names.index(name))._asdict()
    horizon = int(settings_of(nodes, name).get("horizon", 1))
    return {"tolerance_percent": nodes.tolerance, **_plain(record_shown(horizon, standing))}


def settings_of(nodes: Nodes, name: str) -> dict[str, Any]:
    """Return the settings of one node's signal; nothing before its first sample."""
    one = _alone(nodes, name)
    holder = one.node if one is not None else getattr(nodes, "fleet", None)
    signal = getattr(holder, "signal", None)
    return {} if signal is None else dict(signal.settings())


def _plain(found: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _plain(value) if isinstance(value, Mapping) else plain(value) for key, value in found.items()
    }


def _alone(nodes: Nodes, name: str) -> OneNode | None:
    if isinstance(nodes, SeveralNodes):
        return nodes.member(name)
    return nodes if isinstance(nodes, OneNode) else None


def _one_node(agent: Agent, nodes: OneNode) -> dict[str, Any]:
    found: dict[str, Any] = {"record": record_figures(nodes), "rebuilds": nodes.rebuilds}
    if not nodes.names:
        return found
    if nodes.node is not None:
        signal = nodes.node.signal
        found["signal"] = {"name": signal.name, "settings": signal.settings()}
    name = nodes.names[0]
    announced = agent.announced(name)
    found["jobs"] = {"ids": announced.ids[:100], "count": len(announced), "cpus": plain(announced.cpus)}
    found["notes"] = list(nodes.known(name).notes[:SHOWN_NOTES])
    if nodes.schema is not None:
        found["metrics_missing"] = list(nodes.schema.missing[:SHOWN_NOTES])
        found["metrics_extra"] = list(nodes.schema.extra[:SHOWN_NOTES])
    insight = nodes.insight(name)
    if insight is not None and insight.subspace is not None:
        found["rank"] = int(insight.subspace.rank)
        found["singular_values"] = [plain(float(s)) for s in insight.subspace.singular_values]
    return found
