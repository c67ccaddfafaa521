"""Two Dask workers, one on a CPU that gets busy for real: tasks go to the other until it is free again.

Run it with `python -m examples.dask_gate`; it takes about half a minute and needs two CPUs.
Each worker measures for itself how long it waits for its CPU (that is CPU Ready), and the
plugin, told to close workers (a veto), pauses it while that is most of the time and the
other worker is far better off. In a real cluster leave `decide` out: the plugin then asks
the agent on the worker's machine.
"""

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
from typing import NamedTuple

from distributed import Client, LocalCluster, get_worker

from prontosched.gates.dask import ProntoPlugin
from prontosched.gates.gate import Verdict
from prontosched.gates.policy import Rules

# Enough that the loaded CPU stands out on a machine that is busy anyway.
BURNERS = 8
BURN_SECONDS = 90
TASKS = 20
RULES = Rules(
    veto=True,
    min_hold_seconds=2,
    min_accept_seconds=0,
    observe_seconds=0,
    override_seconds=0,
    max_refusing=0.5,
)


class Outcome(NamedTuple):
    """Where tasks ran: while one worker was paused, and after the load was gone."""

    workers: list[str]
    paused: str
    during: Counter[str]
    after: Counter[str]


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
    """Decide for one worker by what it measures."""
    share = waiting_share()
    return Verdict(share > 0.8, share, f"waits for its CPU {share:.0%} of the time", time.time() + 5.0)


def pin(cpu: int) -> None:
    """Keep a worker to one CPU; the threads it begins from here on inherit that."""
    os.sched_setaffinity(0, {cpu})


def place(_: int) -> str:
    """Tell where a task ran."""
    time.sleep(0.01)
    return str(get_worker().address)


@contextmanager
def load_on(cpu: int) -> Iterator[None]:
    """Keep one CPU busy, for a minute and a half at most."""
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


def wait_until(condition: Callable[[], bool], seconds: float = 40.0) -> None:
    """Wait for `condition`, or give up."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"the workers did not come to the expected state within {seconds:g} s")
        time.sleep(0.05)


def run() -> Outcome:
    """Load one worker's CPU, run tasks, take the load away, run tasks again."""
    cpus = sorted(os.sched_getaffinity(0))[:2]
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster) as client,
    ):

        def listed() -> dict[str, str]:
            workers = client.sync(client.scheduler.identity)["workers"]
            return {address: worker["status"] for address, worker in workers.items()}

        def paused() -> list[str]:
            return [address for address, status in listed().items() if status == "paused"]

        def changes() -> int:
            return len(client.get_events("pronto"))

        def tasks() -> Counter[str]:
            return Counter(client.gather(client.map(place, range(TASKS), pure=False)))

        workers = list(listed())
        for address, cpu in zip(workers, cpus, strict=True):
            client.run(pin, cpu, workers=[address])
        # Tasks must not make it resume here, so that one can see where they go.
        plugin = ProntoPlugin(
            decide=measured, enforce=True, rules=RULES, interval_seconds=0.1, keep_capacity=False
        )
        client.register_plugin(plugin)
        with load_on(cpus[0]):
            # On a machine that is busy anyway the other CPU may be the worse one at times, and
            # the two take turns: only tasks between two changes tell something.
            held, before, during = [""], -1, Counter[str]()
            while changes() != before or len(held) != 1:
                wait_until(lambda: len(paused()) == 1)
                before, held, during = changes(), paused(), tasks()
        wait_until(lambda: not paused())
        after = tasks()
        wait_until(lambda: len(after) == 2 or bool(after.update(tasks())))
    return Outcome(workers, held[0], during, after)


def main() -> None:
    """Run and print a table."""
    if len(os.sched_getaffinity(0)) < 2 or not Path("/proc/self/schedstat").exists():
        sys.exit("this example needs two CPUs and a kernel with schedstat")
    try:
        outcome = run()
    except TimeoutError as error:
        sys.exit(
            f"{error}: where other work keeps both CPUs busy neither stands out; run it on a calmer machine"
        )
    print(f"{'worker':<28} {'tasks while busy':>17} {'tasks after':>12}")
    for address in outcome.workers:
        note = "  <- paused while its CPU was busy" if address == outcome.paused else ""
        print(f"{address:<28} {outcome.during[address]:>17} {outcome.after[address]:>12}{note}")


if __name__ == "__main__":
    main()
