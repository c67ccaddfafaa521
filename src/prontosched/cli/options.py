"""Options that several commands have in common.

Covers: lengths of time, lines that a terminal can draw over, the options of an agent and of its
signal (`SETTINGS`, one row each), help in sections, and the options of commands that ask an agent.
"""

from __future__ import annotations

import inspect
import math
import os
import signal
import threading
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO, TypeVar, get_args, get_origin, get_type_hints

import click

from prontosched.errors import SettingsError
from prontosched.settings import SIGNAL_SETTINGS, AgentSettings, seconds

if TYPE_CHECKING:
    from prontosched.agent.http.client import Client

Command = TypeVar("Command", bound=Callable[..., Any])
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
POSITIVE = click.FloatRange(min=0, min_open=True)
# Of the states on a terminal: green is for accepting alone.
COLOURS = {"accepting": "green", "contended": "yellow", "refusing": "red"}
WEIGHTS = click.Choice(["normalised", "raw", "harmonic"])
USUAL_COLUMNS = 80
ERASE = "\r\x1b[K"


def is_live(stream: TextIO) -> bool:
    """Tell whether a line can be drawn over on a stream."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def columns_of(stream: TextIO) -> int:
    """Return a terminal's width now."""
    try:
        found = os.get_terminal_size(stream.fileno()).columns
    except OSError:
        found = 0
    # A terminal that was never told its size has none.
    return found or USUAL_COLUMNS


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic only from click 8.4 on
    """A length of time in seconds: `90s`, `10m`, `1h30m`; at least `least`, or `above` it."""

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
    >>> lasting(7.4), lasting(600), lasting(9000), lasting(3e6)
    ('7 s', '10 min', '2.5 h', '34.7 days')
    """
    if seconds < 120:
        return f"{max(0.0, seconds):.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 129_600 else f"{seconds / 86400:.1f} days"


def together(*options: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Return a decorator that gives a command all of these options, shown in this order."""

    def give(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return give


class SettingOption(click.Option):
    """An option in a section of its command's help, which shows the default that holds if it is not given."""

    def __init__(self, *args: Any, section: str, **given: Any) -> None:
        super().__init__(*args, **given)
        self.section = section

    def default_text(self) -> str | None:
        """Return the default as help and pages show it, that of the learned signal for a setting of the signal."""
        default = self.default
        if self.name in SIGNAL_SETTINGS:
            from prontosched.signals import find_signal  # here, so that only help pays for it

            parameter = inspect.signature(find_signal("learned").one).parameters.get(self.name)
            if parameter is None:
                return None
            default = parameter.default
            if default is None or isinstance(default, bool):
                return {None: "no limit", True: "on", False: "off"}[default]
        if isinstance(self.type, Duration) and isinstance(default, int | float):
            return f"{default:g}s" if default % 86400 else f"{default / 86400:g}d"
        return str(default) if isinstance(default, str | int | float) else None

    def get_help_extra(self, ctx: click.Context) -> Any:
        """Show the default in those words; click has better ones for a pair of flags."""
        extra = super().get_help_extra(ctx)
        if not isinstance(self.default, bool) and (text := self.default_text()) is not None:
            extra["default"] = text
        return extra


class SectionedCommand(click.Command):
    """A command whose help shows its options by section."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one list per section; `--help` stands in the last one."""
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


# The options of an agent by section: option, placeholder, help, and the type where the setting's annotation says
# less than what is allowed. Defaults are those of `AgentSettings`; a signal checks its own settings.
INTERVAL = Duration(0.01)
SETTINGS: dict[str, tuple[tuple[Any, ...], ...]] = {
    "Telemetry": (
        ("--source", "NAME", "Source of telemetry."),
        ("--root", "FOLDER", "Folder that holds proc and sys."),
        ("--target", "URL", "Metrics page or vCenter to read; repeatable."),
        ("--trace", "PATH", "File or folder to replay.", click.Path(exists=True, path_type=Path)),
        ("--repeat", None, "Start the trace again when it ends."),
        ("--synthetic", "N", "Watch N generated nodes instead.", click.IntRange(1, 100_000)),
        ("--source-option", "KEY=VALUE", "Option of the source; repeatable."),
        ("--interval", "TIME", "Time between decisions.  [default: the source's]", INTERVAL),
        ("--name", "NAME", "Name of this node.  [default: host name]"),
    ),
    "Signal": (
        ("--preset", "NAME", "default or paper.  [default: the signal's]"),
        ("--signal", "NAME", "Rejection signal.  [default: the preset's]"),
        ("--tolerance", "READY", "Contention: 5%, p95 or a number of CPU Ready."),
        ("--horizon", "STEPS", "Timesteps to look ahead."),
        ("--likelihood", "SHARE", "Chance of contention that refuses."),
        ("--reopen", "SHARE", "Chance below which to accept again."),
        ("--calm", "TIME", "Time below that before accepting.", Duration()),
        ("--hold", "TIME", "Shortest refusal; `paper`: in steps.", Duration()),
        ("--budget", "SHARE", "Largest share of time to refuse."),
        ("--hourly-limit", "SHARE", "Largest share of an hour to refuse."),
        ("--quota/--no-quota", None, "Use up the whole budget."),
        ("--explore", "SHARE", "Refusals lifted, to keep learning."),
        ("--weights", "KIND", "Of `paper`: normalised, raw, harmonic.", WEIGHTS),
        ("--embedding", "NAME", "fpca, spirit and others."),
        ("--energy-bounds", "A,B", "Energies between which the rank stays."),
    ),
    "Answers": (
        ("--valid", "TIME", "How long a decision counts.  [default: 10 steps]", Duration(above=True)),
        ("--when-silent", "ANSWER", "accept or reject without telemetry."),
        ("--cpus", "N", "CPUs of the node.  [default: counted]", POSITIVE),
        ("--capacity-factor", "N", "CPUs of load to allow per CPU.", POSITIVE),
        ("--probe/--no-probe", None, "Measure how much a job slows down."),
        ("--offenders", "HOW", "Consumers: names, hashed or off."),
    ),
    "Scheduler and federation": (
        ("--gate", "NAME", "Scheduler to tell: `pronto gate list`."),
        ("--gate-option", "KEY=VALUE", "Option of the gate; repeatable."),
        ("--enforce/--shadow", None, "Act there, or only record."),
        ("--max-refusing", "SHARE", "Most nodes closed at once.", click.FloatRange(0, 1, min_open=True)),
        ("--nats", "URL", "Bus of the federation.  [default: none]"),
    ),
    "State and access": (
        ("--state", "FOLDER", "State folder.  [default: $XDG_STATE_HOME/pronto]", FOLDER),
        ("--keep/--no-keep", None, "Keep state and decisions, or nothing."),
        ("--log-age", "TIME", "Age from which decisions are dropped.", Duration(above=True)),
        ("--log-megabytes", "N", "Largest size of the decision log.", click.IntRange(min=1)),
        ("--listen", "HOST:PORT", "Address of the API."),
        ("--token-file", "FILE", "Token that every request must carry.", FILE),
        ("--tls-cert", "FILE", "Certificate of the API.", FILE),
        ("--tls-key", "FILE", "Key of that certificate.", FILE),
    ),
}


def _setting(
    section: str, words: str, metavar: str | None, text: str, type: Any = None
) -> Callable[..., Any]:
    """Return the option of a row, with the default of its setting and the type of its annotation."""
    name = words.split("/")[0][2:].replace("-", "_")
    hint, default = get_type_hints(AgentSettings)[name], getattr(AgentSettings(), name)
    if get_origin(hint) is Literal:
        type = click.Choice(get_args(hint))
    plain, *_ = get_args(hint) or (hint,)
    how = {"is_flag": True} if plain is bool else {"type": type or plain, "multiple": default == ()}
    return click.option(
        words, cls=SettingOption, section=section, default=default, metavar=metavar, help=text, **how
    )


# How a signal decides: without the names of preset and signal themselves.
policy_options = together(*(_setting("Signal", *row) for row in SETTINGS["Signal"][2:]))
_run = partial(click.option, cls=SettingOption, section="Run")
_FORMATS = click.Choice(["text", "json"])
agent_options = together(
    *(_setting(section, *row) for section, rows in SETTINGS.items() for row in rows),
    _run("--for", "seconds", type=Duration(), metavar="TIME", help="Stop after this long.  [default: never]"),
    _run("--verbose", is_flag=True, help="Log more, with tracebacks of faults."),
    _run(
        "--log-format",
        type=_FORMATS,
        default="text",
        metavar="FORM",
        help="text, or json: one object a line.",
    ),
    _run("--json", "as_json", is_flag=True, help="Print the summary as one JSON object."),
)


def stopped_by_signals() -> threading.Event:
    """Return what is set at Ctrl-C or SIGTERM; a second one ends the process at once."""
    stop = threading.Event()

    def note(number: int, frame: object) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, note)
    return stop


