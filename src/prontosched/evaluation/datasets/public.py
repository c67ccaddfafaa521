"""Public data sets: each reader gives the columns of its files the names that traces have.

`CSV_LAYOUTS` says for data sets of CSV files how each is recognised and which columns mean what. Those that need more
than that have a reader of their own: SMD (text without a header, or Parquet with a `minute` column), KTH (two files
side by side), DBSherlock (MATLAB) and rezolus (Parquet with counters). Where a data set is published, and under which
licence, is in `catalogue`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from prontosched.errors import TelemetryError
from prontosched.extras import missing_extra
from prontosched.subspace import Array
from prontosched.telemetry.trace.files import (
    Batch,
    CsvFile,
    ParquetFile,
    TraceCounts,
    TraceFile,
    Wanted,
    is_number,
    without_infinity,
)

MINUTE_SECONDS = 60.0
METRICS = (
    *("cpu_r", "load_1", "load_5", "load_15", "mem_shmem", "mem_u", "mem_u_e", "total_mem"),
    *("disk_q", "disk_r", "disk_rb", "disk_svc", "disk_u", "disk_w", "disk_wa", "disk_wb", "si", "so"),
    *("eth1_fi", "eth1_fo", "eth1_pi", "eth1_po", "tcp_tw", "tcp_use", "active_opens", "curr_estab"),
    *("in_errs", "in_segs", "listen_overflows", "out_rsts", "out_segs", "passive_opens", "retransegs"),
    *("tcp_timeouts", "udp_in_dg", "udp_out_dg", "udp_rcv_buf_errs", "udp_snd_buf_errs"),
)
ALIBABA_COLUMNS = (
    *("machine_id", "time_stamp", "cpu_util_percent", "mem_util_percent", "mem_gps", "mkpi"),
    *("net_in", "net_out", "disk_io_percent"),
)
LARGEST_MAT_BYTES = 512 * 1024 * 1024
# Labels of rezolus by which a metric is split; the others (`id` of a CPU, `name` of a cgroup, …) are summed over.
REZOLUS_LABELS = ("direction", "kind", "op", "reason", "state")
# CPU time that nobody used.
IDLE_STATES = ("idle", "io_wait", "iowait")
NANOSECONDS = 1e9


class DatasetFile(TraceFile):
    """A file of a published data set: a file of a trace that knows its own columns."""

    kind: str
    ready_unit = "other"
    ready: str | None = None
    utilisation: str | None = None
    exclude: tuple[str, ...] = ()
    text: frozenset[str] = frozenset()


@dataclass(frozen=True)
class CsvLayout:
    """How the CSV files of one data set are recognised, and what their columns mean."""

    kind: str
    sign: Callable[[list[str]], bool]  # tells from the cells of the first line whether this is it
    clock: str = "timestamp"
    node: str = ""  # an empty node is told by the file
    columns: tuple[str, ...] = ()  # of a file without a header line
    ready: str | None = None
    utilisation: str | None = None
    exclude: tuple[str, ...] = ()
    percentages: tuple[str, ...] = ()  # whose values outside 0 to 100 are marks for wrong ones

    def recognises(self, path: Path, head: str) -> bool:
        """Tell from name and first line whether this is a file of the data set."""
        separator = max(",;\t", key=head.count)
        cells = [cell.strip() for cell in head.strip().split(separator)]
        return path.name.endswith((".csv", ".csv.gz")) and self.sign(cells)

    def __call__(self, path: Path) -> PublicCsvFile:
        """Open a file."""
        return PublicCsvFile(path, self)


def _is_alibaba(cells: list[str]) -> bool:
    known = len(cells) == len(ALIBABA_COLUMNS) and cells[0].startswith("m_")
    return known and all(not cell or is_number(cell) for cell in cells[1:])


CSV_LAYOUTS = (
    # The header says milliseconds, but timestamps are seconds: they are told by their size.
    CsvLayout(
        "bitbrains",
        lambda cells: cells[0] == "Timestamp [ms]" and "CPU capacity provisioned [MHZ]" in cells,
        clock="Timestamp [ms]",
        utilisation="CPU usage [%]",
    ),
    CsvLayout(
        "westermo",
        lambda cells: {"timestamp", "load-1m", "sys-fork-rate"} <= set(cells),
        ready="load-1m",
        exclude=("load-*",),
    ),
    CsvLayout(
        "exathlon",
        lambda cells: "t" in cells and any(cell.endswith("_CPU_ALL_Idle%") for cell in cells),
        clock="t",
    ),
    CsvLayout(
        "alibaba",
        _is_alibaba,
        clock="time_stamp",
        node="machine_id",
        columns=ALIBABA_COLUMNS,
        utilisation="cpu_util_percent",
        percentages=tuple(name for name in ALIBABA_COLUMNS[2:] if name != "mkpi"),
    ),
)


class PublicCsvFile(DatasetFile):
    """A CSV file of a published data set; its columns of time and node get the names that traces have."""

    def __init__(self, path: Path, layout: CsvLayout) -> None:
        self.path, self.layout, self.kind = path, layout, layout.kind
        self.ready, self.utilisation, self.exclude = layout.ready, layout.utilisation, layout.exclude
        self._file = CsvFile(path, layout.columns)
        own = {layout.clock: "timestamp", layout.node: "node"}
        self.names = tuple(own.get(name, name) for name in self._file.names)
        self.text = frozenset(own.get(name, name) for name in self._file.text) - {"timestamp"}

    def batches(self, wanted: Wanted, size: int, counts: TraceCounts) -> Iterator[Batch]:
        """Yield at most `size` rows at a time."""
        clock = self.layout.clock if wanted.timestamp else None
        node = self.layout.node if wanted.node else None
        bounded = np.array([name in self.layout.percentages for name in wanted.numbers], dtype=bool)
        for batch in self._file.batches(wanted._replace(timestamp=clock, node=node), size, counts):
            wrong = bounded & ((batch.numbers < 0.0) | (batch.numbers > 100.0))
            if wrong.any():
                counts.cells["marked as wrong by the publisher"] += int(wrong.sum())
                batch.numbers[wrong] = np.nan
            yield batch


class SmdFile(DatasetFile):
    """One machine of SMD: 38 metrics a minute, scaled to [0, 1] by the publisher, without clock time."""

    kind, ready, utilisation = "smd", "load_1", "cpu_r"
    exclude = ("load_*",)  # the other load averages are the answer again, a little later
    names = ("timestamp", *METRICS)

    def __init__(self, path: Path) -> None:
        self.path = path
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
        # A column may be wanted as a metric and as utilisation.
        places = np.array([METRICS.index(name) for name in wanted.numbers], np.intp)
        once, back = np.unique(places, return_inverse=True)
        minute = 0
        with self.path.open(encoding="utf-8", errors="replace") as stream:
            while lines := list(itertools.islice(stream, size)):
                counts.rows += len(lines)
                times = (minute + np.arange(len(lines))) * MINUTE_SECONDS
                minute += len(lines)
                rows = [line.rstrip("\r\n").split(",") for line in lines]
                whole = np.array([len(row) == len(METRICS) for row in rows], dtype=bool)
                if not whole.all():  # a broken line still takes its minute
                    counts.dropped["wrong number of cells"] += int((~whole).sum())
                kept = [row for row in rows if len(row) == len(METRICS)]
                cells = np.array(kept, object).reshape(-1, len(METRICS))[:, once]
                known = np.vectorize(is_number, otypes=[bool])(cells)
                if not known.all():
                    counts.cells["text in a number"] += int((~known).sum())
                numbers = without_infinity(np.where(known, cells, "nan").astype(float), counts)
                yield Batch(None, times[whole] if wanted.timestamp else None, numbers[:, back])


class KthFile(DatasetFile):
    """One trace of KTH: the servers' metrics (`X_cluster.csv`), and what clients saw in the same second (`Y.csv`)."""

    kind = "kth"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._servers = CsvFile(path)
        seen = path.with_name("Y.csv")
        if not seen.exists():
            raise TelemetryError(f"{path}: what clients saw must be beside it, in Y.csv, got no such file")
        clients = CsvFile(seen)
        self._seen = tuple(n for n in clients.names if n != "TimeStamp" and n not in self._servers.names)
        batches = list(clients.batches(Wanted(self._seen, None, "TimeStamp"), 100_000, TraceCounts()))
        times = (batch.timestamps for batch in batches if batch.timestamps is not None)
        self._times = np.concatenate([np.empty(0), *times])
        self._values = np.concatenate([np.empty((0, len(self._seen))), *(b.numbers for b in batches)])
        self.names = ("timestamp", *(n for n in self._servers.names if n != "TimeStamp"), *self._seen)
        self.text = self._servers.text - {"TimeStamp"}

    @staticmethod
    def recognises(path: Path, head: str) -> bool:
        """Tell from name and first line whether these are the servers' metrics of a trace."""
        return path.name == "X_cluster.csv" and head.split(",")[0].strip().strip('"') == "TimeStamp"

    def batches(self, wanted: Wanted, size: int, counts: TraceCounts) -> Iterator[Batch]:
        """Yield at most `size` rows at a time; a second that no client reported is unknown."""
        own = list(dict.fromkeys(name for name in wanted.numbers if name not in self._seen))
        order = np.argsort(self._times, kind="stable")
        times = self._times[order]
        for batch in self._servers.batches(Wanted(own, None, "TimeStamp"), size, counts):
            assert batch.timestamps is not None  # they were asked for
            at = np.minimum(np.searchsorted(times, batch.timestamps), max(len(times) - 1, 0))
            known = (times[at] == batch.timestamps) if len(times) else np.zeros(len(at), dtype=bool)
            numbers = np.full((len(at), len(wanted.numbers)), np.nan)
            for place, name in enumerate(wanted.numbers):
                if name in self._seen:
                    column = self._values[:, self._seen.index(name)]
                    numbers[known, place] = column[order[at[known]]]
                else:
                    numbers[:, place] = batch.numbers[:, own.index(name)]
            yield Batch(None, batch.timestamps if wanted.timestamp else None, numbers)


