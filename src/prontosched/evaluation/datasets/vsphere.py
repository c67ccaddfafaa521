r"""CSV exports of vSphere: one row per counter and time, one column per counter, or esxtop's batch mode.

- PowerCLI's `Get-Stat … | Export-Csv`: columns MetricId, Timestamp, Value, Entity, and where there are such
  Unit, Instance and IntervalSecs (`counter`, `offset_s` and the like are understood too);
- a time column and one column per counter (`cpu.ready.summation`, or `Ready for web-1 (ms)` as the vSphere
  Client exports charts);
- `esxtop -b`: `\\host\Group Cpu(1234:web-1)\% Ready` and its siblings.

CPU Ready becomes percent per CPU: milliseconds over the interval, divided by the CPUs if the export names their
instances. An export is turned into a table when it is opened, so it must fit into memory. Reading a live vCenter
is in `telemetry.vsphere`.
"""

from __future__ import annotations

import gzip
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from prontosched.errors import TelemetryError
from prontosched.evaluation.datasets.public import DatasetFile
from prontosched.telemetry.trace.files import Batch, TraceCounts, Wanted, to_seconds, without_infinity

HEADINGS = {
    "metric": ("metricid", "metric", "counter", "countername", "stat"),
    "time": ("timestamp", "time", "sampletime", "offset_s", "date"),
    "value": ("value",),
    "node": ("entity", "entityname", "vm", "vmname", "node", "host", "name"),
    "instance": ("instance",),
    "interval": ("intervalsecs", "interval", "intervalseconds"),
}
COUNTER = re.compile(r"[a-z]\w*\.\w+\.(average|summation|latest|maximum|minimum|none)(\.\S+)?", re.IGNORECASE)
# `Ready for web-1 (ms)`: a chart of the vSphere Client.
CHART = re.compile(r"(?P<counter>.+?) for (?P<node>.+?)\s*\((?P<unit>[^()]*)\)")
# `\\host\Group Cpu(1234:web-1)\% Ready`: esxtop's batch mode.
ESXTOP = re.compile(
    r"\\\\[^\\]+\\(?P<group>Group Cpu|Group Memory|Virtual Disk)\((?P<node>[^)]*)\)\\(?P<counter>.+)"
)
LONGEST_LINE_CHARACTERS = 4_000_000
READY_MS = "cpu.ready.summation"
READY_PERCENT = "cpu.readiness.average"
READY_COUNTERS = (READY_MS, READY_PERCENT)
UTILISATION = "cpu.usage.average"


class LongColumns(NamedTuple):
    """Which columns of an export with one row per counter and time mean what."""

    metric: str
    time: str
    value: str
    node: str | None
    instance: str | None
    interval: str | None


def find_long_columns(names: list[str]) -> LongColumns | None:
    """Return the columns of an export with one row per counter and time, None if it is no such export."""
    by_name = {name.lower().strip(): name for name in names}
    metric, time, value, *others = (
        next((by_name[heading] for heading in headings if heading in by_name), None)
        for headings in HEADINGS.values()
    )
    if metric is None or time is None or value is None:
        return None
    return LongColumns(metric, time, value, *others)


def split_heading(name: str) -> tuple[str, str] | None:
    """Return counter and node (empty if not said) of a column, None if it is no counter."""
    if COUNTER.fullmatch(name):
        return name.lower(), ""
    if match := ESXTOP.fullmatch(name):
        # `1234:web-1` and `web-1:scsi0:0` both name the VM.
        parts = match["node"].split(":")
        node = parts[1] if len(parts) > 1 and parts[0].isdigit() else parts[0]
        group = "" if match["group"] == "Group Cpu" else f"{match['group']} "
        return group + match["counter"], node
    if match := CHART.fullmatch(name):
        counter, unit = match["counter"].strip(), match["unit"].strip().lower()
        if counter.lower() == "ready" and unit in ("ms", "millisecond", "milliseconds"):
            counter = READY_MS
        elif counter.lower() in ("readiness", "ready") and unit in ("%", "percent"):
            counter = READY_PERCENT
        return counter, match["node"].strip()
    return None


def _day_comes_first(text: Any) -> bool:
    """Tell 23/11/2026 and 23.11.2026 from 11/23/2026; where both would do, the month comes first."""
    parts = text.str.extract(r"^(\d{1,2})([./-])\d{1,2}[./-]\d{4}").dropna()
    return bool(len(parts)) and bool((parts[0].astype(int) > 12).any() or (parts[1] == ".").all())


