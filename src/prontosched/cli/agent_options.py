"""The options that `pronto agent` and `pronto up` share; their names are those of `AgentSettings`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from prontosched.cli.shared_options import FILE, together
from prontosched.errors import SettingsError
from prontosched.settings import AgentSettings, seconds


class Duration(click.ParamType[float]):
    """A length of time: `90s`, `10m`, `1h30m`."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read the text, or pass a number of seconds on."""
        if isinstance(value, int | float):
            return float(value)
        try:
            return seconds(str(value))
        except SettingsError as error:
            self.fail(str(error), param, ctx)


_TELEMETRY = (
    click.option("--source", default="linux", show_default=True, metavar="NAME",
                 help="Where telemetry comes from: linux, prometheus, vsphere, trace, generated."),
    click.option("--root", default="/", show_default=True, help="Folder with the machine's proc and sys."),
    click.option("--target", multiple=True, metavar="URL",
                 help="A page of metrics (prometheus) or the vCenter (vsphere); may be repeated."),
    click.option("--trace", type=click.Path(exists=True, path_type=Path), help="File or folder to replay."),
    click.option("--repeat", is_flag=True, help="Begin the trace again when it ends."),
    click.option("--synthetic", type=click.IntRange(1, 100_000), metavar="N",
                 help="Watch N made-up nodes instead of this machine."),
    click.option("--source-option", multiple=True, metavar="KEY=VALUE", help="An option of the source, repeatable."),
    click.option("--interval", type=Duration(), help="Time between two decisions.  [default: the source's]"),
    click.option("--name", metavar="NAME", help="This node's name: site/row/rack/node.  [default: host name]"),
)  # fmt: skip
_DECIDING = (
    click.option("--preset", default="default", show_default=True, help="How the node decides: default or paper."),
    click.option("--signal", metavar="NAME", help="Rejection signal.  [default: the preset's]"),
    click.option("--budget", type=click.FloatRange(0, 1), help="Largest share of time to reject."),
    click.option("--tolerance", metavar="READY", help="CPU Ready that is contention: 5%, or p95 of its own past."),
    click.option("--horizon", type=click.IntRange(min=1), help="Timesteps to look ahead."),
    click.option("--quota/--no-quota", default=None, help="Spend the whole budget, on the highest scores."),
    click.option("--valid", type=Duration(), help="How long a decision counts.  [default: 10 intervals, at least 10s]"),
    click.option("--when-silent", type=click.Choice(["accept", "reject"]), default="accept", show_default=True,
                 help="Answer without telemetry."),
    click.option("--cpus", type=click.FloatRange(min=0, min_open=True), help="CPUs of the node.  [default: counted]"),
    click.option("--capacity-factor", type=click.FloatRange(min=0, min_open=True), default=1.25, show_default=True,
                 help="How far announced jobs may fill the node."),
)  # fmt: skip
_TELLING = (
    click.option("--gate", metavar="NAME", help="Scheduler to tell: slurm, kubernetes, htcondor, hook, …"),
    click.option("--gate-option", multiple=True, metavar="KEY=VALUE", help="An option of the gate; may be repeated."),
    click.option("--enforce/--shadow", default=False, show_default=True,
                 help="Make the scheduler obey, or only record what would be."),
    click.option("--max-refusing", type=click.FloatRange(0, 1, min_open=True), default=0.25, show_default=True,
                 help="Largest share of nodes that may refuse at once."),
    click.option("--nats", metavar="URL", help="Bus of the federation.  [default: stay alone]"),
)  # fmt: skip
_KEEPING = (
    click.option("--state", type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER",
                 help="Folder for what survives a restart.  [default: $XDG_STATE_HOME/pronto]"),
    click.option("--keep/--no-keep", default=True, help="Keep state and decisions, or nothing."),
    click.option("--log-days", type=click.FloatRange(min=0, min_open=True), default=7.0, show_default=True,
                 help="Age from which decisions are dropped."),
    click.option("--log-megabytes", type=click.IntRange(min=1), default=64, show_default=True,
                 help="Size the decision log may reach."),
    click.option("--listen", default="127.0.0.1:7077", show_default=True, metavar="HOST:PORT", help="Where to answer."),
    click.option("--token-file", type=FILE, help="Token that every request must carry."),
    click.option("--tls-cert", type=FILE, help="Certificate to answer with."),
    click.option("--tls-key", type=FILE, help="Its key."),
    click.option("--for", "seconds", type=Duration(), metavar="TIME", help="Stop after this long, e.g. 60s."),
    click.option("--verbose", is_flag=True, help="Say more, with tracebacks of faults."),
    click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object."),
)  # fmt: skip


# All options of the agent.
agent_options = together(*_TELEMETRY, *_DECIDING, *_TELLING, *_KEEPING)


def settings_of(options: dict[str, Any]) -> AgentSettings:
    """Return the agent's settings out of a command's options."""
    if options.get("synthetic") is not None and options.get("source") == "linux":
        options["source"] = "generated"
    if options.get("trace") is not None and options.get("source") == "linux":
        options["source"] = "trace"
    return AgentSettings(**options)
