"""Decisions of the last days, in SQLite, bounded by age and by size.

Single decisions, and one downsampled table of minutes and ten minutes for longer ranges and for many nodes. Calls
block: the agent writes in one thread and reads in another, so that no question keeps anything from being written.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import sqlite3
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from prontosched.agent.store.directions import BAND_FIELDS, Bands

LOG = logging.getLogger("prontosched.agent")
SCHEMA_VERSION = 1
PAGE_BYTES = 4096
MAX_WAITING_ROWS = 20_000
MINUTE_SECONDS, TEN_MINUTES_SECONDS = 60, 600
MINUTES_KEPT_SECONDS = 2 * 86400.0
FUTURE_SECONDS = 86400.0
# Rows that are this much too old are left to the bound on size: the clock has jumped, and time has not passed.
LONGEST_GAP_SECONDS = 30 * 86400.0
# Downsampled rows take at most this share of `max_bytes`; a row is taken for so many bytes.
SHARE_OF_LOG, ROW_BYTES = 2 / 3, 56
HISTORY_FIELDS = (
    *("time", "timesteps", "raised_share", "rejecting_share", "contended_share", "preferred_share"),
    *("closed_share", "ready_mean", "ready_max", "score_max", "threshold", "utilisation_mean"),
    *("expected_ready_max", "reason", "seconds", *BAND_FIELDS),
)
_TABLES = """
create table if not exists decisions (
    id integer primary key, time real not null, node text not null, raised integer not null,
    accept integer not null, score real, threshold real, ready real, utilisation real,
    expected real, reason text, directions blob, contended integer, level integer);
create index if not exists decisions_time on decisions (node, time);
create table if not exists names (id integer primary key, name text not null unique);
create table if not exists downsampled (
    node integer not null, seconds integer not null, time integer not null, steps integer not null,
    raised integer not null, rejecting integer not null, contended integer not null, ready_mean integer,
    ready_max integer, score_max real, threshold real, utilisation real, expected real, bands text,
    preferred integer not null default 0, closed integer not null default 0,
    primary key (node, seconds, time)) without rowid;
"""
_ADDED = (
    ("decisions", "directions", "blob"),
    ("decisions", "contended", "integer"),
    ("decisions", "level", "integer"),
    ("downsampled", "preferred", "integer not null default 0"),
    ("downsampled", "closed", "integer not null default 0"),
)
# The level of a node that its gate has closed.
CLOSED_LEVEL = 9
# Single decisions and downsampled rows in the same columns, in seconds and percent.
_DECISIONS = f"""
    select time, 1 as steps, raised, not accept as rejecting, coalesce(contended, 0) as contended,
        coalesce(level, 0) between 1 and {CLOSED_LEVEL - 1} as preferred, coalesce(level, 0) = {CLOSED_LEVEL} as closed,
        ready as ready_mean, ready as ready_max, score as score_max, threshold, utilisation, expected, reason,
        directions as bands
    from decisions where node = :node and time >= :begin and time < :end"""
_DOWNSAMPLED = """
    select time / 1000.0 as time, steps, raised, rejecting, contended, preferred, closed,
        ready_mean / 100.0 as ready_mean, ready_max / 100.0 as ready_max, score_max, threshold, utilisation, expected,
        null as reason, bands
    from downsampled where node = (select id from names where name = :node) and seconds = :seconds
    and time >= 1000 * :begin and time < 1000 * :end"""
_BUCKETS = """
    select cast((time - :begin) / :width as integer) as bucket, min(time), sum(steps),
        1.0 * sum(raised) / sum(steps), 1.0 * sum(rejecting) / sum(steps), 1.0 * sum(contended) / sum(steps),
        1.0 * sum(preferred) / sum(steps), 1.0 * sum(closed) / sum(steps),
        sum(ready_mean * steps) / sum(case when ready_mean is null then null else steps end), max(ready_max),
        max(score_max), max(threshold),
        sum(utilisation * steps) / sum(case when utilisation is null then null else steps end), max(expected),
        max(reason)
    from ({rows}) group by bucket order by bucket"""
_BANDS = "select cast((time - :begin) / :width as integer), bands from ({rows}) where bands is not null"


class DecisionRow(NamedTuple):
    """One decision as it is kept; NaN is kept as null.

    `raised` is what the signal said, `accept` what the node answered, `contended` whether it was held open although
    contention was expected. `directions` is what `pack` made of projections and spikes. `level` is what the gate
    did: 0 nothing, 1 to 4 ranked the node after calm ones, `CLOSED_LEVEL` closed it.
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
    level: int = 0


