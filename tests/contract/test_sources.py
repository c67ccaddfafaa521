"""What every source must satisfy, tried on a real one of each kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from prontosched.errors import TelemetryError
from prontosched.telemetry import SOURCES, open_source
from prontosched.telemetry.source import Sample, samples
from tests.contract.source_harness import NAMES, Harness, harness
from tests.telemetry.vcenter import NEEDS_VCSIM

pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")
pytest.importorskip("pyVmomi", reason="pyVmomi is not installed")


@pytest.fixture(params=[pytest.param(n, marks=NEEDS_VCSIM) if n == "vsphere" else n for n in NAMES])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    with harness(request.param, tmp_path) as made:
        yield made
        made.source.close()


def step(subject: Harness) -> list[Sample]:
    subject.tick()
    return subject.source.read()


def check(sample: Sample) -> None:
    assert isinstance(sample.node, str)
    assert sample.node
    assert sample.vector.dtype == np.float64
    assert sample.vector.shape == (len(sample.metrics),)
    assert len(set(sample.metrics)) == len(sample.metrics)
    assert not np.isinf(sample.vector).any()
    assert not sample.ready < 0.0
    assert not sample.utilisation < 0.0
    assert not sample.utilisation > 100.0
    assert isinstance(sample.timestamp, float)


def test_every_source_of_ours_is_under_contract() -> None:
    assert set(NAMES) == set(SOURCES)


def test_a_source_has_a_name_and_an_interval(subject: Harness) -> None:
    assert subject.source.name in NAMES
    assert subject.source.interval_seconds > 0


def test_every_sample_is_whole(subject: Harness) -> None:
    for _ in range(4):
        found = step(subject)

        assert found
        assert len({sample.node for sample in found}) == len(found)
        for sample in found:
            check(sample)


def test_metrics_are_the_same_object_while_nothing_changes(subject: Harness) -> None:
    lists = [step(subject)[0].metrics for _ in range(3)]

    assert lists[1] is lists[0]
    assert lists[2] is lists[0]


def test_time_does_not_go_back(subject: Harness) -> None:
    times = [step(subject)[0].timestamp for _ in range(3)]

    assert times == sorted(times)


def test_a_sample_stays_as_it_was_when_the_next_is_read(subject: Harness) -> None:
    step(subject)
    sample = step(subject)[0]
    before = sample.vector.copy()
    step(subject)

    np.testing.assert_array_equal(sample.vector, before)


def test_a_sample_may_be_changed_without_changing_the_next(subject: Harness) -> None:
    step(subject)
    step(subject)[0].vector[:] = -777.0

    assert not (step(subject)[0].vector == -777.0).any()


def test_metrics_that_are_gained_and_lost_change_the_list_and_break_nothing(subject: Harness) -> None:
    before = step(subject)[0].metrics
    if not subject.gain():
        pytest.skip("the metrics of this source do not change while it runs")
    gained = step(subject)[0]
    subject.lose()
    lost = step(subject)[0]

    check(gained)
    check(lost)
    assert set(gained.metrics) > set(before)
    assert not set(lost.metrics) >= set(before)
    assert gained.metrics is not before


def test_values_that_are_missing_are_unknown(subject: Harness) -> None:
    step(subject)
    step(subject)
    subject.blank()
    first, second = step(subject)[0], step(subject)[0]

    check(first)
    assert np.isnan(first.vector).any() or np.isnan(second.vector).any()


def test_a_counter_reset_gives_no_negative_rate(subject: Harness) -> None:
    for _ in range(3):
        step(subject)
    if not subject.reset():
        pytest.skip("this source has no counters")
    after = step(subject)[0]

    check(after)
    rates = [
        v
        for name, v in zip(after.metrics, after.vector, strict=True)
        if "rate" in name or "per_second" in name
    ]
    assert rates
    assert not any(rate < 0.0 for rate in rates)
    again = step(subject)[0]
    assert np.isfinite(again.vector).sum() >= np.isfinite(after.vector).sum()


def test_reading_a_closed_source_is_an_error(subject: Harness) -> None:
    step(subject)
    subject.source.close()

    with pytest.raises(ValueError, match="closed"):
        subject.source.read()


def test_closing_twice_is_harmless(subject: Harness) -> None:
    step(subject)
    subject.source.close()
    subject.source.close()


def test_a_source_can_be_closed_before_it_is_read(subject: Harness) -> None:
    subject.source.close()


def test_a_trace_ends_and_closes_itself(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a\n1\n2\n")

    assert len(list(samples(open_source("trace", paths=path)))) == 2


def test_a_name_nobody_knows_is_refused() -> None:
    with pytest.raises(TelemetryError, match=r"source must be one of linux, .*trace.*, got 'x'"):
        open_source("x")
