"""Recorded traces: what is read, what is dropped and counted, what is refused."""

from __future__ import annotations

import gzip
import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prontosched.errors import TelemetryError
from prontosched.telemetry.source import samples
from prontosched.telemetry.trace import Chunk, TraceSource, open_trace

pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
pa = pytest.importorskip("pyarrow")


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def everything(source: TraceSource) -> list[Chunk]:
    return list(source.chunks(rows=10_000))


def test_a_csv_row_becomes_a_sample_of_its_node(tmp_path: Path) -> None:
    path = write(tmp_path / "web1.csv", "timestamp,ready,utilisation,a,b", "100,1.5,40,1,2", "101,2.5,50,3,4")

    first, second = list(samples(open_trace(path)))

    (sample,) = second
    assert (sample.node, sample.metrics, sample.timestamp) == ("web1", ("a", "b"), 101.0)
    assert (sample.ready, sample.utilisation) == (2.5, 50.0)
    assert sample.vector.tolist() == [3.0, 4.0]
    assert sample.metrics is first[0].metrics


def test_reading_past_the_end_raises_eof(tmp_path: Path) -> None:
    source = open_trace(write(tmp_path / "t.csv", "a", "1"))
    source.read()

    with pytest.raises(EOFError, match="trace has ended"):
        source.read()


def test_csv_gzip_and_parquet_give_the_same_numbers(tmp_path: Path, rng: np.random.Generator) -> None:
    numbers = rng.normal(size=(500, 3))
    lines = [
        "timestamp,a,b,ready",
        *(f"{t},{x!r},{y!r},{z!r}" for t, (x, y, z) in enumerate(numbers.tolist())),
    ]
    plain = write(tmp_path / "t.csv", *lines)
    packed = tmp_path / "u.csv.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    table = {"timestamp": np.arange(500.0), "a": numbers[:, 0], "b": numbers[:, 1], "ready": numbers[:, 2]}
    pq.write_table(pa.table(table), tmp_path / "v.parquet", row_group_size=64)

    (one,), (two,), (three,) = (everything(open_trace(p)) for p in (plain, packed, tmp_path / "v.parquet"))

    for other in (two, three):
        np.testing.assert_array_equal(one.vectors, other.vectors)
        np.testing.assert_array_equal(one.ready, other.ready)
        np.testing.assert_array_equal(one.timestamps, other.timestamps)


@pytest.mark.parametrize("rows", [1, 7, 4096, 10_000])
def test_chunks_of_any_size_join_to_the_whole_trace(tmp_path: Path, rows: int) -> None:
    path = write(tmp_path / "t.csv", "a,b", *(f"{i},{-i}" for i in range(5000)))
    source = open_trace(path)

    chunks = list(source.chunks(rows))

    assert np.concatenate([c.vectors[:, 0] for c in chunks]).tolist() == list(range(5000))
    assert [c.start for c in chunks] == list(range(0, 5000, rows))
    assert all(len(c) == rows for c in chunks[:-1])


def test_many_nodes_in_one_file_are_told_apart(tmp_path: Path) -> None:
    rows = [f"{t},{node},{10 * t + int(node[1])}" for t in range(4) for node in ("n1", "n2", "n3")]
    source = open_trace(write(tmp_path / "fleet.csv", "timestamp,node,a", *rows))

    chunks = {chunk.node: chunk for chunk in everything(source)}

    assert source.nodes == ("n1", "n2", "n3")
    assert chunks["n2"].vectors[:, 0].tolist() == [2.0, 12.0, 22.0, 32.0]
    steps = list(samples(source))
    assert [[s.node for s in step] for step in steps] == [["n1", "n2", "n3"]] * 4


def test_files_of_several_nodes_are_merged_by_time(tmp_path: Path) -> None:
    early = write(tmp_path / "early.csv", "timestamp,a", "10,1", "20,2", "30,3")
    late = write(tmp_path / "late.csv", "timestamp,a", "20,4", "30,5", "40,6")

    steps = list(samples(open_trace([early, late])))

    assert [[(s.node, s.vector[0]) for s in step] for step in steps] == [
        [("early", 1.0)],
        [("early", 2.0), ("late", 4.0)],
        [("early", 3.0), ("late", 5.0)],
        [("late", 6.0)],
    ]


