"""Public data sets: SMD, the Server Machine Dataset, and those whose files are CSV.

SMD has 28 production servers with 38 metrics a minute for five weeks, as text without a header or as Parquet with
a `minute` column. It has no CPU Ready; its nearest relative is `load_1`, the run queue. The publisher scaled every
column to [0, 1].

Bitbrains has 1,750 VMs of a hosting company, every five minutes for one to three months, one file per VM, cells
parted by a semicolon and a tab. The header says milliseconds, but timestamps are seconds since 1970: they are told
by their size. There is no CPU Ready in it; a column such as `CPU usage [%]` can be forecast in its place.

Westermo, Exathlon and Alibaba's machine usage have no CPU Ready either. In the first the run queue stands in; of the
others a column must be named.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from prontosched.errors import TelemetryError
from prontosched.subspace import Array
from prontosched.telemetry.trace.files import (
    Batch,
    CsvFile,
    ParquetFile,
    TraceCounts,
    Wanted,
    is_number,
    without_infinity,
)

MINUTE_SECONDS = 60.0
SMD_READY = "load_1"
# The other load averages are the answer again, a little later.
SMD_EXCLUDE = ("load_*",)
METRICS = (
    *("cpu_r", "load_1", "load_5", "load_15", "mem_shmem", "mem_u", "mem_u_e", "total_mem"),
    *("disk_q", "disk_r", "disk_rb", "disk_svc", "disk_u", "disk_w", "disk_wa", "disk_wb", "si", "so"),
    *("eth1_fi", "eth1_fo", "eth1_pi", "eth1_po", "tcp_tw", "tcp_use", "active_opens", "curr_estab"),
    *("in_errs", "in_segs", "listen_overflows", "out_rsts", "out_segs", "passive_opens", "retransegs"),
    *("tcp_timeouts", "udp_in_dg", "udp_out_dg", "udp_rcv_buf_errs", "udp_snd_buf_errs"),
)
SIGN = "CPU capacity provisioned [MHZ]"


class SmdFile:
    """One machine of SMD.

    Attributes
    ----------
    names
        `timestamp` (seconds since the start; the source has no clock time) and the 38 metrics.
    """

    kind = "smd"
    ready_unit = "other"
    ready: str | None = SMD_READY
    utilisation: str | None = "cpu_r"
    exclude: tuple[str, ...] = SMD_EXCLUDE

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names: tuple[str, ...] = ("timestamp", *METRICS)
        self.text: frozenset[str] = frozenset()
        self._parquet = ParquetFile(path) if path.name.endswith(".parquet") else None

    @staticmethod
    def recognises(path: Path, head: str) -> bool:
        """Tell from name and first line whether this is a machine of SMD."""
        if path.name.endswith(".parquet"):
            try:
                names = ParquetFile(path).names
            except TelemetryError:
                return False
            return "minute" in names and set(METRICS) <= set(names)
        cells = head.strip().split(",")
        return path.suffix == ".txt" and len(cells) == len(METRICS) and all(is_number(c) for c in cells)

    def batches(self, wanted: Wanted, size: int, counts: TraceCounts) -> Iterator[Batch]:
        """Yield at most `size` rows at a time."""
        if self._parquet is None:
            yield from self._text_batches(wanted, size, counts)
            return
        minute = "minute" if wanted.timestamp else None
        for batch in self._parquet.batches(Wanted(wanted.numbers, None, minute), size, counts):
            times = None if batch.timestamps is None else batch.timestamps * MINUTE_SECONDS
            yield Batch(None, times, batch.numbers)

    def _text_batches(self, wanted: Wanted, size: int, counts: TraceCounts) -> Iterator[Batch]:
        places = [METRICS.index(name) for name in wanted.numbers]
        minute = 0
        with self.path.open(encoding="utf-8", errors="replace") as stream:
            while lines := list(itertools.islice(stream, size)):
                counts.rows += len(lines)
                times = (minute + np.arange(len(lines))) * MINUTE_SECONDS
                minute += len(lines)
                whole = np.array([line.count(",") == len(METRICS) - 1 for line in lines], dtype=bool)
                if not whole.all():
                    counts.dropped["wrong number of cells"] += int((~whole).sum())
                    lines = [line for line, kept in zip(lines, whole, strict=True) if kept]
                numbers = _numbers(lines, places, counts)
                yield Batch(None, times[whole] if wanted.timestamp else None, numbers)


def _numbers(lines: list[str], places: list[int], counts: TraceCounts) -> Array:
    rows = [line.rstrip("\r\n").split(",") for line in lines]
    once = sorted(set(places))  # a column may be wanted as a metric and as utilisation
    numbers = np.empty((len(rows), len(once)))
    for at, row in enumerate(rows):
        for column, place in enumerate(once):
            if is_number(row[place]):
                numbers[at, column] = float(row[place])
            else:
                numbers[at, column] = np.nan
                counts.cells["text in a number"] += 1
    numbers = without_infinity(numbers, counts)
    return numbers[:, [once.index(place) for place in places]]


class PublicCsvFile:
    """A CSV file of a published data set; its columns of time and node get the names that traces have.

    Attributes
    ----------
    clock, node
        What the data set calls them; an empty node is told by the file.
    columns
        Names of the columns where the file has no header line.
    """

    kind = ""
    ready_unit = "other"
    ready: str | None = None
    utilisation: str | None = None
    exclude: tuple[str, ...] = ()
    clock = "timestamp"
    node = ""
    columns: tuple[str, ...] = ()

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = CsvFile(path, self.columns)
        own = {self.clock: "timestamp", self.node: "node"}
        self.names = tuple(own.get(name, name) for name in self._file.names)
        self.text = frozenset(own.get(name, name) for name in self._file.text) - {"timestamp"}

    def batches(self, wanted: Wanted, size: int, counts: TraceCounts) -> Iterator[Batch]:
        """Yield at most `size` rows at a time."""
        clock = self.clock if wanted.timestamp else None
        node = self.node if wanted.node else None
        for batch in self._file.batches(wanted._replace(timestamp=clock, node=node), size, counts):
            yield self._checked(batch, wanted, counts)

    def _checked(self, batch: Batch, wanted: Wanted, counts: TraceCounts) -> Batch:
        return batch


def _is_csv(path: Path) -> bool:
    return path.name.endswith((".csv", ".csv.gz"))


class BitbrainsFile(PublicCsvFile):
    """One VM of GWA-T-12."""

    kind = "bitbrains"
    utilisation: str | None = "CPU usage [%]"
    clock = "Timestamp [ms]"

    @staticmethod
    def recognises(path: Path, head: str) -> bool:
        """Tell from the first line whether this is a VM of GWA-T-12."""
        return _is_csv(path) and SIGN in head and head.startswith("Timestamp")


class WestermoFile(PublicCsvFile):
    """One test system of Westermo's data set: node exporter twice a minute for a month."""

    kind = "westermo"
    ready: str | None = "load-1m"
    exclude: tuple[str, ...] = ("load-*",)

    @staticmethod
    def recognises(path: Path, head: str) -> bool:
        """Tell from the first line whether this is a test system of Westermo."""
        return _is_csv(path) and {"timestamp", "load-1m", "sys-fork-rate"} <= set(_cells(head))


