"""Options that several commands have in common, and the types and classes that options are made of.

Covers: lengths of time, options given to a command as one, and help in sections.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from prontosched.errors import SettingsError
from prontosched.settings import seconds

Command = TypeVar("Command", bound=Callable[..., Any])
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


class Duration(click.ParamType[float]):
    """A length of time in seconds: `90s`, `10m`, `1h30m`.

    Parameters
    ----------
    least
        The shortest that is taken.
    above
        Take only what is longer than `least`.
    """

    name = "duration"

    def __init__(self, least: float = 0.0, *, above: bool = False) -> None:
        self.least = least
        self.above = above

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read the text, or take a number as seconds."""
        try:
            found = float(value) if type(value) in (int, float) else seconds(str(value))
        except SettingsError as error:
            self.fail(str(error), param, ctx)
        if not (math.isfinite(found) and (found > self.least if self.above else found >= self.least)):
            bound = "above" if self.above else "at least"
            self.fail(f"a length of time must be {bound} {self.least:g}s here, got {value!r}", param, ctx)
        return found


def lasting(seconds: float) -> str:
    """Return a length of time as people say it.

    Examples
    --------
    >>> lasting(7.4), lasting(600), lasting(9000)
    ('7 s', '10 min', '2.5 h')
    """
    if seconds < 120:
        return f"{max(0.0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def together(*options: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Return what gives a command all of these options, shown in this order."""

    def give(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return give


class SectionOption(click.Option):
    """An option that stands in a section of its command's help."""

    def __init__(self, *args: Any, section: str = "Options", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section


class SectionedCommand(click.Command):
    """A command whose help shows its options by section; those without one stand with the option before."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one list per section."""
        sections: dict[str, list[tuple[str, str]]] = {}
        section = "Options"
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                section = getattr(param, "section", section)
                sections.setdefault(section, []).append(record)
        for section, records in sections.items():
            with formatter.section(section):
                formatter.write_dl(records)
