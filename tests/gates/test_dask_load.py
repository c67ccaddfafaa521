"""The Dask plugin under real CPU load: two worker processes, one of them on a CPU that others keep busy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from examples import dask_gate
from examples.dask_gate import TASKS, run, wait_until, waiting_share

# A worker is paused only where its chance is twice the other's.
CALM_SHARE = 0.4


@pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2 or not Path("/proc/self/schedstat").exists(),
    reason="needs two CPUs and the kernel's schedstat",
)
def test_tasks_avoid_the_worker_whose_cpu_is_really_busy_and_none_is_lost() -> None:
    others = sorted(os.sched_getaffinity(0))[1]
    everything = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {others})
    try:
        waited = min(waiting_share(0.2) for _ in range(5))
    finally:
        os.sched_setaffinity(0, everything)
    if waited > CALM_SHARE:
        pytest.skip(f"needs a CPU that others leave alone, got one that waits {waited:.0%} of the time")
    outcome = run()

    assert outcome.during.total() == TASKS
    assert outcome.during[outcome.paused] == 0
    assert outcome.after[outcome.paused] > 0


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_a_machine_on_which_no_worker_stands_out_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_gate, "run", lambda: wait_until(lambda: False, seconds=0.1))

    with pytest.raises(SystemExit, match=r"within 0\.1 s: where other work keeps both CPUs busy"):
        dask_gate.main()
