"""Pages of metrics in Prometheus' text format: what the numbers are, and CPU Ready out of them.

Covers one page of one target. Fetching many is in `prometheus`. Parsing needs prometheus-client (extra
`agent`).
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from prontosched.errors import TelemetryError
from prontosched.extras import missing_extra
from prontosched.subspace import Array
from prontosched.telemetry.counters import Rates
from prontosched.telemetry.source import MIXED_NOTE

# About the exporter itself rather than the machine, or no measurement.
EXCLUDED = ("go_*", "promhttp_*", "python_*", "*_info", "*_created", "*_boot_time_seconds", "*_time_seconds")
METRICS_LIMIT = 10_000
IDLE_MODES = ('mode="idle"', 'mode="iowait"')
STEAL_MODE = 'mode="steal"'
SCHEDSTAT_NOTE = ("ready from node_schedstat_waiting_seconds_total", MIXED_NOTE)
PRESSURE_NOTE = ("ready from node_pressure_cpu_waiting_seconds_total, a lower bound", MIXED_NOTE)
NO_NOTE = ("ready unknown: the target exposes neither schedstat nor pressure",)


class Reading(NamedTuple):
    """What a page says: the vector of metrics, CPU Ready and utilisation in percent, and notes."""

    vector: Array
    ready: float
    utilisation: float
    notes: tuple[str, ...]


def parse_page(text: str, excluded: Sequence[str] = EXCLUDED) -> tuple[list[str], list[bool], list[float]]:
    """Return names, whether each is a counter, and values.

    Buckets of histograms are left out: their sum and count tell the same in two numbers.
    """
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError as error:
        raise TelemetryError(missing_extra("reading Prometheus pages", "agent")) from error
    names: list[str] = []
    counters: list[bool] = []
    values: list[float] = []
    wanted: dict[str, bool] = {}
    for family in text_string_to_metric_families(text):
        counting = family.type in ("counter", "histogram", "summary")
        for sample in family.samples:
            name = sample.name
            if name not in wanted:
                wanted[name] = not any(fnmatch.fnmatchcase(name, pattern) for pattern in excluded)
            if not wanted[name] or (family.type == "histogram" and name.endswith("_bucket")):
                continue
            quantile = family.type == "summary" and "quantile" in sample.labels
            names.append(_full_name(name, sample.labels))
            counters.append((counting and not quantile) or name.endswith("_total"))
            values.append(float(sample.value))
            if len(names) > METRICS_LIMIT:
                raise ValueError(f"a page must have at most {METRICS_LIMIT} metrics, got more")
    return names, counters, values


def _full_name(name: str, labels: dict[str, str]) -> str:
    if not labels:
        return name
    inner = ",".join(f'{label}="{labels[label]}"' for label in sorted(labels))
    return f"{name}{{{inner}}}"


class Page:
    """One target's metrics from page to page.

    Parameters
    ----------
    ready
        Name of a metric that is CPU Ready in percent; without it node_exporter's are looked for.

    Attributes
    ----------
    metrics
        Names of the metrics, with `:rate` where a counter became one per second: the same tuple object
        while nothing changed.
    """

    def __init__(self, *, excluded: Sequence[str] = EXCLUDED, ready: str | None = None) -> None:
        self.metrics: tuple[str, ...] = ()
        self._excluded = tuple(excluded)
        self._ready_name = ready
        self._names: list[str] = []
        self._counter_places: Any = np.empty(0, dtype=np.intp)
        self._counters: dict[str, int] = {}
        self._rates = Rates(0)
        self._kept: Any = np.empty(0, dtype=np.intp)
        self._groups: dict[str, Any] = {}
        self._seconds = math.nan

    def read(self, text: str, *, now: float) -> Reading:
        """Take in a page.

        Parameters
        ----------
        now
            When it came, on a clock that never jumps.
        """
        names, counters, values = parse_page(text, self._excluded)
        if names != self._names:
            self._describe(names, counters)
        numbers = np.array(values)
        rates = self._rates.step(numbers[self._counter_places], seconds=now - self._seconds)
        self._seconds = now
        numbers[self._counter_places] = rates
        numbers[np.isinf(numbers)] = np.nan
        busy = self._busy(numbers)
        ready, notes = self._ready(numbers, busy)
        return Reading(numbers[self._kept], ready, 100.0 * busy, notes)

    def _describe(self, names: list[str], counters: list[bool]) -> None:
        self._names = names
        places = [place for place, counter in enumerate(counters) if counter]
        self._counter_places = np.array(places, dtype=np.intp)
        self._rates.relabel([self._counters.get(names[place], -1) for place in places])
        self._counters = {names[place]: order for order, place in enumerate(places)}
        # What becomes `ready` must not be among the metrics as well.
        kept = [p for p, n in enumerate(names) if not self._is_ready(n)]
        self._kept = np.array(kept, dtype=np.intp)
        self.metrics = tuple(f"{names[place]}:rate" if counters[place] else names[place] for place in kept)
        cpu = [p for p, n in enumerate(names) if n.startswith("node_cpu_seconds_total{")]
        self._groups = {
            "cpu": cpu,
            "idle": [p for p in cpu if any(mode in names[p] for mode in IDLE_MODES)],
            "steal": [p for p in cpu if STEAL_MODE in names[p]],
            "waiting": [
                p for p, n in enumerate(names) if n.startswith("node_schedstat_waiting_seconds_total")
            ],
            "pressure": [p for p, n in enumerate(names) if n == "node_pressure_cpu_waiting_seconds_total"],
            "ready": [p for p, n in enumerate(names) if n == self._ready_name],
        }

    def _is_ready(self, name: str) -> bool:
        return name.startswith("node_schedstat_waiting_seconds_total") or name == self._ready_name

    def _busy(self, rates: Array) -> float:
        total = float(rates[self._groups["cpu"]].sum()) if self._groups["cpu"] else math.nan
        idle = float(rates[self._groups["idle"]].sum())
        return min(1.0, max(0.0, 1.0 - idle / total)) if total > 0.0 else math.nan

    def _ready(self, rates: Array, busy: float) -> tuple[float, tuple[str, ...]]:
        if places := self._groups["ready"]:
            return float(rates[places[0]]), (f"ready from {self._ready_name}",)
        if places := self._groups["waiting"]:
            return 100.0 * (float(rates[places].mean()) + self._steal(rates)), SCHEDSTAT_NOTE
        if places := self._groups["pressure"]:
            share = min(1.0, float(rates[places[0]]))
            waiting = share * (busy if busy == busy else 1.0)
            return 100.0 * (waiting + self._steal(rates)), PRESSURE_NOTE
        return math.nan, NO_NOTE

    def _steal(self, rates: Array) -> float:
        """Return the share of all CPUs that the hypervisor gave to others; 0 where that is unknown."""
        places = self._groups["steal"]
        stolen = float(rates[places].mean()) if places else 0.0
        return stolen if stolen > 0.0 else 0.0
