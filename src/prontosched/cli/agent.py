"""`pronto agent`: run this node live, as a service."""

from __future__ import annotations

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
    """Watch this machine and decide every second whether it can take another job.

    Answers on HTTP (port 7077 of the loopback unless told otherwise) and keeps what it
    learned across restarts. See `pronto up` for the same with a page to look at.

    \b
    Example:
        pronto agent --budget 0.05 --gate slurm --shadow
    """
    from prontosched.agent.config import make_access, source_of
    from prontosched.agent.logs import log_to_stderr
    from prontosched.cli.live import go

    log_to_stderr(verbose=verbose, form=log_format)
    settings = settings_of(options)
    access = make_access(settings)
    go(settings, source_of(settings), access, seconds=seconds, as_json=as_json, form=log_format)
