"""`pronto up`: everything on one machine, nothing to set up."""

from __future__ import annotations

from typing import Any

import click

from prontosched.cli.agent_options import agent_options, settings_of
from prontosched.cli.shared_options import SectionedCommand


@click.command(cls=SectionedCommand)
@agent_options
def command(seconds: float | None, verbose: bool, as_json: bool, **options: Any) -> None:
    """Watch this machine now: agent, API and dashboard in one, no root and no configuration.

    Takes the next free port where 7077 is taken, and says where to look. Stops on Ctrl-C
    or after `--for`, with a summary. Where this machine cannot be read it says so and
    replays a generated trace.

    \b
    Example:
        pronto up --for 60s
    """
    from prontosched.agent.assembly import make_access
    from prontosched.agent.running import log_to_stderr
    from prontosched.agent.sources import local_source
    from prontosched.cli.live import go

    log_to_stderr(verbose=verbose)
    settings = settings_of(options)
    access = make_access(settings)
    settings, source, instead = local_source(settings)
    if instead:
        click.echo(instead, err=True)
    go(settings, source, access, seconds=seconds, as_json=as_json, pages=True)
