from __future__ import annotations

import math
import os
import resource
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

from prontosched.agent.store.decision_log import DecisionLog, DecisionRow


def row(time, *, ready=1.0, raised=False, node="n1"):
    return DecisionRow(
        time, node, raised, not raised, 0.5, 1.0, ready, 20.0, math.nan, "busy" if raised else None
    )


def test_history_comes_back_in_buckets(tmp_path):
    log = DecisionLog(tmp_path / "d.sqlite")
    assert log.write([row(float(t), ready=float(t), raised=t >= 50) for t in range(100)])
    found = log.history("n1", 0.0, 100.0, 4)
    log.close()

    assert [point["timesteps"] for point in found] == [25, 25, 25, 25]
    assert [point["raised_share"] for point in found] == [0, 0, 1, 1]
    assert found[1]["ready_max"] == 49.0
    assert found[3]["reason"] == "busy"
    assert found[0]["expected_ready_max"] is None


def test_history_is_of_the_node_asked_for(tmp_path):
    log = DecisionLog(tmp_path / "d.sqlite")
    log.write([row(1.0), row(2.0, node="other")])
    found = log.history("other", 0.0, 10.0, 10)
    log.close()

    assert [point["time"] for point in found] == [2.0]


def test_rows_beyond_the_age_are_dropped(tmp_path):
    log = DecisionLog(tmp_path / "d.sqlite", max_age_seconds=100.0)
    for begin in range(0, 3100, 50):
        log.write([row(float(t)) for t in range(begin, begin + 50)])
    oldest = log.history("n1", 0.0, 1e9, 2000)[0]["time"]
    log.close()

    assert oldest >= 1300.0


def test_the_file_stays_below_its_bound_however_much_is_written(tmp_path):
    bound = 400_000
    log = DecisionLog(tmp_path / "d.sqlite", max_bytes=bound)
    sizes = []
    for begin in range(0, 40_000, 100):
        log.write([row(float(t), raised=True) for t in range(begin, begin + 100)])
        sizes.append(os.path.getsize(tmp_path / "d.sqlite"))
    newest = log.history("n1", 0.0, 40_000.0, 2000)[-1]
    log.close()

    assert max(sizes) < bound * 1.5
    assert newest["time"] + newest["timesteps"] == 40_000.0


def test_a_clock_that_jumps_back_does_not_keep_rows_for_ever(tmp_path):
    log = DecisionLog(tmp_path / "d.sqlite", max_bytes=200_000)
    log.write([row(1e9 + t) for t in range(100)])
    for begin in range(0, 20_000, 100):
        log.write([row(float(t)) for t in range(begin, begin + 100)])
    left = log.history("n1", 1e9, 1e9 + 1000, 10)
    log.close()

    assert left == []


def test_a_damaged_log_is_set_aside_and_begun_anew(tmp_path):
    path = tmp_path / "d.sqlite"
    path.write_bytes(b"this is not a database, whatever its name says" * 100)
    log = DecisionLog(path)
    assert log.write([row(1.0)])
    log.close()

    assert (tmp_path / "d.sqlite.corrupt").exists()


def test_a_log_of_a_newer_version_is_left_alone(tmp_path):
    path = tmp_path / "d.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("pragma user_version = 99")
    log = DecisionLog(path)
    assert not log.write([row(1.0)])
    log.close()

    assert "got 99: upgrade Pronto" in log.last_error
    assert not (tmp_path / "d.sqlite.corrupt").exists()


FILL = """
import math, sys
from pathlib import Path
from prontosched.agent.store.decision_log import MAX_WAITING_ROWS, DecisionLog, DecisionRow
log = DecisionLog(Path(sys.argv[1]) / "d.sqlite")
def row(t): return DecisionRow(float(t), "n1", True, False, 0.5, 1.0, 1.0, 20.0, math.nan, "x" * 100)
first_failure = None
for begin in range(0, 60_000, 500):
    if not log.write([row(t) for t in range(begin, begin + 500)]) and first_failure is None:
        first_failure = begin
print(first_failure, log.errors, log.lost, len(log._waiting) <= MAX_WAITING_ROWS)
"""


def _limit_files():
    resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))
    import signal

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def test_a_full_disk_costs_rows_and_nothing_else(tmp_path):
    """A real tiny file system where root may mount one, else files that may not grow."""
    mounted = os.geteuid() == 0 and (
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=700k", "tmpfs", str(tmp_path)],
            capture_output=True,
            check=False,
        ).returncode
        == 0
    )
    try:
        found = subprocess.run(
            [sys.executable, "-c", FILL, str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            preexec_fn=None if mounted else _limit_files,
        )
    finally:
        if mounted:
            subprocess.run(["umount", str(tmp_path)], check=True)
    first_failure, errors, lost, bounded = found.stdout.split()

    assert first_failure != "None"
    assert int(errors) > 10
    assert int(lost) > 0
    assert bounded == "True"


def test_writing_goes_on_after_the_disk_has_room_again(tmp_path):
    folder = tmp_path / "not-yet"
    folder.write_text("no folder")
    log = DecisionLog(folder / "d.sqlite")
    assert not log.write([row(1.0)])
    folder.unlink()
    assert log.write([row(2.0)])
    found = log.history("n1", 0.0, 10.0, 10)
    log.close()

    assert [point["time"] for point in found] == [1.0, 2.0]
    assert log.errors == 1


@pytest.mark.parametrize("points", [1, 7, 2000])
def test_never_more_points_than_asked_for(tmp_path, points):
    log = DecisionLog(tmp_path / "d.sqlite")
    log.write([row(t / 10) for t in range(3000)])
    found = log.history("n1", 0.0, 300.0, points)
    log.close()

    assert len(found) <= points
    assert sum(point["timesteps"] for point in found) == 3000
