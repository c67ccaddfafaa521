"""What survives a restart, in one small file.

Covers: where files lie, the lock against a second agent, atomic replacement, and
what happens to a file that cannot be read. What is inside is the business of
`prontosched.agent.nodes`; its bytes are those of `prontosched.codec`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prontosched import codec
from prontosched.errors import NewerStateError, StateError

KIND = "agent"
VERSION = 1
MAX_STATE_BYTES = codec.MAX_BYTES


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


class StateFile:
    """One file, replaced whole, that no two agents use at once.

    Parameters
    ----------
    path
        The file. Beside it lie `.lock`, while in use, and `.corrupt`, when one had to be set aside.

    Raises
    ------
    StateError
        The folder cannot be made, or another agent holds the lock.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
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

    def load(self) -> tuple[dict[str, Any] | None, str]:
        """Return what was saved, or None, and a sentence on what was found.

        A file that is truncated, altered or not ours is set aside as `.corrupt`.

        Raises
        ------
        NewerStateError
            The file is from a newer version.
        """
        try:
            return read_state(self.path), f"continuing from {self.path}"
        except FileNotFoundError:
            return None, "starting cold: there is no saved state yet"
        except OSError as error:
            return None, f"starting cold: {self.path} cannot be read ({error.strerror})"
        except StateError as error:
            return None, f"starting cold: {set_aside(self.path, error)}"

    def save(self, fields: Mapping[str, Any]) -> int:
        """Replace the file by `fields`, whole or not at all; return its size in bytes."""
        data = codec.encode(KIND, VERSION, fields)
        write_whole(self.path, data)
        return len(data)

    def close(self) -> None:
        """Let another agent use the file."""
        os.close(self._lock)


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
