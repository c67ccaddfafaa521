"""`pronto up`: agent, API and dashboard on this machine."""

from __future__ import annotations

from typing import Any

import click

from prontosched.cli.options import SectionedCommand, agent_options


@click.command(cls=SectionedCommand)
@agent_options
def command(**options: Any) -> None:
    """Watch this machine now: agent, API and dashboard in one, no root and no configuration.

    It prints the address of the page, on the next free port where 7077 is taken. On a terminal
    a status line shows the present state; every change of state is printed with its reason. It
    ends on Ctrl-C or after `--for`, with a summary. Where this machine cannot be read it says so
    and replays a generated trace.

    \b
    Example:
        pronto up --for 60s
    """
    from prontosched.cli.live import run_agent

    run_agent(options, pages=True)
