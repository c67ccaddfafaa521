"""Prometheus exporters as a source: many targets, each a node.

A target that does not answer in time gives no sample in that timestep. It delays the others once: from then on it is
asked beside them until it answers.
Parsing pages needs prometheus-client (extra `agent`).
"""

from __future__ import annotations

import contextlib
import fnmatch
import http.client
import math
import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from prontosched.errors import TelemetryError
from prontosched.extras import missing_extra
from prontosched.subspace import Array
from prontosched.telemetry.source import MIXED_NOTE, Rates, Sample

PAGE_LIMIT_BYTES = 16_000_000
PIECE_BYTES = 65536
CONCURRENCY = 32
# So long is waited for a target that gave nothing last time, while others have answered.
GRACE_SECONDS = 0.2
TOKEN_VARIABLE = "PRONTO_PROMETHEUS_TOKEN"
# About the exporter itself rather than the machine, or no measurement.
EXCLUDED = ("go_*", "promhttp_*", "python_*", "*_info", "*_created", "*_boot_time_seconds", "*_time_seconds")
METRICS_LIMIT = 10_000
IDLE_MODES = ('mode="idle"', 'mode="iowait"')
STEAL_MODE = 'mode="steal"'
SCHEDSTAT = "node_schedstat_waiting_seconds_total"
PRESSURE = "node_pressure_cpu_waiting_seconds_total"
SCHEDSTAT_NOTE = (f"ready from {SCHEDSTAT}", MIXED_NOTE)
PRESSURE_NOTE = (f"ready from {PRESSURE}, a lower bound", MIXED_NOTE)
NO_NOTE = ("ready unknown: the target exposes neither schedstat nor pressure",)


