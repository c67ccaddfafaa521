"""Minutes on disk: a record of all nodes for each minute of two days, and each ten minutes of the rest.

Covers: keeping the records that `prontosched.agent.minutes` adds up, dropping the oldest,
and reading one node back. Whoever calls has the connection and meets its errors.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prontosched.agent.minutes import DETAIL, MINUTE_SECONDS, NODE, TEN_SECONDS, Measured, Minutes, Record
from prontosched.agent.projected import Bands

MINUTES_KEPT_SECONDS = 2 * 86400.0
SHARE_OF_LOG = 2 / 3
FUTURE_SECONDS = 86400.0
MOST_WAITING = 64
TABLES = """
create table if not exists minutes (
    id integer primary key, seconds integer not null, epoch integer not null, time real not null,
    nodes blob not null, details blob, contended blob);
create index if not exists minutes_time on minutes (seconds, time);
create table if not exists members (
    epoch integer not null, place integer not null, name text not null, primary key (epoch, place))
    without rowid;
"""


class MinuteLog:
    """Records of minutes, added up here and kept in a database that others open.

    Notes
    -----
    Disk: 10 bytes per node and record, 83 where there are few, and one more where any was held
    open, in at most 3,888 records: 2,880 minutes and 1,008 times ten minutes.
    """

    def __init__(self) -> None:
        self._minutes: Minutes | None = None
        self._early: list[Measured] = []
        self._complete: list[Record] = []
        self._rows: dict[tuple[int, int, int], int] = {}
        self._named: tuple[int, int] = (-1, 0)

    def add(self, steps: Iterable[Measured]) -> None:
        """Add timesteps up; `store` writes them."""
        if self._minutes is None:  # which names had which places is on disk
            self._early += steps
            return
        for one in steps:
            self._complete += self._minutes.add(one)

    def store(self, connection: sqlite3.Connection) -> None:
        """Write what is complete and what there is so far, in the transaction that is open."""
        if self._minutes is None:
            self._minutes = _gone_on(connection)
            early, self._early = self._early, []
            self.add(early)
        running = self._minutes.so_far()
        self._name(connection)
        for record in (*self._complete, *running):
            self._put(connection, record)
        kept = {record.key for record in running}
        self._rows = {key: row for key, row in self._rows.items() if key in kept}

    def stored(self) -> None:
        """Forget what waited: the transaction is done."""
        self._complete = []

    def failed(self) -> None:
        """Keep only so much waiting, and trust no row numbers: the file may be another one."""
        del self._early[:-MOST_WAITING], self._complete[:-MOST_WAITING]
        self._rows = {}
        self._named = (-1, 0)

    def points(
        self, connection: sqlite3.Connection, node: str, seconds: int, begin: float, end: float, width: float
    ) -> list[dict[str, Any]]:
        """Return a node's records in buckets of `width` from `begin` on, without reasons."""
        times, nodes, details, contended = _read(connection, node, seconds, begin, end)
        if not times.size:
            return []
        groups = ((times - begin) / width).astype(np.int64)
        starts = np.flatnonzero(np.diff(groups, prepend=-1))
        steps = nodes["steps"].astype(np.float64)
        whole = np.add.reduceat(steps, starts)

        def mean(values: NDArray[Any]) -> list[float | None]:
            known = np.isfinite(values)
            weight = np.add.reduceat(steps * known, starts)
            total = np.add.reduceat(np.where(known, values, 0.0) * steps, starts)
            return [round(float(t / w), 4) if w > 0 else None for t, w in zip(total, weight, strict=True)]

        def most(values: NDArray[Any]) -> list[float | None]:
            found = np.maximum.reduceat(np.where(np.isfinite(values), values, -np.inf), starts)
            return [round(float(value), 4) if np.isfinite(value) else None for value in found]

        bands = _bands(groups, details)
        columns = {
            "time": times[starts].tolist(),
            "timesteps": [int(number) for number in whole],
            "raised_share": mean(nodes["raised"] / 255.0),
            "rejecting_share": mean(nodes["rejecting"] / 255.0),
            "contended_share": mean(contended / 255.0),
            "ready_mean": mean(nodes["ready_mean"].astype(np.float64)),
            "ready_max": most(nodes["ready_max"].astype(np.float64)),
            "score_max": most(nodes["score_max"].astype(np.float64)),
            "threshold": most(details["threshold"].astype(np.float64)),
            "utilisation_mean": mean(details["utilisation"].astype(np.float64)),
            "expected_ready_max": most(details["expected"].astype(np.float64)),
        }
        return [
            {
                **{name: values[i] for name, values in columns.items()},
                "reason": None,
                "seconds": max(width, float(seconds)),
                **bands.fields(i),
            }
            for i in range(starts.size)
        ]

    def prune(self, connection: sqlite3.Connection, now: float, max_age_seconds: float) -> None:
        """Drop what is too old, and what a clock that jumped back left in the future."""
        ages = {MINUTE_SECONDS: min(MINUTES_KEPT_SECONDS, max_age_seconds), TEN_SECONDS: max_age_seconds}
        for seconds, age in ages.items():
            connection.execute(
                "delete from minutes where seconds = ? and (time < ? or time > ?)",
                (seconds, now - age - seconds, now + FUTURE_SECONDS),
            )
        epoch = -1 if self._minutes is None else self._minutes.epoch
        connection.execute(
            "delete from members where epoch <> ? and epoch not in (select epoch from minutes)", (epoch,)
        )

    def shrink(self, connection: sqlite3.Connection, *, above_bytes: float = 0.0) -> bool:
        """Drop the oldest tenth of the larger kind if all take more than that; return whether it did."""
        sql = "select seconds, sum(length(nodes) + ifnull(length(details), 0)), count(*) from minutes group by 1"
        held = sorted(connection.execute(sql).fetchall(), key=lambda row: -row[1])
        if not held or sum(row[1] for row in held) <= above_bytes or held[0][2] < 2:
            return False
        seconds, _, number = held[0]
        connection.execute(
            "delete from minutes where id in (select id from minutes where seconds = ? order by id limit ?)",
            (seconds, number // 10 + 1),
        )
        return True

    def _put(self, connection: sqlite3.Connection, record: Record) -> None:
        if (row := self._rows.get(record.key)) is not None:
            sql = "update minutes set nodes = ?, details = ?, contended = ? where id = ?"
            if connection.execute(sql, (record.nodes, record.details, record.contended, row)).rowcount:
                return
        sql = (
            "insert into minutes (seconds, epoch, time, nodes, details, contended) values (?, ?, ?, ?, ?, ?)"
        )
        values = (record.seconds, record.epoch, record.time, record.nodes, record.details, record.contended)
        self._rows[record.key] = int(connection.execute(sql, values).lastrowid or 0)

    def _name(self, connection: sqlite3.Connection) -> None:
        assert self._minutes is not None
        names = list(self._minutes.places)
        first = self._named[1] if self._named[0] == self._minutes.epoch else 0
        if first == len(names):
            return
        connection.executemany(
            "insert or replace into members values (?, ?, ?)",
            [(self._minutes.epoch, place, names[place]) for place in range(first, len(names))],
        )
        self._named = (self._minutes.epoch, len(names))


def _gone_on(connection: sqlite3.Connection) -> Minutes:
    epoch = connection.execute("select max(epoch) from members").fetchone()[0]
    if epoch is None:
        return Minutes()
    sql = "select name from members where epoch = ? order by place"
    return Minutes(epoch, [row[0] for row in connection.execute(sql, (epoch,))])


def _read(
    connection: sqlite3.Connection, node: str, seconds: int, begin: float, end: float
) -> tuple[NDArray[np.float64], NDArray[Any], NDArray[Any], NDArray[np.uint8]]:
    empty = np.zeros(1, DETAIL)
    for name in ("threshold", "utilisation", "expected"):
        empty[name] = np.nan
    empty["low"] = empty["high"] = np.iinfo(np.int16).min
    filler = empty.tobytes()
    found: list[tuple[float, bytes, bytes, bytes]] = []
    for epoch, place in connection.execute(
        "select epoch, place from members where name = ?", (node,)
    ).fetchall():
        sql = """
            select time, substr(nodes, ?, ?), substr(details, ?, ?), substr(contended, ?, 1) from minutes
            where seconds = ? and epoch = ? and time >= ? and time < ?"""
        size, more = NODE.itemsize, DETAIL.itemsize
        bounds = (place * size + 1, size, place * more + 1, more, place + 1, seconds, epoch, begin, end)
        for time, one, details, contended in connection.execute(sql, bounds):
            if len(one) == size and one[:2] != b"\0\0":
                full = details if details and len(details) == more else filler
                found.append((time, one, full, contended or b"\0"))
    found.sort()
    times = np.array([row[0] for row in found])
    nodes = np.frombuffer(b"".join(row[1] for row in found), NODE)
    details = np.frombuffer(b"".join(row[2] for row in found), DETAIL)
    return times, nodes, details, np.frombuffer(b"".join(row[3] for row in found), np.uint8)


def _bands(groups: NDArray[np.int64], details: NDArray[Any]) -> Bands:
    begun = np.unpackbits(details["begun"][:, None], axis=1, bitorder="little")
    low, high, up, down = (details[name].astype(np.int64) for name in ("low", "high", "up", "down"))
    return Bands(groups, low, high, up, down, begun.astype(np.int64))
