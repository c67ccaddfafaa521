"""`pronto status`: the present state, its reason, and an exit code for scripts."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import click

from prontosched.cli.options import COLOURS, asking_options, find, lasting, node_option, why_alone
from prontosched.errors import ProntoError
from prontosched.settings import AgentSettings

if TYPE_CHECKING:
    from prontosched.agent.http.client import Client

EXIT_CODES = {"accepting": 0, "refusing": 1, "contended": 3}
NO_ANSWER = 4


@click.command()
@node_option
@asking_options
@click.option(
    "--horizon",
    type=click.IntRange(1, 100_000),
    metavar="STEPS",
    help="Also print the chance of contention within this many timesteps.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(node: str | None, horizon: int | None, as_json: bool, **asked: Any) -> None:
    """Say whether this node accepts another job, and why.

    It asks the agent where one runs, and otherwise watches this machine for a few seconds. A node
    is contended where contention is expected and an option or a gate holds it open.

    \b
    Exit code:
        0  accepting
        1  refusing
        3  contended, and held open
        4  no answer: no agent at the address given, or it does not tell
    \b
    Example:
        pronto status --json
    """
    try:
        client, settings = find(**asked)
        found = (
            _watch(settings, node, horizon, asked["url"]) if client is None else _ask(client, node, horizon)
        )
    except ProntoError as error:
        click.echo(f"pronto: {error}", err=True)
        raise click.exceptions.Exit(NO_ANSWER) from error
    click.echo(json.dumps(found) if as_json else _words(found, horizon))
    raise click.exceptions.Exit(EXIT_CODES[found["state"]])


def styled(state: str) -> str:
    """Return a state as the terminal shows it."""
    word = "contended, held open" if state == "contended" else state
    return click.style(word, fg=COLOURS[state])


def beside(found: dict[str, Any]) -> list[str]:
    """Return what must be said with a state: by what a node is held open, or that nothing enforces it."""
    if found.get("held_by") and found["held_by"] not in found["reason"]:
        return [f"held open by {found['held_by']}"]
    if found["state"] == "refusing" and not found.get("enforced", True):
        return ["nothing enforces this: it is up to who asks"]
    return []


def _ask(client: Client, node: str | None, horizon: int | None) -> dict[str, Any]:
    found = {"asked": client.url, **client.decision(node, horizon=horizon)}
    return {**found, "probe": client.get("/v1/status").get("probe")}


def _watch(settings: AgentSettings, node: str | None, horizon: int | None, url: str | None) -> dict[str, Any]:
    from prontosched.agent.standalone import WATCH_SECONDS, watch, watched
    from prontosched.agent.views import decision_within

    click.echo(f"{why_alone(url)}: watching {watched(settings)} for {WATCH_SECONDS:.0f} s", err=True)
    agent = watch(settings, node)
    found = agent.answer(node).as_json() if horizon is None else decision_within(agent, node, horizon)
    return {"asked": None, **found}


def _words(found: dict[str, Any], horizon: int | None) -> str:
    lines = [f"{found['node']}: {styled(found['state'])}: {found['reason']}", *beside(found)]
    if (since := found.get("since")) is not None:
        lines.append(f"since {lasting(time.time() - since)}, telemetry {found['age_seconds']:.1f} s old")
    ready, used = found.get("cpu_ready_percent"), found.get("utilisation_percent")
    if ready is not None:
        busy = "" if used is None else f", CPUs {used:.0f} % busy"
        lines.append(f"CPU Ready {ready:.2f} % per CPU{busy}")
    if (probe := found.get("probe")) and probe["record"] is not None:
        last = probe["last"]["slowdown"]
        now = "" if last is None else f"a probe took {last:.2f} x as long as alone; "
        lines.append(f"{now}{probe['record']['words']}")
    if horizon is not None:
        lines.append(_chance(found.get("horizon"), horizon))
    if found.get("announced_cpus"):
        lines.append(f"{found['announced_cpus']:g} CPUs announced and not yet seen")
    return "\n".join(lines)


def _chance(within: dict[str, Any] | None, asked: int) -> str:
    """Say the chance of contention within a horizon, and which ones there are where it is another one."""
    if within is None or within["probability"] is None:
        return f"chance of contention within {asked} timesteps: not known"
    told = f"chance of contention within {within['steps']} timesteps: {100 * within['probability']:.0f} %"
    if within["steps"] == asked:
        return told
    return f"{told} (offered are {', '.join(map(str, within['offered']))}, not {asked})"