class PrometheusSource:
    """Read the metrics pages of many targets, each a node named by its address.

    Parameters
    ----------
    targets
        Addresses: `http://10.0.0.4:9100/metrics`, or `10.0.0.4:9100` for short.
    interval_seconds
        Time between two readings as planned.
    timeout_seconds
        How long a target may take, connecting included; four fifths of the interval, at most 10 s, if not
        given.
    exclude
        Metrics to leave out, with `*` and `?` as wildcards.
    ready
        Name of a metric that is CPU Ready in percent; without it node_exporter's schedstat or pressure is
        taken.
    token
        Bearer token to send; the environment variable PRONTO_PROMETHEUS_TOKEN if not given.

    Attributes
    ----------
    trouble
        By node why the last page could not be had.

    Notes
    -----
    Memory: a few numbers per metric and target. Pages of more than 16 MB or 10,000 metrics are refused.
    """

    name = "prometheus"

    def __init__(
        self,
        targets: Sequence[str],
        interval_seconds: float = 10.0,
        *,
        timeout_seconds: float | None = None,
        exclude: Sequence[str] = EXCLUDED,
        ready: str | None = None,
        token: str | None = None,
    ) -> None:
        if isinstance(targets, str):
            targets = [targets]
        if not targets:
            raise TelemetryError("source prometheus must have at least one target, got none: give --target")
        self.interval_seconds = interval_seconds
        timeout = min(10.0, 0.8 * interval_seconds) if timeout_seconds is None else timeout_seconds
        token = os.environ.get(TOKEN_VARIABLE) if token is None else token
        self._targets = [
            _Target(address, timeout, token, Page(excluded=exclude, ready=ready)) for address in targets
        ]
        nodes = [target.node for target in self._targets]
        if double := sorted({node for node in nodes if nodes.count(node) > 1}):
            raise TelemetryError(f"targets must differ, got {double[0]} more than once")
        self._timeout = timeout
        self.trouble: dict[str, str] = {}
        # Those whose turn did not come last time, because others hung: nothing speaks against them.
        self._unasked: set[str] = set()
        self._pending: dict[Future[Sample], _Target] = {}
        self._pool, self._second = (
            ThreadPoolExecutor(min(CONCURRENCY, len(nodes)), thread_name_prefix=name)
            for name in ("prometheus", "prometheus-again")
        )
        self._closed = False

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes, one per target."""
        return tuple(target.node for target in self._targets)

    def read(self) -> list[Sample]:
        """Read all targets once; those that fail or are late are left out."""
        if self._closed:
            raise ValueError("read from a closed source")
        self._settle(self._pending)
        # One that still hangs from last time is not asked again on top of that.
        busy = {target.node for target in self._pending.values()}
        free = [target for target in self._targets if target.node not in busy]
        # Those that gave nothing last time have threads of their own, and are hardly waited for.
        doubted = self.trouble.keys() - self._unasked
        sound = {self._pool.submit(t.read): t for t in free if t.node not in doubted}
        doubtful = {self._second.submit(t.read): t for t in free if t.node in doubted}
        rounds = -(-len(sound or doubtful) // CONCURRENCY)
        self._pending |= doubtful
        self._wait(sound or doubtful, self._timeout * max(1, rounds) + 0.2)
        wait(doubtful, timeout=GRACE_SECONDS)
        late = [future for future in sound if future.cancel()]
        self._unasked = {sound.pop(future).node for future in late}
        self._pending |= sound
        samples = self._settle(self._pending)
        for node in [*self._unasked, *(target.node for target in self._pending.values())]:
            self.trouble.setdefault(node, f"no answer in {self._timeout:g} s")
        return [samples[target.node] for target in self._targets if target.node in samples]

    def _settle(self, asked: dict[Future[Sample], _Target]) -> dict[str, Sample]:
        """Take out what is done: return by node what has come, and keep why others gave nothing."""
        samples: dict[str, Sample] = {}
        for future in [future for future in asked if future.done()]:
            target = asked.pop(future)
            error = future.exception()
            if error is None:
                samples[target.node] = future.result()
                self.trouble.pop(target.node, None)
            else:
                self.trouble[target.node] = _explain(error)
        return samples

    def _wait(self, pending: dict[Future[Sample], _Target], seconds: float) -> None:
        """Wait for the pages; cut off each target whose own time is over, so that the others have their turn."""
        end = time.monotonic() + seconds
        late = set(pending)
        while late and (left := end - time.monotonic()) > 0.0:
            late = set(wait(late, timeout=min(left, self._timeout / 4))[1])
            for target in [*(pending[one] for one in late), *self._pending.values()]:
                target.cut_off(time.monotonic())

    def unanswered(self) -> dict[str, str]:
        """Return why nodes gave nothing at the last reading, by name."""
        return dict(self.trouble)

    def close(self) -> None:
        """Close all connections and wait for no one."""
        self._closed = True
        for pool in (self._pool, self._second):
            pool.shutdown(wait=False, cancel_futures=True)
        for target in self._targets:
            target.close()


def _explain(error: BaseException) -> str:
    if isinstance(error, TelemetryError):
        raise error
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError):
        return error.strerror or str(error) or type(error).__name__
    return str(error) or type(error).__name__


class _Target:
    """One address: its connection, kept open, and its page."""

    def __init__(self, address: str, timeout: float, token: str | None, page: Page) -> None:
        parts = urlsplit(address if "://" in address else f"http://{address}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise TelemetryError(f"a target must be http://HOST:PORT/metrics or HOST:PORT, got '{address}'")
        if parts.username or parts.password:
            raise TelemetryError(
                f"a target must not hold a password: set {TOKEN_VARIABLE} in the environment instead"
            )
        self._path = (parts.path or "/metrics") + (f"?{parts.query}" if parts.query else "")
        self.node = parts.netloc if self._path == "/metrics" else parts.netloc + self._path
        self._timeout = timeout
        self._headers = {"Accept": "text/plain;version=0.0.4", "Accept-Encoding": "identity"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._page = page
        self._lock = threading.Lock()
        self._until = math.inf
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname, parts.port, timeout=timeout)

    def read(self) -> Sample:
        """Fetch and parse the page."""
        with self._lock:
            self._until = time.monotonic() + self._timeout
            try:
                text = self._fetch()
            except Exception:
                # The connection may be in the middle of an answer: start afresh next time.
                self._connection.close()
                raise
            finally:
                self._until = math.inf
            return self._page.read(text, now=time.monotonic(), node=self.node, timestamp=time.time())

    def close(self) -> None:
        self._connection.close()

    def cut_off(self, now: float) -> None:
        """End a reading whose time is over, in whatever phase it is: each phase alone may drip for ever."""
        if now > self._until and (open_socket := self._connection.sock) is not None:
            with contextlib.suppress(OSError):
                open_socket.shutdown(socket.SHUT_RDWR)

    def _fetch(self) -> str:
        try:
            response = self._request()
        except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError) as error:
            if time.monotonic() > self._until:  # cut off
                raise TimeoutError from error
            # A server may drop a connection that was idle for long.
            self._connection.close()
            response = self._request()
        pieces: list[bytes] = []
        size = 0
        # read1 returns what is there: a target that drips a byte at a time meets the deadline.
        while piece := response.read1(PIECE_BYTES):
            pieces.append(piece)
            size += len(piece)
            if size > PAGE_LIMIT_BYTES:
                raise ValueError(f"a page must be at most {PAGE_LIMIT_BYTES} bytes, got more")
            if time.monotonic() > self._until:
                raise TimeoutError
        # read1 leaves an answer open that has come to its end, and the connection could not be used again.
        response.close()
        if response.status != http.client.OK:
            raise ValueError(f"answered {response.status} {response.reason}")
        return b"".join(pieces).decode("utf-8", errors="replace")

    def _request(self) -> http.client.HTTPResponse:
        self._connection.request("GET", self._path, headers=self._headers)
        return self._connection.getresponse()


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
    for family in _families(text_string_to_metric_families(text)):
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
            try:
                values.append(float(sample.value))
            except OverflowError:  # a whole number of hundreds of digits
                values.append(math.nan)
            if len(names) > METRICS_LIMIT:
                raise ValueError(f"a page must have at most {METRICS_LIMIT} metrics, got more")
    if not names:
        raise ValueError("a page must have metrics, got none")
    return names, counters, values


def _families(found: Iterable[Any]) -> Iterator[Any]:
    try:
        yield from found
    except Exception as error:  # the parser has many ways to say that a line is none of its own
        said = f"{type(error).__name__} {str(error)[:80]}".rstrip()
        raise ValueError(f"a page must be in the text format of Prometheus, got {said}") from error


def _full_name(name: str, labels: dict[str, str]) -> str:
    inner = ",".join(f'{label}="{labels[label]}"' for label in sorted(labels))
    return f"{name}{{{inner}}}" if labels else name


class Page:
    """One target's metrics from page to page; `ready` names a metric that is CPU Ready in percent.

    The tuple `metrics` has their names, with `:rate` where a counter became one per second. It is the same
    object while nothing changed.
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

    def read(self, text: str, *, now: float, node: str = "", timestamp: float = math.nan) -> Sample:
        """Take in a page that came at `now` on a clock that never jumps, `timestamp` on one that people read."""
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
        ready = ready if 0.0 <= ready < math.inf else math.nan
        return Sample(node, self.metrics, numbers[self._kept], timestamp, ready, 100.0 * busy, notes)

    def _describe(self, names: list[str], counters: list[bool]) -> None:
        self._names = names
        places = [place for place, counter in enumerate(counters) if counter]
        self._counter_places = np.array(places, dtype=np.intp)
        self._rates.relabel([self._counters.get(names[place], -1) for place in places])
        self._counters = {names[place]: order for order, place in enumerate(places)}
        # What becomes `ready` must not be among the metrics as well.
        kept = [p for p, n in enumerate(names) if not n.startswith(SCHEDSTAT) and n != self._ready_name]
        self._kept = np.array(kept, dtype=np.intp)
        self.metrics = tuple(f"{names[place]}:rate" if counters[place] else names[place] for place in kept)
        cpu = [p for p, n in enumerate(names) if n.startswith("node_cpu_seconds_total{")]
        self._groups = {
            "cpu": cpu,
            "idle": [p for p in cpu if any(mode in names[p] for mode in IDLE_MODES)],
            "steal": [p for p in cpu if STEAL_MODE in names[p]],
            "waiting": [p for p, n in enumerate(names) if n.startswith(SCHEDSTAT)],
            "pressure": [p for p, n in enumerate(names) if n == PRESSURE],
            "ready": [p for p, n in enumerate(names) if n == self._ready_name],
        }

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
