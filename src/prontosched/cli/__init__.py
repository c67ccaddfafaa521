"""The command line: parse, call, print.

Each command lives in a module of its own name beside this one and is imported
when it is called, so that `pronto status` does not pay for `pronto evaluate`.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from prontosched.errors import ProntoError, suggestion
from prontosched.extras import extra_of, missing_extra
from prontosched.settings import INHERITS, default_map, find_file, read_file, unknown_variables
from prontosched.threads import use_one_thread

# Chapter and summary of each command, in the order of `pronto --help`.
COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("On this machine", "Watch this machine now: agent, API and dashboard in one."),
    "status": ("On this machine", "Say whether this node accepts, and why."),
    "run": ("On this machine", "Wait until this node accepts, then run a command."),
    "explain": ("On this machine", "Say which metrics move together here, and which drove the last refusal."),
    "report": ("On this machine", "Say what happened over some days, and what to do about it."),
    "agent": ("On this machine", "Run this node live, as a service."),
    "check": ("On this machine", "Say what is wrong here, what mends it, and what can be measured."),
    "record": ("Traces", "Record what a source sees to a file."),
    "replay": ("Traces", "Replay a trace and show decisions as they come."),
    "generate": ("Traces", "Write generated traces: of the paper's shape, or to check the evaluator."),
    "datasets": ("Traces", "List data sets: where they are published, and how to read them."),
    "gate": ("Run for a scheduler", "See, watch and undo what Pronto does at schedulers."),
    "extender": ("Run for a scheduler", "Answer kube-scheduler which nodes may take a pod."),
    "aggregate": ("Run for a fleet", "Run aggregators: merge what nodes know into one global view."),
    "federation": ("Run for a fleet", "Show the federation: who is there, and how far from the view."),
    "evaluate": ("Measure", "Find out whether a signal is worth obeying, on traces."),
    "forecast": ("Measure", "Forecast CPU Ready as the paper does; answer its four questions."),
    "simulate": ("Measure", "See what refusing does to jobs, in a simulated cluster."),
}


class CommandGroup(click.Group):
    """A group that imports a command only when it is called, and lists commands by chapter."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order of `COMMANDS`."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"prontosched.cli.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        name_variables(command, cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; of an unknown one say what was probably meant."""
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            raise click.UsageError(f"No such command {args[0]!r}{suggestion(args[0], COMMANDS)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by chapter, importing none."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for name, (chapter, line) in COMMANDS.items():
            groups.setdefault(chapter, []).append((name, line))
        for chapter, rows in groups.items():
            with formatter.section(chapter):
                formatter.write_dl(rows)


@click.command(
    cls=CommandGroup,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True, "max_content_width": 100},
)
@click.version_option(package_name="prontosched", prog_name="pronto")
@click.option(
    "--config",
    envvar="PRONTO_CONFIG",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Settings file.  [default: ~/.config/pronto/pronto.toml, /etc/pronto/pronto.toml]",
)
@click.pass_context
def cli(ctx: click.Context, config: Path | None) -> None:
    """Let this machine decide whether it can take another job.

    A node watches its own telemetry, follows it with a streaming PCA, turns that
    into a rejection signal, and a gate makes the scheduler respect it.
    """
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        ctx.color = False
    _check_variables(ctx)
    path = config or find_file()
    if path is not None:
        tables = read_file(path)
        ctx.default_map = default_map(tables, _options(ctx, set(tables)), path)


def _options(ctx: click.Context, tables: set[str]) -> dict[str, dict[str, str]]:
    """Return the settings of every command; those of commands that no table names are not looked up."""
    wanted = tables | {command for command, parent in INHERITS.items() if parent in tables}
    found: dict[str, dict[str, str]] = {name: {} for name in COMMANDS}
    for name in wanted & set(COMMANDS):
        command = cli.get_command(ctx, name)
        for param in command.params if command else ():
            found[name].update({word: param.name for word in _words(param) if param.name})
    return found


def name_variables(command: click.Command, name: str) -> None:
    """Give every option its environment variable: `PRONTO_`, the command, the option's own word.

    What a command inherits in the settings file it inherits in the environment.
    """
    names = [name, INHERITS[name]] if name in INHERITS else [name]
    for path, inner in _leaves(command, ()):
        for option in inner.params:
            if isinstance(option, click.Option) and (words := _words(option)):
                option.envvar = ["_".join(("PRONTO", name, *path, words[0])).upper() for name in names]


def _check_variables(ctx: click.Context) -> None:
    """Refuse variables that look like settings of the command and are none; report others that set nothing."""
    called = ctx.invoked_subcommand or ""
    names = {called, INHERITS.get(called, called)} & set(COMMANDS)
    known = {"PRONTO_CONFIG"}
    for name in names:
        command = cli.get_command(ctx, name)
        for _, inner in _leaves(command, ()) if command is not None else ():
            known.update(variable for option in inner.params for variable in option.envvar or ())
    for message in unknown_variables(
        known, {name.upper() for name in names}, {name.upper() for name in COMMANDS}
    ):
        click.echo(f"pronto: {message}", err=True)


def _leaves(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield a command and all under it, each with the words that lead there."""
    yield path, command
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from _leaves(inner, (*path, name.replace("-", "_")))


def _words(option: click.Parameter) -> list[str]:
    """Return an option's names as files and variables have them: `--log-age` is `log_age`."""
    return [word[2:].replace("-", "_") for word in option.opts if word.startswith("--")]


def main(arguments: Sequence[str] | None = None) -> Any:
    """Run the command; what a user can mend becomes one line.

    Exit codes: 1, 2 for the command line itself, 130 for Ctrl-C.
    """
    use_one_thread()
    if isinstance(sys.stdout, io.TextIOWrapper):  # names may have what the encoding of a terminal has not
        sys.stdout.reconfigure(errors="replace")
    try:
        ended = cli.main(
            args=None if arguments is None else list(arguments), prog_name="pronto", standalone_mode=False
        )
        sys.exit(ended if isinstance(ended, int) else 0)
    except click.ClickException as error:
        if isinstance(error, click.exceptions.NoArgsIsHelpError):
            error.show()
        else:
            click.echo(f"pronto: {_one_line(error)}", err=True)
        sys.exit(error.exit_code)
    except click.Abort:
        click.echo("pronto: stopped", err=True)
        sys.exit(130)
    except ProntoError as error:
        click.echo(f"pronto: {error}", err=True)
        sys.exit(1)
    except ModuleNotFoundError as error:
        extra = extra_of(error.name or "")
        if extra is None:
            raise
        click.echo(f"pronto: {missing_extra('this', extra)}", err=True)
        sys.exit(1)
    except BrokenPipeError:
        # The reader of our output has gone (`pronto replay | head`): not our error.
        sys.stderr.close()
        sys.exit(0)


def _one_line(error: click.ClickException) -> str:
    text = " ".join(error.format_message().split()).removesuffix(".")
    context = getattr(error, "ctx", None)
    if isinstance(error, click.NoSuchOption) and context is not None:
        name, path = error.option_name, context.command_path.removeprefix("pronto ")
        if any(name in option.opts for option in cli.params):
            return f"{name} must stand before the command, got it after {path}: pronto {name} … {path}"
    see = " See" if text.endswith("?") else "; see"
    return text if context is None else f"{text}{see} {context.command_path} --help"