class DbsherlockFile(DatasetFile):
    """All cases of one DBSherlock file: a database server, one row a second, disturbed on purpose for a while.

    Each case has a matrix whose first column counts seconds and whose second is the average latency of transactions,
    and the names of its columns; a name that occurs twice gets a number.
    """

    kind = "dbsherlock"
    text = frozenset({"node"})
    exclude = ("dbmsCum*",)  # totals since the start of the server

    def __init__(self, path: Path) -> None:
        try:
            from scipy.io import loadmat
        except ImportError as error:
            raise TelemetryError(missing_extra(f"{path}: reading MATLAB files", "evaluation")) from error
        self.path = path
        if path.stat().st_size > LARGEST_MAT_BYTES:
            raise TelemetryError(f"{path}: a MATLAB file must be at most {LARGEST_MAT_BYTES} bytes, got more")
        try:
            held = loadmat(path, variable_names=["causes", "test_datasets"])
            causes = [str(cell.item()) for cell in held["causes"].ravel()]
            cases = [
                (f"{cause}-{number}", case["data"][0, 0], case["field_names"][0, 0])
                for cause, row in zip(causes, held["test_datasets"], strict=False)
                for number, case in enumerate(row, start=1)
            ]
            fields = tuple(str(cell.item()) for cell in cases[0][2].ravel())
        except (OSError, ValueError, KeyError, TypeError, IndexError, NotImplementedError) as error:
            raise TelemetryError(f"{path}: not a file of DBSherlock ({error})") from error
        names = [n if n not in fields[:at] else f"{n} #{at}" for at, n in enumerate(fields)]
        self._cases = [(node, np.asarray(values, dtype=float)) for node, values, _ in cases]
        self.names = ("timestamp", "node", *names[1:])
        self.ready = names[1]

    @staticmethod
    def recognises(path: Path, head: str) -> bool:
        """Tell from the name whether this is a file of DBSherlock: nothing else here is MATLAB's."""
        return path.suffix == ".mat"

    def batches(self, wanted: Wanted, size: int, counts: TraceCounts) -> Iterator[Batch]:
        """Yield at most `size` rows at a time, case by case."""
        places = [self.names.index(name) - 1 for name in wanted.numbers]
        for node, values in self._cases:
            counts.rows += len(values)
            if values.shape[1] != len(self.names) - 1:
                counts.dropped["a case with other columns than the first"] += len(values)
                continue
            for start in range(0, len(values), size):
                part = values[start : start + size]
                nodes = [node] * len(part) if wanted.node else None
                times = part[:, 0].copy() if wanted.timestamp else None
                yield Batch(nodes, times, without_infinity(part[:, places].copy(), counts))


