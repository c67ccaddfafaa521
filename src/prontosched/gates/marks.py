"""Our marks as files: for schedulers that keep no note of ours themselves.

Covers: one small file per node, replaced whole, in a folder that only we write to.
A mark survives the agent, so that a watchdog can undo what the mark stands for.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from prontosched.errors import IntegrationError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,200}")
_LIMIT = 8192


def marks_folder(gate: str) -> Path:
    """Return where the marks of `gate` lie unless told otherwise.

    Root, and a service with a RuntimeDirectory, keep them where a reboot clears them;
    everyone else in their own state folder.
    """
    if runtime := os.environ.get("RUNTIME_DIRECTORY", ""):
        return Path(runtime.split(":")[0]) / gate
    if os.geteuid() == 0:
        return Path("/run/pronto") / gate
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "pronto" / gate


class Marks:
    """The marks of one gate.

    Parameters
    ----------
    folder
        Made at the first write.
    suffix
        End of every file name.
    """

    def __init__(self, folder: Path, *, suffix: str = ".mark") -> None:
        self.folder = folder
        self.suffix = suffix

    def path(self, node: str) -> Path:
        """Return the file of `node`."""
        if not _NAME.fullmatch(node):
            raise IntegrationError(f"a node must be one plain name, got {node[:80]!r}")
        return self.folder / f"{node}{self.suffix}"

    def read(self, node: str) -> str | None:
        """Return the mark of `node`, None where there is none."""
        path = self.path(node)
        try:
            with path.open(encoding="utf-8", errors="replace") as file:
                return file.read(_LIMIT)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise IntegrationError(f"{path} must be readable: {error.strerror}") from error

    def write(self, node: str, text: str) -> None:
        """Put `text` as the mark of `node`, all of it or nothing."""
        path = self.path(node)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.folder, prefix=".new-")
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(name, 0o644)
            os.replace(name, path)
        except OSError as error:
            raise IntegrationError(f"{self.folder} must be writable for marks: {error.strerror}") from error

    def remove(self, node: str) -> None:
        """Take the mark of `node` away; nothing happens where there is none."""
        path = self.path(node)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise IntegrationError(f"{path} must be removable: {error.strerror}") from error

    def nodes(self) -> list[str]:
        """Return the nodes that have a mark."""
        names = (path.name.removesuffix(self.suffix) for path in self.folder.glob(f"*{self.suffix}"))
        return sorted(name for name in names if _NAME.fullmatch(name))
