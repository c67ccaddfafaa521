"""`pronto explain`: which metrics move together on a node, and which drove its last refusal."""

from __future__ import annotations

import json
import math
import time
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import click

from prontosched.cli.options import asking_options, find, lasting, node_option, why_alone
from prontosched.cli.status import beside, styled
from prontosched.errors import IntegrationError, ProntoError
from prontosched.settings import AgentSettings

if TYPE_CHECKING:
    from prontosched.agent.http.client import Client

SPAN_SECONDS = 30.0
LONGEST_RECORD_SECONDS = 600.0
# Seconds since 1970 below which a number is a slip: five minutes ago is `5m`.
OLDEST = 1e8
APART = {"throttled_cpus": "held back by its quota", "background_cpus": "background"}
WATCH_SECONDS, WATCH_INTERVAL = 10.0, 0.4


class Moment(click.ParamType):  # type: ignore[type-arg]  # generic only from click 8.4 on
    """A clock time: `14:03`, `2026-05-01T14:03`, seconds since 1970, or `5m` ago."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds since 1970, not later than now."""
        text, now = str(value).strip(), time.time()
        try:
            found = _read_moment(text, now)
        except (ProntoError, ValueError, OverflowError, OSError):
            found = math.nan
        if not OLDEST <= found <= now + 1.0:
            self.fail(
                f"a time must be past and like 14:03, 2026-05-01T14:03 or 5m (ago), got {text!r}", param, ctx
            )
        return found


def _read_moment(text: str, now: float) -> float:
    from prontosched.settings import seconds

    try:
        return float(text)
    except ValueError:
        pass
    for shape in ("%H:%M", "%H:%M:%S"):
        try:
            clock = datetime.strptime(text, shape).time()
        except ValueError:
            continue
        today = datetime.fromtimestamp(now)
        found = datetime.combine(today.date(), clock)
        # What is still to come today was meant for yesterday.
        return (found if found <= today else found - timedelta(days=1)).timestamp()
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return now - seconds(text.removesuffix("ago").strip())


@click.command()
@click.option(
    "--at", type=Moment(), metavar="TIME", help="Explain what was decided then: 14:03, or 5m (ago)."
)
@node_option
@asking_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(at: float | None, node: str | None, as_json: bool, **asked: Any) -> None:
    """Say which metrics move together on this node, and which drove its last refusal.

    Asks the agent where one runs, and otherwise watches this machine for some seconds.

    \b
    Example:
        pronto explain --at 14:03
    """
    client, settings = find(**asked)
    named = {} if node is None else {"node": node}
    if at is not None:
        if client is None:
            raise IntegrationError(
                "an agent must be running to tell of the past, got no answer: start one with `pronto up`"
            )
        past = _around(client, at, named)
        if not past["points"]:
            raise IntegrationError(_nothing(client.get("/v1/status"), at))
        click.echo(json.dumps(past) if as_json else _then(past, at))
        return
    found = _watch(settings, node, asked["url"]) if client is None else _get(client, "/v1/explain", named)
    click.echo(json.dumps(found) if as_json else _now(found))


def _get(client: Client, path: str, values: dict[str, Any]) -> dict[str, Any]:
    try:
        return client.get(f"{path}?{urlencode(values)}")
    except ProntoError as error:
        if "name one of" not in str(error):
            raise
        raise click.UsageError("the agent watches several nodes: say which with --node NAME") from error


def _around(client: Client, at: float, named: dict[str, str]) -> dict[str, Any]:
    """Return single decisions around a moment, or the record of minutes that it lies in."""
    span = {"from": at - SPAN_SECONDS, "to": at + SPAN_SECONDS, "points": 60}
    past = _get(client, "/v1/history", {**span, **named})
    if past["points"]:
        return past
    span = {"from": at - LONGEST_RECORD_SECONDS, "to": at + 1.0, "points": 60}
    past = _get(client, "/v1/history", {**span, **named})
    past["points"] = [point for point in past["points"] if at < point["time"] + point["seconds"]]
    return past


def _watch(settings: AgentSettings, node: str | None, url: str | None) -> dict[str, Any]:
    """Watch long enough for a first picture of the directions."""
    from prontosched.agent.standalone import watch, watched
    from prontosched.agent.views import explanation

    click.echo(f"{why_alone(url)}: watching {watched(settings)} for {WATCH_SECONDS:.0f} s", err=True)
    agent = watch(settings, node, seconds=WATCH_SECONDS, interval=WATCH_INTERVAL)
    if not len(agent.nodes):
        raise IntegrationError("this machine must be readable, got no telemetry: see `pronto check`")
    return explanation(agent, node)


def _now(found: dict[str, Any]) -> str:
    decision = found["decision"]
    told = f"{found['node']}: {styled(decision['state'])}: {decision['reason']}"
    lines = [told, *beside(decision), ""]
    if found["directions"]:
        lines.append("Metrics that move together, with the share of each direction among these")
    else:
        lines.append("No directions yet: they come with the first full block of vectors.")
    for i, direction in enumerate(found["directions"]):
        lines.append(f"  {i + 1}  {100 * direction['strength']:3.0f} %  {direction['words']}")
        if kinds := _kinds(direction["families"]):
            lines.append(f"            mostly {kinds}")
    lines += _who(found.get("offenders"))
    if (probe := found.get("probe")) is not None:
        lines += ["", f"What a job suffers: {probe['record']['words'] if probe['record'] else probe['note']}"]
    lines += ["", *_last(found["last_rejection"])]
    if (change := found["change"]) is not None:
        lines.append(f"Since the last block: {_changed(change)}")
    if found["record"] is not None:
        lines += _record(found["record"])
    return "\n".join(lines)


