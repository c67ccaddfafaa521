"""State and decision log, written beside the loop by one thread."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from prontosched.agent.background import Background
from prontosched.agent.decision_log import DecisionLog, Row
from prontosched.agent.minutes import Measured
from prontosched.agent.shards import Rotation, ShardFiles
from prontosched.agent.state import StateFile, sweep

LOG = logging.getLogger("prontosched.agent")
LONGEST_WAIT_SECONDS = 10.0
MOST_WAITING_ROWS = 20_000
MOST_WAITING_STEPS = 60
LONGEST_END_SECONDS = 60.0


class Parts(NamedTuple):
    """Parts to be saved, by number, of so many."""

    found: dict[int, dict[str, Any]]
    total: int


class Sharded(Protocol):
    """Nodes that are saved part by part."""

    @property
    def shards(self) -> int:
        """How many parts there are."""
        ...

    def shard(self, number: int) -> dict[str, Any]:
        """Return all that a restart needs of one part."""
        ...


class Disk:
    """Keep what the agent hands over, without ever making it wait.

    One write is under way at a time; what comes meanwhile waits in memory, the
    decisions in a bounded buffer, the state not at all (the next save has it).

    Parameters
    ----------
    folder
        Made if need be. Holds `<name>.state`, its lock, `<name>.decisions.sqlite`, and
        `<name>.crowd` with the parts of many nodes.
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
        self.shards = ShardFiles(folder / f"{name}.crowd")
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
        self._rotation = Rotation(clock=clock)
        self._thread = Background("pronto-disk")

    def keep(
        self,
        rows: list[Row],
        state: Callable[[], dict[str, Any]],
        many: Measured | None = None,
        crowd: Sharded | None = None,
    ) -> None:
        """Take the decisions of one timestep, or what `many` nodes did; save what it is time for.

        Parameters
        ----------
        state
            Gives all that a restart needs.
        crowd
            Gives more, part by part.
        """
        self._rows += rows
        if many is not None:
            self._many.append(many)
        self._steps += 1
        if self._under_way is not None and not self._under_way.done():
            # Only so many: a disk that hangs must not eat the memory.
            del self._rows[: max(0, len(self._rows) - MOST_WAITING_ROWS)]
            del self._many[: max(0, len(self._many) - MOST_WAITING_STEPS)]
            return
        parts = None if crowd is None else self._parts_due(crowd)
        elapsed = self._clock() - self._saved_at
        if parts is not None:
            self._start(state(), parts)
        elif elapsed < self.every_seconds or self._steps < self.every_timesteps:
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

    async def close(self, state: dict[str, Any] | None, crowd: Sharded | None = None) -> None:
        """Save for the last time and let go; give up on a disk that hangs."""
        if self._under_way is not None:
            await asyncio.wait((self._under_way,), timeout=LONGEST_WAIT_SECONDS)
        if crowd is not None and crowd.shards:
            await self._save_all(crowd)
        self._start(state)
        closing = self._thread.submit(self.log.close)
        done, _ = await asyncio.wait((closing,), timeout=LONGEST_WAIT_SECONDS)
        if done:
            self._thread.stop(1.0)
        self.state.close()

    async def _save_all(self, crowd: Sharded) -> None:
        """Save every part, one after the other, for as long as that goes on."""
        end = self._clock() + LONGEST_END_SECONDS
        count = crowd.shards
        for number in range(count):
            part = Parts({number: crowd.shard(number)}, count)
            self._under_way = self._thread.submit(partial(self._write, [], [], None, part))
            done, _ = await asyncio.wait((self._under_way,), timeout=LONGEST_WAIT_SECONDS)
            if not done or self.last_error or self._clock() > end:
                return

    def _parts_due(self, crowd: Sharded) -> Parts | None:
        count = crowd.shards
        due = self._rotation.due(count)
        return Parts({number: crowd.shard(number) for number in due}, count) if due else None

    def _start(self, state: dict[str, Any] | None, parts: Parts | None = None) -> None:
        rows, many = self._taken()
        self._steps = 0
        self._saved_at = self._clock()
        self._under_way = self._thread.submit(partial(self._write, rows, many, state, parts))

    def _taken(self) -> tuple[list[Row], list[Measured]]:
        rows, many = self._rows, self._many
        self._rows, self._many = [], []
        return rows, many

    def _write(
        self, rows: list[Row], many: list[Measured], state: dict[str, Any] | None, parts: Parts | None
    ) -> None:
        failing = bool(self.last_error)
        error = "" if parts is None else self._write_parts(parts)
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

    @property
    def errors(self) -> int:
        """Writes that failed, of state and of the decision log."""
        return self.save_errors + self.log.errors

    def _write_parts(self, parts: Parts) -> str:
        number = 0
        try:
            for number, fields in parts.found.items():
                self.shards.write(number, fields)
                self.saves += 1
            if number == parts.total - 1:
                self.shards.drop_from(parts.total)
        except OSError as problem:
            self.save_errors += 1
            self._rotation.failed(number)
            return f"{self.shards.folder}: {problem.strerror or problem}"
        return ""
