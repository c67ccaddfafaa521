"""Traces and settings that nobody writes by accident: one clear line, and no more memory than a good one takes."""

from __future__ import annotations

import gzip

import pytest

from prontosched.errors import SettingsError, TelemetryError
from prontosched.settings import read_file
from prontosched.telemetry.trace import files as trace_files
from prontosched.telemetry.trace import open_trace


def rows_of(path):
    return sum(len(chunk) for chunk in open_trace(path).chunks(64))


@pytest.mark.parametrize("place", ["header", "peek", "row"])
def test_a_cell_longer_than_csv_allows_is_one_clear_line(tmp_path, place):
    long = '"' + "x" * 200_000 + '"'
    lines = ["load,ready", *("1,2" for _ in range(1000))]
    lines[{"header": 0, "peek": 5, "row": 900}[place]] = f"{long},2"
    (tmp_path / "t.csv").write_text("\n".join(lines))

    with pytest.raises(TelemetryError, match=r"cannot be read as CSV .field larger than field limit"):
        rows_of(tmp_path / "t.csv")


def test_a_line_without_end_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(trace_files, "LINE_LIMIT_CHARACTERS", 10_000)
    with gzip.open(tmp_path / "t.csv.gz", "wb") as file:
        file.write(b"load,ready\n" + b"1" * 1_000_000)

    with pytest.raises(TelemetryError, match="a line must have fewer than 10000 characters"):
        rows_of(tmp_path / "t.csv.gz")


def test_times_that_are_no_times_are_unknown():
    assert all(
        value != value
        for value in map(trace_files.parse_time, ("1e999", "-inf", "nonsense", "9999-99-99", ""))
    )
    assert trace_files.parse_time("0001-01-01T00:00:00+23:59") < 0


def test_odd_names_and_times_of_parquet_are_read(tmp_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    table = {
        "timestamp": pa.array([-(2**62), 0, None, 5, 2**62], pa.timestamp("ms")),
        "\x00\n'; drop": pa.array([1.0, 2.0, 3.0, 4.0, 5.0]),
        "number": pa.array([2**63 - 1, 1, 2, 3, 4]),
        "ready": pa.array([1, 2, 3, 4, 5]),
    }
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    source = open_trace(tmp_path / "t.parquet")

    (chunk,) = source.chunks()

    assert chunk.timestamps.tolist() == [-(2**62) / 1e3, 0.0, 0.005, 2**62 / 1e3]
    assert source.metrics == ("\x00\n'; drop", "number")
    assert source.counts.dropped == {"no timestamp": 1}


def test_dates_beyond_the_calendar_are_one_clear_line(tmp_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    dates = pa.table({"timestamp": pa.array([2**30, 0], pa.date32()), "load": pa.array([1.0, 2.0])})
    pq.write_table(dates, tmp_path / "d.parquet")

    with pytest.raises(TelemetryError, match=r"d\.parquet: cannot be read \(days=1073741824"):
        rows_of(tmp_path / "d.parquet")


def test_a_long_name_in_every_row_is_held_once(tmp_path):
    """Unpacked row by row the names would take 800 MB."""
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    places = pa.array([0] * 8000, pa.int32())
    names = pa.DictionaryArray.from_arrays(places, pa.array(["x" * 100_000]))
    table = pa.table({"node": names, "load": pa.array([1.0] * 8000)})
    pq.write_table(table, tmp_path / "t.parquet", store_schema=False)
    del names, table
    pool = pa.default_memory_pool()
    before = max(pool.max_memory(), 100_000_000)

    assert rows_of(tmp_path / "t.parquet") == 8000
    assert pool.max_memory() <= before


def test_a_row_group_that_unpacks_to_gigabytes_is_refused(tmp_path, monkeypatch):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(trace_files, "COLUMN_LIMIT_BYTES", 1_000_000)
    table = pa.table({"load": pa.array([0.0] * 500_000)})
    pq.write_table(table, tmp_path / "t.parquet", use_dictionary=False, compression="zstd")
    assert (tmp_path / "t.parquet").stat().st_size < 10_000

    with pytest.raises(
        TelemetryError, match=r"must be at most 1000000 bytes, got .*: write it with smaller row groups"
    ):
        rows_of(tmp_path / "t.parquet")


@pytest.mark.parametrize(
    "text",
    ["[agent]\nx = " + "[" * 50_000, "[agent]\nx = " + "9" * 10_000, "a" + ".a" * 50_000 + " = 1"],
)
def test_settings_beyond_all_measure_are_one_clear_line(tmp_path, text):
    (tmp_path / "pronto.toml").write_text(text)

    with pytest.raises(SettingsError, match=r"pronto\.toml"):
        read_file(tmp_path / "pronto.toml")
