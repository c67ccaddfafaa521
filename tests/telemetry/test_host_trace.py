"""The traces that ship with the package are what their cards say."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import as_file, files

import numpy as np
import pytest

from prontosched.telemetry.trace import Chunk, TraceSource, open_trace

pytest.importorskip("pyarrow", reason="pyarrow is not installed")
DATA = files("prontosched") / "data"


@dataclass(frozen=True)
class Shipped:
    name: str
    source: TraceSource
    chunk: Chunk
    card: str


def shipped(name: str) -> Shipped:
    with as_file(DATA / f"{name}.parquet") as path:
        source = open_trace(path)
        (chunk,) = source.chunks(rows=10_000)
    return Shipped(name, source, chunk, (DATA / f"{name}.md").read_text())


@pytest.fixture(scope="module", params=["host", "server"])
def trace(request: pytest.FixtureRequest) -> Shipped:
    return shipped(request.param)


def test_it_is_long_and_wide_enough_and_small(trace: Shipped) -> None:
    assert trace.chunk.timestamps[-1] - trace.chunk.timestamps[0] >= 45 * 60
    assert len(trace.source.metrics) >= 120
    assert len(DATA.joinpath(f"{trace.name}.parquet").read_bytes()) < 3_000_000


def test_every_timestep_has_cpu_ready_and_all_metrics(trace: Shipped) -> None:
    source, chunk = trace.source, trace.chunk

    assert np.isfinite(chunk.ready).all()
    assert np.isfinite(chunk.utilisation).all()
    assert np.isfinite(chunk.vectors).all()
    assert source.counts.dropped.total() == 0
    assert not any("ready" in name or "run_delay" in name for name in source.metrics)


def test_the_card_says_what_is_in_the_file(trace: Shipped) -> None:
    source, chunk, card = trace.source, trace.chunk, trace.card

    assert f"{len(chunk):,} timesteps" in card
    assert f"{len(source.metrics)} metrics" in card
    assert f"{np.median(chunk.ready):.0f} at the median" in card
    assert f"{chunk.ready.max():,.0f} at most" in card
    assert f"{int((np.std(chunk.vectors, axis=0) == 0).sum())} metrics are constant" in card
    assert "CC0" in card
    assert "Recorded once, taken as it came" in " ".join(card.split())


def test_the_schedule_of_the_host_lies_in_its_time() -> None:
    host = shipped("host")
    load = json.loads((DATA / "host-load.json").read_text())

    assert f"--seed {load['seed']}" in host.card
    times = [event["timestamp"] for event in load["events"]]
    assert host.chunk.timestamps[0] < min(times) < max(times) < host.chunk.timestamps[-1]
    assert sum(event["contention"] for event in load["events"]) == 75


def test_the_jobs_of_the_server_lie_in_its_time() -> None:
    server = shipped("server")
    ran = json.loads((DATA / "server-jobs.json").read_text())
    jobs, regular = ran["jobs"], [job for job in ran["jobs"] if job["regular"]]

    assert f"--seed {ran['seed']}" in server.card
    assert f"{len(jobs)} jobs" in server.card
    assert f"{len(regular)} regular" in server.card
    starts = [job["start"] for job in jobs]
    assert server.chunk.timestamps[0] < min(starts) < max(starts) < server.chunk.timestamps[-1]


def test_the_server_is_mostly_calm_and_sometimes_contended() -> None:
    server = shipped("server").chunk.ready

    assert (server < 5.0).mean() > 0.75
    assert 0.1 < (server >= 50.0).mean() < 0.2
