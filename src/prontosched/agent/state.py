"""What survives a restart, in a file for each group of nodes.

Covers: where files lie, the lock against a second agent, atomic replacement, and
what happens to a file that cannot be read. What is inside is the business of
`prontosched.agent.nodes`; its bytes are those of `prontosched.codec`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prontosched import codec
from prontosched.errors import NewerStateError, StateError

KIND = "agent"
VERSION = 1
MAX_STATE_BYTES = 16 * codec.MAX_BYTES

LOG = logging.getLogger("prontosched.agent")


def default_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder for state: `$XDG_STATE_HOME/pronto`, else `~/.local/state/pronto`.

    A service manager's `$STATE_DIRECTORY` comes first.

    Examples
    --------
    >>> default_folder({"XDG_STATE_HOME": "/var/lib/me"}).as_posix()
    '/var/lib/me/pronto'
    """
    if given := environment.get("STATE_DIRECTORY", "").split(":")[0]:
        return Path(given)
    home = environment.get("XDG_STATE_HOME", "")
    # The standard says that a relative path is to be ignored.
    base = Path(home) if os.path.isabs(home) else Path(environment.get("HOME", "/tmp")) / ".local" / "state"
    return base / "pronto"


class StateFiles:
    """The state of an agent's nodes, a file for each group, that no two agents use at once.

    Parameters
    ----------
    folder, name
        The first group is `<name>.state`; beside it lie `.lock`, while in use, and `.corrupt`, when
        one had to be set aside. The other groups are in the folder `<name>.nodes`.

    Raises
    ------
    StateError
        The folder cannot be made, or another agent holds the lock.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.path = path = folder / f"{name}.state"
        self._folder = folder / f"{name}.nodes"
        self._sizes: dict[int, int] = {}
        self._groups = -1
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(_beside(path, ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StateError(
                f"the state folder must be writable, got {error.strerror} for {path.parent}: "
                "give another with --state"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(self._lock, 32).decode(errors="replace").strip() or "unknown"
            os.close(self._lock)
            raise StateError(
                f"one agent may use {path}, got a second: process {holder} holds it; "
                "stop that one, or give --state another folder"
            ) from error
        # Best effort: on a full disk the lock still holds, only without the name of its holder.
        with contextlib.suppress(OSError):
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)
        sweep(path)
        for group in self._folder.glob(".*.state.*"):
            group.unlink(missing_ok=True)

    def load(self) -> tuple[list[dict[str, Any]], str]:
        """Return what was saved, file by file, the oldest first, and a sentence on what was found.

        A file that is truncated, altered or not ours is set aside as `.corrupt`.

        Raises
        ------
        NewerStateError
            A file is from a newer version.
        """
        found: list[dict[str, Any]] = []
        message = "starting cold: there is no saved state yet"
        for path in (self.path, *sorted(self._folder.glob("*.state"))):
            try:
                found.append(read_state(path))
            except FileNotFoundError:
                continue
            except OSError as error:
                message = f"starting cold: {path} cannot be read ({error.strerror})"
                LOG.warning("%s", message)
            except StateError as error:
                message = f"starting cold: {set_aside(path, error)}"
                LOG.warning("%s", message)
        self._set_aside_crowd()
        found = [fields for fields in found if fields.get("form") in ("one", "several")]
        found.sort(key=lambda fields: float(fields.get("saved_at", 0.0)))
        return found, f"continuing from {self.path}" if found else message

    def save(self, number: int, fields: Mapping[str, Any]) -> None:
        """Replace the file of one group by `fields`, whole or not at all."""
        data = codec.encode(KIND, VERSION, fields)
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


def read_state(path: Path) -> dict[str, Any]:
    """Read a state file without holding it, as `pronto status` does beside an agent."""
    with path.open("rb") as file:
        data = file.read(MAX_STATE_BYTES + 1)
    return codec.decode(data, kind=KIND, version=VERSION, limit=MAX_STATE_BYTES)


def write_whole(path: Path, data: bytes) -> None:
    """Replace `path` so that any reader, at any moment, sees the old or the new bytes whole.

    On failure (disk full, killed) the old file stays and no scrap is left by later saves.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def set_aside(path: Path, error: Exception) -> str:
    """Move a file that cannot be used out of the way, and say so; one from a newer version stays.

    Raises
    ------
    NewerStateError
        `error` says that the file is from a newer version.
    """
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


def write_address(folder: Path, url: str) -> None:
    """Leave a note where `pronto run` and `pronto status` find the agent of this folder."""
    write_whole(folder / "address.json", json.dumps({"url": url, "pid": os.getpid()}).encode())


def remove_address(folder: Path) -> None:
    """Take the note away again, unless another agent has left its own."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        path = folder / "address.json"
        if int(json.loads(path.read_bytes()[:4096])["pid"]) == os.getpid():
            path.unlink()


def read_address(folder: Path) -> str | None:
    """Return the address noted by a running agent, or None."""
    try:
        note = json.loads((folder / "address.json").read_bytes()[:4096])
        url, pid = str(note["url"]), int(note["pid"])
        os.kill(pid, 0)
    except PermissionError:
        return url  # it runs, as someone else
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return url


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)
