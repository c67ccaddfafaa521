"""The Dask plugin under real CPU load: two worker processes, one of them on a CPU that others keep busy."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from distributed import Client, LocalCluster, get_worker

from prontosched.integration.dask import ProntoPlugin
from prontosched.integration.gate import Verdict
from prontosched.integration.policy import Rules

# Enough that the loaded CPU stands out on a machine that is busy anyway.
BURNERS = 8
BURN_SECONDS = 60
RULES = Rules(
    min_hold_seconds=0, min_accept_seconds=0, observe_seconds=0, override_seconds=0, max_refusing=0.5
)


def waiting_share(spin_seconds: float = 0.02) -> float:
    """Return the share of time for which a thread that wants this CPU waits for it."""

    def read() -> tuple[int, int]:
        ran, waited, _ = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_text().split()
        return int(ran), int(waited)

    ran, waited = read()
    while read()[0] - ran < spin_seconds * 1e9:
        pass
    now_ran, now_waited = read()
    return (now_waited - waited) / max(1, now_ran - ran + now_waited - waited)


def measured(address: str) -> Verdict:
    share = waiting_share()
    return Verdict(share > 0.8, share, f"waits for the CPU {share:.0%} of the time", time.time() + 5.0)


def pin(cpu: int) -> None:
    os.sched_setaffinity(0, {cpu})  # threads begun from here on inherit it


def place(_: int) -> str:
    time.sleep(0.01)
    return str(get_worker().address)


@contextmanager
def load_on(cpu: int) -> Iterator[None]:
    code = (
        f"import os, time; os.sched_setaffinity(0, {{{cpu}}}); end = time.time() + {BURN_SECONDS}\n"
        "while time.time() < end: pass"
    )
    burners = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(BURNERS)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def wait_until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the workers never came to the expected state"
        time.sleep(0.05)


@pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2 or not Path("/proc/self/schedstat").exists(),
    reason="needs two CPUs and the kernel's schedstat",
)
def test_tasks_avoid_the_worker_whose_cpu_is_really_busy_and_none_is_lost() -> None:
    cpus = sorted(os.sched_getaffinity(0))[:2]
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster) as client,
    ):
        addresses = list(client.sync(client.scheduler.identity, n_workers=-1)["workers"])
        for address, cpu in zip(addresses, cpus, strict=True):
            client.run(pin, cpu, workers=[address])

        def paused() -> list[str]:
            listed = client.sync(client.scheduler.identity, n_workers=-1)["workers"]
            return [address for address, worker in listed.items() if worker["status"] == "paused"]

        def run(tasks: int) -> Counter[str]:
            return Counter(client.gather(client.map(place, range(tasks), pure=False)))

        client.register_plugin(ProntoPlugin(decide=measured, enforce=True, rules=RULES, interval_seconds=0.1))
        with load_on(cpus[0]):
            wait_until(lambda: len(paused()) == 1)
            # On a machine that is busy anyway the other CPU may be the worse one at times.
            loaded, during = paused(), run(20)
            while not loaded or paused() != loaded:
                loaded, during = paused(), run(20)
        wait_until(lambda: not paused())
        after = run(20)
        wait_until(lambda: set(after) == set(addresses) or bool(after.update(run(20))))

    assert during.total() == 20
    assert during[loaded[0]] == 0
