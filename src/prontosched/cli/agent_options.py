"""The options that `pronto agent` and `pronto up` share; their names are those of `AgentSettings`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from prontosched.cli.shared_options import FILE, Duration, SectionOption, together
from prontosched.cli.signal_options import policy_options
from prontosched.settings import AgentSettings

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
    _signal("--preset", default="default", help="default or paper."),
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
