"""What is on disk: the state of nodes (`state`) and the decision log (`decision_log`, `directions`).

Here: where files lie, replacing one whole, and the note and the socket by which `pronto run`
finds an agent.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pwd
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

ADDRESS_FILE = "address.json"


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
    if os.path.isabs(home):
        return Path(home) / "pronto"
    # Without a name for the home the system's own list has it: never a place that anyone may take first.
    own = environment.get("HOME", "") or _home()
    return Path(own) / ".local" / "state" / "pronto"


def _home() -> str:
    try:
        found = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        found = ""
    # A user without a home has a folder by its number, which only root can have made.
    return found if os.path.isdir(found) else f"/run/user/{os.getuid()}"


def make_private(folder: Path) -> None:
    """Make a folder that only this user may enter; `PermissionError` for a link or another user's."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = os.lstat(folder)
    link = stat.S_ISLNK(found.st_mode)
    if found.st_uid not in (0, os.geteuid()) or (link and _shared(folder.parent)):
        raise PermissionError(
            errno.EPERM, "a folder of another user, or a link in a folder that all may write to"
        )
    if not link and found.st_uid == os.geteuid() and found.st_mode & 0o077:
        os.chmod(folder, 0o700)


def _shared(folder: Path) -> bool:
    return bool(os.stat(folder).st_mode & 0o022)


MACHINE_FOLDER = Path("/run/pronto")


def socket_folders(state: Path, environment: Mapping[str, str] = os.environ) -> list[Path]:
    """Return where an agent's socket for jobs may lie, the first choice first.

    That is a service manager's `$RUNTIME_DIRECTORY`, the machine's folder, which only root may
    make and all may enter, the user's `$XDG_RUNTIME_DIR`, and the folder for state.
    """
    given = environment.get("RUNTIME_DIRECTORY", "").split(":")[0]
    own = environment.get("XDG_RUNTIME_DIR", "")
    return [
        *([Path(given)] if given else []),
        MACHINE_FOLDER,
        *([Path(own) / "pronto"] if os.path.isabs(own) else []),
        state,
    ]


def socket_name(port: int) -> str:
    """Return what the socket for jobs is called of the agent that answers on `port`."""
    return f"jobs-{port}.sock"


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
    write_whole(folder / ADDRESS_FILE, json.dumps({"url": url, "pid": os.getpid()}).encode())


def remove_address(folder: Path) -> None:
    """Take the note away again, unless another agent has left its own."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        path = folder / ADDRESS_FILE
        if int(json.loads(path.read_bytes()[:4096])["pid"]) == os.getpid():
            path.unlink()


def read_address(folder: Path) -> str | None:
    """Return the address noted by a running agent, or None."""
    try:
        note = json.loads((folder / ADDRESS_FILE).read_bytes()[:4096])
        url, pid = str(note["url"]), int(note["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    try:
        os.kill(pid, 0)
    except PermissionError:
        return url  # it runs, as someone else
    except (OSError, OverflowError):
        return None
    return url
