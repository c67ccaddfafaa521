"""`pronto up`: everything on one machine, nothing to set up."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from prontosched.cli.options import SectionedCommand, agent_options, settings_of

if TYPE_CHECKING:
    from prontosched.agent.logs import LogFormat


@click.command(cls=SectionedCommand)
@agent_options
def command(
    seconds: float | None, verbose: bool, log_format: LogFormat, as_json: bool, **options: Any
) -> None:
    """Watch this machine now: agent, API and dashboard in one, no root and no configuration.

    Takes the next free port where 7077 is taken, and says where to look. On a terminal one
    line shows where it stands; every change of mind is printed with its reason. Stops on
    Ctrl-C or after `--for`, with a summary. Where this machine cannot be read it says so and
    replays a generated trace.

    \b
    Example:
        pronto up --for 60s
    """
    from prontosched.agent.config import local_source, make_access
    from prontosched.agent.logs import log_to_stderr
    from prontosched.cli.live import LOG, Screen, go, is_live

    screen = Screen(sys.stderr) if log_format == "text" and is_live(sys.stderr) else None
    log_to_stderr(verbose=verbose, form=log_format, stream=screen)
    settings = settings_of(options)
    access = make_access(settings)
    settings, source, instead = local_source(settings)
    if instead:
        LOG.warning("%s", instead)
    go(
        settings,
        source,
        access,
        seconds=seconds,
        as_json=as_json,
        form=log_format,
        pages=True,
        screen=screen,
    )
