"""Read the files of a Linux machine, whatever happens to them.

A file that cannot be read is noted with the reason, and *absent* and *forbidden* are told apart, so that
`pronto check` can explain what a machine cannot measure. Nothing here raises for a missing file.
"""

from __future__ import annotations

import os

READ_LIMIT_BYTES = 16_000_000
PIECE_BYTES = 65536
# The kernel renders files in pieces of a page, less the record that no longer fits; a shorter one is the whole file.
# What /proc/schedstat has of one CPU takes up to 3 kB where there are several levels of caches and nodes.
WHOLE_BYTES = 1024
SMALL_BYTES = 4096
# A file that never was there is looked for again after 1, 2, 4 … readings, at most so many.
ABSENT_READINGS = 32


class Files:
    """The files under one root, with a note of those that cannot be read.

    Files of the kernel stay open between two readings, which saves half of what reading them costs.

    Attributes
    ----------
    root
        Folder that holds `proc` and `sys`: `/`, or where a container has the host's mounted.
    trouble
        By path why it cannot be read now: `absent`, `forbidden`, or the system's words.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = os.fspath(root)
        self.trouble: dict[str, str] = {}
        self._open: dict[str, int] = {}
        self._known: set[str] = set()
        # Of files that were never read: readings to leave out from now on, and after the next failure.
        self._absent: dict[str, tuple[int, int]] = {}

    def path(self, name: str) -> str:
        """Return where a file lies, e.g. `proc/stat`."""
        return os.path.join(self.root, name)

    def exists(self, name: str) -> bool:
        """Tell whether there is such a file or folder."""
        return os.path.exists(self.path(name))

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, None if it cannot be read."""
        descriptor = self._open.get(name)
        left, more = self._absent.get(name, (0, 0))
        if left:
            self._absent[name] = (left - 1, more)
            return None
        try:
            data = self._read_new(name) if descriptor is None else _read(descriptor)
        except OSError as error:
            if descriptor is not None:
                # What it belonged to is gone; something of the same name may be there.
                os.close(self._open.pop(name))
                return self.read(name)
            self.trouble[name] = explain(error)
            if name not in self._known:
                self._absent[name] = (more, min(ABSENT_READINGS, 2 * more or 1))
            return None
        if name in self.trouble or name not in self._known:
            self._known.add(name)
            self._absent.pop(name, None)
            self.trouble.pop(name, None)
        return data

    def close(self) -> None:
        """Close all files."""
        while self._open:
            os.close(self._open.popitem()[1])

    def _read_new(self, name: str) -> bytes:
        descriptor = os.open(self.path(name), os.O_RDONLY | os.O_CLOEXEC)
        held = False
        try:
            data = _read(descriptor)
            # A file that has content and no size is rendered by the kernel at every reading.
            held = bool(data) and os.fstat(descriptor).st_size == 0
        finally:
            if held:
                self._open[name] = descriptor
            else:
                os.close(descriptor)
        return data


def _read(descriptor: int) -> bytes:
    data = os.pread(descriptor, PIECE_BYTES, 0)
    if len(data) < WHOLE_BYTES:
        return data
    pieces, size = [data], len(data)
    while size < READ_LIMIT_BYTES and (data := os.pread(descriptor, PIECE_BYTES, size)):
        pieces.append(data)
        size += len(data)
    return b"".join(pieces)


def read_small(path: str) -> bytes | None:
    """Return the first page of a file, None if it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(descriptor, SMALL_BYTES)
        finally:
            os.close(descriptor)
    except OSError:
        return None


def explain(error: OSError) -> str:
    """Return in a word why a file cannot be read."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return "absent"
    if isinstance(error, PermissionError):
        return "forbidden"
    return error.strerror or str(error)
