"""Names of columns and times as vSphere's tools write them."""

from __future__ import annotations

import re
import warnings
from typing import Any, NamedTuple

HEADINGS = {
    "metric": ("metricid", "metric", "counter", "countername", "stat"),
    "time": ("timestamp", "time", "sampletime", "offset_s", "date"),
    "value": ("value",),
    "node": ("entity", "entityname", "vm", "vmname", "node", "host", "name"),
    "unit": ("unit",),
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
    found = {
        role: next((by_name[heading] for heading in headings if heading in by_name), None)
        for role, headings in HEADINGS.items()
    }
    if found["metric"] is None or found["time"] is None or found["value"] is None:
        return None
    return LongColumns(
        found["metric"], found["time"], found["value"], found["node"], found["instance"], found["interval"]
    )


def split_heading(name: str) -> tuple[str, str] | None:
    """Return counter and node (empty if not said) of a column, None if it is no counter."""
    if COUNTER.fullmatch(name):
        return name.lower(), ""
    if match := ESXTOP.fullmatch(name):
        # `1234:web-1` and `web-1:scsi0:0` both name the VM.
        parts = match["node"].split(":")
        node = parts[1] if len(parts) > 1 and parts[0].isdigit() else parts[0]
        counter = (
            match["counter"] if match["group"] == "Group Cpu" else f"{match['group']} {match['counter']}"
        )
        return counter, node
    if match := CHART.fullmatch(name):
        counter, unit = match["counter"].strip(), match["unit"].strip().lower()
        if counter.lower() == "ready" and unit in ("ms", "millisecond", "milliseconds"):
            counter = "cpu.ready.summation"
        elif counter.lower() in ("readiness", "ready") and unit in ("%", "percent"):
            counter = "cpu.readiness.average"
        return counter, match["node"].strip()
    return None


def _day_comes_first(text: Any) -> bool:
    """Tell 23/11/2026 and 23.11.2026 from 11/23/2026; where both would do, the month comes first."""
    parts = text.str.extract(r"^(\d{1,2})([./-])\d{1,2}[./-]\d{4}").dropna()
    return bool(len(parts)) and bool((parts[0].astype(int) > 12).any() or (parts[1] == ".").all())


def parse_times(cells: Any) -> Any:
    """Return seconds: clock time since 1970, or as given where the column holds small numbers."""
    import pandas as pd

    from prontosched.telemetry.trace_files import to_seconds

    text = cells.astype(str).str.strip()
    numbers = pd.to_numeric(text, errors="coerce")
    if numbers.notna().mean() > 0.5:
        return numbers.map(to_seconds, na_action="ignore").astype(float)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # mixed formats are read one by one
        moments = pd.to_datetime(
            text, errors="coerce", utc=True, format="mixed", dayfirst=_day_comes_first(text)
        )
    seconds = (moments - pd.Timestamp(0, tz="UTC")).dt.total_seconds()
    return seconds.astype(float)
