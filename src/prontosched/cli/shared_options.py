"""Options that several commands have in common, given to each as one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def together(*options: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Return what gives a command all of these options, shown in this order."""

    def give(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return give
