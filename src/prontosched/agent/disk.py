"""State and decision log, written beside the loop by one thread."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prontosched.agent.background import Background
from prontosched.agent.decision_log import DecisionLog, Row
from prontosched.agent.minutes import Measured
from prontosched.agent.state import StateFile, sweep

LOG = logging.getLogger("prontosched.agent")
LONGEST_WAIT_SECONDS = 10.0
MOST_WAITING_ROWS = 20_000
MOST_WAITING_STEPS = 60


class Disk:
    """Keep what the agent hands over, without ever making it wait.

    One write is under way at a time; what comes meanwhile waits in memory, the
    decisions in a bounded buffer, the state not at all (the next save has it).

    Parameters
    ----------
    folder
        Made if need be. Holds `<name>.state`, its lock, and `<name>.decisions.sqlite`.
    name
        What the files are named after.
    every_timesteps, every_seconds
        State is saved once both have passed since the last save.

    Attributes
    ----------
    saves, save_errors
        State saved, and failed to be.
    last_error
        The last failure in words; empty after the next success.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        every_timesteps: int = 10,
        every_seconds: float = 1.0,
        log_seconds: float = 7 * 86400.0,
        log_bytes: int = 64 * 1024 * 1024,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder = folder
        self.state = StateFile(folder / f"{name}.state")
        sweep(self.state.path)
        self.log = DecisionLog(
            folder / f"{name}.decisions.sqlite", max_age_seconds=log_seconds, max_bytes=log_bytes
        )
        self.every_timesteps = every_timesteps
        self.every_seconds = every_seconds
        self.saves = 0
        self.save_errors = 0
        self.saved_bytes = 0
        self.last_error = ""
        self._clock = clock
        self._rows: list[Row] = []
        self._many: list[Measured] = []
        self._steps = 0
        self._saved_at = clock()
        self._under_way: asyncio.Future[None] | None = None
        self._thread = Background("pronto-disk")

    def keep(
        self, rows: list[Row], state: Callable[[], dict[str, Any]], many: Measured | None = None
    ) -> None:
        """Take the decisions of one timestep, or what `many` nodes did; save `state()` when it is time."""
        self._rows += rows
        if many is not None:
            self._many.append(many)
        self._steps += 1
        if self._under_way is not None and not self._under_way.done():
            # Only so many: a disk that hangs must not eat the memory.
            del self._rows[: max(0, len(self._rows) - MOST_WAITING_ROWS)]
            del self._many[: max(0, len(self._many) - MOST_WAITING_STEPS)]
            return
        elapsed = self._clock() - self._saved_at
        if elapsed < self.every_seconds or self._steps < self.every_timesteps:
            if elapsed < LONGEST_WAIT_SECONDS or not (self._rows or self._many):
                return
            self._start(None)
        else:
            self._start(state())

    async def read(self, work: Callable[[DecisionLog], Any]) -> Any:
        """Ask the log in its own thread, after what is being written."""
        rows, many = self._taken()

        def ask() -> Any:
            self.log.write(rows, many)
            return work(self.log)

        return await self._thread.submit(ask)

    async def close(self, state: dict[str, Any] | None) -> None:
        """Save for the last time and let go; give up on a disk that hangs."""
        if self._under_way is not None:
            await asyncio.wait((self._under_way,), timeout=LONGEST_WAIT_SECONDS)
        self._start(state)
        closing = self._thread.submit(self.log.close)
        done, _ = await asyncio.wait((closing,), timeout=LONGEST_WAIT_SECONDS)
        if done:
            self._thread.stop(1.0)
        self.state.close()

    def _start(self, state: dict[str, Any] | None) -> None:
        rows, many = self._taken()
        self._steps = 0
        self._saved_at = self._clock()
        self._under_way = self._thread.submit(lambda: self._write(rows, many, state))

    def _taken(self) -> tuple[list[Row], list[Measured]]:
        rows, many = self._rows, self._many
        self._rows, self._many = [], []
        return rows, many

    def _write(self, rows: list[Row], many: list[Measured], state: dict[str, Any] | None) -> None:
        failing = bool(self.last_error)
        error = ""
        if state is not None:
            try:
                self.saved_bytes = self.state.save(state)
                self.saves += 1
            except OSError as problem:
                self.save_errors += 1
                error = f"{self.state.path}: {problem.strerror or problem}"
        if not self.log.write(rows, many):
            error = error or self.log.last_error
        self.last_error = error
        if error and not failing:
            LOG.warning("cannot write, going on without: %s", error)
        elif failing and not error:
            LOG.warning("writing again to %s", self.folder)
