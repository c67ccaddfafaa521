"""What the agent logs: every change of a node's state with its reason, and the form of a line.

Covers: lines for people (`pronto: …`) and for collectors, one JSON object each.
"""

from __future__ import annotations

import json
import logging
import sys
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
    handler: logging.StreamHandler[Any] = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonFormatter() if form == "json" else text)
    logger = logging.getLogger("prontosched")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.DEBUG if verbose else logging.INFO)
    logger.propagate = False
