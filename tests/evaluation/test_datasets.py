"""Published data sets and vSphere exports, read as traces."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import numpy as np
import pytest

from prontosched.errors import TelemetryError
from prontosched.evaluation.datasets import READERS, open_dataset, recognise
from prontosched.evaluation.datasets.catalogue import CATALOGUE
from prontosched.evaluation.datasets.public import METRICS, RezolusFile, SmdFile
from prontosched.telemetry.trace.files import TraceCounts, Wanted

BITBRAINS_HEADER = (
    "Timestamp [ms];\tCPU cores;\tCPU capacity provisioned [MHZ];\tCPU usage [MHZ];\tCPU usage [%];\t"
    "Memory capacity provisioned [KB];\tMemory usage [KB];\tDisk read throughput [KB/s];\t"
    "Disk write throughput [KB/s];\tNetwork received throughput [KB/s];\tNetwork transmitted throughput [KB/s]"
)


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def bitbrains_row(time: int, usage: object = 12.5) -> str:
    return ";\t".join(
        str(cell) for cell in (time, 4, 11703.99, 10912.02, usage, 67108864, 6129274, 0, 1.5, 0.2, 3)
    )


def long_export(path: Path, rows: list[tuple[object, ...]], *, head: tuple[str, ...] | None = None) -> Path:
    names = head or ("MetricId", "Timestamp", "Value", "Unit", "IntervalSecs", "Instance", "Entity")
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, quoting=csv.QUOTE_ALL)
        writer.writerow(names)
        writer.writerows(rows)
    return path


def vm_rows(
    counter: str, values: list[object], node: str = "web-1", instance: str = ""
) -> list[tuple[object, ...]]:
    return [
        (counter, f"11/15/2026 9:0{at // 3}:{20 * (at % 3):02d} PM", value, "", 20, instance, node)
        for at, value in enumerate(values)
    ]


def test_smd_text_and_parquet_are_recognised_and_read_the_same(shared_data: Path, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    parquet = shared_data / "data" / "smd" / "machine-1-2.parquet"
    table = pq.read_table(parquet, columns=list(METRICS)).slice(0, 200)
    rows = zip(*(table.column(name).to_pylist() for name in METRICS), strict=True)
    text = write(tmp_path / "machine-1-2.txt", *(",".join(f"{value:.6f}" for value in row) for row in rows))
    sources = [open_dataset([path])[0] for path in (parquet, text)]
    first, second = (next(source.chunks(rows=200)) for source in sources)

    assert sources[0].metrics == sources[1].metrics
    np.testing.assert_allclose(first.vectors[:200], second.vectors, atol=1e-6)
    np.testing.assert_allclose(first.ready[:200], second.ready, atol=1e-6)
    assert np.diff(second.timestamps).tolist() == [60.0] * 199


def test_smd_takes_load_as_contention_and_keeps_no_load_average_among_the_metrics(shared_data: Path) -> None:
    source, unit = open_dataset(sorted((shared_data / "data" / "smd").glob("*.parquet")))

    assert (source.ready_column, unit, source.interval_seconds) == ("load_1", "other", 60.0)
    assert len(source.nodes) == 7
    assert len(source.metrics) == 35
    assert not [name for name in source.metrics if name.startswith("load_")]


def test_smd_rows_with_text_or_missing_cells_are_counted(tmp_path: Path) -> None:
    good = ",".join(["0.5"] * len(METRICS))
    odd = ",".join(["x"] + ["0.5"] * (len(METRICS) - 1))
    path = write(tmp_path / "machine-9-9.txt", good, odd, "0.5,0.5", good)
    source, _ = open_dataset([path])
    (chunk,) = source.chunks()

    assert len(chunk) == 3
    assert source.counts.dropped == {"wrong number of cells": 1}
    assert source.counts.cells == {"text in a number": 1}
    assert chunk.timestamps.tolist() == [0.0, 60.0, 180.0]


def test_one_huge_cell_of_smd_costs_only_itself(tmp_path: Path) -> None:
    good = ",".join(["0.5"] * len(METRICS))
    huge = ",".join(["0.5"] * (len(METRICS) - 1) + ["x" * 1_000_000])
    source, _ = open_dataset([write(tmp_path / "machine-9-9.txt", *[good] * 400, huge)])
    (chunk,) = source.chunks()

    assert len(chunk) == 401
    assert source.counts.cells == {"text in a number": 1}


def test_bitbrains_seconds_under_a_heading_of_milliseconds_are_seconds(tmp_path: Path) -> None:
    rows = [bitbrains_row(1376314846 + 300 * at) for at in range(4)]
    source, unit = open_dataset([write(tmp_path / "1.csv", BITBRAINS_HEADER, *rows)], ready="CPU usage [%]")
    (chunk,) = source.chunks()

    assert chunk.timestamps[0] == 1376314846.0
    assert (source.interval_seconds, unit) == (300.0, "other")
    assert chunk.ready.tolist() == [12.5] * 4
    assert "Network transmitted throughput [KB/s]" in source.metrics
    assert "CPU usage [%]" not in source.metrics


def test_bitbrains_gzipped_and_in_folders_of_the_same_names_stay_apart(tmp_path: Path) -> None:
    for month in ("2013-7", "2013-8"):
        (tmp_path / month).mkdir()
        text = "\n".join([BITBRAINS_HEADER, bitbrains_row(1376314846), bitbrains_row(1376315146)])
        with gzip.open(tmp_path / month / "1.csv.gz", "wt") as stream:
            stream.write(text)
    source, _ = open_dataset([tmp_path])

    assert source.nodes == ("2013-7/1", "2013-8/1")
    assert source.ready_column is None


def test_bitbrains_text_in_a_number_becomes_unknown_and_is_counted(tmp_path: Path) -> None:
    path = write(
        tmp_path / "1.csv", BITBRAINS_HEADER, bitbrains_row(1376314846, "n/a"), bitbrains_row(1376315146)
    )
    source, _ = open_dataset([path], ready="CPU usage [%]")
    (chunk,) = source.chunks()

    assert np.isnan(chunk.ready[0])
    assert source.counts.cells == {"text in a number": 1}


WESTERMO_HEADER = "timestamp,load-15m,load-1m,load-5m,sys-mem-available,sys-fork-rate,cpu-user,server-up"


def test_westermo_takes_load_as_contention_and_keeps_no_load_among_the_metrics(tmp_path: Path) -> None:
    rows = [f"{30 * at},0.2,{0.1 * at:.1f},0.3,8123456789,1.5,0.4,2" for at in range(5)]
    source, unit = open_dataset([write(tmp_path / "system-1.csv", WESTERMO_HEADER, *rows)])
    (chunk,) = source.chunks()

    assert (source.nodes, source.interval_seconds, unit) == (("system-1",), 30.0, "other")
    np.testing.assert_allclose(chunk.ready, [0.0, 0.1, 0.2, 0.3, 0.4])
    assert source.metrics == ("sys-mem-available", "sys-fork-rate", "cpu-user", "server-up")


def test_exathlon_has_the_clock_of_its_own_column_and_needs_a_ready_column(tmp_path: Path) -> None:
    delay = "driver_StreamingMetrics_streaming_lastCompletedBatch_totalDelay_value"
    header = f"t,{delay},node5_CPU_ALL_Idle%,1_executor_cpuTime_count"
    rows = [f"{1528876910 + at},{100 * at},{90 - at},{at}" for at in range(4)]
    path = write(tmp_path / "1_2_100000_68_16.csv", header, *rows)
    source, _ = open_dataset([path], ready=delay)
    (chunk,) = source.chunks()

    assert chunk.timestamps[0] == 1528876910.0
    assert chunk.ready.tolist() == [0.0, 100.0, 200.0, 300.0]
    assert source.metrics == ("node5_CPU_ALL_Idle%", "1_executor_cpuTime_count")
    assert open_dataset([path])[0].ready_column is None


def test_alibaba_has_no_header_many_machines_and_marks_for_wrong_values(tmp_path: Path) -> None:
    rows = [
        *("m_1932,10,41,92,,,43.04,33.08,5", "m_1932,20,42,92,1.5,2,43.05,33.09,101"),
        *("m_1933,10,-1,80,,,1.00,2.00,3", "m_1933,20,30,81,,,1.10,2.10,4"),
    ]
    source, _ = open_dataset([write(tmp_path / "machine_usage.csv", *rows)], ready="cpu_util_percent")
    one, other = sorted(source.chunks(), key=lambda chunk: chunk.node)

    assert source.nodes == ("m_1932", "m_1933")
    assert (one.timestamps.tolist(), one.ready.tolist()) == ([10.0, 20.0], [41.0, 42.0])
    assert np.isnan(other.ready[0])
    assert source.counts.cells["marked as wrong by the publisher"] == 2
    assert source.metrics == ("mem_util_percent", "mem_gps", "mkpi", "net_in", "net_out", "disk_io_percent")


def kth_trace(folder: Path, servers: list[str], clients: list[str]) -> Path:
    folder.mkdir()
    write(folder / "Y.csv", "TimeStamp,ReadsAvg,WritesAvg", *clients)
    return write(folder / "X_cluster.csv", "TimeStamp,0_cpu1_.idle,0_tcpsck,1_cpu1_.idle", *servers)


def test_kth_joins_what_clients_saw_to_the_metrics_of_the_servers(tmp_path: Path) -> None:
    servers = [f"{1480000000 + at},{90 - at},{at},50" for at in range(5)]
    clients = ["1480000001,20.5,61", "1480000003,22.5,63", "1480000000,19.5,60"]
    path = kth_trace(tmp_path / "KV-SingleApp-PeriodicLoad", servers, clients)
    source, unit = open_dataset([path], ready="ReadsAvg")
    (chunk,) = source.chunks()

    assert (source.interval_seconds, unit) == (1.0, "other")
    np.testing.assert_array_equal(chunk.ready, [19.5, 20.5, np.nan, 22.5, np.nan])
    assert source.metrics == ("0_cpu1_.idle", "0_tcpsck", "1_cpu1_.idle", "WritesAvg")
    np.testing.assert_array_equal(chunk.vectors[:, 0], [90, 89, 88, 87, 86])
    np.testing.assert_array_equal(chunk.vectors[:, 3], [60, 61, np.nan, 63, np.nan])


def test_kth_without_what_clients_saw_is_one_clear_line(tmp_path: Path) -> None:
    path = kth_trace(tmp_path / "KV", ["1480000000,90,1,50"], [])
    path.with_name("Y.csv").unlink()

    with pytest.raises(TelemetryError, match=r"must be beside it, in Y\.csv, got no such file"):
        open_dataset([path])


def matlab_cells(rows: list[list[object]]) -> np.ndarray:
    cells = np.empty((len(rows), len(rows[0])), dtype=object)
    for at, row in enumerate(rows):
        for place, cell in enumerate(row):
            cells[at, place] = cell
    return cells


def dbsherlock_case(first: float, names: list[str] | None = None) -> dict[str, object]:
    names = names or ["Epoch", "latency", "osCpu", "osCpu", "dbmsCumChangedRows"]
    data = np.column_stack([np.arange(1.0, 4.0), first + np.arange(3.0), *np.ones((len(names) - 2, 3))])
    return {"data": data, "field_names": matlab_cells([names])}


def test_dbsherlock_has_a_node_per_case_and_takes_latency_as_contention(tmp_path: Path) -> None:
    from scipy.io import savemat

    path = tmp_path / "dbsherlock_dataset_tpcc_16w.mat"
    narrow = dbsherlock_case(90.0, ["Epoch", "latency", "osCpu"])
    held = {
        "causes": matlab_cells([["Workload Spike", "I/O Saturation"]]),
        "test_datasets": matlab_cells(
            [[dbsherlock_case(10.0), dbsherlock_case(20.0)], [dbsherlock_case(30.0), narrow]]
        ),
    }
    savemat(path, held)
    source, unit = open_dataset([path])
    found = {chunk.node: chunk for chunk in source.chunks()}

    assert (source.ready_column, source.interval_seconds, unit) == ("latency", 1.0, "other")
    assert sorted(found) == ["I/O Saturation-1", "Workload Spike-1", "Workload Spike-2"]
    assert found["Workload Spike-2"].ready.tolist() == [20.0, 21.0, 22.0]
    assert found["Workload Spike-2"].timestamps.tolist() == [1.0, 2.0, 3.0]
    assert source.metrics == ("osCpu", "osCpu #3")
    assert source.counts.dropped == {"a case with other columns than the first": 3}


def test_a_matlab_file_of_something_else_is_one_clear_line(tmp_path: Path) -> None:
    from scipy.io import savemat

    savemat(tmp_path / "other.mat", {"x": np.eye(2)})
    (tmp_path / "broken.mat").write_bytes(b"MATLAB 5.0 and nothing more")

    for name in ("other.mat", "broken.mat"):
        with pytest.raises(TelemetryError, match=f"{name}: not a file of DBSherlock"):
            open_dataset([tmp_path / name])


def rezolus_recording(path: Path, columns: dict[str, tuple[dict[str, str], list[int]]]) -> Path:
    """Write a recording as rezolus does: opaque column names, metrics and labels in the metadata."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    fields, arrays = [], []
    for name, (labels, values) in columns.items():
        kind = pa.int64() if labels.get("metric_type") == "gauge" else pa.uint64()
        fields.append(pa.field(name, kind, metadata=labels))
        arrays.append(pa.array(values, kind))
    buckets = {"metric": "scheduler_runqueue_latency", "metric_type": "histogram"}
    fields.append(pa.field("9:buckets", pa.list_(pa.uint64()), metadata=buckets))
    arrays.append(pa.array([[1, 2]] * len(arrays[0]), pa.list_(pa.uint64())))
    pq.write_table(pa.Table.from_arrays(arrays, schema=pa.schema(fields)), path)
    return path


