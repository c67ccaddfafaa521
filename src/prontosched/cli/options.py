"""Options that several commands have in common, and the types and classes that options are made of.

Covers: lengths of time, options given to a command as one, help in sections, the options of a
signal and its policy, those of `pronto agent` and `pronto up`, and those of commands that ask an agent.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from prontosched.errors import SettingsError
from prontosched.settings import AgentSettings, seconds

if TYPE_CHECKING:
    from prontosched.agent.http.client import Client

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


class SignalOption(SectionOption):
    """A setting of the signal: not given, the signal's own default holds, which the help shows."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, default=None, section="Signal", **kwargs)

    def get_help_extra(self, ctx: click.Context) -> Any:
        """Add the default of the learned signal."""
        extra = super().get_help_extra(ctx)
        default = signal_default(str(self.name))
        if default is not None:
            extra["default"] = default
        return extra


# Settings that are times.
SECONDS = ("calm", "hold")


def signal_default(name: str) -> str | None:
    """Return a default of the learned signal as text; None where it has no such setting."""
    from prontosched.signals import find_signal  # here, so that only help pays for it

    parameter = inspect.signature(find_signal("learned").one).parameters.get(name)
    if parameter is None:
        return None
    words = {None: "no limit", True: "on", False: "off"}
    default = parameter.default
    if default is None or isinstance(default, bool):
        return words[default]
    return f"{default:g}s" if name in SECONDS else f"{default}"


# How a signal decides. What each may be is checked by the signal itself.
policy_options = together(
    click.option("--tolerance", cls=SignalOption, metavar="READY",
                 help="Contention: 5%, p95 or a number of CPU Ready."),
    click.option("--horizon", cls=SignalOption, type=int, metavar="STEPS", help="Timesteps to look ahead."),
    click.option("--likelihood", cls=SignalOption, type=float, metavar="SHARE",
                 help="Chance of contention that refuses."),
    click.option("--reopen", cls=SignalOption, type=float, metavar="SHARE",
                 help="Chance below which to accept again."),
    click.option("--calm", cls=SignalOption, type=Duration(), metavar="TIME",
                 help="Time below that before accepting."),
    click.option("--hold", cls=SignalOption, type=Duration(), metavar="TIME",
                 help="Shortest refusal; `paper`: in steps."),
    click.option("--budget", cls=SignalOption, type=float, metavar="SHARE",
                 help="Largest share of time to refuse."),
    click.option("--hourly-limit", cls=SignalOption, type=float, metavar="SHARE",
                 help="Largest share of an hour to refuse."),
    click.option("--quota/--no-quota", cls=SignalOption, help="Spend the whole budget."),
    click.option("--explore", cls=SignalOption, type=float, metavar="SHARE",
                 help="Refusals lifted, to go on learning."),
    click.option("--weights", cls=SignalOption, type=click.Choice(["normalised", "raw", "harmonic"]), metavar="KIND",
                 help="Of `paper`: normalised, raw, harmonic."),
    click.option("--embedding", cls=SectionOption, section="Signal", default="fpca", show_default=True, metavar="NAME",
                 help="fpca, spirit and others."),
    click.option("--energy-bounds", cls=SectionOption, section="Signal", metavar="A,B",
                 help="Energies within which to keep the rank."),
)  # fmt: skip


def policy(signal: str, **given: Any) -> dict[str, Any]:
    """Return the options a signal understands, saying which ones it does not."""
    from prontosched.signals import find_signal

    accepted = inspect.signature(find_signal(signal).one).parameters
    chosen = {name: value for name, value in given.items() if value is not None}
    for name in [name for name in chosen if name not in accepted]:
        option = name.replace("_", "-")
        click.echo(f"pronto: the {signal} signal has no {option}: --{option} changes nothing", err=True)
        del chosen[name]
    return chosen


SHORTEST_INTERVAL_SECONDS = 0.01


def _section(name: str) -> Callable[..., Callable[[Any], Any]]:
    """Return what makes an option of one section."""
    return partial(click.option, cls=SectionOption, section=name)


_telemetry = _section("Telemetry")
_signal = _section("Signal")
_answer = _section("Answers")
_tell = _section("Scheduler and federation")
_keep = _section("State and access")
_run = _section("Run")

