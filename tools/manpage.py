"""`python -m tools.manpage`: the manual page pronto(1), from the help of every command."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import version

import click

from prontosched.cli import COMMANDS, cli

FILES = (
    ("/etc/pronto/pronto.toml", "Settings of the machine."),
    ("~/.config/pronto/pronto.toml", "Settings of a user, which come first."),
    ("/var/lib/pronto", "What the service has learned, and its decision log."),
    ("~/.local/state/pronto", "The same for an agent that a user started."),
)


def escaped(text: str) -> str:
    """Return text as roff takes it literally."""
    text = text.replace("\\", r"\e").replace("-", r"\-")
    text = re.sub(r"(?m)^([.'])", r"\\&\1", text)
    return "".join(c if c.isascii() else rf"\[u{ord(c):04X}]" for c in text)


def paragraphs(text: str) -> Iterator[str]:
    """Yield a help text as roff: paragraphs, and those after a backspace as they stand."""
    for block in re.split(r"\n\s*\n", text.strip()):
        lines = block.splitlines()
        if lines and lines[0].strip() == "\b":
            rest = "\n".join(escaped(line.rstrip()) for line in lines[1:])
            yield f".PP\n.nf\n{rest}\n.fi"
        else:
            yield f".PP\n{escaped(' '.join(line.strip() for line in lines))}"


def described(command: click.Command, context: click.Context) -> Iterator[str]:
    """Yield the section of one command, and those of the commands in it."""
    usage = " ".join(command.collect_usage_pieces(context))
    yield f".SS {escaped(context.command_path)} {escaped(usage)}"
    yield from paragraphs((command.help or "").split("\f")[0])
    for option in command.get_params(context):
        record = option.get_help_record(context)
        if record is not None:
            yield f".TP\n.B {escaped(record[0])}\n{escaped(record[1])}"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None and not inner.hidden:
                yield from described(inner, click.Context(inner, info_name=name, parent=context))


def manual() -> str:
    """Return the whole page."""
    top = click.Context(cli, info_name="pronto")
    parts = [
        f'.TH PRONTO 1 "" "pronto {version("prontosched")}" "User Commands"',
        ".SH NAME\npronto \\- let a machine say whether it can take another job",
        ".SH SYNOPSIS\n.B pronto\n[\\-\\-config FILE] COMMAND [OPTIONS]",
        ".SH DESCRIPTION",
        *paragraphs(cli.help or ""),
        ".SH COMMANDS",
    ]
    for name in COMMANDS:
        command = cli.get_command(top, name)
        assert command is not None
        parts += described(command, click.Context(command, info_name=name, parent=top))
    parts.append(
        ".SH ENVIRONMENT\nEvery option can be set by PRONTO_COMMAND_OPTION, such as PRONTO_AGENT_INTERVAL."
    )
    parts.append(".SH FILES")
    parts += [f".TP\n.I {escaped(path)}\n{escaped(what)}" for path, what in FILES]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    click.echo(manual(), nl=False)
