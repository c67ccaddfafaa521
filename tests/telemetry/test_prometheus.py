"""Metrics pages of exporters, real and scripted, on loopback."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

import numpy as np
import pytest

from prontosched.errors import TelemetryError
from prontosched.telemetry.prometheus import Page, PrometheusSource, parse_page
from prontosched.telemetry.source import MIXED_NOTE
from tests.processes import free_port, wait_for
from tests.telemetry.exporters import Exporter, exporters, node_exporter

pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    with exporters(1) as (only,):
        yield only


def cpu_page(
    seconds: float,
    *,
    busy: float,
    waiting: float | None = None,
    pressure: float | None = None,
    steal: float = 0.0,
) -> str:
    """A page of two CPUs that have been up for some seconds, a share of it busy."""
    lines = ["# TYPE node_cpu_seconds_total counter"]
    for cpu in (0, 1):
        lines.append(f'node_cpu_seconds_total{{cpu="{cpu}",mode="user"}} {seconds * busy}')
        lines.append(f'node_cpu_seconds_total{{cpu="{cpu}",mode="idle"}} {seconds * (1 - busy)}')
        lines.append(f'node_cpu_seconds_total{{cpu="{cpu}",mode="steal"}} {steal / 2}')
    if waiting is not None:
        lines.append("# TYPE node_schedstat_waiting_seconds_total counter")
        lines += [f'node_schedstat_waiting_seconds_total{{cpu="{cpu}"}} {waiting / 2}' for cpu in (0, 1)]
    if pressure is not None:
        lines.append("# TYPE node_pressure_cpu_waiting_seconds_total counter")
        lines.append(f"node_pressure_cpu_waiting_seconds_total {pressure}")
    return "\n".join(lines) + "\n"


class TestPage:
    def test_counters_become_rates_and_gauges_stay(self) -> None:
        page = Page()
        text = "# TYPE jobs counter\njobs_total {}\n# TYPE load gauge\nload {}\n"
        page.read(text.format(10, 1), now=0.0)

        reading = page.read(text.format(30, 7), now=4.0)

        assert page.metrics == ("jobs_total:rate", "load")
        assert reading.vector.tolist() == [5.0, 7.0]

    def test_the_list_of_metrics_is_the_same_object_until_it_changes(self) -> None:
        page = Page()
        page.read("a 1\n", now=0.0)
        first = page.metrics
        page.read("a 2\n", now=1.0)

        assert page.metrics is first
        page.read("a 2\nb 1\n", now=2.0)
        assert page.metrics == ("a", "b")

    def test_a_counter_keeps_its_rate_when_others_come_and_go(self) -> None:
        page = Page()
        page.read("x_total 5\n", now=0.0)
        page.read("new 1\nx_total 9\n", now=1.0)

        assert page.read("x_total 10\n", now=2.0).vector.tolist() == [1.0]

    def test_a_reset_gives_one_unknown_rate(self) -> None:
        page = Page()
        for step, count in enumerate((100, 110)):
            page.read(f"x_total {count}\n", now=float(step))

        assert np.isnan(page.read("x_total 3\n", now=2.0).vector).all()
        assert page.read("x_total 4\n", now=3.0).vector.tolist() == [1.0]

    def test_ready_comes_from_schedstat_first(self) -> None:
        page = Page()
        page.read(cpu_page(100, busy=0.5, waiting=10.0, pressure=0.0), now=0.0)

        reading = page.read(cpu_page(110, busy=0.5, waiting=14.0, pressure=9.0), now=10.0)

        assert reading.ready == pytest.approx(100 * 4.0 / 10 / 2)
        assert reading.utilisation == pytest.approx(50.0)
        assert reading.notes == ("ready from node_schedstat_waiting_seconds_total", MIXED_NOTE)
        assert not any("schedstat_waiting" in name for name in page.metrics)

    def test_ready_comes_from_pressure_where_there_is_no_schedstat(self) -> None:
        page = Page()
        page.read(cpu_page(100, busy=0.5, pressure=1.0), now=0.0)

        reading = page.read(cpu_page(110, busy=0.5, pressure=5.0), now=10.0)

        assert reading.ready == pytest.approx(100 * 0.4 * 0.5)
        where = "ready from node_pressure_cpu_waiting_seconds_total, a lower bound"
        assert reading.notes == (where, MIXED_NOTE)

    def test_steal_is_part_of_it(self) -> None:
        """Of ten seconds, two CPUs gave half a second each to another guest."""
        page = Page()
        page.read(cpu_page(100, busy=0.5, waiting=10.0, steal=6.0), now=0.0)

        reading = page.read(cpu_page(110, busy=0.5, waiting=14.0, steal=7.0), now=10.0)

        assert reading.ready == pytest.approx(100 * (4.0 / 10 / 2 + 0.05))

    def test_a_named_metric_can_be_ready(self) -> None:
        reading = Page(ready="vm_ready_percent").read("vm_ready_percent 12\nother 1\n", now=0.0)

        assert reading.ready == 12.0
        assert reading.vector.tolist() == [1.0]

    def test_a_named_metric_below_zero_is_no_cpu_ready(self) -> None:
        assert math.isnan(Page(ready="wait").read("wait -3\nother 1\n", now=0.0).ready)

    def test_without_either_ready_is_unknown_and_says_so(self) -> None:
        reading = Page().read("a 1\n", now=0.0)

        assert math.isnan(reading.ready)
        assert reading.notes == ("ready unknown: the target exposes neither schedstat nor pressure",)

    def test_infinity_is_unknown(self) -> None:
        assert np.isnan(Page().read("a +Inf\nb NaN\n", now=0.0).vector).all()

    def test_buckets_and_the_exporter_itself_are_left_out(self) -> None:
        text = (
            "# TYPE d histogram\n"
            'd_bucket{le="1"} 1\nd_bucket{le="+Inf"} 2\nd_sum 3\nd_count 2\n'
            "# TYPE go_goroutines gauge\ngo_goroutines 7\n"
        )

        assert parse_page(text)[0] == ["d_sum", "d_count"]

    def test_a_page_of_more_than_ten_thousand_metrics_is_refused(self) -> None:
        text = "".join(f'm{{i="{i}"}} 1\n' for i in range(10_001))

        with pytest.raises(ValueError, match="at most 10000 metrics, got more"):
            parse_page(text)


def test_each_target_is_a_node() -> None:
    with exporters(3) as running:
        for place, each in enumerate(running):
            each.page = f"a {place}\n"
        source = PrometheusSource([e.address for e in running], interval_seconds=5.0)

        samples = source.read()
        source.close()

    assert [s.node for s in samples] == [e.address for e in running]
    assert [s.vector.tolist() for s in samples] == [[0.0], [1.0], [2.0]]


def test_targets_that_fail_hold_up_nobody_and_are_named() -> None:
    with exporters(4) as (good, broken, garbage, hanging), socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(1)
        good.page = "a 1\n"
        broken.status = 503
        garbage.page = "this is { not a page\n"
        release = threading.Event()
        hanging.answer = lambda handler: release.wait(30)
        silent = f"127.0.0.1:{deaf.getsockname()[1]}"
        refused = f"127.0.0.1:{free_port()}"
        addresses = [e.address for e in (good, broken, garbage, hanging)] + [silent, refused]
        source = PrometheusSource(addresses, interval_seconds=1.0, timeout_seconds=0.5)
        began = time.monotonic()

        first, second = source.read(), source.read()
        took = time.monotonic() - began
        release.set()
        source.close()

    assert source.trouble.get(good.address) is None
    assert [s.node for s in first] == [s.node for s in second] == [good.address]
    assert took < 30.0
    assert set(source.trouble) == set(addresses[1:])
    assert source.trouble[broken.address] == "answered 503 Service Unavailable"
    assert source.trouble[refused] == "Connection refused"
    assert "no answer in" in source.trouble[silent]


def test_targets_that_hang_delay_the_others_only_once() -> None:
    """More of them than threads: the first reading waits for them in turns, the next ones hardly do."""
    with exporters(2) as (good, hanging):
        good.page = "a 1\n"
        release = threading.Event()
        hanging.answer = lambda handler: release.wait(60)
        stuck = [f"http://{hanging.address}/{i}" for i in range(40)]
        source = PrometheusSource([*stuck, good.address], interval_seconds=2.0, timeout_seconds=1.0)
        took = []
        for _ in range(3):
            began = time.monotonic()
            found = [sample.node for sample in source.read()]
            took.append(time.monotonic() - began)
            assert found == [good.address]
        trouble = dict(source.trouble)
        release.set()
        hanging.answer, hanging.page = None, "a 1\n"
        wait_for(lambda: len(source.read()) == 41, what="all targets again")
        source.close()

    assert took[0] >= 1.0
    assert max(took[1:]) < 1.0
    assert len(trouble) == 40
    assert set(trouble.values()) <= {"no answer in 1 s", "no answer in time"}


def test_a_target_that_drips_meets_its_deadline(exporter: Exporter) -> None:
    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "100000")
        handler.end_headers()
        for _ in range(600):
            handler.wfile.write(b"#")
            handler.wfile.flush()
            time.sleep(0.05)

    exporter.answer = drip
    source = PrometheusSource([exporter.address], timeout_seconds=0.3)
    began = time.monotonic()

    assert source.read() == []
    assert time.monotonic() - began < 30.0
    source.close()


def test_a_target_that_comes_back_is_read_again(exporter: Exporter) -> None:
    exporter.page, exporter.status = "a 1\n", 500
    source = PrometheusSource([exporter.address])
    assert source.read() == []
    exporter.status = 200

    assert len(source.read()) == 1
    assert source.trouble == {}
    source.close()


def test_a_page_too_large_is_refused(exporter: Exporter) -> None:
    exporter.page = "# " + "x" * 16_100_000
    source = PrometheusSource([exporter.address], timeout_seconds=5.0)

    assert source.read() == []
    assert "at most 16000000 bytes" in source.trouble[exporter.address]
    source.close()


def test_the_token_comes_from_the_environment(exporter: Exporter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRONTO_PROMETHEUS_TOKEN", "secret")
    exporter.page = "a 1\n"
    source = PrometheusSource(exporter.address)
    source.read()
    source.close()

    assert exporter.headers == ["Bearer secret"]


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ([], "must have at least one target, got none"),
        (["ftp://x/metrics"], "must be http://HOST:PORT/metrics or HOST:PORT, got 'ftp://x/metrics'"),
        (["http://user:pw@host:1/metrics"], "must not hold a password: set PRONTO_PROMETHEUS_TOKEN"),
        (["host:1", "http://host:1/metrics"], "targets must differ, got host:1 more than once"),
    ],
)
def test_targets_that_make_no_sense_are_refused(targets: list[str], message: str) -> None:
    with pytest.raises(TelemetryError, match=message):
        PrometheusSource(targets)


def test_the_real_node_exporter_gives_metrics_ready_and_utilisation() -> None:
    with node_exporter() as address:
        source = PrometheusSource([address], interval_seconds=5.0)
        (first,) = source.read()
        time.sleep(1.0)
        (second,) = source.read()
        source.close()

    assert math.isnan(first.utilisation)
    assert len(second.metrics) >= 120
    assert 0.0 <= second.utilisation <= 100.0
    assert second.ready >= 0.0 or "ready unknown" in second.notes[0]
    assert np.isfinite(second.vector).mean() > 0.9
