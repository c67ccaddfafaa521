"""`pronto run`: wait while contention is expected here, then run a command."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import click

from prontosched.cli.options import Duration, asking_options, find, lasting, node_option, why_alone
from prontosched.errors import ProntoError, TelemetryError
from prontosched.settings import AgentSettings
from prontosched.threads import given_environment

if TYPE_CHECKING:
    from prontosched.agent.http.client import Client

TIMED_OUT = 75
NOT_EXECUTABLE = 126
NOT_FOUND = 127
PATIENCE_SECONDS = 300.0
POLL_SECONDS = 0.5
# Gaps within contention are shorter, mostly.
FREE_SECONDS = 1.0
REMIND_SECONDS = 30.0


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "--patience",
    type=Duration(),
    metavar="TIME",
    help="Run the command after this long, contended or not.  [default: 5m, never with --timeout]",
)
@click.option(
    "--timeout",
    type=Duration(),
    metavar="TIME",
    help=f"Give up after this long, with exit code {TIMED_OUT}.  [default: never]",
)
@click.option(
    "--cpus",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    metavar="N",
    help="CPUs the command will keep busy.",
)
@click.option(
    "--length",
    type=Duration(above=True),
    metavar="TIME",
    help="How long the command takes alone: it then waits only while it finishes sooner by waiting.",
)
@click.option("--considerate", is_flag=True, help="With --length: wait also where only other jobs gain.")
@click.option(
    "--ttl",
    type=Duration(above=True),
    default="30s",
    metavar="TIME",
    help="How long to count the command before telemetry shows it.",
)
@node_option
@asking_options
@click.option("--quiet", is_flag=True, help="Print nothing about the waiting.")
@click.argument("words", nargs=-1, required=True, metavar="COMMAND...", type=click.UNPROCESSED)
def command(
    patience: float | None,
    timeout: float | None,
    cpus: float,
    length: float | None,
    considerate: bool,
    ttl: float,
    node: str | None,
    quiet: bool,
    words: tuple[str, ...],
    **asked: Any,
) -> None:
    """Wait while contention is expected here, announce COMMAND, and run it in place of this process.

    So its exit code and signals are its own. It waits until the node accepts and has the CPUs
    free, even where a budget or a gate holds the node open; several start one after another. Where
    contention is only expected, and its CPUs have been free for a second, it waits no longer.
    Waiting always helps the jobs that already run. The command itself finishes sooner only if
    contention ends soon: with --length it starts once waiting would make it finish later. It asks
    the agent where one runs, and otherwise watches this machine for a few seconds.

    \b
    Examples:
        pronto run --cpus 4 -- make -j4
        pronto run --length 20s -- ./test.sh
        pronto run --timeout 10m -- ./report.sh || echo "too busy, later"
    """
    from prontosched.agent.http.client import UntrustedError

    check_executable(words[0])
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while it waits ends it as it would the command
    if patience is None:
        patience = PATIENCE_SECONDS if timeout is None else float("inf")
    interest = None if length is None or considerate else length
    waiting = _Waiting(patience, float("inf") if timeout is None else timeout, interest, quiet, words)
    why = why_alone(asked["url"])
    try:
        client, settings = find(**asked)
    except UntrustedError as error:
        if asked["url"] is not None:
            raise
        why = str(error)
        client, settings = find(**{**asked, "url": "none"})
    if client is None:
        _run_alone(waiting, settings, cpus, node, why)
    else:
        _run_with(waiting, client, cpus, ttl, node)


class _Waiting:
    """How long a run waits, and what it says about it.

    After `patience` seconds the command runs all the same; after `timeout` it is given up. `length` is how
    long the command takes alone, where it waits for its own sake only.
    """

    def __init__(
        self, patience: float, timeout: float, length: float | None, quiet: bool, words: tuple[str, ...]
    ) -> None:
        self.begin = time.monotonic()
        self.patience = patience
        self.timeout = timeout
        self.length = length
        self.quiet = quiet
        self.words = words
        self._said_at = float("-inf")
        self._free_since = float("inf")
        self._reason = ""

    @property
    def deadline(self) -> float:
        """When the waiting ends, one way or the other, on the monotonic clock."""
        return self.begin + min(self.patience, self.timeout)

    @property
    def waited(self) -> float:
        return time.monotonic() - self.begin

    def say(self, text: str) -> None:
        if not self.quiet:
            click.echo(f"pronto: {text}", err=True)

    def over(self, reason: str, met: dict[str, Any]) -> bool:
        """Tell whether to run although contention is expected; end the run when its time is over."""
        self._reason = reason
        if self.waited >= self.patience:
            self.say(f"running after {self.waited:.0f} s although {reason}: patience is over")
            return True
        if self.waited >= self.timeout:
            self.say(f"gave up after {self.waited:.0f} s without running: {reason}")
            raise click.exceptions.Exit(TIMED_OUT)
        now = time.monotonic()
        self._free_since = min(self._free_since, now) if met.get("cpus_free") else float("inf")
        if now - self._free_since >= FREE_SECONDS:
            free = "its CPUs are free now, so that waiting would not pay"
            self.say(f"running after {self.waited:.0f} s although {reason}: {free}")
            return True
        if self.length is None or met.get("slowdown") is None:
            return False
        worth = (met["slowdown"] - 1.0) * self.length
        left = met.get("contention_left_seconds")
        if self.waited < worth and (left is None or left <= worth):
            return False
        longer = f"takes about {lasting(met['slowdown'] * self.length)} instead of {lasting(self.length)} now"
        more = "" if left is None else f", contention is expected for {lasting(left)} more"
        self.say(f"running although {reason}: it {longer}{more}, so that waiting would not pay")
        return True

    def wait(self, reason: str, met: dict[str, Any], pause: float) -> None:
        """Say what is waited for, when that is new or long ago, and sleep; not beyond the end."""
        now = time.monotonic()
        if now - self._said_at >= REMIND_SECONDS:
            self.say(f"waiting: {reason}{self._outcome(met)}")
            self._said_at = now
        time.sleep(max(0.0, min(pause, self.deadline - now)))

    def _outcome(self, met: dict[str, Any]) -> str:
        """Say what waiting brings, as far as it can be told."""
        slowdown, left = met.get("slowdown"), met.get("contention_left_seconds")
        if slowdown is None:
            return ""
        longer = "hardly longer" if slowdown < 1.05 else f"about {slowdown:.1f} times as long"
        text = f"; started now it would take {longer}, and slow the others"
        if left is not None:
            text += f"; contention is expected for {lasting(left)} more"
        if self.length is not None:
            text += f"; waiting pays for up to {lasting((slowdown - 1.0) * self.length)}"
        return text

    def go(self, reason: str) -> None:
        """Say that the waiting ends, if there was any."""
        if self._reason:
            self.say(f"running after {self.waited:.0f} s: {reason}")


def _run_with(waiting: _Waiting, client: Client, cpus: float, ttl: float, node: str | None) -> NoReturn:
    from prontosched.agent.http.auth import loopback
    from prontosched.agent.http.client import NotAllowedError, UnreachableError, job_name

    name = job_name()
    pid = os.getpid() if loopback(client.host) else None
    calm = True
    while True:
        try:
            try:
                counted, met = client.announce(
                    name, cpus=cpus, ttl=ttl, if_uncontended=calm, pid=pid, node=node
                )
            except NotAllowedError:
                # Another user's agent without a socket for us: it tells how things stand, and counts nothing.
                met = client.decision(node)
                counted = not calm or met["state"] == "accepting"
        except UnreachableError as error:
            # It may be restarting; what it last said has run out by the time it is missed for long.
            if waiting.over(str(error), {}):
                become(waiting.words)
            waiting.wait(str(error), {}, 2 * POLL_SECONDS)
            continue
        if counted:
            if calm:
                waiting.go(met["reason"])
            become(waiting.words, undo=lambda: client.withdraw(name))
        if not calm:  # so many are announced that this one is not counted
            become(waiting.words)
        if waiting.over(met["reason"], met):
            calm = False  # announced all the same, so that others count it
            continue
        # Apart from each other, or all who wait would ask at the same moment.
        waiting.wait(met["reason"], met, POLL_SECONDS * random.uniform(0.8, 1.2))


def _run_alone(
    waiting: _Waiting, settings: AgentSettings, cpus: float, node: str | None, why: str
) -> NoReturn:
    from prontosched.agent.http.client import job_name
    from prontosched.agent.loop import STATES
    from prontosched.agent.standalone import one_at_a_time, watch, watched
    from prontosched.agent.views import waiting as outcome

    # How many other machines have is not known.
    there = settings.cpus or (os.cpu_count() if settings.source == "linux" else None) or cpus
    if cpus > there:
        raise ProntoError(f"--cpus must be at most {there:g}, as many as this machine has, got {cpus:g}")
    waiting.say(f"{why}: watching {watched(settings)} for a few seconds")
    folder = settings.state
    assert folder is not None
    with contextlib.ExitStack() as held:
        turn = True
        try:
            turn = held.enter_context(one_at_a_time(folder, waiting.deadline))
        except OSError as error:  # a user without a home, as in cron
            waiting.say(f"not in turn with others: {folder} must be writable, got {error.strerror}")
        if not turn and waiting.over("another `pronto run` is watching", {}):
            become(waiting.words)
        while True:
            try:
                agent = watch(settings, node)
            except TelemetryError as error:
                waiting.say(f"running, as nothing is known of this machine: {error}")
                become(waiting.words)
            counted, found = agent.announce(
                job_name(), cpus=cpus, ttl=POLL_SECONDS, node=node, unless=STATES[1:]
            )
            met = outcome(agent, found, cpus)
            if counted:
                waiting.go(found.reason)
            if counted or waiting.over(found.reason, met):
                become(waiting.words)
            waiting.wait(found.reason, met, POLL_SECONDS)


def check_executable(word: str) -> None:
    """Fail as the command would, before anything is waited for."""
    path = given_environment().get("PATH", os.defpath)
    if shutil.which(word, path=path) is not None:
        return
    there = os.path.exists(word) if os.path.dirname(word) else shutil.which(word, mode=os.F_OK, path=path)
    click.echo(f"pronto: {word}: {'Permission denied' if there else 'No such file or directory'}", err=True)
    raise click.exceptions.Exit(NOT_EXECUTABLE if there else NOT_FOUND)


def become(words: tuple[str, ...], undo: Callable[[], object] | None = None) -> NoReturn:
    """Replace this process by a command, so that its exit code and signals are its own."""
    environment = given_environment()
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores them, and the command would go on to
    try:
        try:
            os.execvpe(words[0], words, environment)
        except OSError as error:
            program = shutil.which(words[0], path=environment.get("PATH", os.defpath))
            if error.errno != errno.ENOEXEC or program is None:
                raise
            # A script that does not name its interpreter is the shell's, as with env, nice and nohup.
            os.execve("/bin/sh", ["/bin/sh", program, *words[1:]], environment)
    except OSError as error:
        if undo is not None:
            undo()
        click.echo(f"pronto: {words[0]}: {error.strerror}", err=True)
        code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
        raise click.exceptions.Exit(code) from error
