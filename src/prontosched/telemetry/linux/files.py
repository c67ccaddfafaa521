"""Read the files of a Linux machine, whatever happens to them.

A file that cannot be read is remembered with the reason, and *absent* and *forbidden* are told apart, so
that `pronto check` can explain what a machine cannot measure. Nothing here raises for a missing file.
"""

from __future__ import annotations

import os
from pathlib import Path

READ_LIMIT_BYTES = 16_000_000
PIECE_BYTES = 65536


class Files:
    """The files under one root, with a record of those that cannot be read.

    Parameters
    ----------
    root
        Folder that holds `proc` and `sys`: `/`, or where a container has the host's mounted.

    Attributes
    ----------
    trouble
        By path why it cannot be read now: `absent`, `forbidden`, or the system's words.
    failures
        Reads that failed so far.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = os.fspath(root)
        self.trouble: dict[str, str] = {}
        self.failures = 0

    def path(self, name: str) -> str:
        """Return where a file lies, e.g. `proc/stat`."""
        return os.path.join(self.root, name)

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, None if it cannot be read."""
        try:
            data = self._read(os.path.join(self.root, name))
        except OSError as error:
            self.failures += 1
            self.trouble[name] = explain(error)
            return None
        if self.trouble:
            self.trouble.pop(name, None)
        return data

    def exists(self, name: str) -> bool:
        """Tell whether there is such a file or folder."""
        return Path(self.root, name).exists()

    @staticmethod
    def _read(path: str) -> bytes:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.read(descriptor, PIECE_BYTES)
            # Files in /proc may come in pieces of a page; only an empty read is the end.
            if len(data) < 3072:
                return data
            pieces = [data]
            size = len(data)
            while size < READ_LIMIT_BYTES and (data := os.read(descriptor, PIECE_BYTES)):
                pieces.append(data)
                size += len(data)
            return b"".join(pieces)
        finally:
            os.close(descriptor)


def explain(error: OSError) -> str:
    """Return in a word why a file cannot be read."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return "absent"
    if isinstance(error, PermissionError):
        return "forbidden"
    return error.strerror or str(error)