class Bucket:
    """What one node did in a minute, or in ten, so far."""

    __slots__ = ("bands", "counts", "most", "node", "number", "ready", "seconds", "time", "used")

    def __init__(self, row: DecisionRow, seconds: int) -> None:
        self.node, self.seconds, self.time = row.node, seconds, row.time
        self.number = int(row.time // seconds)
        self.counts = [0] * 6  # steps, raised, rejecting, contended, preferred away, closed
        self.ready = [0.0, 0.0]  # sum, and how many were known
        self.used = [0.0, 0.0]
        self.most = [-math.inf] * 4  # CPU Ready, score, threshold, expected CPU Ready
        self.bands: Bands | None = None

    def add(self, row: DecisionRow) -> None:
        """Count one decision."""
        counts, most = self.counts, self.most
        counts[0] += 1
        if row.raised:
            counts[1] += 1
        if not row.accept:
            counts[2] += 1
        if row.contended:
            counts[3] += 1
        if row.level:
            counts[5 if row.level == CLOSED_LEVEL else 4] += 1
        for held, value in ((self.ready, row.ready), (self.used, row.utilisation)):
            if value - value == 0.0:  # neither NaN nor infinite
                held[0] += value
                held[1] += 1.0
        for i, value in enumerate((row.ready, row.score, row.threshold, row.expected)):
            if most[i] < value < math.inf:
                most[i] = value
        if row.directions is not None:
            self.bands = self.bands or Bands()
            self.bands.add(row.directions)

    def values(self, node: int) -> tuple[Any, ...]:
        """Return the row of the table, for the node's number."""
        ready, score, threshold, expected = (None if most == -math.inf else most for most in self.most)
        return (
            node,
            self.seconds,
            round(1000 * self.time),
            *self.counts[:4],
            None if not self.ready[1] else round(100 * self.ready[0] / self.ready[1]),
            None if ready is None else round(100 * ready),
            score,
            threshold,
            None if not self.used[1] else round(self.used[0] / self.used[1], 2),
            expected,
            None if self.bands is None else self.bands.text(),
            *self.counts[4:],
        )


class DecisionLog:
    """A bounded table of decisions, and of what they come to in each minute and each ten minutes.

    Rows older than `max_age_seconds` go, and the oldest tenth when the file nears `max_bytes`; its journal takes up to
    a megabyte beside it. A damaged file is set aside as `.corrupt` and begun anew. Memory: at most `MAX_WAITING_ROWS`
    rows that a full disk kept from being written, and two buckets per node.
    """

    def __init__(
        self, path: Path, *, max_age_seconds: float = 7 * 86400.0, max_bytes: int = 64 * 1024 * 1024
    ) -> None:
        self.path = path
        self.max_age_seconds = max_age_seconds
        self.max_bytes = max_bytes
        self.lost = 0
        self.errors = 0
        self.last_error = ""
        self._connection: sqlite3.Connection | None = None
        self._inode = 0
        # Of the thread that reads: its own connection, and the file it is of.
        self._reading: tuple[sqlite3.Connection, int] | None = None
        self._damage = ""
        self._waiting: deque[DecisionRow] = deque()
        self._buckets: dict[tuple[str, int], Bucket] = {}
        self._complete: list[Bucket] = []
        self._touched: dict[tuple[str, int], Bucket] = {}
        self._ids: dict[str, int] = {}
        self._writes = 0

    @property
    def size_bytes(self) -> int:
        """Size of the file and its journal on disk; 0 where there is none."""
        total = 0
        for suffix in ("", "-wal"):
            with contextlib.suppress(OSError):
                total += os.stat(f"{self.path}{suffix}").st_size
        return total

    def write(self, rows: Iterable[DecisionRow], many: Iterable[DecisionRow] = ()) -> bool:
        """Append rows; return whether they are on disk. Rows that are not wait for the next call.

        Of `many` nodes only what they come to in each minute is kept; rows given with them are
        single moments, counted there too, and do not count again.
        """
        new, counted = list(rows), list(many)
        self._waiting.extend(new)
        while len(self._waiting) > MAX_WAITING_ROWS:
            self._waiting.popleft()
            self.lost += 1
        for row in counted or new:
            self._count(row)
        if not self._waiting and not counted:
            return True
        try:
            self._append()
            self._writes += 1
            self._prune((counted or self._waiting)[-1].time)
            self._shorten_journal()
        except (sqlite3.Error, OSError) as error:
            self._failed_writing(error)
            return False
        self._waiting.clear()
        self._complete, self._touched = [], {}
        return True

    def history(
        self, node: str, begin: float, end: float, points: int, *, every_decision: bool = True
    ) -> list[dict[str, Any]]:
        """Return a stretch of time in at most `points` buckets of equal width.

        A bucket has `HISTORY_FIELDS`. Buckets of a minute and more come from downsampled rows. So does time of which
        single decisions are no longer kept, or never were: without `every_decision`.
        """
        width = max((end - begin) / points, 1e-9)
        order = (0, MINUTE_SECONDS, TEN_MINUTES_SECONDS)
        if width >= MINUTE_SECONDS:
            order = (MINUTE_SECONDS, 0, TEN_MINUTES_SECONDS) if width < TEN_MINUTES_SECONDS else order[::-1]
        found: list[dict[str, Any]] = []
        if not self.path.exists():
            return found
        try:
            for seconds in order:
                if seconds == 0 and not every_decision:
                    continue
                until = end
                if found:  # no bucket twice, and no row that reaches into what is there
                    until = begin + width * math.floor((found[0]["time"] - begin) / width) - seconds
                if until > begin:
                    found = self._points(node, seconds, begin, until, width) + found
            self._add_reasons(found, node, begin, end, width)
        except (sqlite3.Error, OSError) as error:
            self._failed(error)
            self._stop_reading()
            return []
        return found

    def nodes(self) -> list[str]:
        """Return the names of the nodes it tells of."""
        try:
            return [name for (name,) in self._open().execute("select name from names order by name")]
        except (sqlite3.Error, OSError) as error:
            self._failed_writing(error)
            return []

    def close(self) -> None:
        """Write what waits and close the file."""
        self.write(())
        self._disconnect()
        self._stop_reading()

    def _count(self, row: DecisionRow) -> None:
        for seconds in (MINUTE_SECONDS, TEN_MINUTES_SECONDS):
            key = (row.node, seconds)
            bucket = self._buckets.get(key)
            if bucket is None or bucket.number != int(row.time // seconds):
                if bucket is not None and key in self._touched:
                    self._complete.append(bucket)
                self._buckets[key] = bucket = Bucket(row, seconds)
            bucket.add(row)
            self._touched[key] = bucket

    def _points(
        self, node: str, seconds: int, begin: float, end: float, width: float
    ) -> list[dict[str, Any]]:
        given = {"node": node, "seconds": seconds, "begin": begin, "end": end, "width": width}
        rows = self._open_reading().execute(_BUCKETS.format(rows=_rows(seconds)), given).fetchall()
        bands: dict[int, Bands] = {}
        # In buckets of a minute and more, projections come from the downsampled rows.
        if seconds or width < MINUTE_SECONDS:
            for bucket, kept in self._open_reading().execute(_BANDS.format(rows=_rows(seconds)), given):
                found = bands.setdefault(bucket, Bands())
                found.merge(json.loads(kept)) if seconds else found.add(kept)
        nothing = dict.fromkeys(BAND_FIELDS)
        return [
            {
                **dict(zip(HISTORY_FIELDS, row[1:], strict=False)),
                "seconds": max(width, float(seconds)),
                **(bands[row[0]].fields() if row[0] in bands else nothing),
            }
            for row in rows
        ]

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
        for bucket, reason in self._open_reading().execute(sql, (begin, width, node, begin, end)):
            if bucket in bare:
                bare[bucket]["reason"] = reason

    def _append(self) -> None:
        connection, row = self._open(), DecisionRow._fields
        with connection:
            connection.executemany(
                f"insert into decisions ({', '.join(row)}) values ({', '.join('?' * len(row))})",
                [tuple(_null(value) for value in waiting) for waiting in self._waiting],
            )
            buckets = [*self._complete, *self._touched.values()]
            connection.executemany(
                "insert or replace into downsampled values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [bucket.values(self._id(connection, bucket.node)) for bucket in buckets],
            )

    def _id(self, connection: sqlite3.Connection, node: str) -> int:
        if node not in self._ids:
            connection.execute("insert or ignore into names (name) values (?)", (node,))
            row = connection.execute("select id from names where name = ?", (node,)).fetchone()
            self._ids[node] = int(row[0])
        return self._ids[node]

    def _prune(self, now: float) -> None:
        connection = self._open()
        if self._writes % 30 == 1:
            self._forget_old(connection, now)
        # By size too, oldest first as they were written: after the clock has jumped, times alone
        # would keep rows for ever.
        while self._pages_in_use(connection) * PAGE_BYTES > 0.9 * self.max_bytes:
            with connection:
                if not self._shrink(connection):
                    break
        connection.execute("pragma incremental_vacuum").fetchall()

    def _forget_old(self, connection: sqlite3.Connection, now: float) -> None:
        """Drop what is too old, and what a clock that jumped back left in the future.

        What is far too old is left to the bound on size: a clock years ahead deletes nothing.
        """
        ages = {
            MINUTE_SECONDS: min(MINUTES_KEPT_SECONDS, self.max_age_seconds),
            TEN_MINUTES_SECONDS: self.max_age_seconds,
        }
        with connection:
            oldest = now - self.max_age_seconds
            connection.execute(
                "delete from decisions where time < ? and time > ?", (oldest, oldest - LONGEST_GAP_SECONDS)
            )
            for seconds, age in ages.items():
                connection.execute(
                    "delete from downsampled where seconds = ? and ((time < ? and time > ?) or time > ?)",
                    (
                        seconds,
                        1000 * (now - age - seconds),
                        1000 * (now - age - LONGEST_GAP_SECONDS),
                        1000 * (now + FUTURE_SECONDS),
                    ),
                )
            connection.execute("delete from names where id not in (select node from downsampled)")
        self._ids = {}
        self._buckets = {
            key: bucket for key, bucket in self._buckets.items() if bucket.time > now - 2 * bucket.seconds
        }

    def _shrink(self, connection: sqlite3.Connection) -> bool:
        """Drop the oldest tenth of downsampled rows that take more than their share, or of decisions."""
        if self._shrink_downsampled(connection, above_bytes=SHARE_OF_LOG * self.max_bytes):
            return True
        first, last = connection.execute("select min(id), max(id) from decisions").fetchone()
        if first is None or first == last:
            return self._shrink_downsampled(connection)
        connection.execute("delete from decisions where id < ?", (first + (last - first) // 10 + 1,))
        return True

    def _shrink_downsampled(self, connection: sqlite3.Connection, *, above_bytes: float = 0.0) -> bool:
        sql = """
            select seconds, count(*), sum(ifnull(length(bands), 0)), min(time), max(time)
            from downsampled group by seconds order by 2 desc"""
        held = connection.execute(sql).fetchall()
        if not held or sum(ROW_BYTES * row[1] + row[2] for row in held) <= above_bytes:
            return False
        seconds, number, _, first, last = held[0]
        if number < 2 or first == last:
            return False
        oldest = first + (last - first) // 10 + 1
        connection.execute("delete from downsampled where seconds = ? and time < ?", (seconds, oldest))
        return True

    def _failed(self, error: Exception) -> None:
        """Count a failure; damage is for the thread that writes to put away."""
        self.errors += 1
        self.last_error = f"{self.path}: {error}"
        if damaged(error):
            self._damage = str(error)

    def _failed_writing(self, error: Exception) -> None:
        """Count a failure and let go of the connection: one that met a full disk may hold a lock."""
        self._failed(error)
        self._ids = {}
        del self._complete[:-MAX_WAITING_ROWS]
        self._disconnect()

    def _stop_reading(self) -> None:
        held, self._reading = self._reading, None
        if held is not None:
            with contextlib.suppress(sqlite3.Error):
                held[0].close()

    def _open_reading(self) -> sqlite3.Connection:
        """Return the connection of the thread that reads: to the file as it is now, which it cannot change."""
        inode = os.stat(self.path).st_ino
        if self._reading is None or self._reading[1] != inode:
            self._stop_reading()
            uri = f"{self.path.absolute().as_uri()}?mode=ro"
            connection = sqlite3.connect(uri, uri=True, timeout=2.0, check_same_thread=False)
            connection.execute("pragma cache_size = -1024")
            self._reading = (connection, inode)
        return self._reading[0]

    def _shorten_journal(self) -> None:
        """Bring the journal into the file where reading without a pause has kept it from shrinking."""
        with contextlib.suppress(OSError):
            if self._writes % 30 == 1 and os.stat(f"{self.path}-wal").st_size > 4 * 1024 * 1024:
                self._open().execute("pragma wal_checkpoint(truncate)").fetchall()

    def _disconnect(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    def _open(self) -> sqlite3.Connection:
        """Return the connection, made if need be: damage is put away, and what was deleted is begun anew."""
        if self._damage:
            self._disconnect()
            self._set_aside(self._damage)
        elif self._connection is not None and not self._there():
            self._disconnect()
        if self._connection is None:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._ids = {}
            try:
                self._connection = _connect(self.path)
            except sqlite3.DatabaseError as error:
                if not damaged(error):
                    raise
                self._set_aside(str(error))
                self._connection = _connect(self.path)
            self._inode = os.stat(self.path).st_ino
        return self._connection

    def _there(self) -> bool:
        """Whether the open file still has its name: rows in one that was deleted would be gone."""
        try:
            return os.stat(self.path).st_ino == self._inode
        except FileNotFoundError:
            return False

    def _set_aside(self, why: str) -> None:
        self._damage = ""
        self.last_error = f"{self.path} is damaged ({why}): set aside and begun anew"
        LOG.warning("%s", self.last_error)
        for suffix in ("-wal", "-shm"):
            Path(f"{self.path}{suffix}").unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.replace(self.path, f"{self.path}.corrupt")

    def _pages_in_use(self, connection: sqlite3.Connection) -> int:
        pages = connection.execute("pragma page_count").fetchone()[0]
        return int(pages - connection.execute("pragma freelist_count").fetchone()[0])


def damaged(error: Exception) -> bool:
    """Tell whether an error means that the file's content is damaged, and not that it cannot be reached.

    Examples
    --------
    >>> damaged(sqlite3.DatabaseError("malformed")), damaged(sqlite3.OperationalError("disk I/O error"))
    (True, False)
    """
    return type(error) is sqlite3.DatabaseError


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
        for table, column, kind in _ADDED:
            if column not in {row[1] for row in connection.execute(f"pragma table_info({table})")}:
                connection.execute(f"alter table {table} add column {column} {kind}")
        if connection.execute("select 1 from sqlite_master where name = 'minutes'").fetchone():
            LOG.warning("%s: minutes that release 0.1 packed are dropped; its single decisions stay", path)
            connection.executescript("drop table minutes; drop table if exists members;")
        connection.execute(f"pragma user_version = {SCHEMA_VERSION}")
    except BaseException:
        connection.close()
        raise
    return connection


def _null(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _rows(seconds: int) -> str:
    return _DOWNSAMPLED if seconds else _DECISIONS
