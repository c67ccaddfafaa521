"""`pronto explain`: what a node is made of, and what drove its last refusal, in the terminal."""

from __future__ import annotations

import json
import time
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import click

from prontosched.cli.asking import asking_options, find, node_option
from prontosched.errors import IntegrationError, ProntoError

SPAN_SECONDS = 30.0
WATCH_STEPS = 25
WATCH_INTERVAL = 0.4


class Moment(click.ParamType[float]):
    """A clock time: `14:03`, `2026-05-01T14:03`, seconds since 1970, or `5m` ago."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds since 1970."""
        from prontosched.settings import seconds

        text = str(value).strip()
        try:
            return float(text)
        except ValueError:
            pass
        for shape in ("%H:%M", "%H:%M:%S"):
            try:
                clock = datetime.strptime(text, shape).time()
            except ValueError:
                continue
            return datetime.combine(datetime.now().date(), clock).timestamp()
        try:
            return datetime.fromisoformat(text).timestamp()
        except ValueError:
            pass
        try:
            return time.time() - seconds(text.removesuffix(" ago"))
        except ProntoError:
            self.fail(f"a time must be like 14:03, 2026-05-01T14:03 or 5m, got {text!r}", param, ctx)


@click.command()
@click.option(
    "--at", type=Moment(), metavar="TIME", help="Explain what was decided then: 14:03, or 5m (ago)."
)
@node_option
@asking_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    at: float | None,
    url: str | None,
    node: str | None,
    token_file: Path | None,
    ca: Path | None,
    state: Path | None,
    as_json: bool,
) -> None:
    """Say what this node is made of, and what drove its last refusal.

    Asks the agent where one runs, and otherwise watches this machine for some seconds.

    \b
    Example:
        pronto explain --at 14:03
    """
    client, _ = find(url, token_file, ca, state)
    named = {} if node is None else {"node": node}
    if at is not None:
        if client is None:
            raise IntegrationError(
                "an agent must be running to tell of the past, got no answer: start one with `pronto up`"
            )
        span = {"from": at - SPAN_SECONDS, "to": at + SPAN_SECONDS, "points": 60}
        past = client.get(f"/v1/history?{urlencode({**span, **named})}")
        click.echo(json.dumps(past) if as_json else _then(past, at))
        return
    found = (
        _watch() if client is None else client.get("/v1/explain" + (f"?{urlencode(named)}" if named else ""))
    )
    click.echo(json.dumps(found) if as_json else _now(found))


def _watch() -> dict[str, Any]:
    """Watch this machine long enough for a first picture of its directions."""
    from prontosched.explain import directions, sentence
    from prontosched.presets import make_node
    from prontosched.telemetry.linux import LinuxSource

    click.echo(f"no agent answers: watching this machine for {WATCH_STEPS * WATCH_INTERVAL:.0f} s", err=True)
    source = LinuxSource(interval_seconds=WATCH_INTERVAL)
    node = decision = sample = None
    for _ in range(WATCH_STEPS):
        time.sleep(WATCH_INTERVAL)
        for sample in source.read():
            if node is None or node.metrics != sample.metrics:
                node = make_node(metrics=sample.metrics)
            decision = node.step(
                sample.vector, ready=sample.ready, utilisation=sample.utilisation, time=sample.timestamp
            )
    source.close()
    if node is None or decision is None or sample is None:
        raise IntegrationError("this machine must be readable, got no telemetry: see `pronto check`")
    subspace = node.projector.subspace
    found = [] if subspace is None else directions(subspace, sample.metrics, top=6)
    return {
        "node": sample.node,
        "decision": {"accept": decision.accept, "reason": decision.reason},
        "directions": [{"strength": float(d.strength), "words": sentence(d.parts[:3])} for d in found],
        "last_rejection": None,
        "change": None,
    }


def _now(found: dict[str, Any]) -> str:
    decision = found["decision"]
    word = click.style("accepting", fg="green") if decision["accept"] else click.style("refusing", fg="red")
    lines = [f"{found['node']}: {word}: {decision['reason']}", ""]
    if not found["directions"]:
        lines.append("No directions yet: too few vectors were seen.")
    for i, direction in enumerate(found["directions"]):
        lines.append(
            f"direction {i + 1}  {100 * direction['strength']:3.0f} % of what moves: {direction['words']}"
        )
    last = found.get("last_rejection")
    lines.append("")
    if last is None:
        lines.append("No refusal yet.")
    else:
        lines.append(f"Last refusal {time.time() - last['time']:.0f} s ago: {last['reason']}")
        if last["words"]:
            lines.append(f"  what stood out: {last['words']}")
    if (change := found.get("change")) is not None:
        turned = (
            f"The last block turned the directions by {change['distance']:.3f} (0 not at all, 1 completely)"
        )
        gained = ", ".join(part["metric"] for part in change["gained"][:3])
        lines.append(turned + (f"; more of {gained}" if gained else ""))
    return "\n".join(lines)


def _then(found: dict[str, Any], at: float) -> str:
    shown = datetime.fromtimestamp(at).strftime("%d %b %H:%M:%S")
    if not found["points"]:
        return f"{found['node']}: nothing was recorded around {shown}"
    point = min(found["points"], key=lambda p: abs(p["time"] - at))
    ready = "unknown" if point["ready_max"] is None else f"{point['ready_max']:.1f} %"
    word = "refusing" if point["raised_share"] and point["raised_share"] > 0 else "accepting"
    lines = [f"{found['node']} at {shown}: {word}, CPU Ready up to {ready}"]
    if point.get("reason"):
        lines.append(f"  {point['reason']}")
    return "\n".join(lines)
