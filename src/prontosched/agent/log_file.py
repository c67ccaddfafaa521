"""The SQLite file behind the decision log: opened late, set aside when damaged, never a reason to stop."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

SCHEMA_VERSION = 1
PAGE_BYTES = 4096


class LogFile:
    """A file that is opened when it is needed, and again after a failure.

    Parameters
    ----------
    path
        A damaged file is set aside as `.corrupt` and begun anew.
    tables
        SQL that makes whatever is not there yet.
    columns
        Columns of a table that older files lack: `(table, column, type)`.
    """

    def __init__(self, path: Path, tables: str, columns: tuple[tuple[str, str, str], ...] = ()) -> None:
        self.path = path
        self.errors = 0
        self.last_error = ""
        self._tables = tables
        self._columns = columns
        self._connection: sqlite3.Connection | None = None

    @property
    def size_bytes(self) -> int:
        """Size of the file and its journal on disk; 0 where there is none."""
        total = 0
        for suffix in ("", "-wal"):
            with contextlib.suppress(OSError):
                total += os.stat(f"{self.path}{suffix}").st_size
        return total

    def open(self) -> sqlite3.Connection:
        """Return the connection, made if need be."""
        if self._connection is None:
            try:
                self._connection = self._connect()
            except sqlite3.DatabaseError as error:
                if isinstance(error, sqlite3.OperationalError):
                    raise
                self.last_error = f"{self.path} is damaged ({error}): set aside and begun anew"
                for suffix in ("-wal", "-shm"):
                    Path(f"{self.path}{suffix}").unlink(missing_ok=True)
                os.replace(self.path, f"{self.path}.corrupt")
                self._connection = self._connect()
        return self._connection

    def pages_in_use(self) -> int:
        """Return how many pages hold something."""
        connection = self.open()
        pages = connection.execute("pragma page_count").fetchone()[0]
        free = connection.execute("pragma freelist_count").fetchone()[0]
        return int(pages - free)

    def failed(self, error: Exception) -> None:
        """Count a failure and let go of the connection."""
        self.errors += 1
        self.last_error = f"{self.path}: {error}"
        # A connection that met a full disk may hold a lock or a half-made transaction.
        self.close()

    def close(self) -> None:
        """Close the file until it is needed again."""
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=2.0, check_same_thread=False)
        try:
            connection.execute(f"pragma page_size = {PAGE_BYTES}")
            connection.execute("pragma auto_vacuum = incremental")
            connection.execute("pragma journal_mode = wal").fetchone()
            connection.execute("pragma synchronous = normal")
            connection.execute(f"pragma journal_size_limit = {1024 * 1024}")
            connection.execute("pragma cache_size = -256")
            connection.execute("pragma wal_autocheckpoint = 200")
            found = connection.execute("pragma user_version").fetchone()[0]
            if found > SCHEMA_VERSION:
                raise sqlite3.OperationalError(
                    f"the decision log must be of version {SCHEMA_VERSION} or older, got {found}: upgrade Pronto, "
                    "or move the file away"
                )
            connection.executescript(self._tables)
            for table, column, kind in self._columns:
                held = {row[1] for row in connection.execute(f"pragma table_info({table})")}
                if column not in held:
                    connection.execute(f"alter table {table} add column {column} {kind}")
            connection.execute(f"pragma user_version = {SCHEMA_VERSION}")
        except BaseException:
            connection.close()
            raise
        return connection
