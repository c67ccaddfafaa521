"""The command line: parse, call, print.

Each command lives in a module of its own name beside this one and is imported
when it is called, so that `pronto status` does not pay for `pronto evaluate`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any

import click

from prontosched.errors import ProntoError

# In the order of the story that `pronto --help` tells.
COMMANDS: dict[str, tuple[str, str]] = {
    "replay": ("Replay a trace", "Replay a trace and show decisions as they come."),
    "bench": ("Measure", "Measure speed and size against references, as ratios in one run."),
}


class Story(click.Group):
    """A group that imports a command only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order of the story."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"prontosched.cli.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Tell the story in one screen, importing nothing."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for name, (chapter, line) in COMMANDS.items():
            groups.setdefault(chapter, []).append((name, line))
        for chapter, rows in groups.items():
            with formatter.section(chapter):
                formatter.write_dl(rows)


@click.command(
    cls=Story, context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "PRONTO"}
)
@click.version_option(package_name="prontosched", prog_name="pronto")
def cli() -> None:
    """Let this machine decide whether it can take another job.

    A node watches its own telemetry, follows it with a streaming PCA, turns that
    into a rejection signal, and a gate makes the scheduler respect it.
    """


def main(arguments: Sequence[str] | None = None) -> Any:
    """Run the command; a `ProntoError` becomes one line and exit code 1."""
    try:
        return cli.main(args=None if arguments is None else list(arguments), standalone_mode=True)
    except ProntoError as error:
        click.echo(f"pronto: {error}", err=True)
        sys.exit(1)
    except BrokenPipeError:
        # The reader of our output has gone (`pronto replay | head`): not our error.
        sys.stderr.close()
        sys.exit(0)
