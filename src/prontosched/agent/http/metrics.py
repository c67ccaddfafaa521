"""What Prometheus collects: `/metrics`.

Values are made at the moment of asking from what the agent knows, so that a metric can never disagree
with `/v1/status`. Names follow the conventions of Prometheus: one unit per metric, base units, ratios from 0 to 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.process_collector import ProcessCollector

from prontosched.agent.loop import STATES, Agent
from prontosched.agent.nodes import Answer, LiveNode
from prontosched.agent.record import BOUNDS
from prontosched.agent.views import package_version, record_figures
from prontosched.telemetry.linux.source import CpuReady

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
_PROCESS = CollectorRegistry()
ProcessCollector(registry=_PROCESS)


def exposition(agent: Agent) -> bytes:
    """Return the page of metrics."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(agent))
    return generate_latest(registry) + generate_latest(_PROCESS)


class _Collector:
    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily("pronto", "This agent.", {"version": package_version()})
        yield from _nodes(self._agent)
        yield from _waiting(self._agent)
        yield from _loop(self._agent)
        if (only := self._agent.nodes.only) is not None:
            yield from _directions(only)
            yield from _record(only)
            yield from _probes(only)
        yield from _followers(self._agent)


# What was expected of an age long past says nothing of now.
_PER_NODE: tuple[tuple[str, str, Callable[[Answer], float]], ...] = (
    ("pronto_accepting", "1 when the node takes another job, else 0.", lambda found: found.accept),
    ("pronto_raised", "1 when the rejection signal is raised, else 0.", lambda found: bool(found.raised)),
    ("pronto_score", "Rejection score.", lambda found: found.score),
    ("pronto_threshold", "Score from which the signal is raised.", lambda found: found.threshold),
    (
        "pronto_probability",
        "Chance of contention within the horizon.",
        lambda found: math.nan if found.stale else found.probability,
    ),
    (
        "pronto_cpu_ready_ratio",
        "CPU Ready per CPU: 0.05 is 5 %, and more than 1 waits for each CPU above 1.",
        lambda found: found.cpu_ready_percent / 100.0,
    ),
    (
        "pronto_expected_cpu_ready_ratio",
        "CPU Ready per CPU expected within the horizon.",
        lambda found: math.nan if found.stale else found.expected_ready / 100.0,
    ),
    (
        "pronto_cpu_utilisation_ratio",
        "Busy share of all CPUs.",
        lambda found: found.utilisation_percent / 100.0,
    ),
    ("pronto_telemetry_age_seconds", "Age of the telemetry decided on.", lambda found: found.age_seconds),
    ("pronto_stale", "1 when telemetry is too old to decide on.", lambda found: found.stale),
    ("pronto_announced_cpus", "CPUs announced and not yet seen.", lambda found: found.announced_cpus),
)


def _nodes(agent: Agent) -> Iterator[Metric]:
    answers = [agent.answer(name) for name in agent.nodes.names or [agent.nodes.fallback_name]]
    for name, text, value_of in _PER_NODE:
        family = GaugeMetricFamily(name, text, labels=["node"])
        for found in answers:
            if not math.isnan(value := float(value_of(found))):
                family.add_metric([found.node], value)
        yield family
    text = "1 for the state the node is in, 0 for the others."
    states = GaugeMetricFamily("pronto_state", text, labels=["node", "state"])
    for found in answers:
        for state in STATES:
            states.add_metric([found.node, state], float(found.state == state))
    yield states
    text = "Time until contention is expected to end, by the node's past ones; 0 where there is none now."
    left = GaugeMetricFamily("pronto_time_to_opening_seconds", text, labels=["node"])
    for found in answers:
        expected = 0.0
        if found.state != "accepting":
            expected = agent.known(found.node).record.lengths.left() * agent.pace.interval_seconds
        if not math.isnan(expected):
            left.add_metric([found.node], expected)
    yield left


