"""How lines are logged: for people (`pronto: …`) or collectors (JSON), bounded, and never waited for."""

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
from typing import Any, Literal, TextIO

LogFormat = Literal["text", "json"]


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
            found.update(change)
        if record.exc_info:
            found["traceback"] = self.formatException(record.exc_info)
        return json.dumps(found)


class LineBudget(logging.Filter):
    """Let a `burst` of lines through and then so many `per_second`; say how many were left out.

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
    """Send what the agent has to say to standard error, or to a terminal with the time, one line each."""
    text = logging.Formatter("pronto: %(message)s")
    if stream is not None:
        text = logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S")
    for names, lines in ((("prontosched",), OWN_LINES), (LIBRARIES, OTHER_LINES)):
        handler = StreamThread(sys.stderr) if stream is None else logging.StreamHandler(stream)
        handler.setFormatter(JsonFormatter() if form == "json" else text)
        # A filter of the logger itself would not see the lines of those below it.
        handler.addFilter(LineBudget(*lines))
        for name in names:
            logger = logging.getLogger(name)
            for old in logger.handlers[:]:
                logger.removeHandler(old)
                old.close()
            logger.propagate = False
            logger.addHandler(handler)
            logger.setLevel(logging.ERROR)
    logging.getLogger("prontosched").setLevel(logging.DEBUG if verbose else logging.INFO)
