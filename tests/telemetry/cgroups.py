"""A cgroup with a quota of its own, in v1 or v2, and a view of the machine that shows chosen processes alone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.processes import at_normal_priority

CPUS = os.cpu_count() or 1
V1, V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
# Ends by itself with the test that started it.
SPIN = (
    "import os, time\nend = time.monotonic() + 60\nwhile time.monotonic() < end and os.getppid() == {}: pass"
)


def _roots() -> dict[str, Path]:
    found = {}
    if (V1 / "cpu.cfs_quota_us").exists():
        found["v1"] = V1
    for root in (V2, V2 / "unified"):
        control = root / "cgroup.subtree_control"
        if control.exists() and "cpu" in (root / "cgroup.controllers").read_text().split():
            found["v2"] = root
    return found


@contextmanager
def quota(version: str, percent: float) -> Iterator[Path]:
    """Make a cgroup that may use so many percent of a CPU; skip where there is none of that version.

    It weighs more than all others, so that on a busy machine too its quota is what holds it back.
    """
    root = _roots().get(version)
    if root is None:
        pytest.skip(f"no cpu controller in cgroup {version}")
    folder = root / f"pronto-test-{os.getpid()}"
    try:
        if version == "v2":
            (root / "cgroup.subtree_control").write_text("+cpu")
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"a cgroup must be made for this test, got {error.strerror}: run as root")
    try:
        if version == "v1":
            (folder / "cpu.shares").write_text("262144")
            (folder / "cpu.cfs_quota_us").write_text(str(int(percent * 1000)))
        else:
            (folder / "cpu.weight").write_text("10000")
            (folder / "cpu.max").write_text(f"{int(percent * 1000)} 100000")
        yield folder
    finally:
        _remove(folder)


@contextmanager
def weighty() -> Iterator[Path | None]:
    """Make a cgroup that weighs more than all others, without a quota; None where that is not allowed."""
    root = next(iter(_roots().items()), None)
    if root is None or os.geteuid() != 0:
        yield None
        return
    with quota(root[0], 1e6) as folder:
        yield folder


def _remove(folder: Path) -> None:
    end = time.monotonic() + 10.0
    while True:
        try:
            folder.rmdir()
        except OSError:
            # Processes that were killed leave a moment later.
            assert time.monotonic() < end, f"{folder} must be empty by now"
            time.sleep(0.02)
        else:
            return


@contextmanager
def spinning(
    count: int, *, nice: int = 0, idle: bool = False, cgroup: Path | None = None
) -> Iterator[list[int]]:
    """Run processes that use a CPU each, as far as they get one; yields their numbers."""
    code = SPIN.format(os.getpid())
    processes = [subprocess.Popen([sys.executable, "-S", "-c", code]) for _ in range(count)]
    try:
        for process in processes:
            if nice or idle:
                os.setpriority(os.PRIO_PROCESS, process.pid, max(nice, os.getpriority(os.PRIO_PROCESS, 0)))
            else:
                at_normal_priority(process.pid)
            if idle:
                os.sched_setscheduler(process.pid, os.SCHED_IDLE, os.sched_param(0))
            if cgroup is not None:
                (cgroup / "cgroup.procs").write_text(str(process.pid))
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def view_of(root: Path, *processes: int) -> Path:
    """Make a root that shows these processes alone, the machine's cgroups, and no pressure or steal."""
    (root / "proc").mkdir(parents=True, exist_ok=True)
    cores = "".join(f"cpu{n} 0 0 0 0 0 0 0 0 0 0\n" for n in range(os.cpu_count() or 1))
    (root / "proc/stat").write_text(f"cpu  0 0 0 0 0 0 0 0 0 0\n{cores}ctxt 0\n")
    if not (root / "sys").exists():
        (root / "sys").symlink_to("/sys")
    for number in processes:
        # Made aside and renamed: a reader never meets half of it.
        (root / f"{number}.new").symlink_to(f"/proc/{number}")
        (root / f"{number}.new").rename(root / "proc" / str(number))
    return root