def _waiting(agent: Agent) -> Iterator[Metric]:
    """Yield the parts of CPU Ready and what is not in it; only this machine itself can be told apart."""
    ready = getattr(agent.reader.source, "ready", None)
    if isinstance(ready, CpuReady):
        text = "Waiting for CPUs, per CPU. CPU Ready is normal, unseen and steal."
        family = GaugeMetricFamily("pronto_waiting_ratio", text, labels=["part"])
        for part, value in ready.parts().items():
            if not math.isnan(value):
                family.add_metric([part], value / 100.0)
        yield family


def _probes(node: LiveNode) -> Iterator[Metric]:
    text = "How many times longer than alone a probe took, by the state it started in."
    family = HistogramMetricFamily("pronto_probe_slowdown", text, labels=["state"])
    for state, one in node.probes.by_state.items():
        upto = accumulate(one.counts)
        buckets = [
            (name, float(count)) for name, count in zip((*map(str, BOUNDS), "+Inf"), upto, strict=True)
        ]
        family.add_metric([state], buckets, sum_value=one.total)
    yield family


def _loop(agent: Agent) -> Iterator[Metric]:
    pace, tally, disk = agent.pace, agent.nodes.tally, agent.disk
    for name, text, count in (
        ("ticks", "Ticks of the loop.", pace.ticks),
        ("late_ticks", "Ticks that came late.", pace.late),
        ("skipped_ticks", "Ticks left out to catch up.", pace.skipped),
        ("decisions", "Decisions made.", tally.decisions),
        ("rejections", "Decisions that raised the signal.", tally.raised),
        ("left_out_samples", "Samples of nodes for which there was no place.", agent.nodes.left_out),
        *(() if disk is None else (("state_saves", "Times state was saved.", disk.saves),)),
        *(() if disk is None else (("disk_errors", "Writes that failed.", disk.errors),)),
    ):
        yield CounterMetricFamily(f"pronto_{name}", text, value=count)
    for name, text, value in (
        ("loop_lag_seconds", "How late the last tick was.", pace.lag_seconds),
        ("loop_worst_lag_seconds", "The latest tick so far.", pace.worst_lag_seconds),
        ("read_seconds", "How long the last read of the source took.", agent.reader.last_seconds),
        ("downtime_ratio", "Share of decisions with the signal raised.", tally.downtime),
        ("metrics", "Metrics per node.", agent.nodes.features),
        ("log_bytes", "Size of the decision log.", math.nan if disk is None else disk.log.size_bytes),
    ):
        if not math.isnan(value):
            yield GaugeMetricFamily(f"pronto_{name}", text, value=value)
    faults = CounterMetricFamily("pronto_faults", "Faults caught by the loop.", labels=["kind"])
    for kind in sorted({"source", "node", *agent.faults}):
        faults.add_metric([kind], agent.faults[kind])
    yield faults


def _directions(node: LiveNode) -> Iterator[Metric]:
    evidence = node.evidence
    if evidence is None or evidence.subspace is None:
        return
    yield GaugeMetricFamily("pronto_rank", "Directions of the subspace.", value=evidence.subspace.rank)
    values = GaugeMetricFamily("pronto_singular_value", "Strength of each direction.", labels=["direction"])
    projections = GaugeMetricFamily(
        "pronto_projection", "The last vector along each direction.", labels=["direction"]
    )
    for index, value in enumerate(evidence.subspace.singular_values):
        values.add_metric([str(index)], float(value))
    for index, value in enumerate(evidence.projections):
        projections.add_metric([str(index)], float(value))
    yield values
    yield projections