def _who(offenders: dict[str, Any] | None) -> list[str]:
    """Return who waits for CPUs and who uses them, ranked."""
    if offenders is None:
        return []
    if not offenders["consumers"]:
        return ["", f"Who waits, who runs: {offenders['note'] or 'nobody to speak of'}"]
    lines = ["", "Who waits, who runs, in CPUs over the last seconds", "  waiting    used"]
    for one in offenders["consumers"]:
        apart = [f"{one[key]:.2f} {word}" for key, word in APART.items() if one[key] >= 0.05]
        more = f" ({', '.join(apart)})" if apart else ""
        lines.append(f"  {one['waiting_cpus']:7.2f} {one['used_cpus']:7.2f}  {one['name']}{more}")
    return lines


def _last(last: dict[str, Any] | None) -> list[str]:
    if last is None:
        return ["No refusal since the agent started."]
    then = datetime.fromtimestamp(last["time"]).strftime("%d %b %H:%M:%S")
    met = f"{lasting(time.time() - last['time'])} ago ({then})"
    lines = [f"Last refusal {met}, at CPU Ready {_percent(last['cpu_ready_percent'])}: {last['reason']}"]
    if last.get("offenders"):
        lines.append(f"  {last['offenders']}")
    if last["words"]:
        lines.append(f"  what stood out in its metrics: {last['words']}")
    if kinds := _kinds(last["families"]):
        lines.append(f"  mostly {kinds}")
    return lines


def _changed(change: dict[str, Any]) -> str:
    parts = [f"the directions {change['words']} ({change['distance']:.2f} of 1)"]
    if change["rank"] != change["rank_before"]:
        parts.append(f"there are {change['rank']}, before {change['rank_before']}")
    for word, key in (("more", "gained"), ("less", "lost")):
        if names := ", ".join(part["metric"] for part in change[key][:3]):
            parts.append(f"{word} of {names}")
    return "; ".join(parts)


def _record(record: dict[str, Any]) -> list[str]:
    lines = [f"What it was worth: {record['words']}"] if record.get("words") else []
    own = record.get("signal")
    if own is None or own["recall"] is None or own["precision"] is None:
        return lines
    lead = "" if own["lead_steps"] is None else f", {own['lead_steps']:.1f} timesteps ahead"
    told = (
        f"  refused {own['recall']:.0%} of contended moments (a coin: {own['downtime']:.0%}){lead}; "
        f"{own['precision']:.0%} of refusals met contention (a coin: {own['base_rate']:.0%})"
    )
    return [*lines, told.replace("%", " %")]


def _kinds(families: list[dict[str, Any]]) -> str:
    """Return the families worth naming; one alone says no more than the metrics did."""
    named = [f"{kind['metric']} ({100 * kind['share']:.0f} %)" for kind in families if kind["share"] >= 0.05]
    return ", ".join(named) if len(named) > 1 else ""


def _nothing(status: dict[str, Any], at: float) -> str:
    shown = datetime.fromtimestamp(at).strftime("%d %b %Y %H:%M:%S")
    if status["disk"] is None:
        return "the agent must keep a decision log, got one started with --no-keep: leave that out"
    return (
        f"a decision must have been recorded within {SPAN_SECONDS:.0f} s of {shown}, got none: "
        "the agent did not run then, or its log is no longer that long (see --log-age)"
    )


def _then(found: dict[str, Any], at: float) -> str:
    points = found["points"]
    point = min(points, key=lambda p: abs(p["time"] - at))
    shown = datetime.fromtimestamp(point["time"]).strftime("%d %b %H:%M:%S")
    steps = sum(p["timesteps"] for p in points)
    refused, held = (
        sum(p["timesteps"] * p[f"{what}_share"] for p in points) / steps
        for what in ("rejecting", "contended")
    )
    highest = max((p["ready_max"] for p in points if p["ready_max"] is not None), default=None)
    told = f"CPU Ready up to {_percent(highest)}, refusing {100 * refused:.0f} %"
    told += f", contended and held open {100 * held:.0f} %" if held else ""
    why = [f"  {point['reason']}"] if point["reason"] else []
    if point["seconds"] >= 60:  # no single decisions are kept any more, or of so many nodes
        minutes = "minute" if point["seconds"] < 120 else f"{point['seconds'] / 60:.0f} minutes"
        lines = [f"{found['node']} in the {minutes} from {shown}: {told}", *why]
    else:
        state = "accepting"
        if point["rejecting_share"] or point["contended_share"]:
            state = "refusing" if point["rejecting_share"] else "contended"
        lines = [f"{found['node']} at {shown}: {styled(state)}, at CPU Ready {_percent(point['ready_max'])}"]
        lines += [*why, f"  in the minute around it: {told}"]
    return "\n".join([*lines, *_stood(points, point)])


def _stood(points: list[dict[str, Any]], point: dict[str, Any]) -> list[str]:
    """Say where the node stood along its directions, and which of them spiked around then."""
    if point["projections_low"] is None:
        return []
    ranges = zip(point["projections_low"], point["projections_high"], strict=True)
    stood = [f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}" for low, high in ranges]
    lines = ["  along its directions: " + ", ".join(f"{i + 1} at {value}" for i, value in enumerate(stood))]
    spiked = []
    for i in range(len(stood)):
        counts = {
            way: sum(p[f"spikes_{way}"][i] for p in points if p["spikes_up"] and len(p["spikes_up"]) > i)
            for way in ("up", "down")
        }
        spiked += [f"{i + 1} {way} ({count})" for way, count in counts.items() if count]
    return [*lines, f"  spikes around then: {', '.join(spiked) or 'none'}"]


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.0f} %" if value >= 100 else f"{value:.3g} %"