def test_aligned_gives_all_nodes_side_by_side(tmp_path: Path) -> None:
    long = write(tmp_path / "long.csv", "a", *map(str, range(10)))
    short = write(tmp_path / "short.csv", "a", *map(str, range(6)))

    blocks = list(open_trace([long, short]).aligned(rows=4))

    assert [[(c.node, len(c)) for c in block] for block in blocks] == [
        [("long", 4), ("short", 4)],
        [("long", 4), ("short", 2)],
        [("long", 2)],
    ]


def test_part_files_of_a_folder_are_one_trace(tmp_path: Path) -> None:
    folder = tmp_path / "host.csv.parts"
    folder.mkdir()
    write(folder / "part-00001.csv", "timestamp,a", "3,3", "4,4")
    write(folder / "part-00000.csv", "timestamp,a", "1,1", "2,2")

    (by_folder,) = everything(open_trace(folder))
    (by_name,) = everything(open_trace(tmp_path / "host.csv"))

    assert by_folder.node == by_name.node == "host"
    assert by_folder.vectors[:, 0].tolist() == by_name.vectors[:, 0].tolist() == [1.0, 2.0, 3.0, 4.0]


def test_other_files_of_a_folder_are_a_node_each(tmp_path: Path) -> None:
    for name in ("x", "y"):
        write(tmp_path / f"{name}.csv", "a", "1")

    assert open_trace(tmp_path).nodes == ("x", "y")


def test_the_ready_column_is_never_a_metric_and_excluded_columns_are_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "load_1,load_5,cpu_r,disk", "0.5,0.4,30,7")

    source = open_trace(path, ready="load_1", exclude=["load_*"], utilisation="cpu_r")
    (sample,) = source.read()

    assert source.metrics == ("cpu_r", "disk")
    assert (sample.ready, sample.utilisation) == (0.5, 30.0)


def test_unsorted_and_repeated_rows_are_dropped_and_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "timestamp,a", "1,1", "2,2", "2,9", "1,9", "3,3", ",9", "4,4")
    source = open_trace(path)

    (chunk,) = everything(source)

    assert chunk.vectors[:, 0].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert dict(source.counts.dropped) == {
        "no timestamp": 1,
        "timestamp before that of an earlier row": 1,
        "timestamp seen before": 1,
    }
    assert source.counts.kept == 4
    assert "1 of 7 rows dropped: timestamp seen before" in source.counts.warnings()


def test_a_file_sorted_backwards_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "timestamp,a", *(f"{9 - i},{i}" for i in range(9)))

    with pytest.raises(TelemetryError, match=r"t\.csv: timestamps must ascend, got 8 of the first 9 rows"):
        everything(open_trace(path))


def test_gaps_are_counted_and_nothing_is_lost(tmp_path: Path) -> None:
    source = open_trace(write(tmp_path / "t.csv", "timestamp,a", "1,1", "2,1", "3,1", "60,1", "61,1"))

    (chunk,) = everything(source)

    assert (len(chunk), source.counts.gaps, source.interval_seconds) == (5, 1, 1.0)
    assert source.counts.warnings() == ["1 gap in time"]


def test_text_in_a_number_is_unknown_and_counted(tmp_path: Path) -> None:
    source = open_trace(write(tmp_path / "t.csv", "a,b", "1,2", "n/a,4", ",6", "inf,8"))

    (chunk,) = everything(source)

    np.testing.assert_array_equal(chunk.vectors[:, 0], [1.0, math.nan, math.nan, math.nan])
    assert chunk.vectors[:, 1].tolist() == [2.0, 4.0, 6.0, 8.0]
    assert dict(source.counts.cells) == {"text in a number": 1, "infinite": 1}


def test_cpu_ready_below_zero_is_unknown_and_said_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "n.csv"
    path.write_text("timestamp,load,ready\n1,5,3\n2,-5,-0.5\n3,5,0\n4,5,-1e9\n")
    source = open_trace(path)

    (chunk,) = source.chunks()

    np.testing.assert_array_equal(chunk.ready, [3.0, np.nan, 0.0, np.nan])
    assert chunk.vectors[1].tolist() == [-5.0]
    assert source.counts.warnings() == ["2 cells taken as unknown: CPU Ready below 0"]