_SIGNAL = {
    "steps": ("labelled_timesteps", "Timesteps behind the signal's own record; the past fades."),
    "recall": ("recall_ratio", "Share of timesteps before contention that were refused, or would have been."),
    "precision": ("precision_ratio", "Share of refused timesteps with contention within the horizon."),
    "downtime": ("downtime_ratio", "Share of timesteps refused: the recall of a coin."),
    "base_rate": ("base_rate_ratio", "Share of timesteps before contention: the precision of a coin."),
    "lead_steps": ("lead_timesteps", "Mean timesteps from the first refusal to contention."),
    "better_than_coin": ("better_than_coin", "1 when proven better than a coin of equal downtime, else 0."),
}


_RECORD = {
    "preceded": ("preceded_ratio", "Share of contentions with a raise in the horizon before."),
    "precision": ("precision_ratio", "Share of raises with contention within the horizon."),
    "lead_timesteps": ("lead_timesteps", "Mean timesteps from raise to contention."),
    "coin_preceded": ("coin_preceded_ratio", "What a coin of equal downtime would precede."),
    "coin_precision": ("coin_precision_ratio", "What a coin would have for precision."),
}


def _record(node: LiveNode) -> Iterator[Metric]:
    figures = record_figures(node)
    yield CounterMetricFamily(
        "pronto_contentions", "Times CPU Ready rose to the tolerance.", value=figures["contentions"]
    )
    for kind, table, told in (("record", _RECORD, figures), ("signal", _SIGNAL, figures.get("signal", {}))):
        for figure, (name, text) in table.items():
            if (value := told.get(figure)) is not None:
                yield GaugeMetricFamily(f"pronto_{kind}_{name}", text, value=float(value))


# By follower and the name in its status: the metric, and what it says. Names of counters end in `_total`.
_FOLLOWERS: dict[tuple[str, str], tuple[str, str]] = {
    ("gate", "veto"): ("gate_veto", "1 when the gate may close nodes, 0 when it only ranks them."),
    ("gate", "refusing"): ("gate_refusing_nodes", "Nodes that are closed by us; in shadow mode, would be."),
    ("gate", "held_open"): (
        "gate_held_open_nodes",
        "Nodes that refuse and are left open, by the floor or a rule.",
    ),
    ("gate", "refusals"): (
        "gate_refusals_total",
        "Times a node was closed; in shadow mode, would have been.",
    ),
    ("gate", "withheld"): ("gate_withheld_total", "Refusals that the capacity floor did not allow."),
    ("gate", "rankings"): ("gate_rankings_total", "Changes of a node's level of preference."),
    ("gate", "errors"): ("gate_errors_total", "Calls to the scheduler that failed."),
    ("gate", "refused_seconds"): (
        "gate_refused_seconds_total",
        "Time that nodes were closed by us; in shadow mode, would have been.",
    ),
    ("federation", "connected"): ("federation_connected", "1 when the bus answers, else 0."),
    ("federation", "members"): ("federation_members", "Nodes of this agent in the federation."),
    ("federation", "adopted"): ("federation_adopted_nodes", "Nodes that use the global view."),
    ("federation", "started"): ("federation_started_nodes", "Nodes that took up what the fleet learned."),
    ("federation", "errors"): ("federation_errors_total", "Messages that failed or were refused."),
    ("federation", "view_revision"): ("federation_view_revision", "Revision of the global view."),
    ("probe", "slowdown"): (
        "probe_last_slowdown_ratio",
        "How many times longer than alone the last probe took.",
    ),
    ("probe", "probes"): ("probes_total", "Probes that ran."),
    ("probe", "held_back"): (
        "probes_held_back_total",
        "Probes that do not count: the agent's own quota held them back.",
    ),
    ("probe", "every_seconds"): ("probe_interval_seconds", "Time between two probes."),
}


def _followers(agent: Agent) -> Iterator[Metric]:
    for follower in agent.followers:
        for name, value in follower.status().items():
            metric, text = _FOLLOWERS.get((follower.name, name), ("", ""))
            if metric and isinstance(value, int | float) and math.isfinite(value):
                kind = CounterMetricFamily if metric.endswith("_total") else GaugeMetricFamily
                yield kind(f"pronto_{metric}", text, value=float(value))