# All options of the agent.
agent_options = together(
    _telemetry("--source", default="linux", metavar="NAME",
               help="Where telemetry comes from."),
    _telemetry("--root", default="/", help="Folder with proc and sys."),
    _telemetry("--target", multiple=True, metavar="URL",
               help="Page of metrics or vCenter; repeatable."),
    _telemetry("--trace", type=click.Path(exists=True, path_type=Path), help="File or folder to replay."),
    _telemetry("--repeat", is_flag=True, help="Begin the trace again when it ends."),
    _telemetry("--synthetic", type=click.IntRange(1, 100_000), metavar="N", help="Watch N made-up nodes instead."),
    _telemetry("--source-option", multiple=True, metavar="KEY=VALUE", help="Option of the source; repeatable."),
    _telemetry("--interval", type=Duration(SHORTEST_INTERVAL_SECONDS), metavar="TIME",
               help="Time between decisions.  [default: the source's]"),
    _telemetry("--name", metavar="NAME", help="Place of this node.  [default: host name]"),
    _signal("--preset", metavar="NAME", help="default or paper.  [default: the signal's]"),
    _signal("--signal", metavar="NAME", help="Rejection signal.  [default: the preset's]"),
    policy_options,
    _answer("--valid", type=Duration(above=True), metavar="TIME",
            help="How long a decision counts.  [default: 10 steps]"),
    _answer("--when-silent", type=click.Choice(["accept", "reject"]), default="accept", metavar="ANSWER",
            help="accept or reject without telemetry."),
    _answer("--cpus", type=click.FloatRange(min=0, min_open=True), metavar="N",
            help="CPUs of the node.  [default: counted]"),
    _answer("--capacity-factor", type=click.FloatRange(min=0, min_open=True), default=1.25, metavar="N",
            help="How far to fill it."),
    _answer("--probe/--no-probe", default=True, help="Tell what a job would suffer."),
    _answer("--offenders", type=click.Choice(["names", "hashed", "off"]), default="names", metavar="HOW",
            help="Who waits and runs: names, hashed or off."),
    _tell("--gate", metavar="NAME", help="Scheduler to tell: `pronto gate list`."),
    _tell("--gate-option", multiple=True, metavar="KEY=VALUE", help="Option of the gate; repeatable."),
    _tell("--enforce/--shadow", default=False, help="Make it obey, or only record."),
    _tell("--max-refusing", type=click.FloatRange(0, 1, min_open=True), default=0.25, metavar="SHARE",
          help="Most to refuse at once."),
    _tell("--nats", metavar="URL", help="Bus of the federation.  [default: stay alone]"),
    _keep("--state", type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER",
          help="What is kept.  [default: $XDG_STATE_HOME/pronto]"),
    _keep("--keep/--no-keep", default=True, help="Keep state and decisions, or nothing."),
    _keep("--log-age", type=Duration(above=True), default="7d", metavar="TIME",
          help="Age from which decisions are dropped."),
    _keep("--log-megabytes", type=click.IntRange(min=1), default=64, metavar="N",
          help="Size the decision log may reach."),
    _keep("--listen", default="127.0.0.1:7077", metavar="HOST:PORT", help="Where to answer."),
    _keep("--token-file", type=FILE, help="Token that every request must carry."),
    _keep("--tls-cert", type=FILE, help="Certificate to answer with."),
    _keep("--tls-key", type=FILE, help="Its key."),
    _run("--for", "seconds", type=Duration(), metavar="TIME", help="Stop after this long.  [default: never]"),
    _run("--verbose", is_flag=True, help="Say more, with tracebacks of faults."),
    _run("--log-format", type=click.Choice(["text", "json"]), default="text", metavar="FORM",
         help="text, or json: one object a line."),
    _run("--json", "as_json", is_flag=True, help="Print the summary as one JSON object."),
)  # fmt: skip


def settings_of(options: dict[str, Any]) -> AgentSettings:
    """Return the agent's settings out of a command's options."""
    if options.get("synthetic") is not None and options.get("source") == "linux":
        options["source"] = "generated"
    if options.get("trace") is not None and options.get("source") == "linux":
        options["source"] = "trace"
    return AgentSettings(**options)


# Which agent to ask.
asking_options = together(
    click.option("--agent", "url", metavar="URL", help="Agent to ask, or none.  [default: this machine's]"),
    click.option("--token-file", type=FILE, help="Token to send."),
    click.option("--ca", type=FILE, help="Authority to trust for TLS."),
    click.option(
        "--state",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="FOLDER",
        help="The agent's folder.  [default: $XDG_STATE_HOME/pronto]",
    ),
)

node_option = click.option("--node", metavar="NAME", help="Which node, where the agent watches several.")


def find(
    url: str | None, token_file: Path | None, ca: Path | None, state: Path | None
) -> tuple[Client | None, Path]:
    """Return the agent the options mean, None where there is none, and its folder."""
    from prontosched.agent.http.auth import read_token
    from prontosched.agent.http.client import find_agent
    from prontosched.agent.store import default_folder

    folder = state or default_folder()
    token = None if token_file is None else read_token(token_file)
    return find_agent(url, folder, token=token, certificate=ca), folder
