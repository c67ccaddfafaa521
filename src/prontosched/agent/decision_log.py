"""Every decision of the last days, in SQLite, bounded by age and by size.

Covers: writing, pruning and reading back at any width. Calls block: the agent makes
them in a thread of its own. A disk that is full costs the log some rows, never the
agent a tick.
"""

from __future__ import annotations

import contextlib
import math
import os
import sqlite3
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

SCHEMA_VERSION = 1
MAX_WAITING_ROWS = 20_000
PAGE_BYTES = 4096
HISTORY_FIELDS = (
    "time",
    "timesteps",
    "raised_share",
    "rejecting_share",
    "ready_mean",
    "ready_max",
    "score_max",
    "threshold",
    "utilisation_mean",
    "expected_ready_max",
    "reason",
)
_TABLES = """
create table if not exists decisions (
    id integer primary key, time real not null, node text not null, raised integer not null,
    accept integer not null, score real, threshold real, ready real, utilisation real,
    expected real, reason text);
create index if not exists decisions_time on decisions (node, time);
"""
_COLUMNS = "time, node, raised, accept, score, threshold, ready, utilisation, expected, reason"


class Row(NamedTuple):
    """One decision as it is kept; NaN is kept as null.

    Attributes
    ----------
    raised
        What the signal said.
    accept
        What the node answered, announced jobs and missing telemetry considered.
    """

    time: float
    node: str
    raised: bool
    accept: bool
    score: float
    threshold: float
    ready: float
    utilisation: float
    expected: float
    reason: str | None


class DecisionLog:
    """A bounded table of decisions.

    Parameters
    ----------
    path
        The SQLite file; a damaged one is set aside as `.corrupt` and begun anew.
    max_age_seconds, max_bytes
        Rows older than the first go, and the oldest tenth goes when the file nears the second;
        its journal takes up to a megabyte beside it.

    Notes
    -----
    Memory: at most `MAX_WAITING_ROWS` rows that a full disk kept from being written.
    """

    def __init__(
        self, path: Path, *, max_age_seconds: float = 7 * 86400.0, max_bytes: int = 64 * 1024 * 1024
    ) -> None:
        self.path = path
        self.max_age_seconds = max_age_seconds
        self.max_bytes = max_bytes
        self.errors = 0
        self.lost = 0
        self.last_error = ""
        self._waiting: deque[Row] = deque()
        self._connection: sqlite3.Connection | None = None
        self._writes = 0

    def write(self, rows: Iterable[Row]) -> bool:
        """Append rows; return whether they are on disk. Rows that are not wait for the next call."""
        self._waiting.extend(rows)
        while len(self._waiting) > MAX_WAITING_ROWS:
            self._waiting.popleft()
            self.lost += 1
        if not self._waiting:
            return True
        try:
            self._append()
            self._writes += 1
            self._prune(self._waiting[-1].time)
        except (sqlite3.Error, OSError) as error:
            self._failed(error)
            return False
        self._waiting.clear()
        return True

    def history(self, node: str, begin: float, end: float, points: int) -> list[dict[str, Any]]:
        """Return the decisions of a stretch of time in at most `points` buckets of equal width.

        Each bucket has the mean and largest CPU Ready, the share of time raised and not
        accepting, the largest score, and one reason where it was raised.
        """
        width = max((end - begin) / points, 1e-9)
        sql = """
            select cast((time - ?) / ? as integer) as bucket, min(time), count(*), avg(raised),
                   1.0 - avg(accept), avg(ready), max(ready), max(score), max(threshold),
                   avg(utilisation), max(expected), max(reason)
            from decisions where node = ? and time >= ? and time < ? group by bucket order by bucket"""
        try:
            cursor = self._open().execute(sql, (begin, width, node, begin, end))
            rows = cursor.fetchmany(points + 1)
        except (sqlite3.Error, OSError) as error:
            self._failed(error)
            return []
        return [dict(zip(HISTORY_FIELDS, row[1:], strict=True)) for row in rows]

    def last_rejections(self, node: str, limit: int = 20) -> list[dict[str, Any]]:
        """Return the newest raised decisions, newest first."""
        sql = "select time, score, ready, reason from decisions where node = ? and raised order by id desc limit ?"
        try:
            rows = self._open().execute(sql, (node, limit)).fetchall()
        except (sqlite3.Error, OSError) as error:
            self._failed(error)
            return []
        return [dict(zip(("time", "score", "ready", "reason"), row, strict=True)) for row in rows]

    @property
    def size_bytes(self) -> int:
        """Size of the file and its journal on disk; 0 where there is none."""
        total = 0
        for suffix in ("", "-wal"):
            with contextlib.suppress(OSError):
                total += os.stat(f"{self.path}{suffix}").st_size
        return total

    def close(self) -> None:
        """Write what waits and close the file."""
        self.write(())
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    def _append(self) -> None:
        connection = self._open()
        with connection:
            connection.executemany(
                f"insert into decisions ({_COLUMNS}) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [tuple(_null(value) for value in row) for row in self._waiting],
            )

    def _prune(self, now: float) -> None:
        connection = self._open()
        if self._writes % 30 == 1:
            with connection:
                connection.execute("delete from decisions where time < ?", (now - self.max_age_seconds,))
        # By size too, oldest first as they were written: after the clock has jumped, times alone
        # would keep rows for ever.
        while self._pages_in_use(connection) * PAGE_BYTES > 0.9 * self.max_bytes:
            first, last = connection.execute("select min(id), max(id) from decisions").fetchone()
            if first is None or first == last:
                break
            with connection:
                connection.execute("delete from decisions where id < ?", (first + (last - first) // 10 + 1,))
        connection.execute("pragma incremental_vacuum").fetchall()

    @staticmethod
    def _pages_in_use(connection: sqlite3.Connection) -> int:
        pages = connection.execute("pragma page_count").fetchone()[0]
        free = connection.execute("pragma freelist_count").fetchone()[0]
        return int(pages - free)

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            try:
                self._connection = _connect(self.path)
            except sqlite3.DatabaseError as error:
                if isinstance(error, sqlite3.OperationalError):
                    raise
                self.last_error = f"{self.path} is damaged ({error}): set aside and begun anew"
                for suffix in ("-wal", "-shm"):
                    Path(f"{self.path}{suffix}").unlink(missing_ok=True)
                os.replace(self.path, f"{self.path}.corrupt")
                self._connection = _connect(self.path)
        return self._connection

    def _failed(self, error: Exception) -> None:
        self.errors += 1
        self.last_error = f"{self.path}: {error}"
        if self._connection is not None:
            # A connection that met a full disk may hold a lock or a half-made transaction.
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=2.0, check_same_thread=False)
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
        connection.executescript(_TABLES)
        connection.execute(f"pragma user_version = {SCHEMA_VERSION}")
    except BaseException:
        connection.close()
        raise
    return connection


def _null(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
