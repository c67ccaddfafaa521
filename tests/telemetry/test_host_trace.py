"""The trace that ships with the package is what its card says."""

from __future__ import annotations

import json
from importlib.resources import as_file, files

import numpy as np
import pytest

from prontosched.telemetry.trace import Chunk, TraceSource, open_trace

pytest.importorskip("pyarrow", reason="pyarrow is not installed")
DATA = files("prontosched") / "data"


@pytest.fixture(scope="module")
def trace() -> tuple[TraceSource, Chunk]:
    with as_file(DATA / "host.parquet") as path:
        source = open_trace(path)
        (chunk,) = source.chunks(rows=10_000)
    return source, chunk


def test_it_is_long_and_wide_enough_and_small(trace: tuple[TraceSource, Chunk]) -> None:
    source, chunk = trace

    assert chunk.timestamps[-1] - chunk.timestamps[0] >= 45 * 60
    assert len(source.metrics) >= 120
    assert len(DATA.joinpath("host.parquet").read_bytes()) < 3_000_000


def test_every_timestep_has_cpu_ready_and_all_metrics(trace: tuple[TraceSource, Chunk]) -> None:
    source, chunk = trace

    assert np.isfinite(chunk.ready).all()
    assert np.isfinite(chunk.utilisation).all()
    assert np.isfinite(chunk.vectors).all()
    assert source.counts.dropped.total() == 0
    assert not any("ready" in name or "run_delay" in name for name in source.metrics)


def test_the_card_says_what_is_in_the_file(trace: tuple[TraceSource, Chunk]) -> None:
    source, chunk = trace
    card = (DATA / "host.md").read_text()

    assert f"{len(chunk):,} timesteps" in card
    assert f"{len(source.metrics)} metrics" in card
    assert f"{np.median(chunk.ready):.0f} at the median" in card
    assert f"{chunk.ready.max():,.0f} at most" in card
    assert f"{int((np.std(chunk.vectors, axis=0) == 0).sum())} metrics are constant" in card
    assert "CC0" in card


def test_the_schedule_of_its_load_lies_in_its_time(trace: tuple[TraceSource, Chunk]) -> None:
    _, chunk = trace
    load = json.loads((DATA / "host-load.json").read_text())
    card = (DATA / "host.md").read_text()

    assert f"--seed {load['seed']}" in card
    times = [event["timestamp"] for event in load["events"]]
    assert chunk.timestamps[0] < min(times) < max(times) < chunk.timestamps[-1]
    assert sum(event["contention"] for event in load["events"]) == 75
