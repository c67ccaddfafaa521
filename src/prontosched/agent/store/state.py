"""What survives a restart, in a file for each group of nodes, and the thread that writes it.

Bytes are those of `prontosched.codec`.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import shutil
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from prontosched import codec
from prontosched.agent.background import Background
from prontosched.agent.nodes import NodeTable
from prontosched.agent.store import ADDRESS_FILE, make_private, write_address, write_whole
from prontosched.agent.store.decision_log import DecisionLog, DecisionRow
from prontosched.errors import NewerStateError, StateError

KIND = "agent"
VERSION = 1
MAX_STATE_BYTES = 16 * codec.MAX_BYTES

LOG = logging.getLogger("prontosched.agent")


class StateFiles:
    """The state of an agent's nodes, a file for each group, that no two agents use at once.

    The first group is `<name>.state`; beside it lie `.lock`, while in use, and `.corrupt`, when one had to be set
    aside. The other groups are in the folder `<name>.nodes`.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.path = path = folder / f"{name}.state"
        self._folder = folder / f"{name}.nodes"
        self._sizes: dict[int, int] = {}
        self._groups = -1
        try:
            make_private(path.parent)
            self._lock = self._take_lock()
        except OSError as error:
            raise StateError(
                f"the state folder must be writable, got {error.strerror} for {path.parent}: "
                "give another with --state, or keep nothing with --no-keep"
            ) from error
        sweep(path)
        for group in self._folder.glob(".*.state.*"):
            group.unlink(missing_ok=True)

    def _take_lock(self) -> int:
        lock = os.open(
            _beside(self.path, ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(lock, 32).decode(errors="replace").strip() or "unknown"
            os.close(lock)
            raise StateError(
                f"one agent may use {self.path}, got a second: process {holder} holds it; "
                "stop that one, or give --state another folder"
            ) from error
        # Best effort: on a full disk the lock still holds, only without the name of its holder.
        with contextlib.suppress(OSError):
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        return lock

    def _make_again(self) -> None:
        """Make the folder that someone has deleted, and hold it again."""
        make_private(self.path.parent)
        with contextlib.suppress(StateError):  # another agent has come; the last to write wins, as before
            lock = self._take_lock()
            os.close(self._lock)
            self._lock = lock

    def load(self) -> tuple[list[dict[str, Any]], str]:
        """Return what was saved, file by file, the oldest first, and a sentence on what was found.

        A file that is truncated, altered or not ours is set aside as `.corrupt` and named in the log; one from a
        newer version is left alone and raises `NewerStateError`.
        """
        found: list[dict[str, Any]] = []
        message = "starting cold: there is no saved state yet"
        for path in state_paths(self.path.parent, self.path.stem):
            try:
                found.append(read_state(path))
            except FileNotFoundError:
                continue
            except OSError as error:
                message = "starting cold: what was saved cannot be used"
                LOG.warning("%s cannot be read (%s)", path, error.strerror)
            except StateError as error:
                message = "starting cold: what was saved cannot be used"
                LOG.warning("%s", set_aside(path, error))
        self._set_aside_crowd()
        found = [fields for fields in found if fields.get("form") in ("one", "several")]
        found.sort(key=_saved_at)
        return found, f"continuing from {self.path}" if found else message

    def save(self, number: int, fields: Mapping[str, Any]) -> None:
        """Replace the file of one group by `fields`, whole or not at all."""
        data = codec.encode(KIND, VERSION, fields)
        if not self.path.parent.is_dir():
            self._make_again()
        if number:
            self._folder.mkdir(mode=0o700, exist_ok=True)
        write_whole(self._path(number), data)
        self._sizes[number] = len(data)

    def drop_from(self, groups: int) -> None:
        """Remove the files of the group with this number and of those above."""
        if self._groups == groups:
            return
        for path in self._folder.glob("*.state"):
            if path.stem.isdecimal() and int(path.stem) >= groups:
                path.unlink(missing_ok=True)
                self._sizes.pop(int(path.stem), None)
        self._groups = groups

    @property
    def size_bytes(self) -> int:
        """Bytes of all files that were written."""
        return sum(list(self._sizes.values()))

    def close(self) -> None:
        """Let another agent use the files."""
        os.close(self._lock)

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:04d}.state" if number else self.path

    def _set_aside_crowd(self) -> None:
        """Put the files of many nodes of release 0.1 away: their arrays are not those of single nodes."""
        old = self._folder.with_suffix(".crowd")
        if old.is_dir():
            aside = _beside(old, ".old")
            with contextlib.suppress(OSError):
                shutil.rmtree(aside, ignore_errors=True)
                os.replace(old, aside)
            LOG.warning("nodes saved by an older release start cold: %s was set aside as %s", old, aside.name)


def state_paths(folder: Path, name: str) -> list[Path]:
    """Return where an agent's nodes are saved: the first group, which may not be there, and all others."""
    return [folder / f"{name}.state", *sorted((folder / f"{name}.nodes").glob("*.state"))]


def read_state(path: Path) -> dict[str, Any]:
    """Read a state file without holding it, as `pronto status` does beside an agent."""
    with path.open("rb") as file:
        data = file.read(MAX_STATE_BYTES + 1)
    return codec.decode(data, kind=KIND, version=VERSION, limit=MAX_STATE_BYTES)


def set_aside(path: Path, error: Exception) -> str:
    """Move a file that cannot be used out of the way, and say so; raise again where it is from a newer version."""
    if isinstance(error, NewerStateError):
        raise NewerStateError(f"{path}: {error}") from error
    aside = _beside(path, ".corrupt")
    with contextlib.suppress(OSError):
        os.replace(path, aside)
    return f"{path} is damaged ({error}); it was set aside as {aside.name}"


def sweep(path: Path) -> None:
    """Remove what killed agents left half-written beside `path`; call with the lock held."""
    for scrap in path.parent.glob(f".{path.name}.*"):
        scrap.unlink(missing_ok=True)


def _saved_at(fields: Mapping[str, Any]) -> float:
    found = fields.get("saved_at")
    return found if isinstance(found, float) else 0.0


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


LONGEST_WAIT_SECONDS = 10.0
MOST_WAITING_ROWS = 20_000
MOST_WAITING_MANY = 200_000
# The unit's TimeoutStopSec allows for it, and for what followers take to let go.
LONGEST_END_SECONDS = 60.0
GROUP_SECONDS, MOST_GROUPS = 10.0, 32
LEAST_SECONDS, LEAST_TIMESTEPS = 1.0, 10
MOST_READS = 8
WRITTEN_SECONDS = 2.0


class Disk:
    """Keep what the agent hands over, without ever making it wait.

    One write is under way at a time; what comes meanwhile waits in memory, the
    decisions in a bounded buffer, the state not at all (the next save has it). State is
    saved in groups of nodes, about one group in ten seconds, in turn; each again after so many
    timesteps and seconds at the earliest.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        log_seconds: float = 7 * 86400.0,
        log_bytes: int = 64 * 1024 * 1024,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder = folder
        self.state = StateFiles(folder, name)
        self.log = DecisionLog(
            folder / f"{name}.decisions.sqlite", max_age_seconds=log_seconds, max_bytes=log_bytes
        )
        self.saves = 0
        self.save_errors = 0
        self.last_error = ""
        self._clock = clock
        self._rows: list[DecisionRow] = []
        self._many: list[DecisionRow] = []
        self._steps = 0
        self._began_at = self._saved_at = self._written_at = clock()
        self._under_way: asyncio.Future[None] | None = None
        self._next = 0
        self._reads = 0
        self._url = self._save_error = ""
        self._thread = Background("pronto-disk")
        self._reader = Background("pronto-history")

    def note_address(self, url: str) -> None:
        """Leave a note in the folder where `pronto run` and `pronto status` find the agent; again if it is deleted."""
        self._url = url
        try:
            write_address(self.folder, url)
        except OSError as error:
            LOG.warning("cannot note the address for `pronto run`: %s", error)

    def keep(self, rows: list[DecisionRow], many: list[DecisionRow]) -> None:
        """Take the decisions of one timestep for the decision log; of `many` nodes only minutes are kept."""
        self._rows += rows
        self._many += many
        self._steps += 1
        if self._busy:
            # Only so many: a disk that hangs must not eat the memory.
            del self._rows[: max(0, len(self._rows) - MOST_WAITING_ROWS)]
            del self._many[: max(0, len(self._many) - MOST_WAITING_MANY)]

    async def save(self, nodes: NodeTable, wall: float, give_way: Callable[[], Awaitable[None]]) -> None:
        """Write what it is time for: groups of nodes, and decisions that wait; `give_way` between two nodes."""
        if self._busy:
            return
        if due := self._due(nodes.groups):
            parts = {number: await group_fields(nodes, number, wall, give_way) for number in due}
            self._next = (due[-1] + 1) % nodes.groups
            self._start(parts, nodes.groups)
        elif self._clock() - self._written_at >= LONGEST_WAIT_SECONDS and (self._rows or self._many):
            self._start({}, nodes.groups)

    def _due(self, groups: int) -> list[int]:
        """Return which groups are to be saved now, in turn.

        Each has its turn once in `groups` times `GROUP_SECONDS`, so that the disk is written to at one
        rate however many there are; in the beginning a round takes no longer than there has been one.
        """
        now = self._clock()
        elapsed = now - self._saved_at
        if not groups or elapsed < LEAST_SECONDS or self._steps * groups < LEAST_TIMESTEPS:
            return []
        each = min(GROUP_SECONDS, max(LEAST_SECONDS, (now - self._began_at) / groups))
        count = min(groups, MOST_GROUPS, 1 if groups == 1 else int(elapsed / each))
        return [(self._next + i) % groups for i in range(count)]

    @property
    def _busy(self) -> bool:
        return self._under_way is not None and not self._under_way.done()

    async def read(self, work: Callable[[DecisionLog], Any]) -> Any:
        """Ask the log in a thread for that, once what waits to be written is; saving never waits for it.

        `OverflowError` where `MOST_READS` are asking already.
        """
        if self._reads >= MOST_READS:
            raise OverflowError(f"at most {MOST_READS} may read the decision log at once, got one more: wait")
        self._reads += 1
        try:
            if self._rows or self._many:
                rows, many = self._taken()
                written = self._thread.submit(partial(self._write, rows, many, {}, 0))
                await asyncio.wait((written,), timeout=WRITTEN_SECONDS)
            return await self._reader.submit(partial(work, self.log))
        finally:
            self._reads -= 1

    async def close(self, nodes: NodeTable | None, wall: float) -> None:
        """Save all nodes for the last time and let go, within `LONGEST_END_SECONDS`; give up on a disk that hangs."""
        end, failed = self._clock() + LONGEST_END_SECONDS, self.save_errors

        async def finished(work: asyncio.Future[None] | None) -> bool:
            longest = max(0.0, min(LONGEST_WAIT_SECONDS, end - self._clock()))
            return work is None or bool((await asyncio.wait((work,), timeout=longest))[0])

        going = await finished(self._under_way)
        for number in range(0 if nodes is None else nodes.groups):
            # The log needs some of the time too.
            if not going or self.save_errors > failed or self._clock() > end - LONGEST_WAIT_SECONDS:
                break
            assert nodes is not None
            self._start({number: await group_fields(nodes, number, wall)}, nodes.groups)
            going = await finished(self._under_way)
        self._start({}, 0)
        self._reader.stop(1.0)
        if await finished(self._thread.submit(self.log.close)):
            self._thread.stop(1.0)
        self.state.close()

    def _start(self, parts: dict[int, dict[str, Any]], groups: int) -> None:
        rows, many = self._taken()
        self._written_at = self._clock()
        if parts:
            self._steps, self._saved_at = 0, self._written_at
        self._under_way = self._thread.submit(partial(self._write, rows, many, parts, groups))

    def _taken(self) -> tuple[list[DecisionRow], list[DecisionRow]]:
        rows, many = self._rows, self._many
        self._rows, self._many = [], []
        return rows, many

    def _write(
        self, rows: list[DecisionRow], many: list[DecisionRow], parts: dict[int, dict[str, Any]], groups: int
    ) -> None:
        failing = bool(self.last_error)
        if parts:
            self._save_error = self._save(parts, groups)
        log_error = "" if self.log.write(rows, many) else self.log.last_error
        self.last_error = self._save_error or log_error
        if self.last_error and not failing:
            LOG.warning("cannot write, going on without: %s", self.last_error)
        elif failing and not self.last_error:
            LOG.warning("writing again to %s", self.folder)

    def _save(self, parts: dict[int, dict[str, Any]], groups: int) -> str:
        """Write groups of nodes; return what kept them from being written."""
        try:
            for number, fields in parts.items():
                self.state.save(number, fields)
                self.saves += 1
            self.state.drop_from(groups)
            if self._url and not (self.folder / ADDRESS_FILE).exists():
                write_address(self.folder, self._url)
        except OSError as error:
            self.save_errors += 1
            return f"{self.state.path}: {error.strerror or error}"
        return ""

    @property
    def errors(self) -> int:
        """Writes that failed, of state and of the decision log."""
        return self.save_errors + self.log.errors


async def group_fields(
    nodes: NodeTable, number: int, wall: float, give_way: Callable[[], Awaitable[None]] | None = None
) -> dict[str, Any]:
    """Return all that a restart needs of one group of nodes, as plain values and arrays."""
    members = [one for one in nodes.group(number) if one.node is not None]
    if nodes.groups == 1 and len(members) == 1:
        return {"saved_at": wall, **members[0].state()}
    fields: dict[str, Any] = {
        "saved_at": wall,
        "form": "several",
        "names": [one.name for one in members],
        "absent": [nodes.absent(one) for one in members],
    }
    for place, one in enumerate(members):
        fields.update({f"{place}/{key}": value for key, value in one.state().items()})
        if give_way is not None:
            await give_way()
    return fields


def restore(nodes: NodeTable, disk: Disk) -> None:
    """Go on from saved state where there is some that fits; say what was found."""
    try:
        saved, message = disk.state.load()
    except StateError:
        disk.state.close()
        raise
    found = [words for fields in saved for words in restore_nodes(nodes, fields)]
    warm = [words for words in found if words]
    if len(saved) == 1 and saved[0].get("form") == "one":
        message = f"{message}: {warm[0]}" if warm else f"starting cold: {disk.state.path} does not fit"
    elif saved:
        message = f"{message}: warm, {len(warm)} nodes"
    nodes.message = message
    LOG.info("%s", message)


def restore_nodes(nodes: NodeTable, fields: dict[str, Any]) -> list[str]:
    """Go on with the nodes of one file; say of each how far that goes, nothing of one that starts cold."""
    found = []
    for name, part, absent in _members(fields, nodes.fallback_name):
        try:
            found.append(nodes.restore(name, part, absent))
        except StateError as error:
            found.append("")
            LOG.warning("%s starts cold: %s", name, error)
    return found


def _members(fields: dict[str, Any], name: str) -> list[tuple[str, dict[str, Any], float]]:
    """Return the nodes in one file: name, state, and for how long it had sent nothing."""
    if fields.get("form") != "several":
        return [(str(fields.get("name", name)), fields, 0.0)]
    names, absent = (
        found if isinstance(found := fields.get(key), list) else [] for key in ("names", "absent")
    )
    parts: dict[str, dict[str, Any]] = {str(place): {} for place in range(len(names))}
    for key, value in fields.items():
        place, _, rest = key.partition("/")
        if rest and place in parts:
            parts[place][rest] = value
    away = [max(0.0, seconds) if isinstance(seconds, float) else 0.0 for seconds in absent] or [0.0] * len(
        names
    )
    return [(str(name), part, gone) for name, part, gone in zip(names, parts.values(), away, strict=False)]
