"""What the agent logs: every change of a node's state with its reason, and the form of a line.

Covers: lines for people (`pronto: …`) and for collectors, one JSON object each.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from io import TextIOBase
from typing import Any, Literal, NamedTuple, TextIO

from prontosched.agent.loop import Agent
from prontosched.agent.record import plain

LOG = logging.getLogger("prontosched.agent")
EVERY_STATE = 16
MOST_LINES = 20

LogFormat = Literal["text", "json"]


class StateChange(NamedTuple):
    """A node's state became another one.

    Attributes
    ----------
    previous_state
        The state before; None at the first decision.
    probability, cpu_ready_percent
        Chance of contention and CPU Ready then; None where unknown.
    """

    node: str
    state: str
    previous_state: str | None
    probability: float | None
    cpu_ready_percent: float | None
    reason: str

    def __str__(self) -> str:
        """Say it in one line."""
        came = self.state if self.previous_state is None else f"{self.previous_state} -> {self.state}"
        return f"{self.node}: {came}: {self.reason}"


class ChangeLog:
    """Follow the agent and log every change of mind, with its reason.

    Of more than 16 nodes those whose signal was raised or lowered are looked at, and at most
    20 lines are written per timestep.

    Notes
    -----
    Memory: one word per node.
    """

    name = "changes"

    def __init__(self) -> None:
        self._states: dict[str, str] = {}
        self.logged = 0

    def follow(self, agent: Agent) -> None:
        """Log the changes of the timestep just made."""
        nodes = agent.nodes if len(agent.nodes) <= EVERY_STATE else agent.nodes.changed
        found = [change for node in nodes if (change := self._change(agent, node.name))]
        for change in found[:MOST_LINES]:
            LOG.info("%s", change, extra={"change": change})
        if len(found) > MOST_LINES:
            LOG.info("%d more nodes changed their state", len(found) - MOST_LINES)
        self.logged += len(found)
        if len(self._states) > 2 * len(agent.nodes) + EVERY_STATE:
            self._states = {name: state for name, state in self._states.items() if name in agent.nodes}

    def status(self) -> dict[str, Any]:
        """Return how many changes were seen."""
        return {"logged": self.logged}

    def close(self) -> None:
        """Do nothing: there is nothing to let go."""

    def _change(self, agent: Agent, name: str) -> StateChange | None:
        answer = agent.answer(name)
        before = self._states.get(name)
        if answer.state == before:
            return None
        self._states[name] = answer.state
        return StateChange(
            name,
            answer.state,
            before,
            plain(answer.probability),
            plain(answer.cpu_ready_percent),
            answer.reason,
        )


class JsonFormatter(logging.Formatter):
    """One JSON object a line: `time`, `level` and `message`, and of a change of state its fields.

    Examples
    --------
    >>> record = logging.LogRecord("prontosched", logging.INFO, "", 0, "ready", (), None)
    >>> sorted(json.loads(JsonFormatter().format(record)))
    ['level', 'message', 'time']
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        found: dict[str, Any] = {
            "time": when.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        if (change := getattr(record, "change", None)) is not None:
            found.update(change._asdict())
        if record.exc_info:
            found["traceback"] = self.formatException(record.exc_info)
        return json.dumps(found)


class LineBudget(logging.Filter):
    """Let a burst of lines through and then so many a second; say how many were left out.

    Parameters
    ----------
    burst, per_second
        Lines at once, and in the long run.

    Examples
    --------
    >>> budget = LineBudget(1, 0.0, clock=lambda: 0.0)
    >>> record = logging.LogRecord("prontosched", logging.INFO, "", 0, "ready", (), None)
    >>> budget.filter(record), budget.filter(record), budget.left_out
    (True, False, 1)
    """

    def __init__(self, burst: float, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.left_out = 0
        self._burst, self._per_second, self._clock = burst, per_second, clock
        self._saved, self._at = burst, clock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether a line may be written."""
        now = self._clock()
        self._saved = min(self._burst, self._saved + (now - self._at) * self._per_second)
        self._at = now
        if self._saved < 1.0:
            self.left_out += 1
            return False
        self._saved -= 1.0
        if self.left_out:
            record.msg = f"{record.getMessage()} ({self.left_out} lines before it were left out)"
            record.args, self.left_out = (), 0
        return True


# Of the agent: every change of a large fleet for a minute, then 17 MB a day. Of libraries, which a stranger may cause.
OWN_LINES, OTHER_LINES = (1200.0, 2.0), (20.0, 1 / 60)
LIBRARIES = ("aiohttp", "asyncio")


class StreamThread(logging.Handler):
    """Write lines in a thread of its own: a pipe that nobody reads must not stop the loop.

    Notes
    -----
    Memory: at most `MOST_WAITING` lines; further ones are dropped, and counted in `dropped`.
    """

    MOST_WAITING = 1000

    def __init__(self, stream: TextIO | TextIOBase) -> None:
        super().__init__()
        self.dropped = 0
        self._hangs = False
        self._stream = stream
        self._descriptor: int | None = None
        with contextlib.suppress(OSError, ValueError):  # a stream in memory has none
            self._descriptor = stream.fileno()
        self._lines: queue.Queue[str | None] = queue.Queue(self.MOST_WAITING)
        self._thread = threading.Thread(target=self._run, name="pronto-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Hand the line over."""
        try:
            self._lines.put_nowait(self.format(record) + "\n")
        except queue.Full:
            self.dropped += 1
        except Exception:
            self.handleError(record)

    def flush(self) -> None:
        """Wait until all is written, for a second at most; not again for a stream that took nothing in that time."""
        end = time.monotonic() + (0.0 if self._hangs else 1.0)
        while self._lines.unfinished_tasks and self._thread.is_alive() and time.monotonic() < end:
            time.sleep(0.001)
        self._hangs = bool(self._lines.unfinished_tasks)

    def close(self) -> None:
        """Write what waits and end the thread, unless the stream hangs."""
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(None)
        self.flush()
        super().close()

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            with contextlib.suppress(OSError, ValueError):  # closed at the other end, or here
                if self._descriptor is None:
                    self._stream.write(line)
                    self._stream.flush()
                else:  # past the stream, whose lock a write that hangs would hold until after the end
                    _write_all(self._descriptor, line.encode(errors="backslashreplace"))
            self._lines.task_done()
        self._lines.task_done()


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def log_to_stderr(
    *, verbose: bool, form: LogFormat = "text", stream: TextIO | TextIOBase | None = None
) -> None:
    """Send what the agent has to say to standard error, one line each.

    Parameters
    ----------
    stream
        A terminal to write to instead; its lines begin with the time.
    """
    text = logging.Formatter("pronto: %(message)s")
    if stream is not None:
        text = logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S")
    handler: logging.Handler = StreamThread(sys.stderr) if stream is None else logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if form == "json" else text)
    for name in ("prontosched", *LIBRARIES):
        logger = logging.getLogger(name)
        for old in logger.handlers[:]:
            logger.removeHandler(old)
            old.close()
        logger.propagate = False
        # A filter of the logger itself would not see the lines of those below it.
        own = name == "prontosched"
        budget = LineBudget(*(OWN_LINES if own else OTHER_LINES))
        logger.addHandler(_Limited(handler, budget, closes=own))
        logger.setLevel(logging.DEBUG if verbose and own else logging.INFO if own else logging.ERROR)


class _Limited(logging.Handler):
    """Hand on to another handler what a budget allows."""

    def __init__(self, handler: logging.Handler, budget: LineBudget, *, closes: bool) -> None:
        super().__init__()
        self._handler = handler
        self._closes = closes
        self.addFilter(budget)

    def emit(self, record: logging.LogRecord) -> None:
        """Hand a line on."""
        self._handler.handle(record)

    def flush(self) -> None:
        """Wait until all is written."""
        self._handler.flush()

    def close(self) -> None:
        """End the other handler with this one, if it is its own."""
        if self._closes:
            self._handler.close()
        super().close()