class _Counters(ParquetFile):
    """Parquet whose counters may have more digits than a float: differences of a second stay exact enough."""

    def _floats(self, column: Any) -> Array:
        return np.asarray(column.cast(self._pa.float64(), safe=False).to_numpy(zero_copy_only=False))


class RezolusFile(DatasetFile):
    """A Parquet recording of rezolus: counters become rates per second, and are summed over CPUs and cgroups.

    Every column carries its metric's name and labels as metadata. CPU Ready is the rate of `scheduler_runqueue_wait`
    (nanoseconds that tasks waited in a run queue) in percent per CPU; utilisation is that of `cpu_usage`. Histograms
    are left out.
    """

    kind, ready_unit = "rezolus", "percent"
    exclude = ("scheduler_runqueue_wait*",)

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = _Counters(path)
        self._series: dict[str, list[str]] = {}
        self._counters: set[str] = set()
        waits, used = list[str](), list[str]()
        for column, labels in _rezolus_labels(path).items():
            metric, kind = labels["metric"], labels.get("metric_type", "")
            if ":" in column or kind not in ("counter", "gauge") or column in self._file.text:
                continue
            name = "_".join([metric, *(labels[label] for label in REZOLUS_LABELS if label in labels)])
            self._series.setdefault(name, []).append(column)
            if kind == "counter":
                self._counters.add(column)
            if metric == "scheduler_runqueue_wait":
                waits.append(column)
            if metric == "cpu_usage" and labels.get("state") not in IDLE_STATES:
                used.append(column)
        cores = self._series.get("cpu_cores", [])
        self._shares = {name: on for name, on in (("ready", waits), ("utilisation", used)) if on and cores}
        own = ("ready", "utilisation")
        self.ready, self.utilisation = (name if name in self._shares else None for name in own)
        self.names = ("timestamp", *self._shares, *self._series)

    @staticmethod
    def recognises(path: Path, head: str) -> bool:
        """Tell from its columns' metadata whether this is a recording of rezolus."""
        return path.name.endswith(".parquet") and bool(_rezolus_labels(path))

    def batches(self, wanted: Wanted, size: int, counts: TraceCounts) -> Iterator[Batch]:
        """Yield at most `size` rows at a time; the first reading only sets the counters."""
        sources = {name: self._shares.get(name) or self._series[name] for name in wanted.numbers}
        cores = self._series["cpu_cores"] if self._shares.keys() & sources else []
        columns = list(dict.fromkeys([*itertools.chain(*sources.values()), *cores]))
        counting = np.array([name in self._counters for name in columns], dtype=bool)
        place = {name: at for at, name in enumerate(columns)}
        times, numbers = np.empty(0), np.empty((0, len(columns)))
        for batch in self._file.batches(Wanted(columns, None, "timestamp"), size, counts):
            assert batch.timestamps is not None  # they were asked for
            times = np.concatenate([times[-1:], batch.timestamps])
            numbers = np.concatenate([numbers[-1:], batch.numbers])
            with np.errstate(divide="ignore", invalid="ignore"):
                rates = np.diff(numbers, axis=0) / np.diff(times)[:, None]
            # A counter that falls was reset.
            values = np.where(counting, np.where(rates >= 0.0, rates, np.nan), numbers[1:])
            found = np.empty((len(values), len(wanted.numbers)))
            for at, name in enumerate(wanted.numbers):
                found[:, at] = _sum_known(values[:, [place[column] for column in sources[name]]])
                if name in self._shares:
                    count = _sum_known(values[:, [place[column] for column in cores]])
                    found[:, at] *= 100.0 / NANOSECONDS / np.where(count > 0.0, count, np.nan)
            yield Batch(None, times[1:] if wanted.timestamp else None, without_infinity(found, counts))


def _rezolus_labels(path: Path) -> dict[str, dict[str, str]]:
    """Return the metadata of each column that names a metric, none where this is no recording of rezolus."""
    try:
        import pyarrow.parquet as pq

        schema = pq.read_schema(path)
    except (ImportError, OSError, ValueError):
        return {}
    found = {}
    for field in schema:
        labels = {key.decode(): value.decode() for key, value in (field.metadata or {}).items()}
        if "metric" in labels:
            found[field.name] = labels
    return found if "timestamp" in schema.names else {}


def _sum_known(values: Array) -> Array:
    """Return the sum along rows of what is known, NaN where nothing is."""
    unknown = np.isnan(values)
    return np.where(unknown.all(axis=1), np.nan, np.where(unknown, 0.0, values).sum(axis=1))