class ExathlonFile(PublicCsvFile):
    """One trace of Exathlon: a Spark application with its driver, executors and four machines, every second."""

    kind = "exathlon"
    clock = "t"

    @staticmethod
    def recognises(path: Path, head: str) -> bool:
        """Tell from the first line whether this is a trace of Exathlon."""
        cells = _cells(head)
        return _is_csv(path) and "t" in cells and any(cell.endswith("_CPU_ALL_Idle%") for cell in cells)


class AlibabaFile(PublicCsvFile):
    """Machine usage of Alibaba's cluster trace of 2018: every 10 seconds for 8 days, no header line."""

    kind = "alibaba"
    utilisation: str | None = "cpu_util_percent"
    clock = "time_stamp"
    node = "machine_id"
    columns = (
        *("machine_id", "time_stamp", "cpu_util_percent", "mem_util_percent", "mem_gps", "mkpi"),
        *("net_in", "net_out", "disk_io_percent"),
    )

    @staticmethod
    def recognises(path: Path, head: str) -> bool:
        """Tell from the first line whether this is Alibaba's machine usage."""
        cells = _cells(head)
        known = len(cells) == len(AlibabaFile.columns) and cells[0].startswith("m_")
        return _is_csv(path) and known and all(not cell or is_number(cell) for cell in cells[1:])

    def _checked(self, batch: Batch, wanted: Wanted, counts: TraceCounts) -> Batch:
        """Take -1 and 101 as unknown: that is how the publisher marks what was measured wrongly."""
        bounded = np.array([name != "mkpi" for name in wanted.numbers], dtype=bool)
        wrong = bounded & ((batch.numbers < 0.0) | (batch.numbers > 100.0))
        if wrong.any():
            counts.cells["marked as wrong by the publisher"] += int(wrong.sum())
            batch.numbers[wrong] = np.nan
        return batch


def _cells(head: str) -> list[str]:
    return [cell.strip() for cell in head.strip().split(",")]
