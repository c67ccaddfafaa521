"""Traces and pages of any content: read, or one clear line."""

from __future__ import annotations

import gzip
import io
import random

import numpy as np
import pytest

from prontosched.errors import TelemetryError
from prontosched.telemetry.prometheus import Page
from prontosched.telemetry.trace import open_trace
from tests.fuzzing import ODD, SECONDS, broken, fuzz, odd_value

pytestmark = pytest.mark.fuzz

HEADER = "timestamp,node,load,heat,cpu_ready,utilisation"


def read_trace(path) -> None:
    trace = open_trace(path)
    for chunk in trace.chunks(64):
        assert chunk.vectors.shape[0] == len(chunk)
        assert not np.isinf(chunk.vectors).any()
    trace.counts.warnings()


def csv_lines(rng: random.Random) -> list[str]:
    lines = [HEADER]
    lines += [
        f"{1.7e9 + i},n{i % 3},{i % 7},{i * 0.5},{i % 11},{10 + i % 5}" for i in range(rng.randint(0, 60))
    ]
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(lines))
        cells = lines[place].split(",")
        cells[rng.randrange(len(cells))] = str(odd_value(rng)).encode("utf-8", "replace").decode()
        lines[place] = ",".join(cells)
    return lines


def test_csv_of_any_content_is_read_or_one_clear_line(memory_path):
    def attempt(rng: random.Random) -> None:
        data = "\n".join(csv_lines(rng)).encode()
        if rng.random() < 0.5:
            data = broken(rng, data)
        path = memory_path / rng.choice(["t.csv", "t.csv.gz"])
        path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)
        if path.suffix == ".gz" and rng.random() < 0.3:
            path.write_bytes(broken(rng, path.read_bytes()))
        read_trace(path)

    refused, taken = fuzz("csv", attempt, TelemetryError)
    assert refused > 2
    assert taken > 2


def test_parquet_of_any_content_is_read_or_one_clear_line(memory_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    kinds = [
        pa.float64(),
        pa.float32(),
        pa.int64(),
        pa.int8(),
        pa.bool_(),
        pa.string(),
        pa.binary(),
        pa.date32(),
    ]
    kinds += [
        pa.timestamp("s"),
        pa.timestamp("ns", tz="UTC"),
        pa.time64("ns"),
        pa.decimal128(30, 3),
        pa.null(),
    ]
    kinds += [pa.duration("s"), pa.date64(), pa.list_(pa.int64()), pa.struct([("a", pa.int8())])]

    def column(rng: random.Random, rows: int):
        kind = rng.choice(kinds)
        raw = pa.array(
            [rng.choice([0, 1, -1, 2**31 - 1, -(2**31), 2**62, -(2**62)]) for _ in range(rows)], pa.int64()
        )
        try:
            return raw.cast(kind, safe=False)
        except (pa.ArrowException, ValueError):
            return pa.nulls(rows, kind)

    def attempt(rng: random.Random) -> None:
        rows = rng.randint(0, 40)
        names = rng.sample(HEADER.split(","), rng.randint(1, 6))
        texts = [one for one in ODD if isinstance(one, str) and "\ud800" not in one]
        if rng.random() < 0.3:
            names[rng.randrange(len(names))] = rng.choice(texts)
        table = pa.table({name: column(rng, rows) for name in names})
        stream = io.BytesIO()
        try:
            pq.write_table(table, stream, row_group_size=rng.choice([1, 7, 1000]))
        except pa.ArrowException:
            return  # nothing that a file could hold
        data = stream.getvalue()
        (memory_path / "t.parquet").write_bytes(broken(rng, data) if rng.random() < 0.3 else data)
        read_trace(memory_path / "t.parquet")

    refused, taken = fuzz("parquet", attempt, TelemetryError)
    assert refused > 2
    assert taken > 2


PAGE = """# HELP node_load1 1m load average.
# TYPE node_load1 gauge
node_load1 0.21
# TYPE node_cpu_seconds_total counter
node_cpu_seconds_total{cpu="0",mode="idle"} 12345.6
node_cpu_seconds_total{cpu="0",mode="user"} 345.6
node_cpu_seconds_total{cpu="0",mode="steal"} 1.6
node_schedstat_waiting_seconds_total{cpu="0"} 12.5
# TYPE request_seconds histogram
request_seconds_bucket{le="0.1"} 10
request_seconds_bucket{le="+Inf"} 12
request_seconds_sum 1.5
request_seconds_count 12
# TYPE rpc summary
rpc{quantile="0.5"} 0.2
rpc_sum 10
rpc_count 50
"""


def test_pages_of_any_content_are_read_or_one_clear_line():
    held = Page()
    held.read(PAGE, now=0.0)

    def attempt(rng: random.Random) -> None:
        lines = PAGE.splitlines()
        for _ in range(rng.randint(1, 3)):
            place = rng.randrange(len(lines))
            words = lines[place].split(" ")
            words[rng.randrange(len(words))] = str(odd_value(rng))
            lines[place] = " ".join(words)
        text = "\n".join(lines) + "\n"
        if rng.random() < 0.5:
            text = broken(rng, text.encode("utf-8", "replace")).decode("utf-8", "replace")
        for page in (Page(), held):
            sample = page.read(text, now=rng.random() * 100.0)
            assert len(sample.metrics) == len(sample.vector)
            assert not np.isinf(sample.vector).any()
            assert not np.isinf([sample.ready, sample.utilisation]).any()

    with np.errstate(all="ignore"):
        refused, taken = fuzz("pages", attempt, ValueError, seconds=SECONDS)
    assert refused > 2
    assert taken > 2
