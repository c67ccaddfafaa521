"""Recording: parts are closed regularly, joined in the end, and survive a kill."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from prontosched.cli import cli
from prontosched.errors import TelemetryError
from prontosched.recording import Recorder, join_parts, parts_folder, record
from prontosched.telemetry.probe import ProbeResult
from prontosched.telemetry.source import Sample
from prontosched.telemetry.trace import open_trace

FORMATS = ["csv", "parquet"]


def sample(step: int, node: str = "n", metrics: tuple[str, ...] = ("a", "b"), ready: float = 1.0) -> Sample:
    vector = np.array([float(step), math.nan][: len(metrics)])
    return Sample(node, metrics, vector, timestamp=1000.0 + step, ready=ready, utilisation=50.0)


class Steps:
    """A source that counts its readings."""

    name = "steps"

    def __init__(self, interval_seconds: float = 0.01, end: int = 10**9, slow: float = 0.0) -> None:
        self.interval_seconds = interval_seconds
        self.reads = 0
        self._end = end
        self._slow = slow

    def read(self) -> list[Sample]:
        self.reads += 1
        if self.reads > self._end:
            raise EOFError("over")
        time.sleep(self._slow)
        return [sample(self.reads)]

    def close(self) -> None:
        self.reads = -1


@pytest.mark.parametrize("suffix", FORMATS)
def test_what_is_recorded_is_read_back(tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"host.{suffix}"
    recorder = Recorder(out, part_seconds=0.0)
    for step in range(5):
        recorder.write([sample(step, "n1"), sample(10 + step, "n2")])

    assert recorder.finish() == 10
    source = open_trace(out)
    chunk = next(chunk for chunk in source.chunks() if chunk.node == "n2")
    assert source.nodes == ("n1", "n2")
    assert chunk.vectors[:, 0].tolist() == [10.0, 11.0, 12.0, 13.0, 14.0]
    assert np.isnan(chunk.vectors[:, 1]).all()
    assert chunk.ready.tolist() == [1.0] * 5
    assert not parts_folder(out).exists()


@pytest.mark.parametrize("suffix", FORMATS)
def test_metrics_that_come_and_go_are_unknown_elsewhere(tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"host.{suffix}"
    recorder = Recorder(out, part_seconds=3600)
    recorder.write([sample(1, metrics=("a",))])
    recorder.close_part()
    recorder.write([sample(2, metrics=("c",))])
    recorder.write([sample(3, metrics=("a",))])
    recorder.finish()

    source = open_trace(out)
    (chunk,) = source.chunks()

    assert source.metrics == ("a", "c")
    np.testing.assert_array_equal(chunk.vectors, [[1.0, math.nan], [math.nan, 2.0], [3.0, math.nan]])


@pytest.mark.parametrize("suffix", FORMATS)
def test_parts_are_readable_while_recording(tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"host.{suffix}"
    recorder = Recorder(out, part_seconds=0.0)
    recorder.write([sample(1)])
    recorder.write([sample(2)])

    (chunk,) = open_trace(out).chunks()

    assert chunk.vectors[:, 0].tolist() == [1.0, 2.0]


def test_an_open_part_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prontosched.recording.PART_CELLS", 10_000)
    wide = tuple(f"m{i}" for i in range(100))
    recorder = Recorder(tmp_path / "host.csv", part_seconds=3600)
    for step in range(101):
        recorder.write([Sample("n", wide, np.zeros(100), timestamp=float(step))])

    assert recorder.parts == 1


def test_a_source_may_reuse_its_buffer(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "host.csv")
    buffer = np.zeros(1)
    for step in range(3):
        buffer[0] = step
        recorder.write([Sample("n", ("a",), buffer, timestamp=float(step))])
    recorder.finish()

    (chunk,) = open_trace(tmp_path / "host.csv").chunks()
    assert chunk.vectors[:, 0].tolist() == [0.0, 1.0, 2.0]


def test_an_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "host.csv").write_text("precious")

    with pytest.raises(TelemetryError, match="exists already"):
        Recorder(tmp_path / "host.csv")


def test_a_cut_off_recording_is_not_overwritten(tmp_path: Path) -> None:
    Recorder(tmp_path / "host.csv", part_seconds=0.0).write([sample(1)])

    with pytest.raises(TelemetryError, match=r"cut off: join it with `pronto record --join .*host\.csv`"):
        Recorder(tmp_path / "host.csv")


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(TelemetryError, match="cannot be made"):
        Recorder(tmp_path / "file" / "host.csv")


def test_a_full_disk_is_one_line_and_says_what_is_safe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(tmp_path / "host.csv", part_seconds=3600)
    recorder.write([sample(1)])

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)

    with pytest.raises(TelemetryError, match=r"No space left on device\): 0 parts are safe"):
        recorder.close_part()


def test_a_disk_too_full_to_join_the_parts_leaves_them_and_nothing_half_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "host.csv"
    recorder = Recorder(out, part_seconds=3600)
    recorder.write([sample(1)])
    recorder.close_part()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(TelemetryError, match=r"No space left .* --join"):
            recorder.finish()

    assert sorted(path.name for path in tmp_path.iterdir()) == ["host.csv.parts"]
    assert join_parts(out) == 1


def test_a_name_without_a_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TelemetryError, match=r"must end in \.parquet or \.csv"):
        Recorder(tmp_path / "host.txt")


def test_recording_nothing_leaves_nothing(tmp_path: Path) -> None:
    assert Recorder(tmp_path / "host.csv").finish() == 0
    assert list(tmp_path.iterdir()) == []


def test_single_precision_halves_the_metrics_and_spares_the_time(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    recorder = Recorder(tmp_path / "host.parquet", single_precision=True)
    recorder.write([sample(1)])
    recorder.finish()

    kinds = {field.name: str(field.type) for field in pq.read_schema(tmp_path / "host.parquet")}

    assert kinds == {
        "timestamp": "double",
        "node": "string",
        "ready": "double",
        "utilisation": "double",
        "a": "float",
        "b": "float",
    }


def test_the_first_reading_is_not_recorded(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "host.csv")

    record(Steps(end=4), recorder)
    recorder.finish()

    (chunk,) = open_trace(tmp_path / "host.csv").chunks()
    assert chunk.vectors[:, 0].tolist() == [2.0, 3.0, 4.0]


def test_readings_keep_to_the_grid_however_long_one_takes(tmp_path: Path) -> None:
    """Shifted by every reading there would be seven in that time. A machine that is late itself is asked again."""
    for attempt in range(20):
        recorder = Recorder(tmp_path / f"host-{attempt}.csv")
        state = record(Steps(interval_seconds=0.05, slow=0.02), recorder, seconds=0.5)
        if not state.late:
            break

    assert state.timesteps == 10 or state.late


def test_late_readings_are_counted(tmp_path: Path) -> None:
    source = Steps(interval_seconds=0.02, slow=0.07)

    state = record(source, Recorder(tmp_path / "host.csv"), seconds=0.4)

    assert state.late >= 2
    assert state.timesteps < 10


def run_record(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "prontosched", "record", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_parts(folder: Path, count: int) -> None:
    end = time.monotonic() + 20
    while len(list(folder.glob("part-*"))) < count:
        assert time.monotonic() < end, "no part was closed in 20 s"
        time.sleep(0.02)


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="needs Linux")
def test_a_kill_loses_at_most_the_open_part(tmp_path: Path) -> None:
    out = tmp_path / "host.csv"
    with run_record(str(out), "--interval", "0.05", "--part", "0.2") as process:
        wait_for_parts(parts_folder(out), 3)
        process.send_signal(signal.SIGKILL)
        process.wait()
    closed = len(list(parts_folder(out).glob("part-*")))

    rows = sum(len(chunk) for chunk in open_trace(out).chunks())

    assert rows >= closed * 3
    assert join_parts(out) == rows


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="needs Linux")
def test_a_terminated_recording_is_joined(tmp_path: Path) -> None:
    out = tmp_path / "host.csv"
    with run_record(str(out), "--interval", "0.05", "--part", "0.2", "--json") as process:
        wait_for_parts(parts_folder(out), 1)
        process.send_signal(signal.SIGTERM)
        text, _ = process.communicate(timeout=60)

    facts = json.loads(text)
    assert process.returncode == 0
    assert facts["rows"] == sum(len(chunk) for chunk in open_trace(out).chunks()) > 0
    assert facts["metrics"] >= 120
    assert not parts_folder(out).exists()


def test_the_command_joins_what_was_cut_off(tmp_path: Path) -> None:
    out = tmp_path / "host.csv"
    Recorder(out, part_seconds=0.0).write([sample(1)])

    result = CliRunner().invoke(cli, ["record", str(out), "--join", "--json"])

    assert json.loads(result.stdout) == {"file": str(out), "rows": 1}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--source", "vsphere"], "needs one vCenter, got 0"),
        (["--source", "trace"], "a trace is recorded already"),
        (["--target", "host:1"], "--target goes with --source prometheus or vsphere"),
        (["--source", "prometheus", "--node", "x"], "--node goes with --source linux"),
    ],
)
def test_options_that_do_not_fit_the_source_are_refused(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    result = CliRunner().invoke(cli, ["record", str(tmp_path / "out.csv"), *arguments])

    assert result.exit_code == 2
    assert message in result.stderr
    assert list(tmp_path.iterdir()) == []


class Found:
    """A probe that finds something at every third reading."""

    def __init__(self) -> None:
        self.polls = 0

    def poll(self, now: float, *, ready: float) -> ProbeResult | None:
        self.polls += 1
        return ProbeResult(2.5, "", 0.05) if self.polls % 3 == 0 else None


@pytest.mark.parametrize("suffix", FORMATS)
def test_what_a_probe_suffered_is_a_column_and_no_metric(tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"host.{suffix}"
    recorder = Recorder(out, part_seconds=3600)
    state = record(Steps(end=9), recorder, probe=Found())  # type: ignore[arg-type]
    recorder.finish()

    plain, probed = open_trace(out), open_trace(out, ready="probe_slowdown")

    assert state.probes == 2
    assert "probe_slowdown" not in plain.metrics
    assert plain.metrics == ("a", "b")
    assert [float(v) for chunk in probed.chunks() for v in chunk.ready if v == v] == [2.5, 2.5]


def test_the_command_probes_this_machine_and_can_be_told_not_to(tmp_path: Path) -> None:
    out = [tmp_path / "with.csv", tmp_path / "without.csv"]
    runner = CliRunner()

    facts = [
        json.loads(runner.invoke(cli, ["record", str(path), "--for", "3", "--json", *more]).stdout)
        for path, more in zip(out, ([], ["--no-probe"]), strict=True)
    ]

    assert [found["probes"] for found in facts] == [1, 0]
    assert "probe_slowdown" in out[0].read_text().splitlines()[0]
    assert "probe_slowdown" not in out[1].read_text().splitlines()[0]
