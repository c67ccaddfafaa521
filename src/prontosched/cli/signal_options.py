"""The options that choose a signal and its policy, shared by the commands that replay traces."""

from __future__ import annotations

import inspect
from typing import Any

import click

from prontosched.cli.shared_options import together
from prontosched.signals import SIGNALS, find_signal

# Which signal decides, and its policy.
signal_options = together(
    click.option("--signal", default="learned", show_default=True, metavar="NAME",
                 help=f"Rejection signal: {', '.join(sorted(SIGNALS))}, or one of an installed package."),
    click.option("--budget", type=click.FloatRange(0, 1), metavar="SHARE",
                 help="Largest share of time to refuse.  [default: 0.1]"),
    click.option("--tolerance", metavar="READY",
                 help="What counts as contention: 5%, p95 (learned from the past), or a value in the trace's unit."
                      "  [default: 5%]"),
    click.option("--horizon", type=click.IntRange(min=1), metavar="STEPS",
                 help="Timesteps to look ahead.  [default: 5]"),
    click.option("--quota", is_flag=True, default=None,
                 help="Spend the whole budget and drop the hourly limit, to compare methods."),
)  # fmt: skip


def policy(signal: str, **given: Any) -> dict[str, Any]:
    """Return the options a signal understands, saying which ones it does not."""
    accepted = inspect.signature(find_signal(signal).one).parameters
    chosen = {name: value for name, value in given.items() if value is not None}
    for name in [name for name in chosen if name not in accepted]:
        click.echo(f"pronto: the {signal} signal has no {name}: --{name} changes nothing", err=True)
        del chosen[name]
    return chosen
