"""The Dask plugin under real CPU load: two worker processes, one of them on a CPU that others keep busy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from examples.dask_gate import TASKS, run


@pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2 or not Path("/proc/self/schedstat").exists(),
    reason="needs two CPUs and the kernel's schedstat",
)
def test_tasks_avoid_the_worker_whose_cpu_is_really_busy_and_none_is_lost() -> None:
    outcome = run()

    assert outcome.during.total() == TASKS
    assert outcome.during[outcome.paused] == 0
    assert outcome.after[outcome.paused] > 0
