"""What happened on nodes over some days, and what to do about it: `pronto report`.

Covers: reading a period from agents or from a decision log, what it comes to for each node, and the
report as plain values, text and one page of HTML.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from html import escape
from typing import Any
from urllib.parse import urlencode

from prontosched.agent.http.client import Client
from prontosched.agent.store.decision_log import DecisionLog
from prontosched.errors import IntegrationError

HOUR_SECONDS, MINUTE_SECONDS = 3600.0, 60.0
MOST_POINTS = 2000
# Contended for more than this share of the time, a node is a chronic offender.
CHRONIC_SHARE = 0.5
# Below this share of the period nothing is said of a node but that it was not watched.
WATCHED_SHARE = 0.5
SHOWN_CONSUMERS = 5
# Of more nodes, those that were contended least are only counted.
SHOWN_NODES = 200
STRIPES = 168
# What is told of a node in hours: the fields of `NodePeriod` without `_hours`.
HOURS = ("watched", "contended", "refused", "preferred_away", "closed", "held_open")
_USERS = re.compile(r"CPUs used by (.+)$")
_USER = re.compile(r"(.+?) (\d+\.\d)(?:, |$)")

Points = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class NodePeriod:
    """What one node did in a period.

    It was watched in hours with decisions, and contended in those of them in which mean CPU Ready was at the tolerance
    or above. It refused whether or not anything carried that out; the agent's gate preferred it away (ranked it after
    calm ones) or closed it; an option or the capacity floor held it open although contention was expected.
    `consumers` used CPUs while it refused, in so many stretches, most often first. `record` and `probes` are as the
    agent tells them, empty where none does. `stripes` are for the picture: the share of time refused or contended in
    each part of the period, None where unwatched.
    """

    node: str
    watched_hours: float
    contended_hours: float
    refused_hours: float
    preferred_away_hours: float
    closed_hours: float
    held_open_hours: float
    ready_mean: float | None
    ready_max: float | None
    tolerance: float
    consumers: list[tuple[str, int]] = field(default_factory=list)
    record: Mapping[str, Any] = field(default_factory=dict)
    probes: Mapping[str, Any] = field(default_factory=dict)
    stripes: list[float | None] = field(default_factory=list)

    @property
    def contended_share(self) -> float:
        """Share of the watched time that was contended."""
        return self.contended_hours / self.watched_hours if self.watched_hours else 0.0

    @property
    def gated(self) -> bool:
        """Whether a gate did anything with the node."""
        return self.preferred_away_hours + self.closed_hours > 0.0

    def forecast(self) -> str:
        """Say what the forecast was worth against a coin of equal downtime, its null; empty where none tells."""
        signal = self.record.get("signal") or {}
        words = str(self.record.get("words") or "")
        if signal.get("recall") is None:
            return words
        return (
            f"recall {signal['recall']:.2f} where a coin has {signal['downtime']:.2f}, "
            f"precision {signal['precision']:.2f} where a coin has {signal['base_rate']:.2f}. {words}"
        )

    def probe_words(self) -> str:
        """Say what probes suffered in each state; empty where none ran."""
        return str(self.probes.get("words") or "")


@dataclass(frozen=True)
class PeriodReport:
    """What all nodes did from `begin` to `end`, in seconds since 1970; chronic offenders first."""

    begin: float
    end: float
    nodes: list[NodePeriod]

    @property
    def hours(self) -> float:
        """Length of the period."""
        return (self.end - self.begin) / HOUR_SECONDS

    def offenders(self) -> list[str]:
        """Name nodes that are contended most of the time, and who uses CPUs more than once while nodes refuse."""
        found = [
            f"{one.node} was contended {one.contended_share:.0%} of the time"
            for one in self.nodes
            if one.contended_share > CHRONIC_SHARE and one.watched_hours >= WATCHED_SHARE * self.hours
        ]
        for one in self.nodes:
            found += [
                f"{name} used CPUs in {times} refused stretches of {one.node}"
                for name, times in one.consumers[:SHOWN_CONSUMERS]
                if times > 1
            ]
        return found

    def probes(self) -> list[str]:
        """Say of each node what probes saw."""
        found = [f"{one.node}: {one.probe_words()}" for one in self.nodes if one.probe_words()]
        return found[:SHOWN_NODES] or ["No agent was asked that runs a probe."]

    def forecasts(self) -> list[str]:
        """Say of each node what its forecast was worth."""
        found = [f"{one.node}: {one.forecast()}" for one in self.nodes if one.forecast()]
        return found[:SHOWN_NODES] or ["No agent was asked that keeps a record."]

    def notes(self) -> list[str]:
        """Say what a reader must know of the numbers."""
        unbound = sum(one.refused_hours > 0.0 and not one.gated for one in self.nodes)
        found = []
        if unbound:
            found.append(
                f"The agent's gate did nothing about the refusals of {unbound} node{'s' if unbound > 1 else ''}: "
                "there is none, or it is in shadow mode."
            )
        if (more := len(self.nodes) - SHOWN_NODES) > 0:
            found.append(f"{more} more nodes, contended less, are not shown.")
        levels = {one.tolerance for one in self.nodes}
        level = f"{levels.pop():g} %" if len(levels) == 1 else "its node's tolerance"
        span = "a minute" if _width(self.begin, self.end) == MINUTE_SECONDS else "ten minutes"
        found.append(f"Contended is {span} whose mean CPU Ready was {level} or more.")
        return found

    def advice(self) -> list[str]:
        """Say what to do, the most important first."""
        found: list[str] = []
        for one in self.nodes:
            found += [f"{one.node}: {words}" for words in advise(one, self.hours)]
        if not self.nodes:
            return ["Nothing is known: no node was watched."]
        return found or [
            "Nothing: no node was contended most of the time, and all were watched for most of it."
        ]

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            "from": self.begin,
            "to": self.end,
            "nodes": [{**asdict(one), "contended_share": one.contended_share} for one in self.nodes],
            "notes": self.notes(),
            "offenders": self.offenders(),
            "advice": self.advice(),
        }


def advise(one: NodePeriod, hours: float) -> list[str]:
    """Say what to do about a node."""
    if one.watched_hours < WATCHED_SHARE * hours:
        return [
            f"watched for {one.watched_hours:.1f} of {hours:.1f} hours, too little to advise more; keep the agent "
            "running, and its log long enough (log-age)."
        ]
    found = []
    signal, told = one.record.get("signal") or {}, one.probes.get("told")
    if signal.get("better_than_coin") is False:
        found.append("the forecast is no better than a coin; do not enforce it here (enforce = false).")
    if one.contended_share > CHRONIC_SHARE:
        found.append("full most of the time; move standing load away, or add CPUs.")
    if told and not one.gated and signal.get("better_than_coin"):
        found.append(
            "refusals meet real slowdown and beat a coin; let a gate prefer other nodes (--enforce)."
        )
    if one.refused_hours and one.probes and told is False and one.probes.get("needed") is None:
        found.append("probes are no slower while it refuses; raise `tolerance`.")
    if one.held_open_hours > one.refused_hours > 0.0:
        found.append("held open longer than it refused, by an option or the capacity floor; add calm nodes.")
    return found


def read_agent(client: Client, begin: float, end: float, node: str | None = None) -> list[NodePeriod]:
    """Ask an agent for a period of its nodes, or of one."""
    status = client.get("/v1/status")
    if status["disk"] is None:
        raise IntegrationError(
            f"an agent must keep a decision log to tell of the past, got none at {client.url}: "
            "start it without --no-keep"
        )
    names = [one["node"] for one in client.get("/v1/nodes")["nodes"]] if node is None else [node]
    found = []
    for name in names:
        points = points_of(begin, end)
        asked = {"node": name, "from": begin, "to": end, "points": points}
        history = client.get(f"/v1/history?{urlencode(asked)}")["points"]
        explained = client.get(f"/v1/explain?{urlencode({'node': name})}")
        found.append(
            summarise_period(
                name,
                history,
                begin,
                end,
                interval=status["interval_seconds"],
                record=explained["record"] or {},
                probes=(explained["probe"] or {}).get("record") or {},
            )
        )
    return found


def read_log(
    log: DecisionLog, begin: float, end: float, node: str | None = None, *, tolerance: float = 5.0
) -> list[NodePeriod]:
    """Read a period from the log of an agent that does not run; `tolerance` is the CPU Ready of contention."""
    known = log.nodes()  # this also brings a log of the release before up to date
    names = known if node is None else [node]
    points = points_of(begin, end)
    record = {"tolerance_percent": tolerance}
    found = [
        summarise_period(name, log.history(name, begin, end, points), begin, end, record=record)
        for name in names
    ]
    if log.last_error:
        raise IntegrationError(f"a decision log must be readable here, got {log.last_error}")
    return found


def points_of(begin: float, end: float) -> int:
    """Return how many buckets to ask for: of a minute, or of ten where there would be too many."""
    return max(1, min(MOST_POINTS, math.ceil((end - begin) / _width(begin, end))))


def _width(begin: float, end: float) -> float:
    return MINUTE_SECONDS if end - begin <= MINUTE_SECONDS * MOST_POINTS else 10.0 * MINUTE_SECONDS


def summarise_period(
    node: str,
    points: Points,
    begin: float,
    end: float,
    *,
    interval: float | None = None,
    record: Mapping[str, Any] | None = None,
    probes: Mapping[str, Any] | None = None,
) -> NodePeriod:
    """Return what buckets of the decision log come to.

    `interval` is the time between decisions; where it is not known, the fullest bucket counts as whole. No bucket
    counts for longer than it is, whatever the interval was then.
    """
    record = record or {}
    tolerance = float(record.get("tolerance_percent") or 5.0)
    most = max((point["timesteps"] for point in points), default=1)
    seconds = dict.fromkeys(HOURS, 0.0)
    ready_sum = ready_known = 0.0
    users: Counter[str] = Counter()
    parts = [[0.0, 0.0] for _ in range(STRIPES)]
    for point in points:
        length = point["seconds"] * point["timesteps"] / most
        if interval is not None:
            length = min(point["seconds"], point["timesteps"] * interval)
        seconds["watched"] += length
        seconds["refused"] += length * point["rejecting_share"]
        # An agent of the release before tells neither of these two.
        seconds["preferred_away"] += length * point.get("preferred_share", 0.0)
        seconds["closed"] += length * point.get("closed_share", 0.0)
        seconds["held_open"] += length * point["contended_share"]
        if point["ready_mean"] is not None:
            ready_sum, ready_known = ready_sum + length * point["ready_mean"], ready_known + length
            seconds["contended"] += length * (point["ready_mean"] >= tolerance)
        part = parts[min(STRIPES - 1, max(0, int(STRIPES * (point["time"] - begin) / (end - begin))))]
        part[0] += length
        part[1] += length * min(1.0, point["rejecting_share"] + point["contended_share"])
        if said := _USERS.search(point["reason"] or ""):
            users.update(name for name, _ in _USER.findall(said[1]))
    highest = [point["ready_max"] for point in points if point["ready_max"] is not None]
    return NodePeriod(
        node=node,
        **{f"{name}_hours": value / HOUR_SECONDS for name, value in seconds.items()},
        ready_mean=ready_sum / ready_known if ready_known else None,
        ready_max=max(highest, default=None),
        tolerance=tolerance,
        consumers=users.most_common(),
        record=record,
        probes=probes or {},
        stripes=[None if not part[0] else part[1] / part[0] for part in parts],
    )


def make_report(nodes: Iterable[NodePeriod], begin: float, end: float) -> PeriodReport:
    """Put nodes together, those that were contended most first."""
    order = sorted(nodes, key=lambda one: (-one.contended_share, -one.refused_hours, one.node))
    return PeriodReport(begin, end, order)


def as_text(report: PeriodReport) -> str:
    """Return the report for a terminal."""
    lines = [_title(report), ""]
    width = max([4, *(len(one.node) for one in report.nodes)])
    heads = (*(name.replace("_", " ") for name in HOURS), "CPU Ready")
    lines.append(f"{'node':<{width}}" + "".join(f"  {head:>14}" for head in heads))
    for one in report.nodes[:SHOWN_NODES]:
        cells = [f"{value:.1f} h" for value in _hours(one)]
        cells[1] += f" ({one.contended_share:.0%})"
        cells.append("unknown" if one.ready_mean is None else f"{one.ready_mean:.1f} %")
        lines.append(f"{one.node:<{width}}" + "".join(f"  {cell:>14}" for cell in cells))
    lines += report.notes()
    lines += ["", "What probes saw", *(f"  {words}" for words in report.probes())]
    lines += ["", "What the forecast was worth", *(f"  {words}" for words in report.forecasts())]
    lines += ["", "Chronic offenders", *(f"  {words}" for words in report.offenders() or ["none"])]
    lines += ["", "What to do", *(f"  {i}. {words}" for i, words in enumerate(report.advice(), start=1))]
    return "\n".join(lines)


def as_html(report: PeriodReport) -> str:
    """Return the report as one page that needs no other file."""
    rows = "".join(_row(one) for one in report.nodes[:SHOWN_NODES])
    total = [sum(values) for values in zip(*(_hours(one) for one in report.nodes), strict=True)] or [0.0] * 6
    told = [("nodes", str(len(report.nodes)))]
    told += [
        (f"hours {name.replace('_', ' ')}", f"{hours:,.1f}")
        for name, hours in zip(HOURS[:5], total, strict=False)
    ]
    facts = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in told)

    def listed(tag: str, words: Iterable[str]) -> str:
        return f"<{tag}>" + "".join(f"<li>{escape(one)}</li>" for one in words) + f"</{tag}>"

    offenders = report.offenders()
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(_title(report))}</title>"
        f"<meta name=viewport content='width=device-width'><style>{_CSS}</style><main>"
        f"<h1>Pronto report</h1><p class=dim>{escape(_period(report))}</p><dl class=facts>{facts}</dl>"
        f"<h2>What to do</h2>{listed('ol', report.advice())}"
        "<h2>Nodes</h2><p class=dim>The strip shows the "
        "share of time in which contention was there or expected, from the start of the period to its end; grey "
        "is not watched.</p><div class=scroll><table><thead><tr><th>node<th>watched<th>contended<th>refused"
        "<th>preferred away<th>closed<th>held open<th>CPU Ready, mean<th>highest<th>over time</tr></thead>"
        f"<tbody>{rows}</tbody></table></div>"
        f"<p class=dim>{escape(' '.join(report.notes()))}</p>"
        f"<h2>What probes saw</h2>{listed('ul', report.probes())}"
        f"<h2>What the forecast was worth</h2>{listed('ul', report.forecasts())}"
        f"<h2>Chronic offenders</h2>{listed('ul', offenders) if offenders else '<p>None.</p>'}"
        "</main></html>\n"
    )


def _hours(one: NodePeriod) -> list[float]:
    return [getattr(one, f"{name}_hours") for name in HOURS]


def _row(one: NodePeriod) -> str:
    cells = "".join(f"<td>{value:.1f} h" for value in _hours(one))
    ready = "".join(f"<td>{'–' if v is None else f'{v:.1f} %'}" for v in (one.ready_mean, one.ready_max))
    bars = "".join(
        f"<rect x={i} width=1.02 height=24 class={'n' if share is None else 'y'}"
        f"{'' if share is None else f' fill-opacity={0.08 + 0.92 * share:.2f}'} />"
        for i, share in enumerate(one.stripes)
    )
    strip = f"<svg viewBox='0 0 {STRIPES} 24' preserveAspectRatio=none role=img aria-label='over time'>{bars}</svg>"
    return f"<tr><th>{escape(one.node)}{cells}{ready}<td class=strip>{strip}</tr>"


def _period(report: PeriodReport) -> str:
    # With the zone: a page is read elsewhere, and summer time may begin or end in between.
    first, last = (
        f"{datetime.fromtimestamp(at).astimezone():%Y-%m-%d %H:%M %Z}" for at in (report.begin, report.end)
    )
    return f"{first} to {last}, {report.hours:.1f} hours"


def _title(report: PeriodReport) -> str:
    number = len(report.nodes)
    return f"Pronto report, {_period(report)}, {number} node{'' if number == 1 else 's'}"


_CSS = """
:root{--ink:#1f2933;--dim:#5b6774;--line:#e4e7eb;--paper:#fffdfa;--mark:#c2410c;--none:#d5d9de}
@media (prefers-color-scheme:dark){:root{color-scheme:dark;--ink:#e5e7eb;--dim:#9aa5b1;--line:#2b323b;--paper:#0d1117;
--mark:#fb923c;--none:#333b45}}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
main{max-width:1100px;margin:0 auto;padding:32px 24px}h1{margin:0;font-size:32px}h2{font-size:20px;margin:28px 0 8px}
.dim{color:var(--dim);margin:4px 0 12px;max-width:80ch}.facts{display:flex;flex-wrap:wrap;gap:8px 40px;margin:16px 0}
.facts div{display:flex;flex-direction:column-reverse}.facts dt{color:var(--dim);font-size:14px}
.facts dd{margin:0;font-size:26px;font-weight:600}.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:14px;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:6px 10px;border-bottom:1px solid var(--line);white-space:nowrap}
th:first-child{text-align:left}thead th{color:var(--dim);font-weight:500}
.strip{width:30%;min-width:220px}svg{display:block;width:100%;height:24px}.y{fill:var(--mark)}.n{fill:var(--none)}
li{margin:4px 0;max-width:95ch;overflow-wrap:anywhere}
"""