def test_a_column_of_text_is_left_out_and_named(tmp_path: Path) -> None:
    source = open_trace(write(tmp_path / "t.csv", "a,rack", "1,north", "2,south"))
    everything(source)

    assert source.metrics == ("a",)
    assert source.counts.warnings() == ["'rack': left out, not numbers"]


def test_rows_with_a_wrong_number_of_cells_are_dropped_and_counted(tmp_path: Path) -> None:
    source = open_trace(write(tmp_path / "t.csv", "a,b", "1,2", "3", "4,5,6", "7,8"))

    (chunk,) = everything(source)

    assert chunk.vectors.tolist() == [[1.0, 2.0], [7.0, 8.0]]
    assert source.counts.dropped["wrong number of cells"] == 2


def test_a_quoted_header_with_semicolons_is_understood(tmp_path: Path) -> None:
    source = open_trace(write(tmp_path / "t.csv", '"CPU usage [%]";"Memory"', "1;2"))

    assert source.metrics == ("CPU usage [%]", "Memory")
    assert source.read()[0].vector.tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1700000000", 1_700_000_000.0),
        ("1700000000000", 1_700_000_000.0),
        ("2023-11-14T22:13:20", 1_700_000_000.0),
        ("2023-11-14 23:13:20+01:00", 1_700_000_000.0),
    ],
)
def test_times_are_understood_in_common_forms(tmp_path: Path, text: str, seconds: float) -> None:
    assert open_trace(write(tmp_path / "t.csv", "timestamp,a", f"{text},1")).read()[0].timestamp == seconds


def test_an_infinite_timestamp_is_none_and_hides_no_later_row(tmp_path: Path) -> None:
    source = open_trace(write(tmp_path / "t.csv", "timestamp,a", "1,1", "inf,2", "inf,3", "2,4", "-inf,5"))

    (chunk,) = everything(source)

    assert chunk.vectors[:, 0].tolist() == [1.0, 4.0]
    assert source.counts.dropped == {"no timestamp": 3}


def test_parquet_timestamps_nulls_and_text_are_understood(tmp_path: Path) -> None:
    times = pa.array([1_700_000_000_000, 1_700_000_001_000], pa.timestamp("ms"))
    table = pa.table({"timestamp": times, "a": [1, None], "b": [True, False], "os": ["x", "y"]})
    pq.write_table(table, tmp_path / "t.parquet")
    source = open_trace(tmp_path / "t.parquet")

    (chunk,) = everything(source)

    assert chunk.timestamps.tolist() == [1_700_000_000.0, 1_700_000_001.0]
    np.testing.assert_array_equal(chunk.vectors, [[1.0, 1.0], [math.nan, 0.0]])
    assert source.metrics == ("a", "b")


def test_columns_that_change_between_files_are_unknown_where_missing(tmp_path: Path) -> None:
    one = write(tmp_path / "one.csv", "a,b", "1,2")
    two = write(tmp_path / "two.csv", "b,c", "3,4")
    source = open_trace([one, two])

    first, second = everything(source)

    np.testing.assert_array_equal(first.vectors, [[1.0, 2.0, math.nan]])
    np.testing.assert_array_equal(second.vectors, [[math.nan, 3.0, 4.0]])
    assert source.counts.warnings() == ["'a', 'c': in only some of the 2 files, unknown elsewhere"]


