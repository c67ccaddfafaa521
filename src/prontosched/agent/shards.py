"""A crowd's nodes on disk, in parts, each replaced whole; and whose turn it is to be saved.

Covers: files and their order. What is in a part is `prontosched.agent.crowd_state`; its
bytes are those of `prontosched.codec`, with the arrays packed.
"""

from __future__ import annotations

import contextlib
import logging
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prontosched import codec
from prontosched.agent.crowd_state import SavedNodes, State
from prontosched.agent.places import MOST_NODES
from prontosched.agent.state import set_aside, write_whole
from prontosched.errors import StateError

LOG = logging.getLogger("prontosched.agent")
KIND, STATE_KIND = "crowd", "crowd-state"
VERSION = 1
SUFFIX = ".state"
ROUND_SECONDS = 600.0
HURRY_SECONDS = 1.0
MOST_AT_ONCE = 8
UNUSED_SECONDS = 30 * 86400.0


class Rotation:
    """Take turns in being saved: once in `seconds`, and at the beginning sooner.

    A round takes no longer than there has been something to save, so that a young crowd
    that is killed loses half of what it knew at most.
    """

    def __init__(
        self, *, seconds: float = ROUND_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds = seconds
        self._clock = clock
        self._begun_at = self._asked_at = clock()
        self._next = 0
        self._due = 0.0

    def due(self, count: int) -> list[int]:
        """Return which of `count` parts are to be saved now, in turn; mostly none."""
        if count < 1:
            return []
        now = self._clock()
        elapsed = now - self._asked_at
        whole = min(self._seconds, max(count * HURRY_SECONDS, now - self._begun_at))
        self._asked_at = now
        # What could not be caught up with is let go.
        self._due = min(self._due + elapsed * count / whole, float(count))
        number = min(int(self._due), MOST_AT_ONCE)
        self._due -= number
        found = [(self._next + i) % count for i in range(number)]
        self._next = (self._next + number) % count
        return found

    def failed(self, number: int) -> None:
        """Begin again with a part that could not be saved."""
        self._next, self._begun_at = number, self._clock()


class ShardFiles:
    """The files of one crowd, in a folder of their own.

    Parameters
    ----------
    folder
        Made when there is something to save. Whoever uses it holds the lock of the agent's state.

    Attributes
    ----------
    sizes
        Bytes of each part that was written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sizes: dict[int, int] = {}
        self._turn = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of all parts that were written."""
        return sum(list(self.sizes.values()))

    def write(self, number: int, fields: Mapping[str, Any]) -> None:
        """Replace one part, whole or not at all."""
        self._turn += 1
        inner = zlib.compress(codec.encode(STATE_KIND, VERSION, fields["state"]), 1)
        packed = {**fields, "turn": self._turn, "state": np.frombuffer(inner, np.uint8)}
        data = codec.encode(KIND, VERSION, packed)
        self.folder.mkdir(mode=0o700, exist_ok=True)
        write_whole(self._path(number), data)
        self.sizes[number] = len(data)

    def drop_from(self, count: int) -> None:
        """Remove the parts with this number and above: their nodes are elsewhere or gone."""
        for number, path in self._files():
            if number >= count:
                path.unlink(missing_ok=True)
                self.sizes.pop(number, None)

    def look(self) -> SavedNodes | None:
        """Return who was saved; None where nobody was. Damaged parts are set aside.

        Raises
        ------
        NewerStateError
            A part is from a newer version.
        """
        self._sweep()
        newest: dict[str, tuple[int, int, float]] = {}  # turn, number and absence by name
        latest: tuple[int, tuple[str, ...]] = (0, ())
        metrics_of: dict[int, tuple[str, ...]] = {}
        for number, fields in self._read_all():
            turn = int(fields["turn"])
            metrics_of[number] = tuple(str(name) for name in fields["metrics"])
            latest = max(latest, (turn, metrics_of[number]))
            self._turn = max(self._turn, turn)
            for name, absent in zip(fields["names"], fields["absent"].tolist(), strict=True):
                if turn > newest.get(name, (0, 0, 0.0))[0]:
                    newest[name] = (turn, number, absent)
        metrics = latest[1]
        # A crowd that took in more metrics has them after those it had.
        fitting = {number for number, had in metrics_of.items() if metrics[: len(had)] == had}
        used = {name: found for name, found in newest.items() if found[1] in fitting}
        if not used:
            return None
        holder = {name: number for name, (_, number, _) in used.items()}
        absent_of = {name: absent for name, (_, _, absent) in used.items()}
        return SavedNodes(metrics, absent_of, lambda: self._parts(holder))

    def _parts(self, holder: Mapping[str, int]) -> Iterator[tuple[list[str], str, State]]:
        for number, fields in self._read_all():
            # A node that moved is in two parts for a while: the newer one counts.
            rows = [row for row, name in enumerate(fields["names"]) if holder.get(name) == number]
            if not rows:
                continue
            try:
                state = _unpacked(fields["state"], len(fields["names"]))
            except (StateError, zlib.error) as error:
                _give_up(self._path(number), error)
                continue
            names = [fields["names"][row] for row in rows]
            yield names, str(fields.get("signal")), {key: held[rows] for key, held in state.items()}

    def _read_all(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for number, path in self._files():
            try:
                with path.open("rb") as file:
                    data = file.read(codec.MAX_BYTES + 1)
                fields = codec.decode(data, kind=KIND, version=VERSION)
                _check(fields)
            except OSError as error:
                LOG.warning("some nodes start cold: %s cannot be read (%s)", path, error.strerror)
            except StateError as error:
                _give_up(path, error)
            else:
                yield number, fields

    def _sweep(self) -> None:
        """Remove what killed agents left half-written, and what no crowd has used for long."""
        with contextlib.suppress(OSError):
            for scrap in self.folder.glob(f".*{SUFFIX}.*"):
                scrap.unlink(missing_ok=True)
            for _, path in self._files():
                if time.time() - path.stat().st_mtime > UNUSED_SECONDS:
                    path.unlink(missing_ok=True)

    def _files(self) -> list[tuple[int, Path]]:
        found = []
        for path in self.folder.glob(f"*{SUFFIX}"):
            number = path.name.removesuffix(SUFFIX)
            if number.isdecimal() and int(number) < MOST_NODES:
                found.append((int(number), path))
        return sorted(found)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:04d}{SUFFIX}"


def _give_up(path: Path, error: Exception) -> None:
    LOG.warning("some nodes start cold: %s", set_aside(path, error))


def _check(fields: Mapping[str, Any]) -> None:
    names: Any = fields.get("names")
    metrics: Any = fields.get("metrics")
    absent: Any = fields.get("absent")
    known = isinstance(metrics, list) and isinstance(fields.get("turn"), int)
    named = isinstance(names, list) and all(isinstance(name, str) for name in names)
    arrays = isinstance(absent, np.ndarray) and isinstance(fields.get("state"), np.ndarray)
    if not (known and named and arrays) or absent.shape != (len(names),):
        raise StateError(f"a part must have names, metrics and state, got {sorted(fields)}: discard it")


def _unpacked(packed: NDArray[np.uint8], count: int) -> State:
    inner = zlib.decompressobj().decompress(packed.tobytes(), codec.MAX_BYTES + 1)
    state = codec.decode(inner, kind=STATE_KIND, version=VERSION)
    found = {name: held for name, held in state.items() if isinstance(held, np.ndarray)}
    if any(held.ndim < 1 or held.shape[0] != count for held in found.values()):
        raise StateError(f"a part of {count} nodes must have a row of each, got others: discard it")
    return found
