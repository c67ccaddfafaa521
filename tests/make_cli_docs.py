"""Write docs/cli.md from the help of every command: `make docs`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from prontosched.cli import COMMANDS, cli

# Said outright: which of the group's own settings a bare context takes over differs between versions of click.
SHAPE: dict[str, Any] = {
    "terminal_width": 100,
    "max_content_width": 100,
    "help_option_names": ["-h", "--help"],
    "show_default": True,
}
PAGE = Path(__file__).parent.parent / "docs" / "cli.md"


def fresh(command: click.Command, name: str, parent: click.Context | None = None) -> click.Context:
    """Return a context as a terminal would make it, whatever the command was used for before."""
    if hasattr(command, "_help_option"):
        command._help_option = None  # click keeps the first one it made
    return click.Context(command, info_name=name, parent=parent, **SHAPE)


def help_of(command: click.Command, name: str, parent: click.Context) -> str:
    """Return a command's help as it stands on a terminal 100 wide, and that of its own commands."""
    context = fresh(command, name, parent)
    text = f"## {context.command_path}\n\n```\n{context.get_help()}\n```\n"
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            inner = command.get_command(context, child)
            if inner is not None and not inner.hidden:
                text += "\n" + help_of(inner, child, context)
    return text


def page() -> str:
    """Return the whole page."""
    root = fresh(cli, "pronto")
    parts = [
        "# The command line\n",
        "Made from `--help` by `make docs`; a test fails when it is out of date. Every option can also be given in",
        "the environment: `pronto replay --signal paper` is `PRONTO_REPLAY_SIGNAL=paper pronto replay`.\n",
        f"```\n{root.get_help()}\n```\n",
    ]
    for name in COMMANDS:
        command = cli.get_command(root, name)
        assert command is not None
        parts.append(help_of(command, name, root))
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
