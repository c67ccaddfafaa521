"""What is on disk: the state of nodes (`state`) and the decision log (`decision_log`).

Here: where files lie, replacing one whole, and the note by which `pronto run` finds an agent.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path


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
