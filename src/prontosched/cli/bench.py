"""`pronto bench`: speed and size against references, as ratios in one run."""

from __future__ import annotations

import importlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import click

from prontosched.threads import ONE_THREAD

# Section: module and function that yields its rows.
SECTIONS = {
    "core": ("prontosched.bench.numerics", "core_rows"),
    "federation": ("prontosched.bench.federation", "federation_rows"),
    "agent": ("prontosched.bench.agent", "agent_rows"),
}


@click.command("bench")
@click.argument("section", type=click.Choice([*SECTIONS, "all"]), default="core")
@click.option("--json", "as_json", is_flag=True, help="Print a list with one object per row.")
@click.option("--worker", is_flag=True, hidden=True)
def command(section: str, as_json: bool, worker: bool) -> None:
    """Measure speed and size against references and peers.

    Every figure is a ratio within one run, so that a busy machine does not decide
    the result. SECTION is core (the default), federation, agent or all.

    \b
    Example:
        pronto bench core --json
    """
    if not worker:
        arguments = [sys.executable, "-m", "prontosched", "bench", section, "--worker"]
        ran = subprocess.run(
            [*arguments, *["--json"] * as_json], env={**os.environ, **ONE_THREAD}, check=False
        )
        sys.exit(ran.returncode)
    rows = []
    if not as_json:
        click.echo(f"{'what':<72} {'figure':>10} {'goal':>12}")
    for row in _rows(list(SECTIONS) if section == "all" else [section]):
        rows.append(row)
        if not as_json:
            click.echo(_line(row))
    if as_json:
        click.echo(json.dumps([{**row, "goal": _plain(row["goal"])} for row in rows], indent=1))


def _rows(sections: list[str]) -> Iterator[dict[str, Any]]:
    for section in sections:
        module, name = SECTIONS[section]
        click.echo(f"measuring {section} …", err=True)
        measure: Callable[[], Iterator[Any]] = getattr(importlib.import_module(module), name)
        for row in measure():
            yield row if isinstance(row, dict) else row.as_json()


def _plain(goal: float | None) -> float | None:
    return None if goal is None or math.isnan(goal) else goal


def _line(row: dict[str, Any]) -> str:
    goal = _plain(row["goal"])
    sign = {"more": "≥", "less": "≤"}.get(row.get("better", "less"), "≤")
    text = f"{row['name']:<72} {row['value']:>7.2f} {row['unit']:<2}"
    if goal is None:
        return text
    mark = click.style("met", fg="green") if row["met"] else click.style("missed", fg="red")
    return f"{text} {sign} {goal:>6g} {row['unit']:<2}  {mark}"