def parse_times(cells: Any) -> Any:
    """Return seconds: clock time since 1970, or as given where the column holds small numbers."""
    import pandas as pd

    text = cells.astype(str).str.strip()
    numbers = pd.to_numeric(text, errors="coerce")
    if numbers.notna().mean() > 0.5:
        return numbers.map(to_seconds, na_action="ignore").astype(float)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # mixed formats are read one by one
        first = _day_comes_first(text)
        moments = pd.to_datetime(text, errors="coerce", utc=True, format="mixed", dayfirst=first)
    seconds = (moments - pd.Timestamp(0, tz="UTC")).dt.total_seconds()
    return seconds.astype(float)


class VsphereCsvFile(DatasetFile):
    """An export of vSphere counters, of one VM or host or of many.

    CPU Ready becomes the column `ready` and is not left among the counters under another name. The CPUs of a node are
    told from counter instances; 1 where the export does not say.
    """

    kind, ready_unit = "vsphere", "percent"
    text = frozenset({"node"})

    def __init__(self, path: Path) -> None:
        import pandas as pd

        self.path = path
        self._counts = TraceCounts()
        head = first_lines(path, 2)
        typed = head[0].startswith("#TYPE")
        try:
            table = pd.read_csv(
                path,
                dtype=str,
                skiprows=int(typed),
                encoding_errors="replace",
                on_bad_lines=self._count_bad_line,
                engine="python",
                keep_default_na=False,
                sep=max(",;\t", key=head[typed].count),
            )
        except (OSError, ValueError) as error:
            raise TelemetryError(f"{path}: cannot be read ({str(error).splitlines()[0]})") from error
        table.columns = [str(name).strip() for name in table.columns]
        self._counts.rows += len(table)
        columns = find_long_columns(list(table.columns))
        self.cpus: dict[str, int] = {}
        self._table = self._from_long(table, columns) if columns else self._from_wide(table)
        if not len(self._table):
            raise TelemetryError(f"{path}: an export must have at least one row with a time, got none")
        self._make_ready()
        held = self._table.columns
        self.names = ("timestamp", "node", *held)
        self.ready, self.utilisation = (name if name in held else None for name in ("ready", UTILISATION))

    @staticmethod
    def recognises(path: Path, head: str) -> bool:
        """Tell from the first line whether this is an export of vSphere."""
        if not path.name.endswith((".csv", ".csv.gz")):
            return False
        if head.startswith(("#TYPE VMware", '"(PDH-CSV', "(PDH-CSV")):
            return True
        separator = max(",;\t", key=head.count)
        names = [cell.strip().strip('"') for cell in head.strip().split(separator)]
        if find_long_columns(names) is not None:
            return True
        # Pronto's own traces use vSphere's names too, but hold CPU Ready in a column of their own.
        own = any(name.startswith(("ready", "cpu_ready")) for name in names)
        return not own and any((split_heading(name) or ("",))[0] in READY_COUNTERS for name in names)

    def batches(self, wanted: Wanted, size: int, counts: TraceCounts) -> Iterator[Batch]:
        """Yield at most `size` rows at a time, in the order of time."""
        counts.dropped.update(self._counts.dropped)
        counts.cells.update(self._counts.cells)
        counts.rows += len(self._table) + self._counts.dropped.total()
        nodes = self._table.index.get_level_values("node").tolist() if wanted.node else None
        times = self._table.index.get_level_values("time").to_numpy(dtype=float)
        numbers = self._table[list(wanted.numbers)].to_numpy(dtype=float)
        for start in range(0, len(times), size):
            part = slice(start, start + size)
            clock = times[part] if wanted.timestamp else None
            yield Batch(nodes and nodes[part], clock, without_infinity(numbers[part].copy(), counts))

    def _from_long(self, table: Any, columns: LongColumns) -> Any:
        """Turn one row per counter and time into one row per node and time."""
        import pandas as pd

        times = parse_times(table[columns.time])
        values = self._to_numbers(table[columns.value])
        nodes = table[columns.node].str.strip() if columns.node else pd.Series(_stem(self.path), table.index)
        counters = table[columns.metric].str.strip().str.lower()
        instances = table[columns.instance].str.strip() if columns.instance else pd.Series("", table.index)
        self._interval(table[columns.interval] if columns.interval else None, times)
        self._count_cpus(nodes, counters, instances)
        names = counters.where(instances == "", counters + "." + instances)
        long = pd.DataFrame({"node": nodes, "time": times, "name": names, "value": values})
        self._drop("no timestamp", long["time"].isna())
        long = long[long["time"].notna()]
        twice = long.duplicated(["node", "time", "name"])
        self._drop("counter given twice for one time", twice)
        wide = long[~twice].pivot(index=["time", "node"], columns="name", values="value")
        return wide.sort_index()

    def _from_wide(self, table: Any) -> Any:
        """Turn one column per counter and node into one row per node and time."""
        import pandas as pd

        times = parse_times(table.iloc[:, 0])
        self._drop("no timestamp", times.isna())
        twice = times.duplicated() & times.notna()
        lower = {name.lower(): name for name in table.columns}
        owner = next((lower[name] for name in HEADINGS["node"] if name in lower), None)
        nodes = table[owner] if owner else None
        if owner:
            twice = table.assign(_time=times).duplicated(["_time", owner]) & times.notna()
        self._drop("timestamp seen before", twice)
        kept = times.notna() & ~twice
        self._interval(None, times[kept])
        frames: dict[str, dict[str, Any]] = {}
        for name in table.columns[1:]:
            if name == owner:
                continue
            counter, entity = split_heading(name) or (name, "")
            column = self._to_numbers(table[name])[kept]
            if column.notna().any():
                frames.setdefault(entity or _stem(self.path), {})[counter] = column
        parts = []
        for entity, held in frames.items():
            frame = pd.DataFrame(held)
            frame["time"], frame["node"] = times[kept], nodes[kept] if nodes is not None else entity
            parts.append(frame.set_index(["time", "node"]))
        if not parts:
            raise TelemetryError(f"{self.path}: an export must have a column of numbers, got none")
        return pd.concat(parts).sort_index()

    def _to_numbers(self, cells: Any) -> Any:
        import pandas as pd

        numbers = pd.to_numeric(cells.str.strip(), errors="coerce")
        odd = int((numbers.isna() & (cells.str.strip() != "")).sum())
        if odd:
            self._counts.cells["text in a number"] += odd
        return numbers

    def _interval(self, stated: Any, times: Any) -> None:
        """Find the time between two samples: what the export says, or the usual step."""
        if stated is not None:
            known = self._to_numbers(stated).dropna()
            if len(known):
                self.interval_seconds = float(known.median())
                return
        steps = np.diff(np.unique(times.dropna().to_numpy(dtype=float)))
        self.interval_seconds = float(np.median(steps)) if len(steps) else 20.0

    def _count_cpus(self, nodes: Any, counters: Any, instances: Any) -> None:
        single = counters.str.startswith("cpu.") & instances.str.fullmatch(r"\d+")
        for node, found in instances[single].groupby(nodes[single]):
            self.cpus[str(node)] = int(found.nunique())

    def _make_ready(self) -> None:
        """Replace the ready counters by one column in percent per CPU."""
        table = self._table
        own = [c for c in table.columns if c.startswith((READY_MS, READY_PERCENT, "% Ready", "Ready"))]
        instances = [c for c in own if c.startswith(f"{READY_MS}.")]
        ready = next((table[name] for name in (READY_PERCENT, "% Ready") if name in own), None)
        if READY_MS in own or instances:
            waited = table[instances].sum(axis=1, min_count=1)
            if READY_MS in own:
                waited = table[READY_MS].fillna(waited)
            cpus = [self.cpus.get(node, 1) for node in table.index.get_level_values("node")]
            ready = waited / (10.0 * self.interval_seconds) / np.array(cpus, dtype=float)
        self._table = table.drop(columns=own).copy()
        if ready is not None:
            self._table.insert(0, "ready", ready)

    def _drop(self, cause: str, where: Any) -> None:
        if n := int(where.sum()):
            self._counts.dropped[cause] += n

    def _count_bad_line(self, cells: list[str]) -> None:
        self._counts.rows += 1
        self._counts.dropped["wrong number of cells"] += 1


def first_lines(path: Path, count: int) -> list[str]:
    """Return the first lines of a text file; empty ones for Parquet and MATLAB."""
    if path.name.endswith((".parquet", ".mat")):
        return [""] * count
    opener = gzip.open if path.name.endswith(".gz") else open
    try:
        with opener(path, "rt", encoding="utf-8-sig", errors="replace") as stream:
            return [str(stream.readline(LONGEST_LINE_CHARACTERS)) for _ in range(count)]
    except (OSError, EOFError) as error:
        raise TelemetryError(f"{path}: cannot be read ({error})") from error


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".csv")