def counter(metric: str, **labels: str) -> dict[str, str]:
    return {"metric": metric, "metric_type": "counter", **labels}


def test_rezolus_counters_become_rates_summed_over_cpus_and_waiting_becomes_cpu_ready(tmp_path: Path) -> None:
    start, second = 1_700_000_000 * 10**9, 10**9
    path = rezolus_recording(
        tmp_path / "recording.parquet",
        {
            "timestamp": ({"metric_type": "timestamp"}, [start + at * second for at in range(4)]),
            # Past 2^53, where a float has no ones any more.
            "0x0": (
                counter("scheduler_runqueue_wait", id="0"),
                [2**60 + at * second // 10 for at in range(4)],
            ),
            "0x1": (
                counter("scheduler_runqueue_wait", id="1"),
                [0, second // 2, second // 2, second],
            ),
            "1x0": (counter("cpu_usage", id="0", state="user"), [0, second, 2 * second, 3 * second]),
            "1x1": (counter("cpu_usage", id="0", state="idle"), [0, second, 2 * second, 3 * second]),
            "2": ({"metric": "cpu_cores", "metric_type": "gauge"}, [2, 2, 2, 2]),
            "3x0": (counter("syscall", op="read", sampler="syscall_counts"), [10, 30, 5, 45]),
        },
    )
    source, unit = open_dataset([path])
    (chunk,) = source.chunks()

    assert (source.ready_column, unit, source.interval_seconds) == ("ready", "percent", 1.0)
    np.testing.assert_allclose(chunk.ready, [30.0, 5.0, 30.0], rtol=1e-6)
    np.testing.assert_allclose(chunk.utilisation, 50.0)
    assert source.metrics == ("cpu_usage_user", "cpu_usage_idle", "cpu_cores", "syscall_read")
    np.testing.assert_array_equal(chunk.vectors[:, 3], [20.0, np.nan, 40.0])
    assert chunk.timestamps.tolist() == [1_700_000_001.0, 1_700_000_002.0, 1_700_000_003.0]


def test_rezolus_is_read_alike_in_batches_of_any_size(tmp_path: Path) -> None:
    columns = {
        "timestamp": ({"metric_type": "timestamp"}, [10**18 + at * 10**9 for at in range(9)]),
        "a": (counter("scheduler_runqueue_wait"), [at * at * 10**7 for at in range(9)]),
        "b": ({"metric": "cpu_cores", "metric_type": "gauge"}, [1] * 9),
    }
    path = rezolus_recording(tmp_path / "recording.parquet", columns)
    file = RezolusFile(path)
    wanted = Wanted(("ready",), None, "timestamp")
    whole, parts = (
        np.concatenate([batch.numbers for batch in file.batches(wanted, size, TraceCounts())])
        for size in (100, 2)
    )

    np.testing.assert_allclose(whole[:, 0], [1.0 + 2.0 * at for at in range(8)])
    np.testing.assert_array_equal(whole, parts)


def test_the_catalogue_has_every_reader_and_the_page_has_the_catalogue() -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "datasets.md").read_text()

    assert {one.kind for one in CATALOGUE if one.kind} == {reader.kind for reader in READERS}
    for one in CATALOGUE:
        assert f"| {one.name} | {one.what} | {one.ready} | {one.where} | {one.licence} | {one.size} |" in page
        assert not one.kind or one.command.rpartition("; ")[2] in page.replace('"', "'"), one.name


def test_get_stat_export_becomes_one_row_per_vm_and_time(tmp_path: Path) -> None:
    rows = [
        *vm_rows("cpu.ready.summation", [400, 200, 1000]),
        *vm_rows("cpu.usage.average", [10.0, 20.0, 30.0]),
        *vm_rows("cpu.ready.summation", [100, 100, 100], node="db-1"),
    ]
    source, unit = open_dataset([long_export(tmp_path / "stats.csv", rows)])
    chunks = {chunk.node: chunk for chunk in source.chunks()}

    assert unit == "percent"
    assert chunks["web-1"].ready.tolist() == [2.0, 1.0, 5.0]
    assert chunks["db-1"].ready.tolist() == [0.5, 0.5, 0.5]
    assert source.metrics == ("cpu.usage.average",)
    assert np.isnan(chunks["db-1"].vectors).all()
    assert np.diff(chunks["web-1"].timestamps).tolist() == [20.0, 20.0]


def test_ready_is_per_cpu_where_the_export_names_the_cpus(tmp_path: Path) -> None:
    rows = [
        row for cpu in range(4) for row in vm_rows("cpu.ready.summation", [200, 400], instance=str(cpu))
    ] + vm_rows("cpu.usage.average", [50.0, 60.0])
    source, _ = open_dataset([long_export(tmp_path / "stats.csv", rows)])
    (chunk,) = source.chunks()

    assert chunk.ready.tolist() == [1.0, 2.0]


def test_no_ready_counter_stays_among_the_metrics_of_an_export(shared_data: Path, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    recorded = pq.read_table(shared_data / "data" / "vmware_govmomi" / "counters_long.parquet").to_pylist()
    rows = [
        (row["counter"], 1_700_000_000 + row["offset_s"], row["value"], row["unit"], row["entity"])
        for row in recorded
        if row["flavour"] == "vpx" and row["entity"] in ("Vm", "Host")
    ]
    path = long_export(tmp_path / "vpx.csv", rows, head=("MetricId", "Timestamp", "Value", "Unit", "Entity"))
    source, unit = open_dataset([path])
    chunks = {chunk.node: chunk for chunk in source.chunks()}

    assert (unit, source.interval_seconds, source.nodes) == ("percent", 20.0, ("Host", "Vm"))
    assert {len(chunk) for chunk in chunks.values()} == {100}
    assert 88 / 200 <= np.nanmin(chunks["Vm"].ready) <= np.nanmax(chunks["Vm"].ready) <= 271 / 200
    assert not [name for name in source.metrics if "ready" in name or "readiness" in name]


def test_get_stat_export_with_type_line_bad_cells_and_doubles_is_counted(tmp_path: Path) -> None:
    rows = vm_rows("cpu.ready.summation", [400, "?", 1000])
    path = long_export(
        tmp_path / "stats.csv",
        [
            *rows,
            rows[0],
            *vm_rows("mem.usage.average", [1, 1, 1]),
            ("cpu.ready.summation", "", 1, "", 20, "", "web-1"),
        ],
    )
    path.write_text(
        "#TYPE VMware.VimAutomation.ViCore.Impl\n" + path.read_text(encoding="utf-8"), encoding="utf-8"
    )
    source, _ = open_dataset([path], ready="cpu.ready.summation")
    ready = np.concatenate([chunk.ready for chunk in source.chunks()])

    np.testing.assert_array_equal(ready, [2.0, np.nan, 5.0])
    assert source.counts.dropped == {"no timestamp": 1, "counter given twice for one time": 1}
    assert source.counts.cells == {"text in a number": 1}


def test_times_with_the_day_first_are_understood_when_one_can_only_be_a_day(tmp_path: Path) -> None:
    rows = [("cpu.ready.summation", f"{day}.11.2026 00:00:00", 100, "a") for day in (11, 12, 13)]
    rows += [("mem.usage.average", f"{day}.11.2026 00:00:00", 100, "a") for day in (11, 12, 13)]
    path = long_export(tmp_path / "stats.csv", rows, head=("MetricId", "Timestamp", "Value", "Entity"))
    (chunk,) = open_dataset([path])[0].chunks()

    assert np.diff(chunk.timestamps).tolist() == [86_400.0, 86_400.0]


def test_one_column_per_counter_is_read_too(tmp_path: Path) -> None:
    path = write(
        tmp_path / "web-1.csv",
        "Time,cpu.ready.summation,cpu.usage.average",
        "2026-11-15T21:00:00Z,400,12",
        "2026-11-15T21:00:20Z,200,13",
        "2026-11-15T21:00:20Z,999,13",
    )
    source, _ = open_dataset([path])
    (chunk,) = source.chunks()

    assert (chunk.node, chunk.ready.tolist()) == ("web-1", [2.0, 1.0])
    assert source.counts.dropped == {"timestamp seen before": 1}


def test_chart_export_of_the_client_names_node_and_unit_in_its_headings(tmp_path: Path) -> None:
    path = write(
        tmp_path / "chart.csv",
        '"Time","Ready for web-1 (ms)","Usage for web-1 (%)"',
        '"11/15/2026, 9:00:00 PM","400","12.5"',
        '"11/15/2026, 9:00:20 PM","800","13.5"',
    )
    source, _ = open_dataset([path])
    (chunk,) = source.chunks()

    assert (chunk.node, chunk.ready.tolist(), source.metrics) == ("web-1", [2.0, 4.0], ("Usage",))


def test_esxtop_batch_output_becomes_one_node_per_vm(tmp_path: Path) -> None:
    names = [r"\\esx1\Group Cpu(1234:web-1)\% Ready", r"\\esx1\Group Cpu(1234:web-1)\% Used"]
    names += [r"\\esx1\Group Cpu(77:db-1)\% Ready", r"\\esx1\Group Memory(77:db-1)\Memory Size MBytes"]
    path = write(
        tmp_path / "esxtop.csv",
        ",".join(f'"{name}"' for name in ["(PDH-CSV 4.0) (UTC)(0)", *names]),
        '"11/15/2026 21:00:00","1.5","20","0.5","4096"',
        '"11/15/2026 21:00:05","2.5","30","0.7","4096"',
    )
    source, unit = open_dataset([path])
    ready = {chunk.node: chunk.ready.tolist() for chunk in source.chunks()}

    assert (ready, unit, source.interval_seconds) == (
        {"web-1": [1.5, 2.5], "db-1": [0.5, 0.7]},
        "percent",
        5.0,
    )


def test_a_trace_of_prontos_own_with_vsphere_names_is_no_export(tmp_path: Path) -> None:
    path = write(tmp_path / "own.csv", "timestamp,node,ready,cpu.usage.average", "1,a,2,3", "21,a,2,3")

    assert recognise(path) is None
    assert open_dataset([path])[0].ready_column == "ready"


def test_files_of_two_data_sets_are_refused_together(tmp_path: Path) -> None:
    one = write(tmp_path / "1.csv", BITBRAINS_HEADER, bitbrains_row(1376314846))
    two = write(tmp_path / "machine-9-9.txt", ",".join(["0.5"] * len(METRICS)))

    with pytest.raises(TelemetryError, match="all files must be of one data set, got bitbrains and smd"):
        open_dataset([one, two])


def test_plain_trace_among_data_sets_is_refused(tmp_path: Path) -> None:
    one = write(tmp_path / "1.csv", BITBRAINS_HEADER, bitbrains_row(1376314846))
    two = write(tmp_path / "own.csv", "timestamp,ready,a", "1,2,3")

    with pytest.raises(TelemetryError, match="got a plain trace among data sets"):
        open_dataset([one, two])


@pytest.mark.parametrize(
    ("name", "lines", "message"),
    [
        ("stats.csv", ["MetricId,Timestamp,Value,Entity"], "at least one row with a time, got none"),
        ("stats.csv", ["MetricId,Timestamp,Value,Entity", "cpu.ready.summation,soon,1,a"], "got none"),
        ("web.csv", ["Time,cpu.ready.summation", "2026-11-15T21:00:00Z,x"], "must have a column of numbers"),
    ],
)
def test_export_without_anything_to_use_is_one_clear_line(
    tmp_path: Path, name: str, lines: list[str], message: str
) -> None:
    with pytest.raises(TelemetryError, match=message):
        open_dataset([write(tmp_path / name, *lines)])


def test_missing_file_and_empty_folder_are_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(TelemetryError, match=r"nowhere\.csv: no such file"):
        open_dataset([tmp_path / "nowhere.csv"])
    with pytest.raises(TelemetryError, match="the folder must hold"):
        open_dataset([tmp_path])


def test_damaged_parquet_is_no_machine_of_smd(tmp_path: Path) -> None:
    path = tmp_path / "machine-1-1.parquet"
    path.write_bytes(b"PAR1 and nothing more")

    assert not SmdFile.recognises(path, "")
