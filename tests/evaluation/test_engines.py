"""Workers die, traces are long: the numbers stay, and so does the memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prontosched.errors import SettingsError
from prontosched.evaluation.evaluate import run_parts
from prontosched.evaluation.generators import Control, plan_control
from prontosched.evaluation.inputs import Part, Setting
from prontosched.evaluation.record import ReplayRecord
from prontosched.evaluation.replay import PartResult, evaluate_part
from prontosched.pipeline.presets import make_fleet

SETTING = Setting(methods=("ready", "random"), truth="5%")


def same(one: list[PartResult], two: list[PartResult]) -> bool:
    pairs = [(a, b) for x, y in zip(one, two, strict=True) for a, b in zip(x.nodes, y.nodes, strict=True)]
    return bool(pairs) and all(
        a.node == b.node and np.array_equal(a.statistics, b.statistics, equal_nan=True) for a, b in pairs
    )


def children() -> list[int]:
    folder = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    return [int(pid) for pid in folder.read_text().split()] if folder.exists() else []


def alive(pid: int) -> bool:
    """Tell whether a process runs; one that has ended but was not yet fetched does not."""
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def test_a_killed_process_does_not_change_the_numbers() -> None:
    parts: list[Part] = plan_control("positive", nodes=9, steps=1200, seed=2).parts
    before = set(children())
    expected = [evaluate_part(part, SETTING) for part in parts]
    killed: list[int] = []

    def kill_one() -> None:
        deadline = time.monotonic() + 60
        while not killed and time.monotonic() < deadline:
            for pid in set(children()) - before:
                words = Path(f"/proc/{pid}/cmdline").read_bytes() if Path(f"/proc/{pid}").exists() else b""
                if b"spawn_main" in words:
                    time.sleep(0.3)
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)
                    return
            time.sleep(0.02)

    killer = threading.Thread(target=kill_one)
    killer.start()
    found = run_parts(parts, SETTING, workers=2)
    killer.join()

    assert killed
    assert same(found, expected)


LONG = """
import sys
from prontosched.cli import main
main(["evaluate", "--control", "negative", "--nodes", "8", "--steps", "400000", "--methods", "ready", "--workers", "2"])
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_worker_outlives_an_evaluation_that_is_stopped(number: signal.Signals) -> None:
    going = subprocess.Popen(
        [sys.executable, "-c", LONG],
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    folder = Path(f"/proc/{going.pid}/task/{going.pid}/children")
    deadline = time.monotonic() + 90
    workers: list[int] = []
    while len(workers) < 2 and time.monotonic() < deadline:
        workers = [
            int(pid)
            for pid in folder.read_text().split()
            if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        time.sleep(0.1)
    time.sleep(1.0)
    if number is signal.SIGINT:  # as a terminal does
        os.killpg(going.pid, number)
    else:
        going.send_signal(number)
    going.wait(timeout=60)

    while any(map(alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert workers
    assert not [pid for pid in workers if alive(pid)]


def test_a_killed_dask_worker_does_not_change_the_numbers() -> None:
    distributed = pytest.importorskip("distributed")
    parts: list[Part] = plan_control("positive", nodes=9, steps=1200, seed=2).parts
    expected = [evaluate_part(part, SETTING) for part in parts]
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0", silence_logs=50
    ) as cluster:
        victim = next(iter(cluster.workers.values())).pid
        timer = threading.Timer(0.5, os.kill, (victim, signal.SIGKILL))
        timer.start()
        found = run_parts(parts, SETTING, engine="dask", scheduler=cluster.scheduler_address)
        timer.join()

    assert same(found, expected)


def test_a_scheduler_that_does_not_answer_is_named() -> None:
    pytest.importorskip("distributed")
    with pytest.raises(SettingsError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:9"):
        run_parts([Control("positive", 1, 0, 1, 200)], SETTING, engine="dask", scheduler="tcp://127.0.0.1:9")


@pytest.mark.parametrize(
    "address", ["nonsense", "tcp://", "tcp://127.0.0.1:port", "http://127.0.0.1:9", "tcp://a:0"]
)
def test_an_address_that_is_none_is_refused_in_one_line(address: str) -> None:
    pytest.importorskip("distributed")
    arguments = ["evaluate", "--control", "positive", "--engine", "dask", "--scheduler", address]
    done = subprocess.run(
        [sys.executable, "-m", "prontosched", *arguments], capture_output=True, text=True, timeout=100
    )

    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "a scheduler's address must be such as tcp://10.0.0.4:8786" in line
    assert f"got '{address}'" in line


def test_progress_adds_up_to_the_rows() -> None:
    done: list[int] = []

    run_parts(
        plan_control("negative", nodes=5, steps=300, seed=1).parts, SETTING, workers=1, progress=done.append
    )

    assert sum(done) == 1500


def fill(steps: int) -> ReplayRecord:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("prontosched.evaluation.record.TAPE_BYTES", 50_000)
        record = ReplayRecord(SETTING, 1, 2)
    budgets = len(SETTING.budgets)
    generator = np.random.default_rng(1)
    ready = generator.random((steps, 2))
    for start in range(0, steps, 100):
        part = ready[start : start + 100]
        record.extend(
            ready=part,
            threshold=np.full(part.shape, 0.95),
            known=np.ones(part.shape, bool),
            gap=np.zeros(part.shape, bool),
            score=part[:, None],
            probability=np.full((len(part), 1, 2), np.nan),
            own=part[:, None] > 0.9,
            at_budgets=np.repeat((part > 0.9)[:, None, :, None], budgets, axis=3),
        )
    record.finish()
    return record


def test_a_record_of_a_long_trace_is_no_larger_than_that_of_a_shorter_one() -> None:
    short, long = fill(4_000), fill(16_000)

    assert len(long.segments) <= len(short.segments) * 2
    assert len(long.blocks) <= 64
    assert long.thinning > short.thinning >= 1


def test_counts_are_exact_however_long_the_trace() -> None:
    steps = 9_000
    total = {key: sum(block[key] for block in fill(steps).blocks) for key in ("valid", "paper_spikes")}
    ready = np.random.default_rng(1).random((steps, 2))

    assert (total["valid"] == steps - 5).all()
    assert np.array_equal(total["paper_spikes"], (ready >= 0.95).sum(axis=0))


PEAK = """
import resource, sys
from prontosched.evaluation import record
from prontosched.evaluation.generators import Control
from prontosched.evaluation.replay import evaluate_part
from prontosched.evaluation.inputs import Setting
record.TAPE_BYTES = 4_000_000  # full after 17,000 steps, so that a short run shows what a long one does
evaluate_part(Control("negative", 1, 0, 16, int(sys.argv[1])), Setting(methods=("ready",), truth="5%"))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.soak
def test_memory_does_not_grow_with_the_length_of_the_trace() -> None:
    def peak(steps: int) -> float:
        done: Any = subprocess.run([sys.executable, "-c", PEAK, str(steps)], capture_output=True, check=True)
        return float(done.stdout)

    assert peak(80_000) < 1.1 * peak(20_000)


@pytest.mark.soak
def test_evaluating_the_published_signal_costs_at_most_three_bare_fleets() -> None:
    """Ratio within one run, of processor time: a busy machine slows both."""
    steps, nodes, features = 4000, 64, 24
    part = Control("negative", 1, 0, nodes, steps)
    blocks = list(part.aligned(256))
    vectors = np.stack([np.concatenate([block[k].vectors for block in blocks]) for k in range(nodes)], axis=1)

    def bare() -> float:
        fleet = make_fleet("paper", nodes=nodes, features=features)
        began = time.process_time()
        for row in vectors:
            fleet.step(row)
        return time.process_time() - began

    def whole() -> float:
        began = time.process_time()
        evaluate_part(part, Setting(methods=("paper",), truth="5%"))
        return time.process_time() - began

    ratios = [whole() / bare() for _ in range(3)]
    assert min(ratios) <= 3.0
