"""The generated data set of the paper's shape."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from prontosched.evaluation.datasets.paper_shape import CHUNK_STEPS, TABLES, PaperShape
from prontosched.evaluation.generators import PaperShapeFeed

SMALL = PaperShape(clusters=2, hosts=2, vms=8, days=2, seed=3)


def test_vms_have_52_metrics_and_hosts_134() -> None:
    assert {kind: len(table.names) for kind, table in TABLES.items()} == {"vm": 52, "host": 134}


def test_no_metric_is_cpu_ready_under_another_name() -> None:
    names = [name for table in TABLES.values() for name in table.names]

    assert not [name for name in names if "ready" in name.lower() or "readiness" in name.lower()]


def test_default_shape_is_the_papers() -> None:
    shape = PaperShape()
    hour = next(shape.stream(5, steps=CHUNK_STEPS))

    assert (shape.clusters, shape.hosts, shape.steps) == (100, 14, 28 * 4320)
    assert 250 <= len(hour.nodes) <= 350
    assert np.diff(hour.timestamps).tolist() == [20.0] * (CHUNK_STEPS - 1)


def test_same_seed_gives_the_same_data_and_another_seed_does_not() -> None:
    first, again = (next(SMALL.stream(1, metrics_of=[2])) for _ in range(2))
    other = next(PaperShape(clusters=2, hosts=2, vms=8, days=2, seed=4).stream(1))

    np.testing.assert_array_equal(first.ready_ms, again.ready_ms)
    np.testing.assert_array_equal(first.values, again.values)
    assert not np.allclose(first.ready_ms, other.ready_ms)


def test_ready_does_not_depend_on_whose_metrics_are_asked_for() -> None:
    alone = [hour.ready_ms for hour in SMALL.stream(0, steps=400)]
    with_metrics = [hour.ready_ms for hour in SMALL.stream(0, steps=400, metrics_of=[0, 5])]

    np.testing.assert_array_equal(np.hstack(alone), np.hstack(with_metrics))


def test_metrics_of_a_node_do_not_depend_on_the_other_nodes_asked_for() -> None:
    hours = [list(SMALL.stream(0, steps=400, metrics_of=wanted)) for wanted in ([3], [1, 3])]

    for one, two in zip(*hours, strict=True):
        assert one.values is not None
        assert two.values is not None
        np.testing.assert_array_equal(one.values[0], two.values[1])


def test_a_host_waits_for_all_its_vms() -> None:
    vms, hosts = next(SMALL.stream(0)), next(SMALL.stream(0, kind="host"))

    np.testing.assert_allclose(hosts.ready_ms.sum(axis=0), vms.ready_ms.sum(axis=0))
    assert hosts.utilisation.max() <= 100.0


def test_daily_medians_over_the_papers_thresholds_are_about_as_frequent_as_published() -> None:
    shape = PaperShape(clusters=4, hosts=4, vms=80, days=4, seed=1)
    medians = []
    for cluster in range(4):
        ready = np.hstack([hour.ready_ms[:, ::6] for hour in shape.stream(cluster)])
        medians.append(np.median(ready.reshape(80, 4, -1), axis=2))
    shares = [float((np.stack(medians) >= limit).mean()) for limit in (500, 800, 1000)]

    # Published: 9.54, 2.63 and 0.85 %.
    assert 0.04 < shares[0] < 0.20
    assert 0.005 < shares[1] < 0.08
    assert shares[2] < 0.04


def test_a_month_is_streamed_in_the_memory_of_an_hour() -> None:
    shape = PaperShape(clusters=1, hosts=1, vms=6, days=28)
    peaks = []
    for steps in (10 * CHUNK_STEPS, 100 * CHUNK_STEPS):
        tracemalloc.start()
        for hour in shape.stream(0, steps=steps):
            del hour
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()

    assert peaks[1] < 1.3 * peaks[0]


def test_feed_gives_the_same_rows_whatever_their_number_at_a_time() -> None:
    def rows_of(size: int) -> np.ndarray:
        parts = [chunks[1].vectors for chunks in PaperShapeFeed(SMALL, 0, steps=250).aligned(rows=size)]
        return np.concatenate(parts)

    np.testing.assert_array_equal(rows_of(70), rows_of(180))


def test_feed_starts_where_the_last_chunk_ended() -> None:
    starts = [chunks[0].start for chunks in PaperShapeFeed(SMALL, 0, "host", steps=300).aligned(rows=100)]

    assert starts == [0, 100, 180, 280]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"clusters": 0}, "clusters must be at least 1, got 0"),
        ({"hosts": 5, "vms": 3}, r"vms must be at least hosts \(5\), got 3"),
    ],
)
def test_impossible_shape_is_refused(wrong: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PaperShape(**wrong)


def test_unknown_cluster_and_kind_are_refused() -> None:
    with pytest.raises(ValueError, match="cluster must be from 0 to 1, got 2"):
        SMALL.stream(2)
    with pytest.raises(ValueError, match="kind must be 'vm' or 'host', got 'pod'"):
        SMALL.stream(0, kind="pod")
