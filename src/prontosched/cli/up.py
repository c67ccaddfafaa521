"""`pronto up`: everything on one machine, nothing to set up."""

from __future__ import annotations

from typing import Any

import click

from prontosched.cli.options import SectionedCommand, agent_options


@click.command(cls=SectionedCommand)
@agent_options
def command(**options: Any) -> None:
    """Watch this machine now: agent, API and dashboard in one, no root and no configuration.

    Takes the next free port where 7077 is taken, and says where to look. On a terminal one
    line shows where it stands; every change of mind is printed with its reason. Stops on
    Ctrl-C or after `--for`, with a summary. Where this machine cannot be read it says so and
    replays a generated trace.

    \b
    Example:
        pronto up --for 60s
    """
    from prontosched.cli.live import run_agent

    run_agent(options, pages=True)
