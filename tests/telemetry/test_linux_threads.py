"""Waiting time per thread, read whole and sampled, on a made-up folder of processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from prontosched.telemetry.linux.threads import ThreadScanner, Waiting


class Processes:
    """Threads whose waiting time a test sets, in nanoseconds."""

    def __init__(self, root: Path, threads: int, per_process: int = 20) -> None:
        self.root = root
        self.paths: dict[int, Path] = {}
        for number in range(1000, 1000 + threads):
            leader = number - (number - 1000) % per_process
            folder = root / str(leader) / "task" / str(number)
            folder.mkdir(parents=True)
            self.paths[number] = folder / "schedstat"
        self.waited = dict.fromkeys(self.paths, 0)
        self.wait(self.waited)

    def wait(self, more: dict[int, int]) -> None:
        for number, nanoseconds in more.items():
            self.waited[number] += nanoseconds
            self.paths[number].write_text(f"5 {self.waited[number]} 3\n")


def scanner_of(processes: Processes, stride: int = 1) -> ThreadScanner:
    scanner = ThreadScanner(str(processes.root), interval_seconds=1e9)
    scanner.stride = stride
    return scanner


def hold(scanner: ThreadScanner, stride: int) -> Waiting:
    scanner.stride = stride
    return scanner.scan()


def test_all_threads_are_summed(tmp_path: Path) -> None:
    processes = Processes(tmp_path, 40)
    scanner = scanner_of(processes)
    scanner.scan()
    processes.wait(dict.fromkeys(processes.paths, 1_000_000))

    seen = scanner.scan()

    assert seen.seconds == pytest.approx(0.040)
    assert (seen.threads, seen.processes, seen.born) == (40, 2, 0)
    scanner.close()


def test_the_sum_of_a_sample_is_right_on_average(tmp_path: Path, rng: np.random.Generator) -> None:
    processes = Processes(tmp_path, 160)
    scanner = scanner_of(processes)
    scanner.scan()
    true, estimated = 0.0, 0.0
    for _ in range(16):
        more = {number: int(rng.exponential(1e6)) for number in processes.paths}
        processes.wait(more)
        estimated += hold(scanner, 8).seconds
        true += sum(more.values()) / 1e9
    scanner.close()

    assert estimated == pytest.approx(true, rel=0.2)


def test_a_change_of_the_stride_is_no_contention(tmp_path: Path, rng: np.random.Generator) -> None:
    """Of few threads read twice in a row none stands for more than some others."""
    processes = Processes(tmp_path, 160)
    scanner = scanner_of(processes)
    scanner.scan()
    estimates = []
    for scan in range(300):
        processes.wait({int(rng.integers(1000, 1160)): 50_000_000})
        estimates.append(hold(scanner, 8 if scan % 2 else 7).seconds)
    scanner.close()

    assert max(estimates) <= 2 * 8 * 0.05


def test_a_single_waiting_thread_is_found_by_sampling_and_then_followed(tmp_path: Path) -> None:
    """Whatever group it is in, its turn comes within one round, and from then on it is read every time."""
    processes = Processes(tmp_path, 160)
    scanner = scanner_of(processes)
    scanner.scan()
    estimates = []
    for _ in range(30):
        processes.wait({1013: 500_000_000})
        estimates.append(hold(scanner, 8).seconds)
    scanner.close()

    assert estimates[-10:] == pytest.approx([0.5] * 10)


def test_of_many_processes_new_threads_are_looked_for_now_and_then(tmp_path: Path) -> None:
    """So that it costs no more than its share; what one met late has waited before is not of this moment."""
    processes = Processes(tmp_path, 160, per_process=1)
    scanner = ThreadScanner(str(tmp_path), interval_seconds=1e-3)
    scanner.scan()
    first = [hold(scanner, 8).listed for _ in range(3)]
    folder = tmp_path / "3000" / "task" / "3000"
    folder.mkdir(parents=True)
    (folder / "schedstat").write_text("1 250000000000 1\n")
    seen = [hold(scanner, 8)]
    while not seen[-1].listed:
        assert len(seen) < 10_000, "it must be looked for new threads at some time"
        seen.append(hold(scanner, 8))
    seen += [hold(scanner, 8) for _ in range(16)] + [hold(scanner, 1)]
    processes.wait({1000: 1_000_000})

    late = next(one for one in seen if one.listed)
    assert first == [True, False, False]
    # One that was met after many scans is no storm of new ones.
    assert 0.0 < late.born <= 1 / len(seen[: seen.index(late)]) < 1.0
    assert [one.threads for one in (seen[-18], seen[-17])] == [161, 161]
    assert max(one.seconds for one in seen) == 0.0
    assert hold(scanner, 1).seconds == pytest.approx(0.001)
    scanner.close()


def test_new_threads_are_looked_for_while_the_kernel_counts_more(tmp_path: Path) -> None:
    processes = Processes(tmp_path, 20)
    scanner = scanner_of(processes)
    scanner.scan(20.0)
    for number, leader in ((3000, 3000), (1090, 1000)):
        folder = tmp_path / str(leader) / "task" / str(number)
        folder.mkdir(parents=True)
        (folder / "schedstat").write_text("1 250000000 1\n")
    processes.wait({1000: 1_000_000})

    before, process = scanner.scan(20.0), scanner.scan(21.0)
    processes.wait({1000: 1_000_000})
    both = scanner.scan(22.0)

    assert [seen.threads for seen in (before, process, both)] == [20, 21, 22]
    assert [seen.born for seen in (before, process, both)] == [0, 1, 1]
    assert both.seconds == pytest.approx(0.251)
    scanner.close()


def test_a_process_may_end_while_threads_are_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread was read in this scan; its folder goes before the list of processes is read, or just after."""
    processes = Processes(tmp_path, 60)
    scanner = scanner_of(processes)
    scanner.scan(60.0)
    processes.wait(dict.fromkeys(processes.paths, 1_000_000))

    def listdir(path: str) -> list[str]:
        shutil.rmtree(tmp_path / "1000", ignore_errors=True)
        found = os_listdir(path)
        shutil.rmtree(tmp_path / "1020", ignore_errors=True)
        return found

    os_listdir = os.listdir
    monkeypatch.setattr(os, "listdir", listdir)
    seen = scanner.scan(61.0)
    monkeypatch.undo()

    assert seen.seconds == pytest.approx(0.060)
    assert (seen.processes, seen.threads) == (1, 20)
    scanner.close()


