"""The options that choose a signal and its policy; their names are those of the signal's own settings."""

from __future__ import annotations

import inspect
from typing import Any

import click

from prontosched.cli.shared_options import Duration, SectionOption, together


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
    click.option("--hold", cls=SignalOption, type=Duration(), metavar="TIME", help="Shortest refusal."),
    click.option("--budget", cls=SignalOption, type=float, metavar="SHARE",
                 help="Largest share of time to refuse."),
    click.option("--hourly-limit", cls=SignalOption, type=float, metavar="SHARE",
                 help="Largest share of an hour to refuse."),
    click.option("--quota/--no-quota", cls=SignalOption, help="Spend the whole budget."),
    click.option("--explore", cls=SignalOption, type=float, metavar="SHARE",
                 help="Refusals lifted, to go on learning."),
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
