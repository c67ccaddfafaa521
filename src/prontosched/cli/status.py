"""`pronto status`: the present decision and its reason."""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from prontosched.cli.asking import asking_options, find, node_option

REJECTING = 75


@click.command()
@node_option
@asking_options
@click.option("--exit-code", is_flag=True, help=f"Exit with {REJECTING} when the node rejects.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    url: str | None,
    node: str | None,
    token_file: Path | None,
    ca: Path | None,
    state: Path | None,
    exit_code: bool,
    as_json: bool,
) -> None:
    """Say whether this node accepts another job, and why.

    Asks the agent where one runs, and otherwise watches this machine for a few seconds.

    \b
    Example:
        pronto status --json
    """
    client, folder = find(url, token_file, ca, state)
    found = _watch(folder) if client is None else {"asked": client.url, **client.decision(node)}
    click.echo(json.dumps(found) if as_json else _words(found))
    if exit_code and not found["accept"]:
        raise click.exceptions.Exit(REJECTING)


def _watch(folder: Path) -> dict[str, Any]:
    from prontosched.agent.watching import WATCH_SECONDS, look
    from prontosched.settings import AgentSettings

    click.echo(f"no agent answers: watching this machine for {WATCH_SECONDS:.0f} s", err=True)
    seen = asdict(look(AgentSettings(), folder))
    plain = {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in seen.items()}
    return {"asked": None, **plain}


def _words(found: dict[str, Any]) -> str:
    lines = [f"{found['node']}: {'accepting' if found['accept'] else 'rejecting'}: {found['reason']}"]
    if (since := found.get("since")) is not None:
        lines.append(f"since {_ago(time.time() - since)}, telemetry {found['age_seconds']:.1f} s old")
    ready, used = found.get("cpu_ready_percent"), found.get("utilisation_percent")
    if ready is not None:
        busy = "" if used is None else f", CPUs {used:.0f} % busy"
        lines.append(f"CPU Ready {ready:.2f} % per CPU{busy}")
    if found.get("announced_cpus"):
        lines.append(f"{found['announced_cpus']:g} CPUs announced and not yet seen")
    return "\n".join(lines)


def _ago(seconds: float) -> str:
    if seconds < 120:
        return f"{max(0.0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
