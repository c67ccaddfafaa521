"""Every decision of the last days, in SQLite, bounded by age and by size.

Covers: writing, pruning and reading back at any width. Calls block: the agent makes
them in a thread of its own. A disk that is full costs the log some rows, never the
agent a tick. What is kept longer and of many nodes is `prontosched.agent.minute_log`.
"""

from __future__ import annotations

import math
import sqlite3
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from prontosched.agent.log_file import PAGE_BYTES, LogFile
from prontosched.agent.minute_log import SHARE_OF_LOG, TABLES, MinuteLog
from prontosched.agent.minutes import MINUTE_SECONDS, TEN_SECONDS, Measured
from prontosched.agent.projected import BAND_FIELDS, Bands, Packed

MAX_WAITING_ROWS = 20_000
HISTORY_FIELDS = (
    "time",
    "timesteps",
    "raised_share",
    "rejecting_share",
    "contended_share",
    "ready_mean",
    "ready_max",
    "score_max",
    "threshold",
    "utilisation_mean",
    "expected_ready_max",
    "reason",
    "seconds",
    *BAND_FIELDS,
)
_TABLES = f"""
create table if not exists decisions (
    id integer primary key, time real not null, node text not null, raised integer not null,
    accept integer not null, score real, threshold real, ready real, utilisation real,
    expected real, reason text, directions blob, contended integer);
create index if not exists decisions_time on decisions (node, time);
{TABLES}"""
_ADDED = (
    ("decisions", "directions", "blob"),
    ("decisions", "contended", "integer"),
    ("minutes", "contended", "blob"),
)
_COLUMNS = "time, node, raised, accept, score, threshold, ready, utilisation, expected, reason, directions, contended"


