"""`pronto agent`: run this node live, as a service."""

from __future__ import annotations

from typing import Any

import click

from prontosched.cli.options import SectionedCommand, agent_options


@click.command(cls=SectionedCommand)
@agent_options
def command(**options: Any) -> None:
    """Watch this machine and decide every second whether it can take another job.

    It answers over HTTP, on port 7077 of the loopback by default, and keeps what it has learned
    across restarts. `pronto up` serves the dashboard too.

    \b
    Example:
        pronto agent --budget 0.05 --gate slurm --shadow
    """
    from prontosched.cli.live import run_agent

    run_agent(options)