@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        (["a,b", "1,2"], {"ready": "cpu_ready"}, "no column 'cpu_ready' among 'a', 'b'"),
        (["a,a", "1,2"], {}, "column names must differ, got 'a'"),
        (["1,2", "3,4"], {}, "first line must name the columns, got numbers"),
        ([""], {}, "must start with a line of column names"),
        (["a,b"], {}, "at least one row, got only a header"),
        (["a,b", ",", ","], {}, "no metric has a single number in 2 rows"),
        (["a,ready", "1,high"], {}, "column 'ready' must hold numbers, got text"),
        (["a", "1"], {"exclude": ["*"]}, "at least one column of numbers, got none left"),
    ],
)
def test_what_cannot_be_a_trace_is_refused_in_one_line(
    tmp_path: Path, lines: list[str], options: dict[str, str], message: str
) -> None:
    path = write(tmp_path / "t.csv", *lines)

    with pytest.raises(TelemetryError, match=message) as caught:
        everything(open_trace(path, **options))  # type: ignore[arg-type]
    assert "t.csv" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_parquet_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", "a,b")

    with pytest.raises(TelemetryError, match=r"t\.parquet: not a whole Parquet file"):
        open_trace(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TelemetryError, match="no such file"):
        open_trace(tmp_path / "nothing.csv")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_memory_does_not_grow_with_the_length_of_a_trace(tmp_path: Path, suffix: str) -> None:
    peaks = []
    for rows in (8192, 8 * 8192):
        path = tmp_path / f"{rows}.{suffix}"
        if suffix == "csv":
            path.write_text("a,b,c\n" + "1.5,2.5,3.5\n" * rows)
        else:
            column = np.linspace(0.0, 1.0, rows)
            pq.write_table(pa.table({"a": column, "b": column, "c": column}), path, row_group_size=8192)
        source = open_trace(path)
        tracemalloc.start()
        total = sum(len(chunk) for chunk in source.chunks())
        peaks.append(tracemalloc.get_traced_memory()[1] + pa.default_memory_pool().max_memory())
        tracemalloc.stop()
        assert total == rows

    assert peaks[1] < 2 * peaks[0] + 1_000_000


def test_one_row_is_a_trace(tmp_path: Path) -> None:
    (chunk,) = everything(open_trace(write(tmp_path / "t.csv", "timestamp,a", "5,1")))

    assert (len(chunk), chunk.start) == (1, 0)


def test_production_servers_are_read_whole(shared_data: Path) -> None:
    files = sorted((shared_data / "data" / "smd").glob("machine-*.parquet"))[:2]
    source = open_trace(files, ready="load_1", exclude=["load_*", "minute", "split", "anomaly_label"])

    rows = {node: sum(len(c) for c in source.chunks() if c.node == node) for node in source.nodes}

    assert rows == {"machine-1-2": 47388, "machine-1-3": 47405}
    assert len(source.metrics) == 35
    assert source.counts.warnings() == []


CELLS = st.sampled_from(
    ["1", "-2.5", "", "nan", "inf", "x", '"', '"a,b"', "1e999", "0x1", "\u00e9", "2020-01-01"]
)


@given(
    header=st.lists(st.sampled_from(["a", "b", "timestamp", "node", "ready", "", "7"]), max_size=5),
    rows=st.lists(st.lists(CELLS, max_size=6), max_size=12),
    separator=st.sampled_from([",", ";", "\t"]),
)
@settings(max_examples=150, deadline=None)
def test_any_text_is_read_with_every_row_accounted_for_or_refused(
    tmp_path_factory: pytest.TempPathFactory, header: list[str], rows: list[list[str]], separator: str
) -> None:
    path = tmp_path_factory.mktemp("any") / "t.csv"
    path.write_text("\n".join(separator.join(cells) for cells in [header, *rows]) + "\n")
    try:
        source = open_trace(path)
        kept = sum(len(chunk) for chunk in source.chunks())
    except TelemetryError as error:
        refusal = str(error)
    else:
        refusal = ""

    if refusal:
        assert "t.csv" in refusal
    else:
        assert kept == source.counts.kept
        assert source.counts.rows == kept + source.counts.dropped.total()


@given(st.binary(max_size=300))
@settings(max_examples=60, deadline=None)
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder = tmp_path_factory.mktemp("any")
    for name in ("t.csv", "t.csv.gz", "t.parquet"):
        (folder / name).write_bytes(data)
        refusal = name
        try:
            everything(open_trace(folder / name))
        except TelemetryError as error:
            refusal = str(error)

        assert name in refusal


def test_a_damaged_gzip_file_is_refused(tmp_path: Path) -> None:
    whole = gzip.compress(b"a,b\n" + b"1,2\n3,4\n" * 20_000)
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 0xFF
    for data in (whole[: len(whole) // 2], bytes(damaged)):
        (tmp_path / "t.csv.gz").write_bytes(data)

        with pytest.raises(TelemetryError, match=r"t\.csv\.gz: cannot be read"):
            everything(open_trace(tmp_path / "t.csv.gz"))
