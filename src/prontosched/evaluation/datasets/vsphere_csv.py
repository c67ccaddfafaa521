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

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from prontosched.errors import TelemetryError
from prontosched.evaluation.datasets.vsphere_columns import (
    HEADINGS,
    LongColumns,
    find_long_columns,
    parse_times,
    split_heading,
)
from prontosched.telemetry.trace_files import Batch, TraceCounts, Wanted, without_infinity

READY_MS = "cpu.ready.summation"
READY_PERCENT = "cpu.readiness.average"
READY_COUNTERS = (READY_MS, READY_PERCENT)
UTILISATION = "cpu.usage.average"


class VsphereCsvFile:
    """An export of vSphere counters, of one VM or host or of many.

    Attributes
    ----------
    names
        `timestamp`, `node`, `ready` (where there is a ready counter) and the counters; CPU Ready is not left
        among them under another name.
    cpus
        CPUs of each node, told from counter instances; 1 where the export does not say.
    """

    kind = "vsphere"
    exclude: tuple[str, ...] = ()

    def __init__(self, path: Path) -> None:
        import pandas as pd

        self.path = path
        self._counts = TraceCounts()
        head = _first_lines(path)
        try:
            table = pd.read_csv(
                path,
                dtype=str,
                skiprows=1 if head[0].startswith("#TYPE") else 0,
                encoding_errors="replace",
                on_bad_lines=self._count_bad_line,
                engine="python",
                keep_default_na=False,
                sep=max(",;\t", key=head[-1].count),
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
        self.names: tuple[str, ...] = ("timestamp", "node", *self._table.columns)
        self.text: frozenset[str] = frozenset({"node"})
        self.ready: str | None = "ready" if "ready" in self._table.columns else None
        self.ready_unit = "percent"
        self.utilisation: str | None = UTILISATION if UTILISATION in self._table.columns else None

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
        nodes = self._table.index.get_level_values("node").tolist()
        times = self._table.index.get_level_values("time").to_numpy(dtype=float)
        numbers = self._table[list(wanted.numbers)].to_numpy(dtype=float)
        for start in range(0, len(times), size):
            part = slice(start, start + size)
            cells = without_infinity(numbers[part].copy(), counts)
            yield Batch(
                nodes[part] if wanted.node else None, times[part] if wanted.timestamp else None, cells
            )

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
        cpus = np.array(
            [self.cpus.get(node, 1) for node in table.index.get_level_values("node")], dtype=float
        )
        ready = None
        if READY_MS in own or instances:
            waited = table[READY_MS] if READY_MS in own else table[instances].sum(axis=1, min_count=1)
            if READY_MS in own and instances:
                waited = waited.fillna(table[instances].sum(axis=1, min_count=1))
            ready = waited / (10.0 * self.interval_seconds) / cpus
        elif READY_PERCENT in own:
            ready = table[READY_PERCENT]
        elif "% Ready" in own:
            ready = table["% Ready"]
        self._table = table.drop(columns=own).copy()
        if ready is not None:
            self._table.insert(0, "ready", ready)

    def _drop(self, cause: str, where: Any) -> None:
        if n := int(where.sum()):
            self._counts.dropped[cause] += n

    def _count_bad_line(self, cells: list[str]) -> None:
        self._counts.rows += 1
        self._counts.dropped["wrong number of cells"] += 1


def _first_lines(path: Path) -> list[str]:
    """Return the line with `#TYPE`, if any, and the header."""
    from prontosched.evaluation.datasets.opening import first_line, second_line

    head = first_line(path)
    return [head, second_line(path)] if head.startswith("#TYPE") else [head]


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".csv")