def settings_of(options: dict[str, Any]) -> AgentSettings:
    """Return the agent's settings out of a command's options."""
    if options.get("source") == "linux":
        if options.get("synthetic") is not None:
            options["source"] = "generated"
        elif options.get("trace") is not None:
            options["source"] = "trace"
    return AgentSettings(**options)


def asking(agent: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Return the options of a command that asks agents: `agent` names them, `find` takes the rest."""
    return together(
        agent,
        click.option("--token-file", type=FILE, help="Token to send."),
        click.option("--ca", type=FILE, help="Authority to trust for TLS."),
        click.option(
            "--state",
            type=FOLDER,
            metavar="FOLDER",
            help="The agent's folder.  [default: $XDG_STATE_HOME/pronto]",
        ),
    )


asking_options = asking(
    click.option("--agent", "url", metavar="URL", help="Agent to ask, or none.  [default: this machine's]")
)
node_option = click.option("--node", metavar="NAME", help="Which node, where the agent watches several.")


def agent_settings() -> AgentSettings:
    """Return the settings that `pronto agent` would have here, from the file and the environment."""
    context = click.get_current_context(silent=True)
    root = None if context is None else context.find_root()
    agent = (
        root.command.get_command(root, "agent") if root and isinstance(root.command, click.Group) else None
    )
    if root is None or agent is None:
        return AgentSettings()
    params = [copy(param) for param in agent.params if param.name in AgentSettings.__slots__]
    for param in params:
        if param.type is FILE:  # the agent's own user may read it, others need not
            param.type = click.Path(path_type=Path)
    return settings_of(click.Command("agent", params=params).make_context("agent", [], parent=root).params)


def find(
    url: str | None, token_file: Path | None, ca: Path | None, state: Path | None
) -> tuple[Client | None, AgentSettings]:
    """Return the agent the options mean, None where there is none, and the settings of this machine's.

    The settings always name a state folder. Beside it they are the defaults where an agent is named.
    """
    from prontosched.agent.http.auth import read_token
    from prontosched.agent.http.client import find_agent, local_url
    from prontosched.agent.store import default_folder

    # An agent that is named has settings of its own.
    settings = agent_settings() if url in (None, "none") else AgentSettings()
    folder = state or settings.state or default_folder()
    token = None if token_file is None else read_token(token_file)
    # Whoever names a folder means its agent, not whichever listens at the usual address.
    usual = local_url(settings) if state is None else None
    return find_agent(url, folder, token=token, certificate=ca, usual=usual), replace(settings, state=folder)


def why_alone(url: str | None) -> str:
    """Say why a command watches by itself."""
    return "no agent is asked" if url == "none" else "no agent answers"