class Row(NamedTuple):
    """One decision as it is kept; NaN is kept as null.

    Attributes
    ----------
    raised
        What the signal said.
    accept
        What the node answered, announced jobs and missing telemetry considered.
    contended
        Whether it was held open although contention was expected.
    directions
        Projections and their spikes, packed (`prontosched.agent.projected`).
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
    directions: bytes | None = None
    contended: bool = False


class DecisionLog:
    """A bounded table of decisions, and of what they come to in each minute.

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
        self.lost = 0
        self._file = LogFile(path, _TABLES, _ADDED)
        self._minutes = MinuteLog()
        self._waiting: deque[Row] = deque()
        self._writes = 0

    @property
    def errors(self) -> int:
        """How often the disk failed."""
        return self._file.errors

    @property
    def last_error(self) -> str:
        """The last failure in words."""
        return self._file.last_error

    @property
    def size_bytes(self) -> int:
        """Size of the file and its journal on disk; 0 where there is none."""
        return self._file.size_bytes

    def write(self, rows: Iterable[Row], many: Sequence[Measured] = ()) -> bool:
        """Append rows; return whether they are on disk. Rows that are not wait for the next call.

        Of `many` nodes, given as timesteps, only what they come to in each minute is kept; rows
        given with them are single moments and do not count for it.
        """
        new = list(rows)
        self._waiting.extend(new)
        while len(self._waiting) > MAX_WAITING_ROWS:
            self._waiting.popleft()
            self.lost += 1
        self._minutes.add(many or _measured(new))
        if not self._waiting and not many:
            return True
        try:
            self._append()
            self._writes += 1
            self._prune(many[-1].time if many else self._waiting[-1].time)
        except (sqlite3.Error, OSError) as error:
            self._failed(error)
            return False
        self._waiting.clear()
        return True

    def history(
        self, node: str, begin: float, end: float, points: int, *, every_decision: bool = True
    ) -> list[dict[str, Any]]:
        """Return a stretch of time in at most `points` buckets of equal width.

        Each bucket has the mean and largest CPU Ready, the share of time raised, not
        accepting, and contended but held open, the largest score, the range of each projection with its spikes, and one
        reason where it was raised. What a bucket is wide enough for comes from the minutes, and so
        does what is no longer, or was never (without `every_decision`), kept of single decisions.
        """
        width = max((end - begin) / points, 1e-9)
        order = (0, MINUTE_SECONDS, TEN_SECONDS)
        if width >= MINUTE_SECONDS:
            order = (MINUTE_SECONDS, 0, TEN_SECONDS) if width < TEN_SECONDS else order[::-1]
        found: list[dict[str, Any]] = []
        try:
            for seconds in order:
                if seconds == 0 and not every_decision:
                    continue
                until = end
                if found:  # no bucket twice, and no record that reaches into what is there
                    until = begin + width * math.floor((found[0]["time"] - begin) / width) - seconds
                if until > begin:
                    found = self._points(node, seconds, begin, until, width) + found
            self._add_reasons(found, node, begin, end, width)
        except (sqlite3.Error, OSError) as error:
            self._failed(error)
            return []
        return found

    def last_rejections(self, node: str, limit: int = 20) -> list[dict[str, Any]]:
        """Return the newest raised decisions, newest first."""
        sql = "select time, score, ready, reason from decisions where node = ? and raised order by id desc limit ?"
        try:
            rows = self._file.open().execute(sql, (node, limit)).fetchall()
        except (sqlite3.Error, OSError) as error:
            self._failed(error)
            return []
        return [dict(zip(("time", "score", "ready", "reason"), row, strict=True)) for row in rows]

    def close(self) -> None:
        """Write what waits and close the file."""
        self.write(())
        self._file.close()

    def _points(
        self, node: str, seconds: int, begin: float, end: float, width: float
    ) -> list[dict[str, Any]]:
        connection = self._file.open()
        if seconds:
            return self._minutes.points(connection, node, seconds, begin, end, width)
        sql = """
            select cast((time - ?) / ? as integer) as bucket, min(time), count(*), avg(raised),
                   1.0 - avg(accept), avg(coalesce(contended, 0)), avg(ready), max(ready), max(score), max(threshold),
                   avg(utilisation), max(expected), max(reason)
            from decisions where node = ? and time >= ? and time < ? group by bucket order by bucket"""
        rows = connection.execute(sql, (begin, width, node, begin, end)).fetchall()
        bands = self._bands(node, begin, end, width) if width < MINUTE_SECONDS else {}
        nothing = dict.fromkeys(BAND_FIELDS)
        return [
            {
                **dict(zip(HISTORY_FIELDS, row[1:], strict=False)),
                "seconds": width,
                **bands.get(row[0], nothing),
            }
            for row in rows
        ]

    def _bands(self, node: str, begin: float, end: float, width: float) -> dict[int, dict[str, Any]]:
        sql = """
            select cast((time - ?) / ? as integer), directions from decisions
            where node = ? and time >= ? and time < ? and directions is not null order by time"""
        rows = self._file.open().execute(sql, (begin, width, node, begin, end)).fetchall()
        if not rows:
            return {}
        packed = Packed([row[1] for row in rows])
        groups = np.array([row[0] for row in rows], np.int64)
        bands = Bands(groups, packed.values, packed.values, packed.up, packed.down, packed.begun)
        return {int(group): bands.fields(i) for i, group in enumerate(bands.groups)}

    def _add_reasons(
        self, points: list[dict[str, Any]], node: str, begin: float, end: float, width: float
    ) -> None:
        """Give minutes that refused or were contended a reason, as far as single decisions are still there."""
        bare = {
            math.floor((point["time"] - begin) / width): point
            for point in points
            if (point["rejecting_share"] or point["contended_share"]) and point["reason"] is None
        }
        if not bare:
            return
        sql = """
            select cast((time - ?) / ? as integer), max(reason) from decisions
            where node = ? and time >= ? and time < ? and reason is not null group by 1"""
        for bucket, reason in self._file.open().execute(sql, (begin, width, node, begin, end)):
            if bucket in bare:
                bare[bucket]["reason"] = reason

    def _append(self) -> None:
        connection = self._file.open()
        with connection:
            connection.executemany(
                f"insert into decisions ({_COLUMNS}) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [tuple(_null(value) for value in row) for row in self._waiting],
            )
            self._minutes.store(connection)
        self._minutes.stored()

    def _prune(self, now: float) -> None:
        connection = self._file.open()
        if self._writes % 30 == 1:
            with connection:
                connection.execute("delete from decisions where time < ?", (now - self.max_age_seconds,))
                self._minutes.prune(connection, now, self.max_age_seconds)
        # By size too, oldest first as they were written: after the clock has jumped, times alone
        # would keep rows for ever.
        while self._file.pages_in_use() * PAGE_BYTES > 0.9 * self.max_bytes:
            with connection:
                if not self._shrink(connection):
                    break
        connection.execute("pragma incremental_vacuum").fetchall()

    def _shrink(self, connection: sqlite3.Connection) -> bool:
        if self._minutes.shrink(connection, above_bytes=SHARE_OF_LOG * self.max_bytes):
            return True
        first, last = connection.execute("select min(id), max(id) from decisions").fetchone()
        if first is None or first == last:
            return self._minutes.shrink(connection)
        connection.execute("delete from decisions where id < ?", (first + (last - first) // 10 + 1,))
        return True

    def _failed(self, error: Exception) -> None:
        self._file.failed(error)
        self._minutes.failed()


def _measured(rows: Sequence[Row]) -> list[Measured]:
    """Return rows as timesteps, those of a minute together."""
    found = []
    for _, group in groupby(rows, key=lambda row: row.time // MINUTE_SECONDS):
        some = list(group)
        columns = list(zip(*some, strict=True))
        numbers = np.array(columns[4:9], np.float64)  # score, threshold, ready, utilisation, expected
        rejecting = ~np.array(columns[3], np.bool_)
        details = (numbers[[1, 3, 4]], columns[10])
        found.append(
            Measured(
                some[0].time,
                list(columns[1]),
                np.array(columns[2], np.bool_),
                rejecting,
                numbers[0],
                numbers[2],
                details,
                np.array(columns[11], np.bool_),
            )
        )
    return found


def _null(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