def test_a_process_that_ended_is_noticed_though_none_is_new(tmp_path: Path) -> None:
    processes = Processes(tmp_path, 40)
    scanner = scanner_of(processes)
    scanner.scan(40.0)
    for path in sorted((tmp_path / "1020").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (tmp_path / "1020").rmdir()

    seen = scanner.scan(20.0)

    assert (seen.threads, seen.processes) == (20, 1)
    scanner.close()


def test_a_number_used_again_by_another_process_is_a_new_thread(tmp_path: Path) -> None:
    processes = Processes(tmp_path, 20)
    scanner = scanner_of(processes)
    processes.wait({1005: 9_000_000_000})
    scanner.scan()
    scanner.scan()
    for path in sorted((tmp_path / "1000").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (tmp_path / "1000").rmdir()
    scanner.scan()
    folder = tmp_path / "1000" / "task" / "1000"
    folder.mkdir(parents=True)
    (folder / "schedstat").write_text("1 250000000 1\n")

    assert scanner.scan().seconds == pytest.approx(0.25)
    scanner.close()


def test_threads_that_cannot_be_understood_are_left_out(tmp_path: Path) -> None:
    processes = Processes(tmp_path, 20)
    scanner = scanner_of(processes)
    scanner.scan()
    processes.wait({1003: 70_000_000})
    processes.paths[1004].write_text("nonsense")

    assert scanner.scan().seconds == pytest.approx(0.07)
    scanner.close()


def test_a_folder_that_is_gone_says_so(tmp_path: Path) -> None:
    scanner = ThreadScanner(str(tmp_path / "nothing"), interval_seconds=1.0)

    assert np.isnan(scanner.scan().seconds)
    assert scanner.trouble == "absent"


def test_reading_a_machine_imports_nothing_heavy() -> None:
    code = (
        "import sys; from prontosched.telemetry.linux import LinuxSource; "
        "print([m for m in ('pyarrow', 'pandas', 'scipy', 'aiohttp', 'asyncio', 'click') if m in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
