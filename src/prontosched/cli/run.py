"""`pronto run`: wait until this node accepts, then run a command."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from prontosched.cli.asking import asking_options, find
from prontosched.cli.shared_options import Duration
from prontosched.threads import given_environment

if TYPE_CHECKING:
    from prontosched.agent.client import Client

TIMED_OUT = 75
NOT_EXECUTABLE = 126
NOT_FOUND = 127
POLL_SECONDS = 0.5
REMIND_SECONDS = 30.0


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--timeout", type=Duration(), metavar="TIME", help="Give up after this long.  [default: never]")
@click.option("--anyway", is_flag=True, help="Run the command even then.")
@click.option(
    "--cpus",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="CPUs the command will keep busy.",
)
@click.option(
    "--ttl",
    type=Duration(),
    default=30.0,
    show_default=True,
    help="How long to count the command before telemetry shows it.",
)
@asking_options
@click.option("--quiet", is_flag=True, help="Say nothing about the waiting.")
@click.argument("words", nargs=-1, required=True, metavar="COMMAND...", type=click.UNPROCESSED)
def command(
    timeout: float | None,
    anyway: bool,
    cpus: float,
    ttl: float,
    url: str | None,
    token_file: Path | None,
    ca: Path | None,
    state: Path | None,
    quiet: bool,
    words: tuple[str, ...],
) -> None:
    """Wait until this node accepts, announce COMMAND, and become it.

    Its exit code and signals are its own. When the time is over before the node accepts,
    exits with 75 without running it. Asks the agent where one runs, and otherwise
    watches this machine for a few seconds.

    \b
    Example:
        pronto run --timeout 10m --cpus 4 -- make -j4
    """
    waiting = _Waiting(timeout, anyway, quiet, words)
    client, folder = find(url, token_file, ca, state)
    if client is None:
        _run_alone(waiting, folder)
    else:
        _run_with(waiting, client, cpus, ttl)


class _Waiting:
    """What a run waits for, until when, and what it says about it."""

    def __init__(self, timeout: float | None, anyway: bool, quiet: bool, words: tuple[str, ...]) -> None:
        self.begin = time.monotonic()
        self.deadline = float("inf") if timeout is None else self.begin + timeout
        self.anyway = anyway
        self.quiet = quiet
        self.words = words
        self._said_at = float("-inf")
        self._reason = ""

    def say(self, text: str) -> None:
        if not self.quiet:
            click.echo(f"pronto: {text}", err=True)

    def wait(self, reason: str, pause: float) -> None:
        """Say what is waited for, when that is new or long ago; sleep; end the run when time is over."""
        now = time.monotonic()
        if now - self._said_at >= REMIND_SECONDS or not self._reason:
            self.say(f"waiting: {reason}")
            self._said_at = now
        self._reason = reason
        if now + pause >= self.deadline:
            time.sleep(max(0.0, self.deadline - now))
            self.give_up()
        time.sleep(pause)

    def give_up(self) -> None:
        waited = time.monotonic() - self.begin
        if self.anyway:
            self.say(f"running anyway after {waited:.0f} s: {self._reason}")
            become(self.words)
        self.say(f"gave up after {waited:.0f} s without running: {self._reason}")
        raise click.exceptions.Exit(TIMED_OUT)

    def go(self, reason: str) -> None:
        if self._reason:
            self.say(f"running after {time.monotonic() - self.begin:.0f} s: {reason}")


def _run_with(waiting: _Waiting, client: Client, cpus: float, ttl: float) -> NoReturn:
    from prontosched.agent.access import loopback
    from prontosched.agent.client import UnreachableError, job_name

    name = job_name()
    pid = os.getpid() if loopback(client.host) else None
    while True:
        try:
            counted, met = client.announce(name, cpus=cpus, ttl=ttl, if_accepted=True, pid=pid)
        except UnreachableError as error:
            # It may be restarting; what it last said has run out by the time it is missed for long.
            waiting.wait(str(error), 2 * POLL_SECONDS)
            continue
        if counted:
            waiting.go(met["reason"])
            become(waiting.words, undo=lambda: client.withdraw(name))
        # Apart from each other, or all who wait would ask at the same moment.
        waiting.wait(met["reason"], POLL_SECONDS * random.uniform(0.8, 1.2))


def _run_alone(waiting: _Waiting, folder: Path) -> NoReturn:
    from prontosched.agent.watching import look, one_at_a_time
    from prontosched.settings import AgentSettings

    waiting.say("no agent answers: watching this machine for a few seconds")
    with one_at_a_time(folder, waiting.deadline) as turn:
        if not turn:
            waiting.wait("another `pronto run` is watching", 0.0)
        while True:
            seen = look(AgentSettings(), folder)
            if seen.accept:
                waiting.go(seen.reason)
                become(waiting.words)
            waiting.wait(seen.reason, POLL_SECONDS)


def become(words: tuple[str, ...], undo: object = None) -> NoReturn:
    """Replace this process by a command, so that its exit code and signals are its own."""
    try:
        os.execvpe(words[0], words, given_environment())
    except OSError as error:
        if callable(undo):
            undo()
        click.echo(f"pronto: {words[0]}: {error.strerror}", err=True)
        raise click.exceptions.Exit(
            NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
        ) from error
